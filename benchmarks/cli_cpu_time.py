"""CPU time of the command line: `python benchmarks/cli_cpu_time.py [RUNS] [--write]`.

`--help`, `check` on a configuration of each framework as users have it (published commands as launch scripts, recipes
as YAML), `check` on a script that is mostly bash, and `explain`. Each command runs in its own process, `RUNS` times
(default 10); user and system time are added. Once with bytecode cached, as in an installation (a first run that is not
counted compiles), and once without any at all, not even the standard library's. `--write` puts the table into
`cli_cpu_time.md` beside this file. Goals, with bytecode: `--help` within 150 ms, `check` within 600 ms (and 400 ms on a
YAML file). A report, not a gate: the gate is tests/cli/test_cpu_time.py.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "tests" / "adapters"
RESULTS = Path(__file__).with_suffix(".md")

RECIPE = """\
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 6
num_train_epochs: 2
loss_type: dapo
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
    return commands


def environment(folder: Path, cached: bool) -> dict[str, str]:
    """Bytecode is cached in `folder`, or nowhere, whatever this process's environment says."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPYC", "PYTHONDONT"))}
    cache = folder / ("bytecode" if cached else "none")
    return {**clean, "PYTHONPYCACHEPREFIX": str(cache), **({} if cached else {"PYTHONDONTWRITEBYTECODE": "1"})}


def cpu_ms(arguments: list[str], folder: Path, cached: bool) -> float:
    """Milliseconds of CPU that one run takes, start of the interpreter included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "batchbridge", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(folder, cached), capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 2, 4) or b"batchbridge" in done.stderr:  # what fails early is fast, and means nothing
        raise SystemExit(f"batchbridge {' '.join(arguments)} exited with {done.returncode}: {done.stderr.decode()}")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def rows(runs: int, folder: Path) -> Iterator[str]:
    """The table, a line at a time."""
    recipe = inputs()["trl, YAML"]
    commands = {"--help": ["--help"]}
    commands |= {f"check: {name}": command for name, command in lay(folder).items()}
    commands |= {"explain: trl, YAML": ["explain", recipe.file, *recipe.options]}
    yield "| command | minimum, cached | median, cached | minimum, not cached | median, not cached |"
    yield "|---|---|---|---|---|"
    for name, arguments in commands.items():
        cells = [name]
        for cached in (True, False):
            cpu_ms(arguments, folder, cached)
            times = [cpu_ms(arguments, folder, cached) for _ in range(runs)]
            cells += [f"{min(times):.0f}", f"{statistics.median(times):.0f}"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measures, prints and perhaps writes."""
    words = [word for word in sys.argv[1:] if word != "--write"]
    runs = int(words[0]) if words else 10
    load = os.getloadavg()[0]
    head = (
        "# CPU time of the command line\n\n"
        f"Written by `python benchmarks/cli_cpu_time.py {runs} --write`: milliseconds of CPU (user and system), {runs} "
        f"runs each; Python\n{platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{load:.1f} at the beginning.\n\n"
    )
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for line in rows(runs, Path(folder)):
            print(line, flush=True)
            lines.append(line)
    if "--write" in sys.argv:
        RESULTS.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
