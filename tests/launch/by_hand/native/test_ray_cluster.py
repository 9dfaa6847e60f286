"""A real `ray start --head` with its dashboard, and runs that are sent to it as the READMEs of verl and OpenRLHF write
it: `batchbridge run` in front of `ray job submit` ends with a ledger, written where the job ran.

By name (`nox -s ray_cluster`). The head may take minutes on a busy machine; where it does not come up, the tests are
skipped with what it said.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from batchbridge.ledger import read_headers, read_steps
from batchbridge.running.telling import LOG

pytest.importorskip("ray")
SECONDS = 400
"""Until the dashboard answers, about jobs, too."""
BIN = Path(sys.executable).parent
WAY = "nox -s ray_cluster has the packages of ray[default]"


class Head(NamedTuple):
    """A cluster of one node. address: of its dashboard. log: what `ray start` said."""

    address: str
    log: Path


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextlib.contextmanager
def head(folder: Path, own: Mapping[str, str]) -> Iterator[Head]:
    """A cluster whose processes have the environment `own`, and nothing of a launch; skips where it does not come
    up."""
    if find_spec("aiohttp_cors") is None:
        pytest.skip(f"Ray's dashboard is not installed here; {WAY}")
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    words = [str(BIN / "ray"), "start", "--head", "--block", "--disable-usage-stats", "--include-dashboard", "true"]
    words += ["--dashboard-host", "127.0.0.1", "--temp-dir", str(folder / "r"), "--num-cpus", "16", "--num-gpus", "2"]
    words += ["--object-store-memory", "200000000", "--min-worker-port", "0", "--max-worker-port", "0"]
    words += [word for name, port in ports.items() for word in (f"--{name}", str(port))]
    log, address = folder / "head.log", f"http://127.0.0.1:{ports['dashboard-port']}"
    with log.open("wb") as said:
        process = subprocess.Popen(words, env=dict(own), stdout=said, stderr=said, start_new_session=True)
    try:
        if not takes_jobs(address, process):
            pytest.skip(f"ray start --head took no jobs within {SECONDS} s: {log.read_text()[-2000:]}")
        yield Head(address, log)
    finally:
        process.send_signal(signal.SIGTERM)  # its own processes end with it
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def takes_jobs(address: str, process: subprocess.Popen[bytes]) -> bool:
    """Whether the cluster answers questions about jobs."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{address}/api/jobs/", timeout=20).read()
            return True
        time.sleep(2)
    return False


class Ran(NamedTuple):
    """A job that has ended. text: what `batchbridge run` and `ray job submit`, which follows the job's log, said."""

    code: int
    text: str
    ledger: Path


def submit(cluster: Head, folder: Path, own: Mapping[str, str], runtime_env: object, words: list[str]) -> Ran:
    """`batchbridge run -- ray job submit ... -- python3 -m ...`, from a process that knows nothing of the cluster but
    its address."""
    ledger = folder / "ledger"
    command = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(ledger), "--", "ray", "job", "submit"]
    command += [f"--address={cluster.address}", f"--runtime-env-json={json.dumps(runtime_env)}", "--", "python3"]
    ran = subprocess.run(
        [*command, *words],
        env={**own, "PATH": f"{BIN}:{own['PATH']}"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ledger)


@pytest.fixture
def place() -> Iterator[Path]:
    """Short: paths of Ray's sockets have at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="r"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def assert_recorded(ran: Ran, framework: str, steps: int) -> None:
    assert ran.code == 0, ran.text[-8000:]
    assert "`python3 -m batchbridge run --handed-over --` stands before its entrypoint" in ran.text
    assert f"batchbridge: {framework} " in ran.text, "the job's log has the trainer's own lines"
    assert f"batchbridge: {steps} optimizer steps held against the plan" in ran.text
    assert {header["framework"] for header in read_headers(ran.ledger)} == {framework}
    found = list(read_steps(ran.ledger))
    assert len(found) == steps
    assert all(step["weights"] for step in found)
    assert f"{framework} " in (ran.ledger / LOG).read_text(encoding="utf-8")


def test_verls_readme_command_ends_with_a_ledger(place: Path) -> None:
    pytest.importorskip("verl")
    from batchbridge_on_cpu.verl.scripted import environment, overrides, prepare

    prepare(place)
    own = {**environment(os.environ), "PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled"}
    settings = [word for word in overrides(place, 1) if "ray_kwargs" not in word]  # a cluster has its own
    words = ["-m", "verl.trainer.main_ppo", *settings, "trainer.total_training_steps=2"]
    (place / "code").mkdir()
    (place / "code" / "notes.txt").write_text("what a working_dir takes to the cluster")
    runtime = {"working_dir": str(place / "code"), "env_vars": {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1"}}
    with head(place, own) as cluster:
        ran = submit(cluster, place, own, runtime, words)
    assert_recorded(ran, "verl", 4)


README = {
    # openrlhf 0.11.2; of sizes, paths and names the tiny run's
    "ref.num_gpus_per_node": "1",
    "reward.num_gpus_per_node": "1",
    "critic.num_gpus_per_node": "1",
    "actor.num_gpus_per_node": "1",
    "vllm.num_engines": "1",
    "vllm.tensor_parallel_size": "1",
    "actor.model_name_or_path": "{folder}/policy",
    "reward.model_name_or_path": "{folder}/reward",
    "ckpt.output_dir": "{folder}/trained",
    "ckpt.path": "{folder}/checkpoints",
    "train.batch_size": "3",
    "rollout.batch_size": "6",
    "data.max_samples": "12",
    "data.prompt_dataset": "{folder}/prompts.jsonl",
    "data.input_key": "input",
    "logger.wandb.key": "0" * 40,
    "vllm.sync_backend": "gloo",  # a CPU's for nccl
}
OF_A_GPU = "--ds.enable_sleep"
"""Left out: DeepSpeed moves the states of its CUDA optimizer alone."""
LENGTHS = ("--data.max_len", "64", "--rollout.max_new_tokens", "24")
"""What the page's two lengths are called by now."""
PREPARE = """
import pathlib, sys
from batchbridge.testing.tiny import tiny_tokenizer
from batchbridge_on_cpu.openrlhf.scripted import prepare
from batchbridge_on_cpu.openrlhf.workers import save_critic
folder = pathlib.Path(sys.argv[1])
prepare(folder)
save_critic(folder / "policy", folder / "reward")
for name in ("policy", "reward"):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(folder / name)
"""


def of_the_tiny_run(command: str, folder: Path) -> list[str]:
    """The words behind `python3` of the page's `ray job submit`: each option of `README` has its value from there, all
    others but OF_A_GPU stay, and LENGTHS stands behind them."""
    sent = shlex.split(command.replace("\\\n", " "))
    words = sent[sent.index("--") + 2 :]
    keys = [word.removeprefix("--") for word in words]
    assert set(README) <= set(keys)
    for at, key in enumerate(keys):
        if key in README:
            words[at + 1] = README[key].format(folder=folder)
    words.remove(OF_A_GPU)
    return [*words, *LENGTHS]


def test_openrlhfs_readme_command_ends_with_ledgers_of_the_policy_and_of_the_critic(place: Path) -> None:
    """PPO with a critic, a reward model, ZeRO-3, and packed samples in dynamic batches."""
    pytest.importorskip("openrlhf")
    from batchbridge_on_cpu.openrlhf import attention
    from batchbridge_on_cpu.openrlhf.page import of_its_release
    from batchbridge_on_cpu.openrlhf.scripted import environment

    plain = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled", "WANDB_MODE": "offline"}
    own = {**environment(place, 1, own=plain), attention.NAME: "sdpa"}
    del own["BATCHBRIDGE_RAY"]  # options of a Ray that is not there yet
    subprocess.run([sys.executable, "-c", PREPARE, str(place)], env=own, check=True)  # saving imports DeepSpeed
    (place / "code").mkdir()
    (place / "code" / "notes.txt").write_text("what a working_dir takes to the cluster")
    words = of_the_tiny_run(of_its_release(), place)
    with head(place, own) as cluster:
        ran = submit(cluster, place, plain, {"working_dir": str(place / "code")}, words)
    assert_recorded(ran, "openrlhf", 4)
    critic = ran.ledger / "critic"
    assert {header["mode"] for header in read_headers(critic)} == {"enforce"}
    assert len(list(read_steps(critic))) == 4
