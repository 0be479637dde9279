"""`python -m ci`: the command line of the build side."""

import signal

# Until `run_command` takes over, Ctrl-C ends this process without a traceback through our imports. A SIGINT
# that the caller ignores stays ignored.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from ci.cli import main

if __name__ == "__main__":
    main()
