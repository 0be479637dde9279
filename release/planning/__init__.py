"""Deciding what a release will be, before anything is compiled: the plan, and the frozen source.

`make.make_plan` looks at the checkout, at what is built already and at the remote, and writes nothing. The
plan is one document (`model.Plan`); the SHA-256 of its bytes stands in the release index.
"""
