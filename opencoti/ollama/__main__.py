"""Run `python -m opencoti.ollama`."""

from opencoti.ollama.cli import main

if __name__ == "__main__":
    main()
