"""A Ray that was started without BatchBridge, and a command that connects to it with a runtime environment of its own:
every worker process of the job is reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray")
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CLUSTER = """
import sys
import batchbridge_verl.on_cpu.patient_ray
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, _temp_dir=sys.argv[1])
print("ADDRESS", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""
THEIRS = """
import os
def hook():
    os.environ["THEIR_HOOK"] = "called"
"""
JOB = """
import json, os, sys
import ray
import theirs
address, how, said = sys.argv[1:]
hook = {"name": "theirs.hook", "function": theirs.hook}[how]
path = os.path.dirname(theirs.__file__)
if os.environ.get("SOURCES"):
    path += os.pathsep + os.environ["SOURCES"]
ray.init(address=address, runtime_env={"worker_process_setup_hook": hook, "env_vars": {"PYTHONPATH": path}})

@ray.remote(num_cpus=1)
class Actor:
    def look(self):
        from batchbridge.running.launch import arrived, current_launch, has_started
        launch = current_launch()
        reached = launch is not None and has_started(launch.run)
        if reached:
            arrived("trainer-1", "wrapped")
        return reached, os.environ.get("THEIR_HOOK"), os.environ["PYTHONPATH"].split(os.pathsep)

open(said, "w").write(json.dumps(ray.get(Actor.remote().look.remote())))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="r") as short:  # a socket's path has 107 bytes, and a test's folder is long
        yield from started(short)


def started(folder: str) -> Iterator[str]:
    environment = {**os.environ, **SETTINGS}
    environment.pop("PYTHONPATH", None)  # its workers know nothing of what a command says
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER, folder],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = next((line.split()[1] for line in process.stdout if line.startswith("ADDRESS")), None)
    assert address is not None, "Ray did not start"
    yield address
    process.stdin.close()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("how", ["name", "function"])
def test_workers_are_reached_beside_the_users_own_hook(cluster: str, tmp_path: Path, how: str) -> None:
    (tmp_path / "theirs.py").write_text(THEIRS)
    (tmp_path / "job.py").write_text(JOB)
    said = tmp_path / "said.json"
    ran = subprocess.run(
        [sys.executable, "-m", "batchbridge", "run", "--", sys.executable, "job.py", cluster, how, str(said)],
        env={**os.environ, **SETTINGS, "SOURCES": os.environ.get("PYTHONPATH", "")},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    reached, theirs, path = json.loads(said.read_text())
    assert reached, "the worker has the variable and not the hooks"
    assert theirs == "called"
    assert path[0].endswith("_site")
    assert path[1] == str(tmp_path)
