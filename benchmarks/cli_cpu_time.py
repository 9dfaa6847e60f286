"""CPU time of the command line: `python benchmarks/cli_cpu_time.py [RUNS] [--write] [--json]`.

`--help`, `check` on a configuration of each framework as users have it (published commands as launch scripts, recipes
as YAML, a program of TRL's), `check` on a script that is mostly bash, `explain`, and `convert` both ways between TRL
and verl. Each command runs in its own process, `RUNS` times (default 10); user and system time are added. Once with
bytecode cached, as in an installation (a first run that is not counted compiles), and once without any at all, not even
the standard library's.

Where TRL is installed, there is a reference: a process that imports `GRPOConfig` and constructs one, with bytecode
cached. It takes turns with the commands, so that a machine that becomes slower is slower for all; the last column has
how many times faster than it a command is, minimum against minimum. Without TRL that column is empty.

`--write` puts the table into `cli_cpu_time.md` beside this file, `--json` prints the figures for programs. Goals, with
bytecode: `--help` within 100 ms, `check` of one file within 150 ms (400 ms without any), under every version of TRL
within 300 ms, of 200 scripts within 30 s (15 s on two cores), and a conversion at least 35 times faster than the
reference. A report, not a gate: the gate is tests/cli/test_cpu_time.py, which holds what a command imports, too: the
last columns, which are the same on every machine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "adapters"
RESULTS = Path(__file__).with_suffix(".md")
REFERENCE = "from trl import GRPOConfig; GRPOConfig(output_dir='x', use_cpu=True, bf16=False)"
"""The native config object, without a device."""

RECIPE = """\
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 6
num_train_epochs: 2
loss_type: dapo
"""
PROGRAM = """\
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def reward(completions, **kwargs):
    return [float(len(set(completion))) for completion in completions]


args = GRPOConfig(
    output_dir="out", per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=6, loss_type="dapo"
)
data = load_dataset("trl-lib/tldr", split="train")
trainer = GRPOTrainer(model="Qwen/Qwen2-0.5B-Instruct", reward_funcs=reward, args=args, train_dataset=data)
trainer.train()
"""
OPEN_INSTRUCT = (
    "python open_instruct/ppo_vllm_thread_ray_gtrl.py --beta 0.05 --learning_rate 3e-7 --total_episodes 10000000 "
    "--per_device_train_batch_size 2 --local_rollout_batch_size 32 --local_mini_batch_size 32 "
    "--local_rollout_forward_batch_size 32 --actor_num_gpus_per_node 7\n"
)
BASH = """\
#!/bin/bash
set -euxo pipefail
GPUS=${GPUS:-3}
MICRO=$((2 * 2))
args=(--num_generations 6 --per_device_train_batch_size "$MICRO")
for key in gradient_accumulation_steps num_train_epochs; do
    args+=("--$key" 2)
done
if [ "$GPUS" -gt 1 ]; then
    launch="accelerate launch --num_processes $GPUS"
else
    launch=python
fi
run() { $launch grpo.py "${args[@]}" "$@"; }
run --max_completion_length 256 --learning_rate 1e-6 \\
    --loss_type dapo
"""


@dataclass(frozen=True)
class Input:
    """A file, and what is said beside it."""

    file: str
    text: str
    options: tuple[str, ...]


def script(argv: list[str]) -> str:
    """A published command as the launch script that it came from would look without variables."""
    return "#!/bin/bash\n" + " \\\n    ".join(shlex.quote(word) for word in argv) + "\n"


def longest(framework: str, name: str) -> list[str]:
    """The longest published command among the fixtures of `framework`."""
    rows = json.loads((FIXTURES / framework / name).read_text(encoding="utf-8"))
    commands = [row["argv"] for row in rows.values()] if isinstance(rows, dict) else rows
    return max(commands, key=len)


def options(framework: str, version: str, devices: int) -> tuple[str, ...]:
    """Framework, version and devices, as options of the command line."""
    return ("--framework", framework, "--framework-version", version, "--world-size", str(devices))


def inputs() -> Mapping[str, Input]:
    """What `check` is measured on, by name."""
    accelerate = "accelerate launch --num_processes 3 src/open_r1/grpo.py --config recipe.yaml\n"
    openrlhf = longest("openrlhf", "launch_commands.json")
    return {
        "trl, YAML": Input("recipe.yaml", RECIPE, options("trl", "1.16.0", 3)),
        "trl, Python": Input("train.py", PROGRAM, ("--framework-version", "1.16.0", "--world-size", "3")),
        "open_r1, script and recipe": Input("open_r1.sh", accelerate, options("open_r1", "1.16.0", 3)),
        "verl, script": Input("verl.sh", script(longest("verl", "commands.json")), options("verl", "0.9.1", 8)),
        "easyr1, script": Input("easyr1.sh", script(longest("easyr1", "commands.json")), options("easyr1", "0.3.2", 8)),
        "openrlhf, script": Input("openrlhf.sh", script(openrlhf), options("openrlhf", "0.11.2", 4)),
        "open_instruct, script": Input("open_instruct.sh", OPEN_INSTRUCT, options("open_instruct", "2025.11.3", 7)),
        "trl, mostly bash": Input("run.sh", BASH, options("trl", "1.16.0", 3)),
    }


def lay(folder: Path) -> dict[str, list[str]]:
    """Writes the inputs into `folder`; the `check` command of each, by name."""
    commands = {}
    for name, one in inputs().items():
        (folder / one.file).write_text(one.text, encoding="utf-8")
        commands[name] = ["check", one.file, *one.options]
    recipe = inputs()["trl, YAML"]
    commands[DETECTED] = ["check", recipe.file, "--framework-version", "1.16.0", "--world-size", "3"]
    commands[EVERY] = ["check", recipe.file, "--framework", "trl", "--world-size", "3"]
    scripts = folder / "scripts"
    scripts.mkdir(exist_ok=True)
    for number in range(SCRIPTS):
        (scripts / f"{number}.sh").write_text(inputs()["verl, script"].text, encoding="utf-8")
    commands[FOLDER] = ["check", scripts.name]
    return commands


DETECTED, EVERY = "trl, YAML, no framework named", "trl, YAML, no version named"
SCRIPTS = 20
FOLDER = f"folder of {SCRIPTS} verl scripts, no version named"


IMPORTS = "asyncio, csv, difflib, doctest, email.mime.text, http.server, logging.config, pydoc, tarfile, unittest.mock"
"""Modules of the standard library. A command spends most of its time on importing, which other processes slow down
more than they do a loop: they take its caches."""


def calibration_ms(folder: Path) -> float:
    """Milliseconds of CPU of an interpreter that imports `IMPORTS`, bytecode cached: how fast this processor is now."""
    return _run(["-S", "-c", f"import {IMPORTS}"], folder, True)[0]


def environment(folder: Path, cached: bool) -> dict[str, str]:
    """Bytecode is cached in `folder`, or nowhere, whatever this process's environment says."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPYC", "PYTHONDONT"))}
    cache = folder / ("bytecode" if cached else "none")
    return {**clean, "PYTHONPYCACHEPREFIX": str(cache), **({} if cached else {"PYTHONDONTWRITEBYTECODE": "1"})}


def cpu_ms(arguments: list[str], folder: Path, cached: bool) -> float:
    """Milliseconds of CPU that one run of the command line takes, start of the interpreter included."""
    spent, done = _run(["-m", "batchbridge", *arguments], folder, cached)
    # What fails early is fast, and means nothing.
    if done.returncode not in (0, 2, 3, 4) or b"Usage:" in done.stderr or b"Traceback" in done.stderr:
        raise SystemExit(f"batchbridge {' '.join(arguments)} exited with {done.returncode}: {done.stderr.decode()}")
    return spent


def reference_ms(folder: Path) -> float:
    """Milliseconds of CPU that importing `GRPOConfig` from TRL and constructing one takes, with bytecode cached."""
    spent, done = _run(["-c", REFERENCE], folder, True)
    if done.returncode:
        raise SystemExit(f"{REFERENCE} failed: {done.stderr.decode()}")
    return spent


def _run(words: list[str], folder: Path, cached: bool) -> tuple[float, subprocess.CompletedProcess[bytes]]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment(folder, cached), capture_output=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), done


LIST_SOURCES = """
import json, os, sys
before = set(sys.modules)
from batchbridge.cli.main import main
code = main(sys.argv[1:])
files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items() if name not in before}
sizes = {name: os.path.getsize(file) for name, file in files.items() if file and file.endswith(".py")}
print(json.dumps(sizes), file=open("sources.json", "w"))
"""


def sources(arguments: list[str], folder: Path) -> dict[str, int]:
    """Module -> bytes of its source, of all that a command imports: what is compiled where no bytecode is cached.

    Exact, where times are not: it says on any machine whether a command has begun to import more.
    """
    _, done = _run(["-c", LIST_SOURCES, *arguments], folder, True)
    if done.returncode:
        raise SystemExit(done.stderr.decode())
    found: dict[str, int] = json.loads((folder / "sources.json").read_text(encoding="utf-8"))
    return found


@dataclass
class Row:
    """Milliseconds of the counted runs of one command. sources: bytes of source that it imports, by module."""

    name: str
    sources: dict[str, int] = field(default_factory=dict)
    cached: list[float] = field(default_factory=list)
    not_cached: list[float] = field(default_factory=list)


def version_of(distribution: str) -> str | None:
    """The installed version; None where there is none."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def conversions() -> dict[str, list[str]]:
    """The arguments of `convert`, by name."""
    found = {}
    for name, to in (("trl, YAML", "verl"), ("verl, script", "trl")):
        one = inputs()[name]
        found[f"convert: {name}, to {to}"] = [
            *("convert", one.file, *one.options, "--dataset-size", "80", "--to", to, "--allow-lossy")
        ]
    return found


def measure(runs: int, folder: Path) -> tuple[list[Row], Row | None]:
    """The commands, and the reference where TRL is installed. All take turns."""
    recipe = inputs()["trl, YAML"]
    commands = {"--help": ["--help"]}
    commands |= {f"check: {name}": command for name, command in lay(folder).items()}
    commands |= {"explain: trl, YAML": ["explain", recipe.file, *recipe.options], **conversions()}
    rows = {name: Row(name, sources(arguments, folder)) for name, arguments in commands.items()}
    reference = None if version_of("trl") is None else Row(f"`{REFERENCE}`")
    for turn in range(runs + 1):
        if reference is not None:
            reference.cached.append(reference_ms(folder))
        for name, arguments in commands.items():
            rows[name].cached.append(cpu_ms(arguments, folder, True))
            if turn:
                rows[name].not_cached.append(cpu_ms(arguments, folder, False))
    found = [*rows.values(), *([] if reference is None else [reference])]
    for row in found:
        del row.cached[0]  # it compiled
    return list(rows.values()), reference


def table(rows: list[Row], reference: Row | None) -> str:
    """A Markdown table."""
    lines = [
        "| command | minimum, cached | median, cached | minimum, not cached | median, not cached "
        "| times faster than constructing GRPOConfig | modules | their source, KB | of these BatchBridge's own, KB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in [*rows, *([] if reference is None else [reference])]:
        cells = [row.name]
        for times in (row.cached, row.not_cached):
            cells += [f"{min(times):.0f}", f"{statistics.median(times):.0f}"] if times else ["-", "-"]
        cells.append("-" if reference is None else f"{min(reference.cached) / min(row.cached):.0f}")
        own = sum(size for module, size in row.sources.items() if module.startswith(("batchbridge", "bashread")))
        cells += [str(len(row.sources)), f"{sum(row.sources.values()) / 1000:.0f}", f"{own / 1000:.0f}"]
        lines.append(f"| {' | '.join(cells if row.sources else [*cells[:-3], '-', '-', '-'])} |")
    return "\n".join(lines)


def main() -> None:
    """Measures, prints and perhaps writes."""
    parser = argparse.ArgumentParser(description="CPU time of the command line.")
    parser.add_argument("runs", nargs="?", type=int, default=10, help="counted runs of each command")
    parser.add_argument("--write", action="store_true", help=f"write the table to {RESULTS.name}")
    parser.add_argument("--json", action="store_true", help="print every measured time, in milliseconds, as JSON")
    said = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rows, reference = measure(said.runs, Path(folder))
        calibrated = min(calibration_ms(Path(folder)) for _ in range(5))
    versions = {name: found for name in ("batchbridge", "trl", "transformers", "torch") if (found := version_of(name))}
    head = (
        "# CPU time of the command line\n\n"
        f"Written by `python benchmarks/cli_cpu_time.py {said.runs} --write`: milliseconds of CPU (user and system), "
        f"{said.runs} runs each, all in\nturns; Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores, load average {load:.1f} at the beginning;\n"
        f"ten modules of the standard library take {calibrated:.0f} ms (`calibration_ms`);\n"
        f"{', '.join(f'{name} {found}' for name, found in versions.items())}.\n\n"
    )
    if said.json:
        print(
            json.dumps(
                {
                    "runs": said.runs,
                    "python": platform.python_version(),
                    "load": load,
                    "versions": versions,
                    "commands": [asdict(row) for row in rows],
                    "reference": None if reference is None else asdict(reference),
                }
            )
        )
    else:
        print(table(rows, reference))
    if said.write:
        RESULTS.write_text(f"{head}{table(rows, reference)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
