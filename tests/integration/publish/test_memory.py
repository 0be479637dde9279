"""Large files are streamed: memory does not grow with them. Sparse files, so that no disk is filled.

By hand with the real size: `python -m tests.integration.publish.test_memory 2147483647`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from opencoti.hashing import sha256_file
from release.remote.limits import Clock
from release.remote.model import LocalFile
from release.remote.settings import GitHubSettings
from release.remote.upload import Uploader
from tests.conftest import ROOT
from tests.fakes.github.server import GitHub

SENDER = Path(__file__).with_name("send_one.py")
LIMIT_BYTES = 100 << 20


def measure(folder: Path, size: int) -> tuple[int, int]:
    """Send a sparse file from a process of its own; return its peak memory and what arrived, in bytes."""
    path = folder / "sparse"
    with open(path, "wb") as file:
        file.truncate(size)
    with GitHub() as github:
        github.store.keep_bytes = False
        draft = github.store.publish_directly("c7", {}, is_draft=True)
        address = f"{github.upload_url}/repos/{github.repo}/releases/{draft.release_id}/assets"
        done = subprocess.run(
            [sys.executable, str(SENDER), address, str(path), github.token, github.api_url],
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        asset = draft.named("sparse")
        assert asset is not None
        assert asset.state == "uploaded"
        assert asset.sha256 == sha256_file(path)
        return int(done.stdout), asset.size


def send(address: str, path: Path, token: str, api_url: str) -> int:
    """Send a file; return the peak memory of this process in bytes."""
    file = LocalFile(name=path.name, path=path, size=path.stat().st_size, sha256=sha256_file(path))
    with Uploader(GitHubSettings(token=token, api_url=api_url), Clock()) as uploader:
        assert uploader.send(address, file, lambda sent: None).status == 201
    # Not getrusage: its peak takes in the process that this one was started from.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_memory_stays_small(tmp_path: Path) -> None:
    peak, size = measure(tmp_path, 192 << 20)
    assert size == 192 << 20
    assert peak < LIMIT_BYTES


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        found = measure(Path(name), int(sys.argv[1]))
        sys.stdout.write(f"{found[1]} bytes sent, peak memory {found[0] >> 20} MiB\n")
