"""Jobs that Ray's own client sends, received by a server that does what a cluster does with them: it executes the
entrypoint with the runtime environment's variables in a process that has nothing else of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")
TRAIN = """
import json, os, sys
from batchbridge.running.launch import arrived, current_launch, has_started
launch = current_launch()
said = {"mode": launch and launch.mode, "ledger": launch and launch.ledger, "a": os.environ.get("A"),
        "started": launch is not None and has_started(launch.run), "words": sys.argv[1:]}
open(os.environ["SAID"], "w").write(json.dumps(said))
if launch is not None:
    arrived("trainer-1", "wrapped")
"""
WAITED = 300
"""Seconds; a job that waits for a trainer that never comes waits twice as long."""
CLIENT = """
import sys
from ray.job_submission import JobSubmissionClient
print(JobSubmissionClient(sys.argv[1]).submit_job(entrypoint=sys.argv[2], runtime_env={"env_vars": {"A": "1"}}))
"""


class Cluster:
    """What was posted, and how the jobs ended."""

    def __init__(self, folder: Path) -> None:
        self.posted: list[dict[str, Any]] = []
        self.ended: list[subprocess.CompletedProcess[str]] = []
        self.said = folder / "said.json"
        self.server = HTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self, data: object) -> None:
                body = json.dumps(data).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer({"version": "4", "ray_version": "2.55.0", "ray_commit": "x", "session_name": "s"})

            def do_POST(self) -> None:
                job = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                cluster.posted.append(job)
                cluster.ended.append(cluster.execute(job))
                self.answer({"job_id": "job-1", "submission_id": "job-1"})

            def log_message(self, *arguments: object) -> None: ...

        return Handler

    def execute(self, job: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        """What ray's job supervisor does: a shell, the node's own environment, and the variables of the job."""
        node = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "SAID": str(self.said)}
        if "PYTHONPATH" in os.environ:  # a source tree's, in development
            node["PYTHONPATH"] = os.environ["PYTHONPATH"]
        environment = {**node, **job["runtime_env"].get("env_vars", {})}
        return subprocess.run(
            ["sh", "-c", job["entrypoint"]], env=environment, capture_output=True, text=True, check=False, cwd="/"
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    bin_folder = Path(sys.executable).parent
    (folder / "train.py").write_text(TRAIN)
    return subprocess.run(
        [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger"), *words],
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled", **variables},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def submit(cluster: Cluster, folder: Path) -> list[str]:
    words = ["ray", "job", "submit", "--no-wait", "--address", cluster.address, "--runtime-env-json"]
    return [*words, '{"env_vars": {"A": "1"}}', "--", "python", str(folder / "train.py"), "two words"]


def assert_arrived(cluster: Cluster, folder: Path, words: list[str]) -> None:
    (job,), (ended,) = cluster.posted, cluster.ended
    assert job["runtime_env"]["env_vars"]["A"] == "1"
    assert ended.returncode == 0, ended.stderr
    assert json.loads(cluster.said.read_text()) == {
        "mode": "enforce",
        "ledger": str(folder / "ledger"),
        "a": "1",
        "started": True,
        "words": words,
    }


def test_a_job_that_ray_job_submit_sends_has_the_launch(cluster: Cluster, tmp_path: Path) -> None:
    ran = run(tmp_path, "--", *submit(cluster, tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert_arrived(cluster, tmp_path, ["two words"])
    assert "`python -m batchbridge run --handed-over --` stands before its entrypoint" in ran.stderr
    assert f"in {tmp_path / 'ledger'}" in ran.stderr


def test_a_job_that_a_script_sends_has_the_launch(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(CLIENT)
    entrypoint = f"cd /tmp && B=2 python {tmp_path / 'train.py'} x"
    ran = run(tmp_path, "--", sys.executable, "client.py", cluster.address, entrypoint)
    assert ran.returncode == 0, ran.stderr
    assert_arrived(cluster, tmp_path, ["x"])


def test_a_job_whose_entrypoint_has_run_already_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    words = submit(cluster, tmp_path)
    place = words.index("--") + 1
    run(tmp_path, "--", *words[:place], "python", "-m", "batchbridge", "run", "--", *words[place:])
    assert cluster.posted[0]["runtime_env"]["env_vars"] == {"A": "1"}
    assert cluster.posted[0]["entrypoint"].startswith("python -m batchbridge run -- python ")


def test_a_job_that_trains_natively_there_fails_there(cluster: Cluster, tmp_path: Path) -> None:
    words = [*submit(cluster, tmp_path)[:-2], "-c", "pass"]
    began = time.monotonic()
    assert run(tmp_path, "--", *words).returncode == 0
    assert time.monotonic() - began < WAITED, "the job has waited for the command that sent it, and follows it"
    assert cluster.ended[0].returncode == 4
    assert "without a trainer that could be reached" in cluster.ended[0].stderr


def test_a_ray_that_cannot_import_batchbridge_sends_nothing(cluster: Cluster, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked" / "batchbridge"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('another environment')")
    words = submit(cluster, tmp_path)
    ran = run(tmp_path, "--", "env", f"PYTHONPATH={blocked.parent}", *words)
    assert ran.returncode not in (0, 4)
    assert cluster.posted == []


def test_the_users_own_submit_hook_is_called(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("def hook(**given): print('their hook:', given['entrypoint'][0])")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ran = run(tmp_path, "--", *submit(cluster, tmp_path), RAY_JOB_SUBMIT_HOOK="theirs.hook", PYTHONPATH=path)
    assert "their hook: python" in ran.stdout
    assert_arrived(cluster, tmp_path, ["two words"])
