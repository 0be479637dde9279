"""Run `python -m opencoti.doctor`."""

from opencoti.doctor.cli import main

if __name__ == "__main__":
    main()
