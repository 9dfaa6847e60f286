"""Runs every framework on configurations converted from one source, and measures how far the runs are apart.

    python suite.py FOLDER [--all | --case NAME] [--at-once 2] --python trl=.nox/trl/bin/python --python verl=...

Each framework runs in its own environment, natively (observed) and wrapped: one run after another, or so many at once.
FOLDER gets every run's ledger and steps, and `result.json`; a run that is there already is not repeated. This file
itself needs torch, transformers and batchbridge.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from subjects import Subject

    from batchbridge.testing.tiny import ScriptedRollouts
    from batchbridge_on_cpu.trajectories import Fault

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from matrix import CASES, DERIVED, FORMS, INJECTED, MODES, REAL, WITHOUT_EFFECT, Case, Order, framework_of
from oracle_steps import OracleStep, between, worst

VARIANTS = {"verl": ("v1", "v0")}
"""Trainers of one framework."""


def converted(folder: Path, case: Case, target: str) -> Path:
    """The case in the target's own form, with the account of the conversion beside it; the source where it is its own.

    Lossy is allowed: the account says what is lost, and `refused` whether it matters.
    """
    framework, version = framework_of(target), DERIVED[target].version if target in DERIVED else None
    if framework == case.framework and version is None:
        return case.path
    form, ending = FORMS[framework]
    file = folder / f"{framework if version is None else target}.{ending}"
    words = [sys.executable, "-m", "batchbridge", "convert", *case.arguments, "--to", framework]
    words += ["--to-version", version] if version is not None else []
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        account = subprocess.run([*words, "--json", "--dry-run"], capture_output=True, text=True, check=False)
        file.with_suffix(".json").write_text(account.stdout, encoding="utf-8")
        options = ["--format", form, "--allow-lossy", "-o", str(file)]
        subprocess.run([*words, *options], stdout=subprocess.DEVNULL, check=True)
        keys = {report["target_key"] for report in _conversion(file)["outside"] if report["target_key"]}
        file.write_text(_without(file.read_text(encoding="utf-8"), keys, ending), encoding="utf-8")
    return file


def _without(text: str, keys: Collection[str], ending: str) -> str:
    """A configuration without model, data, rewards and logs: the runners bring the same ones in every framework."""
    if ending in ("yaml", "yml"):
        said = yaml.safe_load(text)
        for key in keys:
            *groups, name = key.split(".")
            place: Any = said
            for group in groups:
                place = place.get(group, {}) if isinstance(place, dict) else {}
            if isinstance(place, dict):
                place.pop(name, None)
        return yaml.safe_dump(said, sort_keys=False)
    begins = tuple(f"{before}{key}{after}" for key in keys for before, after in (("", "="), ("+", "="), ("--", " ")))
    lines = [line for line in text.splitlines() if not line.strip().startswith((*begins, "# fill in:"))]
    return "\n".join(lines) + "\n"


def account(native: Path) -> list[dict[str, Any]]:
    """The fields of the conversion that wrote `native`."""
    fields: list[dict[str, Any]] = _conversion(native)["fields"]
    return fields


def _conversion(native: Path) -> dict[str, Any]:
    (found,) = json.loads(native.with_suffix(".json").read_text(encoding="utf-8"))["results"]
    assert isinstance(found, dict)
    return found


def summary(fields: Sequence[Mapping[str, Any]], own: Collection[str] = ()) -> dict[str, Any]:
    """What the page says of a conversion. same: fields that mean exactly the same. own: see `Case`; they are lost."""
    by_status: dict[str, list[str]] = {
        status: [field["field"] for field in fields if field["status"] in names]
        for status, names in (
            ("same", ("exact", "equivalent")),
            ("patched", ("patched",)),
            ("lost", ("inexpressible", "approximate")),
        )
    }
    kept = [field for field in by_status["patched"] if field in own]
    patched = [field for field in by_status["patched"] if field not in own]
    return {"same": len(by_status["same"]), "patched": patched, "lost": [*kept, *by_status["lost"]]}


def refused(fields: Sequence[Mapping[str, Any]], own: Collection[str] = ()) -> dict[str, str]:
    """What the case asks and the target cannot say, by field, and what comes of it: such a run is not made. own: see
    `Case`."""
    lost = [field for field in fields if field["status"] in ("inexpressible", "approximate")]
    return {
        field["field"]: field["reason"]
        for field in lost
        if field["field"] not in {*INJECTED, *WITHOUT_EFFECT.keys(), *own}
    }


def predicted(case: Case, target: str, native: Path) -> dict[str, Any]:
    """What `batchbridge diff` says of the source and the target's configuration, without running anything."""
    version = _conversion(native)["to"]["framework_version"]
    sides = ["--framework-a", case.framework, "--version-a", case.version]
    sides += ["--framework-b", target, "--version-b", version]
    sizes = ["--dataset-size", str(case.prompts), "--world-size", str(case.ranks)]
    words = [sys.executable, "-m", "batchbridge", "diff", str(case.path), str(native), *sides, *sizes, "--json"]
    answer = subprocess.run(words, capture_output=True, text=True, check=False)
    return json.loads(answer.stdout)["results"][0] if answer.stdout else {"error": answer.stderr}


def run(folder: Path, order: Order, python: Path) -> tuple[int, float]:
    """The runner's exit code and seconds; what it said is in the folder's `runner.txt`."""
    done = folder / "done.json"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was stopped
        order.write(folder)
        framework = framework_of(order.target)
        command = [str(python), str(HERE / f"run_{framework}.py"), str(folder)]
        if framework == "trl" and order.told.ranks > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={order.told.ranks}"]
            command[1:1] = torchrun
        started = time.monotonic()
        own = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with (folder / "runner.txt").open("w", encoding="utf-8") as output:
            code = subprocess.run(command, env=own, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        done.write_text(json.dumps([code, time.monotonic() - started]), encoding="utf-8")
    code, seconds = json.loads(done.read_text(encoding="utf-8"))
    return code, seconds


def name_of(target: str, variant: str) -> str:
    """How a run is called in the results."""
    return f"{target} {variant}".strip()


def orders(
    folder: Path, case: Case, natives: Mapping[str, Path], modes: Sequence[str]
) -> Iterator[tuple[str, str, Path, Order]]:
    """(name, mode, folder, order) of every run of a case. natives: configuration of each framework."""
    for target, native in natives.items():
        variants = [one for one in VARIANTS.get(target, ("",)) if name_of(target, one) not in case.left_out]
        for variant, mode in itertools.product(variants, ("enforce",) if target in DERIVED else modes):
            number = [*CASES, REAL.name].index(case.name)
            place = folder / f"{number}{target}{variant}{mode[0]}"  # short: paths of Ray's sockets end at 107 bytes
            yield (
                name_of(target, variant),
                mode,
                place,
                Order(case=case.name, target=target, variant=variant, mode=mode, native=str(native)),
            )


def script_of(case: Case) -> ScriptedRollouts:
    """What the case's engines play."""
    from batchbridge.testing.tiny import ScriptedRollouts

    return ScriptedRollouts.of_environment(case.environment)


def subject_of(case: Case) -> Subject:
    """What the case trains."""
    from subjects import of_images, of_text

    return of_images() if case.images else of_text()


def oracle_steps(case: Case, folder: Path) -> list[OracleStep]:
    """Every optimizer step of a finished run beside the float64 oracle at the run's own parameters."""
    import torch

    from batchbridge.ledger import read_headers
    from batchbridge.meaning.candidates import plan_of
    from batchbridge.meaning.spec import Spec
    from batchbridge.testing.oracle import ScriptedRun, relative_error
    from batchbridge.testing.snapshots import snapshots

    header = read_headers(folder / "ledger")[0]
    spec = Spec.from_dict(header["spec"])
    plan, steps, subject = plan_of(spec, header["dataset_size"]), snapshots(folder / "steps"), subject_of(case)

    def scripted(dtype: torch.dtype) -> ScriptedRun:
        def policy_at(step: int) -> Any:
            policy = subject.policy().to(dtype).eval()
            torch.nn.utils.vector_to_parameters(steps[step].before.to(dtype), policy.parameters())
            return policy

        return ScriptedRun(
            spec=spec,
            script=script_of(case),
            policy_at=policy_at,
            reference=subject.policy().to(dtype).eval() if spec.objective.kl_coefficient else None,
            **subject.shown,
        )

    exact, rough = scripted(torch.float64), scripted(torch.float32)
    found = []
    for step in steps:
        samples = exact.planned(plan, step.step)
        expected = exact.gradient(samples, step.step)
        floor = relative_error(rough.gradient(rough.planned(plan, step.step), step.step), expected)
        off = (step.gradient.double() - expected.double()) / expected.double().norm()
        wrong = None
        if case.flat or subject.alter is not None:
            every = dataclasses.replace(exact, keeps_all=bool(case.flat))
            others = every.planned(plan, step.step)
            if subject.alter is not None:
                others = [subject.alter(sample) for sample in others]
            wrong = relative_error(step.gradient, every.gradient(others, step.step))
        found.append(OracleStep(off, floor, exact.clipped_share(samples, step.step), wrong))
    return found


def led(case: Case, header: Mapping[str, Any], fault: Fault | None = None, policy: Any = None) -> tuple[Any, Any]:
    """Where the plan of a run leads in plain torch, sound or with a fault: parameters at the start and at the end.

    policy: to start from; the case's by default.
    """
    from batchbridge.meaning.candidates import plan_of
    from batchbridge.meaning.spec import Spec
    from batchbridge_on_cpu.trajectories import adamw, reference_run, sgd

    spec, subject = Spec.from_dict(header["spec"]), subject_of(case)
    carried = spec.carried
    assert carried.learning_rate is not None
    if case.optimizer == "sgd":
        optimizer = sgd(carried.learning_rate)
    else:
        assert carried.beta1 is not None
        assert carried.beta2 is not None
        optimizer = adamw(carried.learning_rate, (carried.beta1, carried.beta2))
    return reference_run(
        plan_of(spec, header["dataset_size"]),
        optimizer,
        max_norm=spec.carried.max_gradient_norm or None,
        start=subject.policy() if policy is None else policy,
        fault=fault,
        script=script_of(case),
        altered=subject.alter,
        **subject.shown,
    )


PERTURBED = 1e-8
"""Of each parameter: small enough that the growth is linear, far above float64's rounding."""


def amplification(case: Case, places: Mapping[str, Path]) -> float:
    """How many times a small change of the start's parameters has grown at the end, in plain torch in float64.

    What rounding leaves between two runs grows as much, so a case that amplifies tells nothing of its frameworks.
    """
    import torch

    from batchbridge.ledger import read_headers

    header = read_headers(next(iter(places.values())) / "ledger")[0]
    policy = subject_of(case).policy().double()
    drawn = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            noise = torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            parameter.mul_(1 + PERTURBED * noise)
    (start, end), (other_start, other_end) = led(case, header), led(case, header, policy=policy)
    return float((other_end - end).norm() / (other_start - start).norm())


def plain_torch(case: Case, places: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """How far each wrapped run's end is from its plan's in plain torch: run -> sound, and each fault."""
    from batchbridge.ledger import read_headers
    from batchbridge.testing.snapshots import snapshots
    from batchbridge_on_cpu.trajectories import FAULTS, distance

    found: dict[str, dict[str, float]] = {name: {} for name in places}
    header = read_headers(next(iter(places.values())) / "ledger")[0]
    faults: tuple[Fault | None, ...] = (None, *FAULTS, *(("kept",) if case.flat else ()))
    subject = subject_of(case)
    faults += ("altered",) if subject.alter is not None else ()
    for fault in faults:
        start, end = led(case, header, fault)
        for name, place in places.items():
            after = snapshots(place / "steps")[-1].after
            found[name][fault or "sound"] = distance(start, after, end, subject.says).said
    return found


def version_of(folder: Path) -> str:
    """Of a finished run's framework."""
    from batchbridge.ledger import read_headers

    return str(read_headers(folder / "ledger")[0]["framework_version"])


def recomputed(folder: Path) -> dict[str, dict[str, Any]]:
    """What `batchbridge ledger verify` finds in a wrapped run: each check's counts, and its first departures."""
    from batchbridge.ledger.verifying import verify

    return {
        check["name"]: {name: check[name] for name in ("held", "departed", "departures", "skipped")}
        for check in verify(folder / "ledger").to_dict()["checks"]
    }


def apart(case: Case, a: Path, b: Path) -> dict[str, Any]:
    """Two finished runs, measured."""
    from batchbridge.ledger import diff
    from batchbridge.testing.equivalence import LEDGER_RTOL, compare

    found = compare(a, b, says=subject_of(case).says)
    first = diff(a / "ledger", b / "ledger", rtol=LEDGER_RTOL)
    return {
        "ledgers_equal": found.ledger is None,
        "first_difference": None if found.ledger is None else first.to_dict(),
        "first_gradient": None if found.gradients is None else found.gradients[0],
        "gradients": None if found.gradients is None else max(found.gradients),
        "trajectory": found.trajectory,
        "movement": found.movement,
        "problems": found.problems(),
    }


def measure(
    folder: Path, case: Case, pythons: Mapping[str, Path], modes: Sequence[str] = MODES, at_once: int = 1
) -> dict[str, Any]:
    """Runs a case everywhere and measures every pair, wrapped and not. at_once: runs side by side."""
    result: dict[str, Any] = {
        name: {} for name in ("runs", "accounts", "refused", "predicted", "oracle", "plain_torch", "pairs")
    }
    places: dict[str, dict[str, Path]] = {mode: {} for mode in MODES}
    targets = [target for target in pythons if case.runs(target)]
    natives = {target: converted(folder / case.name, case, target) for target in targets}
    for target in [name for name in targets if natives[name] != case.path]:
        fields = account(natives[target])
        result["accounts"][target] = summary(fields, case.own)
        if lost := refused(fields, case.own):
            result["refused"][target] = lost
            del natives[target]
    ordered = list(orders(folder, case, natives, modes))
    with ThreadPoolExecutor(at_once) as threads:
        ran = list(threads.map(lambda each: run(each[2], each[3], pythons[each[3].target]), ordered))
    for (name, mode, place, order), (code, seconds) in zip(ordered, ran, strict=True):
        result["runs"].setdefault(name, {})[mode] = {"code": code, "seconds": round(seconds)}
        if code == 0:
            places[mode][name] = place
        if order.target not in (case.framework, *DERIVED):
            result["predicted"].setdefault(order.target, predicted(case, order.target, Path(order.native)))
    result["recomputed"] = {name: recomputed(place) for name, place in places["enforce"].items()}
    result["versions"] = {name: version_of(place) for name, place in places["enforce"].items()}
    if case.critic:
        from critic_runs import measured

        return result | measured(places)
    steps = {name: oracle_steps(case, place) for name, place in places["enforce"].items()}
    result["oracle"] = {name: worst(found) for name, found in steps.items()}
    result["plain_torch"] = plain_torch(case, places["enforce"])
    result["amplification"] = amplification(case, places["enforce"])
    for mode in MODES:
        result["pairs"][mode] = {
            f"{a} / {b}": apart(case, places[mode][a], places[mode][b])
            for a, b in itertools.combinations(places[mode], 2)
        }
    for a, b in itertools.combinations(steps, 2):
        result["pairs"]["enforce"][f"{a} / {b}"]["gradients_of_the_bar"] = between(steps[a], steps[b])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="every case, not only those of CI")
    parser.add_argument("--case", action="append", choices=list(CASES), help="this one alone, in every mode")
    parser.add_argument("--at-once", type=int, default=1, metavar="RUNS", help="as many as there are processors")
    parser.add_argument("--python", action="append", required=True, metavar="FRAMEWORK=PYTHON")
    asked = parser.parse_args()
    pythons = {name: Path(place) for name, _, place in (word.partition("=") for word in asked.python)}
    asked.folder.mkdir(parents=True, exist_ok=True)
    cases = [case for case in CASES.values() if (case.name in asked.case if asked.case else case.ci or asked.all)]
    place, whole = asked.folder.absolute(), asked.all or asked.case
    results = {}
    for case in cases:
        modes, targets = (MODES, ()) if whole else (case.ci, case.ci_targets)
        named = {target: python for target, python in pythons.items() if not targets or target in targets}
        results[case.name] = measure(place, case, named, modes, asked.at_once)
    (asked.folder / "result.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    if not asked.case and {"trl", "verl"} <= pythons.keys():
        from going_on import measure as goes_on

        found = goes_on(place, pythons, asked.at_once)
        (asked.folder / "going_on.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
