"""Reads recorded answers with one client, prints the processor time of each: a part of the client bench.

A process of its own for each client, so that what one has loaded does not weigh on the other.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any

_MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]


def _with_ours(base: str) -> Callable[[], str]:
    from opencoti.client import Client

    client = Client(base)

    def read() -> str:
        with client.stream_chat(_MESSAGES) as stream:
            return "".join(chunk.text for chunk in stream)

    return read


def _with_openai(base: str) -> Callable[[], str]:
    import openai

    client = openai.OpenAI(base_url=f"{base}/v1", api_key="none", max_retries=0)

    def read() -> str:
        stream = client.chat.completions.create(model="tiny", messages=_MESSAGES, stream=True)
        return "".join((chunk.choices[0].delta.content or "") if chunk.choices else "" for chunk in stream)

    return read


CLIENTS = {"opencoti": _with_ours, "openai": _with_openai}


def main(argv: list[str]) -> None:
    """Read `argv[2]` answers from `argv[1]` with the client `argv[0]`, after one that does not count."""
    read = CLIENTS[argv[0]](argv[1])
    text = read()
    seconds = []
    for _ in range(int(argv[2])):
        gc.collect()
        started = time.process_time()
        same = read() == text
        seconds.append(time.process_time() - started)
        if not same:
            raise SystemExit("two readings of one recording differ")
    sys.stdout.write(json.dumps({"text": text, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1:])
