"""CPU time of the command line's cheap commands: `python benchmarks/cli_cpu_time.py [RUNS] [--no-bytecode]`.

Each command runs in its own process, `RUNS` times (default 10); user and system time are added. Bytecode is cached, as
in an installation, whatever the environment says: a first run that is not counted compiles. `--no-bytecode` writes
none, and so compiles in every run whatever has no bytecode yet. Goals: `--help` within
150 ms, `check` on a YAML file within 400 ms. A report, not a gate: what is imported is tested, times are the machine's.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

RECIPE = """\
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 6
num_train_epochs: 2
loss_type: dapo
"""


def cpu_ms(arguments: list[str], environment: dict[str, str]) -> float:
    """Milliseconds of CPU that one run takes, start of the interpreter included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "batchbridge", *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:  # a command that fails early is fast, and its time means nothing
        raise SystemExit(f"batchbridge {' '.join(arguments)} exited with {done.returncode}: nothing was measured")
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    """Measures and prints."""
    words = [word for word in sys.argv[1:] if word != "--no-bytecode"]
    runs, cached = int(words[0]) if words else 10, "--no-bytecode" not in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "recipe.yaml"
        recipe.write_text(RECIPE, encoding="utf-8")
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        if cached:
            environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        else:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        trl = ["--framework", "trl", "--framework-version", "1.16.0", "--world-size", "3"]
        commands = {
            "--help": (["--help"], 150),
            "check recipe.yaml": (["check", str(recipe), *trl], 400),
            "explain recipe.yaml": (["explain", str(recipe), *trl], None),
        }
        state = "bytecode cached" if cached else "bytecode not written"
        print(f"{'command':<22}{'minimum':>10}{'median':>10}{'goal':>8}   (ms of CPU, {runs} runs, {state})")
        for name, (arguments, goal) in commands.items():
            cpu_ms(arguments, environment)
            times = [cpu_ms(arguments, environment) for _ in range(runs)]
            print(f"{name:<22}{min(times):>10.0f}{statistics.median(times):>10.0f}{goal or '-':>8}")


if __name__ == "__main__":
    main()
