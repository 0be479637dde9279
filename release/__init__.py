"""Making a release: signatures, checksums and the trust root, and later plan, staging and publishing.

May import `ci` and `opencoti`. What a client must also do (models, verification) lives in `opencoti`, so that
publisher and client share one code path. Importing the package loads nothing else.
"""
