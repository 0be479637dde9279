"""Requests that wait for a slot (patch 0011)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ci.paths import Layout
from tests.e2e.conftest import EngineArtifact
from tests.e2e.models import one_slot
from tests.e2e.running import WORKS, Answer, Running, started
from tests.e2e.test_lazy_slots import prompt

pytestmark = pytest.mark.engine

_NO_TOKEN = 10**6
_DEFERRED = "unavailable, defer task|no slot is available, defer task"


def _erase(server: Running) -> Answer:
    return server.ask("/slots/0?action=erase", {})


def _refused(server: Running) -> Answer:
    return server.complete([1, 2, _NO_TOKEN], 1)


@pytest.mark.parametrize(("act", "status"), [(_erase, 200), (_refused, 400)], ids=["erase", "refused"])
def test_what_takes_no_slot_leaves_nobody_waiting(
    artifact: EngineArtifact,
    real_layout: Layout,
    tmp_path: Path,
    act: Callable[[Running], Answer],
    status: int,
) -> None:
    """One slot, and three that want it: the second uses up the wake-up that the first leaves."""
    words = one_slot(real_layout, tmp_path, "-lv", "5", "--slot-save-path", str(tmp_path))
    with started(artifact.path, *words, home=tmp_path) as server, ThreadPoolExecutor(3) as pool:
        first = pool.submit(server.complete, prompt(1, 12_000), 1)
        server.wait_for(WORKS)
        second = pool.submit(act, server)
        server.wait_for(_DEFERRED)
        third = pool.submit(server.complete, prompt(2, 50), 2)
        server.wait_for(_DEFERRED, count=2)
        assert (first.result().status, second.result().status) == (200, status)
        assert len(third.result().data["tokens"]) == 2
