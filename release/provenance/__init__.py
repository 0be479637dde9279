"""Where the files of a release come from: an in-toto statement (SLSA provenance v1) in a DSSE envelope.

Signed with the release's own Ed25519 key, so it can be checked offline with that key alone, by cosign, by
openssl, or by the few lines of code in `dsse`.
"""
