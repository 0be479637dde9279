"""The extract of GitHub's description is what the pinned package says: made anew from it, and compared."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.conftest import require
from tests.fakes.github import make_shapes
from tests.fakes.github.shapes import Shapes


def test_the_extract_is_that_of_the_pinned_package(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    require(npm is not None, "npm fetches GitHub's description of its API")
    assert npm is not None
    wanted = f"{make_shapes.PACKAGE}@{make_shapes.locked()['version']}"
    argv = [npm, "pack", wanted, "--ignore-scripts", "--pack-destination", str(tmp_path)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"npm reaches its registry: {done.stderr[-500:]}")
    (archive,) = tmp_path.glob("*.tgz")
    assert make_shapes.SHAPES.read_bytes() == make_shapes.shapes_of(archive)


def test_a_request_of_another_form_is_noticed() -> None:
    shapes = Shapes()
    create = shapes.match("POST", "/repos/o/r/releases")
    upload = shapes.match("POST", "/repos/o/r/releases/7/assets")
    assert create is not None
    assert upload is not None
    shapes.check_request(create, {}, "application/json", {"tag": "c1"})
    shapes.check_request(create, {}, "application/json", {"tag_name": "c1", "draft": "yes"})
    shapes.check_request(upload, {}, "application/octet-stream", None)
    shapes.check_request(upload, {"name": "a"}, "text/plain", None)
    texts = " | ".join(shapes.breaches)
    for part in (
        "property tag is not",
        "'tag_name' is a required",
        "'yes' is not",
        "name is missing",
        "text/plain",
    ):
        assert part in texts
