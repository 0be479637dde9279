"""Runs the jobs of our workflows on this machine. Imitates GitHub Actions as far as our workflows go.

Each job has a folder of its own that starts empty; artifacts are folders, which lose the modes of files as
there; outputs, `needs`, `if`, matrices and reusable workflows are honoured. The commands of a step are run by
bash as they are written. `stand_in.sh` stands in for environments, compilers and devices.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ci.paths import Layout
from tests.conftest import ROOT
from tests.fakes.github.server import GitHub
from tests.integration.workflows import model
from tests.integration.workflows.expressions import render

_FOLDER: Final = Path(__file__).parent
_STAND_INS: Final = ("python3", "noxw")
WORKFLOW_REF: Final = "mann1x/opencoti/.github/workflows/release.yml@refs/heads/main"


class JobFailedError(AssertionError):
    """A step ended with an error; the text has its output."""


@dataclass
class Job:
    """One job while it runs, or what is known of it afterwards."""

    result: str = "success"
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""


@dataclass
class Runner:
    """One run of a workflow.

    Attributes:
        home: everything is below it; `products` in it is what compilers would make.
        repository: what `actions/checkout` clones.
        inputs: what somebody typed into the form.
        secrets: those of the protected environment.
        ids: name of each artifact that is there by the id of its upload.
    """

    home: Path
    repository: Path
    github: GitHub
    inputs: dict[str, Any]
    secrets: dict[str, str]
    jobs: dict[str, Job] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    attested: dict[str, str] = field(default_factory=dict)
    wheels: list[Path] = field(default_factory=list)
    writes_before: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

    def run(self, workflow: str) -> None:
        """Run all jobs in the order of their needs; a failed one keeps others from running, as there."""
        document = model.load(workflow)
        self._run_jobs(document, self.inputs, self.jobs, prefix="")

    def overwrite(self, name: str) -> Path:
        """Upload an artifact anew under the name of another, as any job of a run may; return its folder.

        The old one is deleted by that, and with it its id.
        """
        self.ids = {number: known for number, known in self.ids.items() if known != name}
        self.ids[str(1000 + len(self.ids))] = name
        return self.artifacts / name

    def run_again(self, workflow: str, *names: str) -> None:
        """Run some jobs once more with what the first run left (`Re-run jobs`)."""
        document = model.load(workflow)
        for name in names:
            self.jobs[name] = self._run_job(name, document, self.inputs, self.jobs, name)

    def _run_jobs(
        self, document: dict[str, Any], inputs: dict[str, Any], jobs: dict[str, Job], prefix: str
    ) -> None:
        waiting = dict(document["jobs"])
        while waiting:
            name = next(name for name, data in waiting.items() if set(data.get("needs", ())) <= jobs.keys())
            del waiting[name]
            self.order.append(prefix + name)
            self.writes_before[prefix + name] = len(self.github.writes)
            jobs[name] = self._run_job(name, document, inputs, jobs, prefix + name)

    def _run_job(
        self, name: str, document: dict[str, Any], inputs: dict[str, Any], jobs: dict[str, Job], title: str
    ) -> Job:
        data = document["jobs"][name]
        needs = {need: jobs[need] for need in data.get("needs", ())}
        results = {job.result for job in needs.values()}
        known: dict[str, Any] = {
            "inputs": inputs,
            "needs": {need: {"result": job.result, "outputs": job.outputs} for need, job in needs.items()},
            "github": {"ref_protected": True, "token": self.github.token},
            "status": "failure" if "failure" in results else "success",
        }
        condition = data.get("if")
        if not (results <= {"success"} if condition is None else render(condition, known)):
            return Job(result="skipped")
        if "uses" in data:
            inner: dict[str, Job] = {}
            called = model.load(data["uses"].rpartition("/")[2])
            self._run_jobs(called, render(data["with"], known), inner, prefix=f"{title}/")
            ended = {job.result for job in inner.values()}
            log = "".join(job.log for job in inner.values())
            return Job(result="failure" if "failure" in ended else "success", log=log)
        done = Job()
        for number, row in enumerate(model.rows(data)):
            run = _JobRun(runner=self, name=f"{title}-{number}", document=document, data=data)
            run.run({**known, "matrix": row}, done)
        return done


@dataclass
class _JobRun:
    runner: Runner
    name: str
    document: dict[str, Any]
    data: dict[str, Any]

    def run(self, known: dict[str, Any], job: Job) -> None:
        """Run the steps; what they did goes into `job`."""
        folder = self.runner.home / "jobs" / self.name
        shutil.rmtree(folder, ignore_errors=True)
        self.workspace, self.temp = folder / "workspace", folder / "temp"
        self.workspace.mkdir(parents=True)
        self.temp.mkdir()
        self.steps: dict[str, Any] = {}
        secrets = self.runner.secrets if self.data.get("environment") == "release" else {}
        known["github"] |= {
            "workspace": str(self.workspace),
            "repository": self.runner.github.repo,
            "actor": "somebody",
        }
        known |= {"runner": {"temp": str(self.temp)}, "secrets": secrets, "steps": self.steps}
        for step in self.data["steps"]:
            is_wanted = render(step["if"], known) if "if" in step else known["status"] == "success"
            if not is_wanted:
                continue
            try:
                self._step(step, known, job)
            except JobFailedError as failure:
                known["status"] = job.result = "failure"
                job.log += f"{self.name}: {step['name']}\n{failure}\n"
        for key, value in self.data.get("outputs", {}).items():
            job.outputs[key] = render(value, known)

    def _step(self, step: dict[str, Any], known: dict[str, Any], job: Job) -> None:
        if "run" in step:
            outputs = self._command(step, known, job)
        else:
            action = step["uses"].partition("@")[0]
            outputs = self._actions()[action](render(step.get("with", {}), known)) or {}
        if "id" in step:
            self.steps[step["id"]] = {"outputs": outputs}

    def _command(self, step: dict[str, Any], known: dict[str, Any], job: Job) -> dict[str, str]:
        output = self.temp / "output"
        output.write_text("")
        environ = {
            name: str(value)
            for part in (self.document, self.data, step)
            for name, value in render(part.get("env", {}), known).items()
        }
        cwd = self.workspace / render(step.get("working-directory", "."), known)
        done = subprocess.run(
            # Programs that stand in are on the path; nox itself is named by its path in a checkout.
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"].replace("./noxw", "noxw")],
            cwd=cwd, env={**self._environment(output), **environ}, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        job.log += done.stderr
        if done.returncode != 0:
            raise JobFailedError(f"code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        lines = [line.partition("=") for line in output.read_text().splitlines()]
        return {name: value for name, _, value in lines}

    def _environment(self, output: Path) -> dict[str, str]:
        tools = self.temp / "tools"
        tools.mkdir(exist_ok=True)
        for name in _STAND_INS:
            shutil.copyfile(_FOLDER / "stand_in.sh", tools / name)
            (tools / name).chmod(0o755)
        return {
            "PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.temp / "home"),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_OUTPUT": str(output),
            "GITHUB_REPOSITORY": self.runner.github.repo,
            "GITHUB_WORKFLOW_REF": WORKFLOW_REF,
            "GITHUB_RUN_ID": "77",
            "GITHUB_API_URL": self.runner.github.api_url,
            "GITHUB_SERVER_URL": self.runner.github.url("download"),
            "OPENCOTI_MIRROR": self.runner.github.url("download"),
            "OPENCOTI_CACHE_DIR": str(self.temp / "client"),
            "REPLAY_TESTS": str(ROOT),
            "REPLAY_FOLDER": str(_FOLDER),
            "REPLAY_PYTHON": sys.executable,
            "REPLAY_PRODUCTS": str(self.runner.home / "products"),
            "REPLAY_CACHE": str(Layout.find().cache),
        }

    def _actions(self) -> Mapping[str, Callable[[dict[str, Any]], dict[str, str] | None]]:
        return {
            "actions/checkout": self._check_out,
            "actions/upload-artifact": self._upload,
            "actions/download-artifact": self._download,
            "actions/attest-build-provenance": self._attest,
            "pypa/gh-action-pypi-publish": self._publish_wheel,
        }

    def _check_out(self, words: dict[str, Any]) -> None:
        subprocess.run(
            ["git", "clone", "--quiet", self.runner.repository, self.workspace], check=True, timeout=120
        )

    def _upload(self, words: dict[str, Any]) -> dict[str, str]:
        patterns = [Path(self.workspace, line) for line in words["path"].split()]
        found = [path for pattern in patterns for path in _matches(pattern)]
        if not found:
            if words["if-no-files-found"] == "error":
                raise JobFailedError(f"nothing to upload at {words['path']}")
            return {}
        one = patterns[0]
        base = (
            one
            if len(patterns) == 1 and one.is_dir()
            else Path(os.path.commonpath([p.parent for p in found]))
        )
        target = self.runner.artifacts / words["name"]
        shutil.rmtree(target, ignore_errors=True)
        for path in found:
            copy = target / path.relative_to(base)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        number = str(len(self.runner.ids) + 1)
        self.runner.ids[number] = words["name"]
        return {"artifact-id": number}

    def _download(self, words: dict[str, Any]) -> None:
        target = self.workspace / words.get("path", ".")
        target.mkdir(parents=True, exist_ok=True)
        if "artifact-ids" in words:
            name = self.runner.ids.get(words["artifact-ids"])
            if name is None:
                raise JobFailedError(f"no artifact has id {words['artifact-ids']!r}")
            shutil.copytree(self.runner.artifacts / name, target, dirs_exist_ok=True)
            return
        if "name" in words:
            if not (self.runner.artifacts / words["name"]).is_dir():
                raise JobFailedError(f"no artifact {words['name']}")
            shutil.copytree(self.runner.artifacts / words["name"], target, dirs_exist_ok=True)
            return
        for artifact in sorted(self.runner.artifacts.glob(words["pattern"])):
            inner = target if words.get("merge-multiple") else target / artifact.name
            shutil.copytree(artifact, inner, dirs_exist_ok=True)

    def _attest(self, words: dict[str, Any]) -> dict[str, str]:
        lines = (self.workspace / words["subject-checksums"]).read_text().splitlines()
        self.runner.attested = {line[66:]: line[:64] for line in lines}
        path = self.temp / "attestation.json"
        path.write_text(json.dumps({"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}))
        return {"bundle-path": str(path)}

    def _publish_wheel(self, words: dict[str, Any]) -> None:
        self.runner.wheels = sorted((self.workspace / words["packages-dir"]).iterdir())


def _matches(pattern: Path) -> list[Path]:
    """Return the files that a path of an upload means; hidden ones stay behind."""
    found = pattern.rglob("*") if pattern.is_dir() else pattern.parent.glob(pattern.name)
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))
