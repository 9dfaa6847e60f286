"""How fast the ledger is written and compared: `python benchmarks/ledger_speed.py [--json FILE] [--write]`.

CPU seconds (user and system), with the extra `speed` (orjson) and with the standard library alone. Writing:
`Writer.append` of one rank's record. Comparing: `ledger.diff`, each in a process of its own that has imported what it
needs, where a step's completions count once for both ledgers; its memory is the process's largest resident set.
Ledgers of 4,096 ranks are compared with copies of the same lines and with others that took other times, and, as the
control, with one in which one weight of the last step is another: it must be found. In a step of 1,024 completions one
rank in four has a completion, each step others; lines are shared by ranks that have completions in the same steps.
`--large` adds comparisons of 10^3 and 10^4 steps on 64 ranks, and of 10^4 steps on 4,096: 37 GB of files under
`--place`. Nothing is extrapolated. `--write` puts tables and figures into `ledger_speed.md` and `ledger_speed.json`
beside this file. Goals: a record of 1024 completions within 1 ms (1 % of a step of 100 ms); 10^6 completions per second
compared where both runs have as many ranks and wrote the same lines (on 4,096 ranks from 1,024 completions in a step
and some thousand steps on: 8,192 files are opened and their headers read for fewer, too), else 0.15 * 10^6, and
0.22 * 10^6 with the extra; memory that does not grow with the steps. A report, never a gate.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from batchbridge.ledger import Header, StepRecord, Writer, digest_floats, fingerprint, speedups
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Spec, Topology
from batchbridge.meaning.weights import Normaliser

RESULTS = Path(__file__).with_suffix(".md")
GROUP = 8  # completions per prompt
TOKENS = 400  # per completion
DIFFERENT_STEPS = 20
"""Steps whose values are drawn; later ones repeat them, with their own number. Nothing is remembered between steps."""
NOISE = 1e-8
LARGE_STEPS = 10_000
FEW_STEPS = 10
MANY_RANKS = 4096
MANY_STEPS = (100, 1000)
MANY_REPETITIONS = 3

COMPARE = """
import json, sys, time
from batchbridge.ledger import speedups
from batchbridge.ledger import diff, read_steps
what, a, b, repetitions = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
if what == "plain":
    speedups.orjson = None
seconds = []
for _ in range(repetitions):
    started = time.process_time()
    if what == "read":
        steps = sum(1 for _ in read_steps(a))
    else:
        result = diff(a, b)
        found = None if result.equal else [result.step, result.aspect, result.steps_compared]
        assert found == (json.loads(sys.argv[5]) if what == "control" else None), result.text()
        steps = result.steps_compared
    seconds.append(time.process_time() - started)
status = open("/proc/self/status").read()  # ru_maxrss may begin with the parent's
kibibytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
print(json.dumps({"seconds": seconds, "steps": steps, "mebibytes": kibibytes / 1024}))
"""


def spec(completions: int, world_size: int) -> Spec:
    return Spec(
        topology=Topology(world_size=world_size),
        rollout=Rollout(prompts_per_rollout=completions // GROUP, completions_per_prompt=GROUP),
        optimizer_step=OptimizerStep(completions_per_step=completions),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
    )


def header(completions: int, world_size: int, rank: int) -> Header:
    return Header(
        framework="benchmark",
        framework_version="1",
        mode="observe",
        spec=spec(completions, world_size),
        dataset_size=completions,
        world_size=world_size,
        rank=rank,
    )


def record(step: int, rows: list[int], completions: int, noise: float) -> StepRecord:
    """One rank's share `rows` of step `step`; the same values whatever the share."""
    chance = [random.Random(step * completions + row) for row in rows]
    numbers = [(c.randbytes(8).hex(), c.randrange(1, 2000), c.random(), c.gauss(0, 1)) for c in chance]
    return StepRecord(
        step=step,
        epoch=0,
        normaliser=Normaliser(aggregation="token_mean", completions=completions, tokens=1000 * completions, prompts=1),
        learning_rate=1e-6,
        gradient_norm=0.5,
        skipped=False,
        lr_tick=True,
        rollout=[step] * len(rows),
        pass_index=[0] * len(rows),
        prompt=[step * completions // GROUP + row // GROUP for row in rows],
        sample=[row % GROUP for row in rows],
        prompt_fingerprint=[f"{row // GROUP:016x}" for row in rows],
        completion_fingerprint=[text for text, *_ in numbers],
        response_tokens=[tokens for _, tokens, *_ in numbers],
        reward=[reward for *_, reward, _ in numbers],
        advantage=[advantage * (1 + noise * (row % 3)) for (*_, advantage), row in zip(numbers, rows, strict=True)],
        old_logprobs=[text for text, *_ in numbers],
        generated_at_step=[step] * len(rows),
        weights=[1 / (1000 * completions)] * len(rows),
    )


def write(folder: Path, steps: int, completions: int, world_size: int, noise: float = 0.0) -> Path:
    """A ledger whose ranks hold every `world_size`-th row."""
    for rank in range(world_size):
        rows = list(range(rank, completions, world_size))
        with Writer(folder, header(completions, world_size, rank)) as writer:
            path = writer.path
        lines = [record(step, rows, completions, noise).to_line() for step in range(min(steps, DIFFERENT_STEPS))]
        beginning = b'{"record":"step","step":'
        ends = [line[line.index(b",", len(beginning)) :] for line in lines]
        with path.open("ab") as file:
            file.writelines(b"%s%d%s" % (beginning, step, ends[step % len(ends)]) for step in range(steps))
    return folder


def write_many(
    folder: Path, steps: int, completions: int, ranks: int, noise: float = 0.0, seconds: float | None = None
) -> Path:
    """A ledger of many ranks, with as many different bodies as there are ranks for a completion: of fewer completions
    than ranks, each rank has one in every so many steps. seconds: that the first step took, the next ones more."""
    apart = max(ranks // completions, 1)
    each = max(completions // ranks, 1)
    bodies = []
    for turn in range(apart):
        drawn = [record(step, list(range(each)), completions, noise) for step in range(min(steps, DIFFERENT_STEPS))]
        lines = []
        for step in range(steps):
            one = drawn[step % len(drawn)] if step % apart == turn else record(step, [], completions, noise)
            took = None if seconds is None else seconds + step * 1e-4
            lines.append(dataclasses.replace(one, step=step, compute_seconds=took).to_line())
        bodies.append(b"".join(lines))
    for rank in range(ranks):
        with Writer(folder, header(completions, ranks, rank)) as writer:
            path = writer.path
        with path.open("ab") as file:
            file.write(bodies[rank % apart])
    return folder


def another_weight(folder: Path, step: int) -> None:
    """Changes one weight of a step, of the first rank behind the middle that has a completion in it."""
    paths = sorted(folder.iterdir())
    for path in paths[len(paths) // 2 :]:
        whole = path.read_bytes()
        at = whole.index(b'{"record":"step","step":%d,' % step)
        if whole.find(b'"weights":[]', at) < 0:
            path.write_bytes(whole[:at] + whole[at:].replace(b'"weights":[', b'"weights":[1', 1))
            return
    raise SystemExit(f"no rank has a completion in step {step}")


def many_ranks(
    base: Path, steps: int, ranks: int, repetitions: int, whole: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Comparisons of ledgers of many ranks: what is compared, and the figures. whole: not only the same lines of a
    completion for one rank in four."""
    completions = ranks // 4
    a, b = (write_many(base / name, steps, completions, ranks) for name in "ab")
    name = f"{steps} steps of {completions} completions"
    yield f"{name}, the same lines", _of(a, b, completions, repetitions)
    another_weight(b, steps - 1)
    expected = [steps - 1, "weights", steps - 1]
    yield f"{name}, one weight of the last step differs (found)", _of(a, b, completions, repetitions, expected)
    shutil.rmtree(a)
    shutil.rmtree(b)
    if not whole:
        return
    a, b = (write_many(base / name, steps, completions, ranks, seconds=1.0 + len(name)) for name in ("a", "bb"))
    yield f"{name}, other times", _of(a, b, completions, repetitions)
    shutil.rmtree(a)
    shutil.rmtree(b)
    completions = 4 * ranks
    a, b = (write_many(base / name, steps, completions, ranks) for name in "ab")
    yield f"{steps} steps of {completions} completions, the same lines", _of(a, b, completions, repetitions)
    shutil.rmtree(a)
    shutil.rmtree(b)
    steps = min(steps, FEW_STEPS)
    a, b = (write_many(base / name, steps, completions, ranks, noise) for name, noise in (("a", 0.0), ("b", NOISE)))
    name = f"{steps} steps of {completions} completions, advantages differ by {NOISE}"
    yield name, _of(a, b, completions, repetitions)


def _of(a: Path, b: Path, completions: int, repetitions: int, expected: list[Any] | None = None) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in a.iterdir())
    found = compare("fast" if expected is None else "control", a, b, repetitions, expected)
    return {"ledger_bytes": size, **rates(found, completions)}


@contextmanager
def standard_library() -> Iterator[None]:
    """As where the extra is not installed."""
    orjson, speedups.orjson = speedups.orjson, None
    try:
        yield
    finally:
        speedups.orjson = orjson


def milliseconds(function: Callable[[], object], repetitions: int, per: int = 1) -> list[float]:
    times = []
    for _ in range(repetitions):
        started = time.process_time()
        for _ in range(per):
            function()
        times.append(1e3 * (time.process_time() - started) / per)
    return times


def append_milliseconds(folder: Path, completions: int, repetitions: int) -> list[float]:
    one = record(0, list(range(completions)), completions, 0.0)
    with Writer(folder, header(completions, 1, 0)) as writer:
        ready = iter([StepRecord(**{**vars(one), "step": step}) for step in range(repetitions)])
        return milliseconds(lambda: writer.append(next(ready)), repetitions)


def compare(what: str, a: Path, b: Path, repetitions: int, expected: list[Any] | None = None) -> dict[str, Any]:
    command = [sys.executable, "-c", COMPARE, what, str(a), str(b), str(repetitions), json.dumps(expected)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def rates(found: dict[str, Any], completions: int) -> dict[str, float]:
    per_second = [found["steps"] * completions / seconds for seconds in found["seconds"]]
    return {
        "best_completions_per_second": max(per_second),
        "median_completions_per_second": statistics.median(per_second),
        "peak_mebibytes": found["mebibytes"],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    completions, steps, repetitions = options.completions, options.steps, options.repetitions
    result: dict[str, Any] = {"milliseconds": {}, "comparing": {}, "large": {}, "many": {}}
    ids, values = list(range(TOKENS)), [0.5] * TOKENS
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        base = Path(place)
        times = result["milliseconds"]
        one = record(0, list(range(completions)), completions, 0.0)
        times[f"append a record of {completions} completions"] = append_milliseconds(base / "w", completions, 300)
        with standard_library():
            name = f"append a record of {completions} completions, standard library"
            times[name] = append_milliseconds(base / "p", completions, 300)
        times[f"`StepRecord.to_dict` of {completions} completions"] = milliseconds(one.to_dict, 100)
        times[f"`fingerprint` of {TOKENS} tokens"] = milliseconds(lambda: fingerprint(ids), 20, 100)
        times[f"`digest_floats` of {TOKENS} tokens"] = milliseconds(lambda: digest_floats(values), 20, 100)
        a = write(base / "a", steps, completions, 64)
        pairs = {
            "64 ranks, the same lines": write(base / "same", steps, completions, 64),
            f"64 ranks, advantages differ by {NOISE}": write(base / "noise", steps, completions, 64, NOISE),
            "64 ranks against 32": write(base / "ranks", steps, completions, 32),
            f"64 ranks against 32, advantages differ by {NOISE}": write(base / "both", steps, completions, 32, NOISE),
        }
        for name, b in pairs.items():
            result["comparing"][name] = rates(compare("fast", a, b, repetitions), completions)
            plain = rates(compare("plain", a, b, repetitions), completions)
            result["comparing"][f"{name}, standard library"] = plain
        result["comparing"]["`read_steps`, 64 ranks merged"] = rates(compare("read", a, a, repetitions), completions)
    counts = [*options.many_steps, *([LARGE_STEPS] if options.large else [])]
    for count in counts:
        with tempfile.TemporaryDirectory(dir=options.place) as place:
            whole = count == max(options.many_steps)
            found = many_ranks(Path(place), count, options.many_ranks, min(repetitions, MANY_REPETITIONS), whole)
            result["many"] |= dict(found)
    if options.large:
        with tempfile.TemporaryDirectory(dir=options.place) as place:
            base = Path(place)
            for count in (LARGE_STEPS // 10, LARGE_STEPS):
                a = write(base / f"a{count}", count, completions, 64)
                size = sum(path.stat().st_size for path in a.iterdir())
                for ranks in (64, 32):
                    b = write(base / f"b{count}", count, completions, ranks, NOISE)
                    found = rates(compare("fast", a, b, 1), completions)
                    result["large"][f"{count} steps, against {ranks} ranks"] = {"ledger_bytes": size, **found}
                    shutil.rmtree(b)
    times = result["milliseconds"]
    result["milliseconds"] = {
        name: {"best": min(values), "median": statistics.median(values)} for name, values in times.items()
    }
    return result


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def page(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    lines = [
        "# Speed of the ledger\n",
        f"Written by `{result['command']}`: CPU time, user and system; {versions}; {result['machine']}.",
        "Completions count once for both ledgers. Rows without a note are measured with the extra `speed`.\n",
        "| writing | best, ms | median, ms |\n|---|---|---|",
        *(f"| {name} | {row['best']:.3f} | {row['median']:.3f} |" for name, row in result["milliseconds"].items()),
        f"\n| comparing {result['steps']} steps of {result['completions']} completions | best, completions/s "
        "| median, completions/s | peak memory, MiB |\n|---|---|---|---|",
        *(
            f"| {name} | {row['best_completions_per_second']:,.0f} | {row['median_completions_per_second']:,.0f} "
            f"| {row['peak_mebibytes']:.0f} |"
            for name, row in result["comparing"].items()
        ),
    ]
    lines += [
        f"\n| {result['ranks']:,} ranks | one ledger, MB | best, completions/s "
        "| median, completions/s | peak memory, MiB |\n|---|---|---|---|---|",
        *(
            f"| {name} | {row['ledger_bytes'] / 1e6:,.0f} | {row['best_completions_per_second']:,.0f} "
            f"| {row['median_completions_per_second']:,.0f} | {row['peak_mebibytes']:.0f} |"
            for name, row in result["many"].items()
        ),
    ]
    if result["large"]:
        lines += [
            f"\n| 64 ranks, advantages differ by {NOISE} | one ledger, MB | completions/s, once "
            "| peak memory, MiB |\n|---|---|---|---|",
            *(
                f"| {name} | {row['ledger_bytes'] / 1e6:,.0f} | {row['best_completions_per_second']:,.0f} "
                f"| {row['peak_mebibytes']:.0f} |"
                for name, row in result["large"].items()
            ),
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=1024, help="completions per optimizer step")
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps per ledger")
    parser.add_argument("--many-steps", type=int, nargs="+", default=MANY_STEPS, help="optimizer steps on many ranks")
    parser.add_argument("--many-ranks", type=int, default=MANY_RANKS)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--large", action="store_true", help=f"also {LARGE_STEPS} steps, once")
    parser.add_argument("--place", type=Path, help="where ledgers are written for the time being")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--write", action="store_true", help="also write the tables beside this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    shown = [word for word, given in (("--large", options.large), ("--write", options.write)) if given]
    result = {
        "command": " ".join(["python benchmarks/ledger_speed.py", *shown]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one used, load average {load:.1f} at the beginning",
        "versions": {"Python": platform.python_version(), **{name: installed(name) for name in ("orjson",)}},
        "completions": options.completions,
        "steps": options.steps,
        "ranks": options.many_ranks,
        **measure(options),
    }
    print(page(result))
    text = json.dumps(result, indent=2) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    if options.write:
        RESULTS.write_text(page(result), encoding="utf-8")
        RESULTS.with_suffix(".json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
