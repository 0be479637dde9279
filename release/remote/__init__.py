"""Places where releases are published: what they offer (`model`), GitHub (`github`), a folder (`folder`).

A remote does one thing per call and says how it failed; repeating, waiting and deciding is `release.publish`.
"""
