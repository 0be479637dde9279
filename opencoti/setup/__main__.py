"""Run `python -m opencoti.setup`."""

from opencoti.setup.cli import main

if __name__ == "__main__":
    main()
