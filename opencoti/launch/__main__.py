"""Run `python -m opencoti.launch`."""

from opencoti.launch.cli import main

if __name__ == "__main__":
    main()
