"""Sends one file and prints the peak memory of this process: `send_one.py ADDRESS PATH TOKEN API`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.integration.publish.test_memory import send

if __name__ == "__main__":
    sys.stdout.write(str(send(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4])))
