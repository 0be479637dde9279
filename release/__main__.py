"""`python -m release`: the command line of the release side."""

from release.cli import main

if __name__ == "__main__":
    main()
