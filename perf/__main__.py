"""`python -m perf`: the command line of the benches."""

from perf.cli import main

if __name__ == "__main__":
    main()
