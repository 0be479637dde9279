"""`python -m opencoti.fetch`: get the engine of this release onto this machine."""

from opencoti.fetch.cli import main

if __name__ == "__main__":
    main()
