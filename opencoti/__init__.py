"""The opencoti runtime: fetch, verify and run the inference engine on an end user's machine.

Importing this package loads nothing else. It never imports `ci`, `release` or `perf`.
"""

__version__ = "0.1.0"
