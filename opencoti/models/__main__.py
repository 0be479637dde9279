"""Run `python -m opencoti.models`."""

from opencoti.models.cli import main

if __name__ == "__main__":
    main()
