"""`python -m ci`: the command line of the build side."""

from ci.cli import main

if __name__ == "__main__":
    main()
