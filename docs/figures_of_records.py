"""The texts of `make_figures.py`: each a table, made from the figures that the matrix and the benchmarks left.

A figure stands beside the commit and the date of its measuring, and may be older than the code.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
ADAPTERS = ROOT / "tests" / "adapters"
KERNELS = "[other kernels](testing.md#trajectories)"
SUITE = "[one run, every framework](equivalence.md)"
GRADIENT = "`max(1e-6, 3 x plain float32's error)`"
TRAJECTORY = "`1e-5`"
"""Bars, as the tests enforce them: `batchbridge.testing.oracle` and `batchbridge.testing.equivalence`."""


class Row(NamedTuple):
    """A line of "What was measured": what, on which versions and device, the figure, its bar, and its control."""

    what: str
    on: str
    figure: str
    bar: str = ""
    control: str = ""


def read(path: Path | str) -> Any:
    """A JSON record below the repository's root."""
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


def lines(path: Path) -> list[dict[str, Any]]:
    """A record of JSON Lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def constant(path: Path, name: str) -> Any:
    """A module's constant, without importing the framework that the module imports."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [name] == [ast.unparse(target) for target in node.targets]:
            return ast.literal_eval(node.value)
    raise LookupError(f"{path} has no {name}")


def digits(value: float) -> str:
    """2.4e-6."""
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def listed(words: Sequence[str]) -> str:
    """A, b and c."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def when(on: Mapping[str, str]) -> str:
    """The commit and the date of a measuring."""
    return f"measured on `{on['commit']}`, {on['date']}"


def measured(rows: Sequence[Row]) -> str:
    """The table of "What was measured"; versions and device are said once for neighbours that share them."""
    before = ("", *(row.on for row in rows))
    said = [row._replace(on="the same") if row.on == on else row for row, on in zip(rows, before, strict=False)]
    return table(("what", "on", "measured", "bar", "control"), said)


# ---- records that several frameworks share


def parted_at_once(pair: Mapping[str, Any]) -> bool:
    """Whether two runs of `tests/equivalence` trained other completions from the first step on."""
    first = pair["first_difference"] or {}
    return pair["first_gradient"] is not None and first.get("step") == 0 and first["aspect"] in ("order", "membership")


def suite(framework: str) -> Iterator[Row]:
    """Gradients and ends of the framework's runs of `tests/equivalence`."""
    found: dict[str, tuple[list[dict[str, float]], list[dict[str, float]]]] = {}
    figures = read("tests/equivalence/figures.json")
    others = [
        pair["first_gradient"]
        for case in figures["cases"].values()
        for names, pair in case["pairs"]["observe"].items()
        if framework in {name.partition(" ")[0] for name in names.split(" / ")} and parted_at_once(pair)
    ]
    for case in figures["cases"].values():
        for run, version in case["versions"].items():
            if run.partition(" ")[0] == framework:
                gradients, ends = found.setdefault(version, ([], []))
                gradients.append(case["oracle"][run])
                ends.append(case["plain_torch"][run])
    for version, (gradients, ends) in found.items():
        on = f"{framework} {version}, CPU, float32: {len(gradients)} runs of {SUITE}; {when(figures['measured_on'])}"
        worst = max(gradients, key=lambda one: one["of_the_bar"])
        error = max(one["error"] for one in gradients)
        yield Row(
            "gradient of every optimizer step against the float64 oracle",
            on,
            f"at most {digits(error)}, {worst['of_the_bar']:.2f} of the bar",
            GRADIENT,
            f"unwrapped, where another framework trains other completions: first gradients apart by at least "
            f"{min(others):.2f} of their norm",
        )
        faults = {fault: min(end[fault] for end in ends) for fault in ("swapped", "weight")}
        yield Row(
            "policy at the end against the same plan in plain torch, float64",
            on,
            f"at most {digits(max(end['sound'] for end in ends))} of its change",
            TRAJECTORY,
            f"one completion swapped: at least {digits(faults['swapped'])}; one weight off by 1 %: at least "
            f"{digits(faults['weight'])}",
        )


def kernels(framework: str) -> Iterator[Row]:
    """Ends of runs that train the same, under other kernels."""
    recorded = read("tests/kernels/figures.json")
    figures = [
        (case, figure)
        for found in recorded["figures"].values()
        for case, figure in found.items()
        if case.partition(",")[0] == framework
    ]
    sound = {case: 0.0 for case, figure in figures if figure["kind"] == "sound"}
    for case, figure in figures:
        if case in sound:
            sound[case] = max(sound[case], figure["said"])
    control = min(figure["said"] for case, figure in figures if case not in sound)
    yield Row(
        "policies at the end of runs with other splits and ranks, and of the plan in plain torch",
        f"{recorded['machine']}, float32: {len(sound)} comparisons under {len(recorded['figures'])} sets of kernels "
        f"({KERNELS}); {when(recorded['measured_on'][framework])}",
        f"at most {digits(max(sound.values()))} of their change",
        TRAJECTORY,
        f"runs with one fault: at least {digits(control)}",
    )


def cost(framework: str) -> Iterator[Row]:
    """The share of a step that goes into its checks."""
    found = read("benchmarks/check_cost.json")[framework]
    for name, row in found["rows"].items():
        yield Row(
            f"checks of a step of {name}",
            setting(found),
            f"{row['share'] * 100:.2f} % of its {row['step_milliseconds']:,.0f} ms",
            f"aim: 2 %{', missed' if row['share'] > 0.02 else ''}",
        )


def setting(found: dict[str, Any]) -> str:
    """Versions and machine of a benchmark's record, and the type that it computes in."""
    versions = ", ".join(f"{name} {said}" for name, said in found["versions"].items() if said and name != "batchbridge")
    kind = "bf16" if found.get("options", {}).get("device", "cpu") == "cuda" else "float32"
    return f"{versions}; {found['machine']}, {kind}; {when(found['measured_on'])}"


def published(framework: str) -> Iterator[Row]:
    """How many published commands a wrapped run enforces."""
    for name, counted in read("benchmarks/coverage.json").items():
        if (found := counted.get(framework)) is not None:
            valid = found["commands"] - found["verdicts"].get("invalid", 0)
            enforced = found["verdicts"].get("enforced", 0)
            yield Row(
                f"published launch commands that a wrapped run enforces: {name[0].lower()}{name[1:]}",
                "read, not run (`benchmarks/coverage.py`)",
                f"{enforced} of {valid} that are valid",
            )


def by_age(release: str) -> list[int]:
    """What releases are sorted by."""
    return [int(part) for part in re.findall(r"\d+", release)]


def newest(releases: Iterable[str]) -> str:
    """The newest release of several."""
    return max(releases, key=by_age)


# ---- one block each


def trl() -> str:
    """docs/trl.md: what was measured."""
    rows = [*suite("trl"), *kernels("trl")]
    for file in sorted((ROOT / "benchmarks").glob("trl_step_time*.json")):
        for row in filter(None, read(file)):  # some may not be measured yet
            command = re.sub(r"--(?:pairs|steps) \d+ ?|--memory ?", "", row["command"]).strip()
            low, high = row["ratio_spread"]
            peak = row.get("peak_bytes")
            memory = f"; peak memory {peak['wrapped'] / peak['native']:.2f} of native" if peak else ""
            rows.append(
                Row(
                    f"an optimizer step: `trl_step_time.py {command}`",
                    setting(row),
                    f"{row['ratio_median']:.3f} ({low:.3f} to {high:.3f}) of the native step's time{memory}",
                    "",
                    f"first gradients apart by {digits(row['gradients_apart'])} of their norm",
                )
            )
    return measured([*rows, *cost("trl")])


def trl_history() -> str:
    """docs/trl.md: what is kept of older releases' own code."""
    history = ADAPTERS / "trl" / "history"
    verdicts = Counter(str(row["trl"]) for row in lines(history / "verdicts.jsonl"))
    steps = Counter(str(row["trl"]) for row in lines(history / "steps.jsonl"))
    releases = sorted({*verdicts, *steps}, key=by_age)
    return table(
        ("TRL", "verdicts kept", "runs kept, step by step"),
        [(release, str(verdicts[release]), str(steps[release])) for release in releases],
    )


def verl() -> str:
    """docs/verl.md: what was measured."""
    native = ADAPTERS / "verl" / "native"
    every = read(ADAPTERS / "verl" / "figures.json")
    found = every[release := newest(every)]
    dated = {what: f"verl {release}, CPU, float32; {when(of.pop('measured_on'))}" for what, of in found.items()}
    ends = {other: case["said"] for other, case in found["ends"].items()}
    verdicts = Counter(str(row["version"]) for row in lines(ADAPTERS / "verl" / "validator_verdicts.jsonl"))
    drawn = constant(native / "test_rules_against_verl.py", "CONFIGURATIONS")
    critics = {name: case for name, case in found["gradient"].items() if name.startswith("critic, ")}
    policies = {name: case for name, case in found["gradient"].items() if name not in critics}
    unwrapped = (case["bars"] for name, case in found["natively"].items() if name.startswith(("geo_mean", "seq-mean")))
    since = (
        ("the same of a critic's optimizer steps, values clipped and not", "gradient", critics),
        ("the same with corrections towards the sampler, or its log-probabilities", "corrected", found["corrected"]),
        ("the same with a teacher's distance as the only reward", "distillation", found["distillation"]),
        ("the same on rows that share their prompts", "shared prompts", found["shared prompts"]),
        ("the same on an engine that is not FSDP's", "other engine", found["other engine"]),
    )
    return measured(
        [
            gradients(
                policies,
                ", ranks",
                Row(
                    "gradient of every optimizer step against the float64 oracle",
                    dated["gradient"],
                    "",
                    GRADIENT,
                    f"unwrapped null factor, geo_mean, filler rows in B: at least {min(unwrapped):,.0f} times the bar",
                ),
            ),
            gradients(
                found["packed"],
                ", rows|, (one|two) sequence",
                Row("the same on packed rows, and with Ulysses", dated["packed"], "", GRADIENT),
            ),
            gradients(
                found["images"],
                ", (packed|one|two)",
                Row("the same of prompts with images", dated["images"], "", GRADIENT),
            ),
            *(gradients(cases, "(, )?ranks", Row(what, dated[group], "", GRADIENT)) for what, group, cases in since),
            Row(
                "policy at the end: one rank, V0, a sequence group against V1 on two ranks",
                dated["ends"],
                f"at most {digits(max(ends[name] for name in ('one_rank', 'v0', 'sequence')))} of its change",
                TRAJECTORY,
                f"unwrapped V0 {ends['unwrapped V0'] * 100:.0f} %, unwrapped V1 {ends['unwrapped V1'] * 100:.0f} %",
            ),
            *suite("verl"),
            *kernels("verl"),
            *cost("verl"),
            *handed_over("one_step_off_policy", found["one_step_off"], dated["one_step_off"], "all"),
            *handed_over(
                "fully_async_policy", found["fully_async"], dated["fully_async"], "nine in ten, the others older ones"
            ),
            Row(
                "random configurations near the rules' boundaries, against verl's `validate_config`",
                f"verl {release}",
                f"{drawn:,}: the same verdict and the same first error on all",
                "all",
            ),
            Row(
                "recorded verdicts that are tested without verl",
                f"verl {listed(sorted(verdicts))}",
                f"{sum(verdicts.values())}",
                "all",
            ),
            *published("verl"),
        ]
    )


def handed_over(program: str, cases: dict[str, dict[str, float]], on: str, bar: str) -> Iterator[Row]:
    """The row of completions whose weights are told."""
    count = int(sum(case["completions"] for case in cases.values()))
    same = int(sum(case.get("same", case["completions"]) for case in cases.values()))
    oldest = int(max(case["oldest"] for case in cases.values()))
    yield Row(
        f"completions of {program} whose weights the ledger names as the engine held them",
        on,
        f"{same} of {count}; up to {oldest} optimizer steps old",
        bar,
    )


def gradients(cases: dict[str, dict[str, float]], behind: str, row: Row) -> Row:
    """The row with the worst of its cases; a case's name up to `behind`, a pattern, is its objective."""
    worst = max(cases.values(), key=lambda case: case["error"])
    objectives = {name[: found.start()] if (found := re.search(behind, name)) else name for name in cases}
    said = f"at most {digits(worst['error'])} where plain float32 errs by {digits(worst['float32'])}"
    number = f"{len(objectives)} objectives" if len(objectives) > 1 else "one objective"
    return row._replace(figure=f"{said}; {number}")


def openrlhf() -> str:
    """docs/openrlhf.md: what was measured."""
    native, found = ADAPTERS / "openrlhf" / "native", read(ADAPTERS / "openrlhf" / "figures.json")
    releases = sorted(found, key=by_age)
    newest, cases = releases[-1], [case for figures in found.values() for case in figures["native"].items()]
    oracle = [(name, case) for name, case in cases if name.startswith("gradient of ")]
    fit = max((case for name, case in cases if name in ("fit, own", "fit, passes")), key=lambda case: case["error"])
    named = ("filtered fit, own", "filtered fit, passes")
    most = max((case for name, case in cases if name.startswith(named)), key=lambda case: case["error"])
    critics = [case for figures in found.values() for case in figures["critics"].items()]
    of_critics = [case for name, case in critics if "gae, gradient of the " in name]
    divided = min(case["of_the_bar"] for name, case in critics if name.startswith("gae, alone"))
    runs, parts = (found[newest][name] for name in ("runs", "tensors"))
    cut = [case for name, case in parts.items() if name.startswith("gradient of ")]
    rounds = max((case["in float32"] for case in cut), key=lambda case: case["error"])
    uncut = min(value for name, value in parts.items() if name.startswith("blind"))
    every = f"OpenRLHF {listed(releases)}, CPU, float32"
    natives, with_critics = (
        f"{every}; {listed(list(dict.fromkeys(when(of[group]['measured_on']) for of in found.values())))}"
        for group in ("native", "critics")
    )
    one = f"OpenRLHF {newest}, CPU, float32; {when(found[newest]['native']['measured_on'])}"
    ray = f"OpenRLHF {newest}, CPU, float32; {when(runs['measured_on'])}"
    pinned = dict(re.findall(r"(?m)^(openrlhf|deepspeed)==(\S+)", (ROOT / "constraints/openrlhf.txt").read_text()))
    kept = lines(ADAPTERS / "openrlhf" / "parser_verdicts.jsonl")
    own = f"OpenRLHF {pinned['openrlhf']}, DeepSpeed {pinned['deepspeed']}"
    return measured(
        [
            Row(
                "gradient of every optimizer step against the float64 oracle, ZeRO-1, 2 and 3",
                natives,
                f"at most {digits(max(case['error'] for _, case in oracle))}, "
                f"{max(case['of_the_bar'] for _, case in oracle)} of the bar; "
                f"{len({name.rpartition(', ranks')[0] for name, _ in oracle})} objectives",
                GRADIENT,
                "unwrapped dynamic batches under ZeRO-1 and 2: at least "
                f"{min(case['bars'] for name, case in cases if name.startswith('alone, ')):,.0f} times the bar",
            ),
            Row(
                "gradients of a whole `PPOTrainer.fit`",
                natives,
                f"at most {digits(fit['error'])} where plain float32 errs by {digits(fit['float32'])}",
                GRADIENT,
            ),
            Row(
                "the same with dynamic filtering, on one rank and on two",
                natives,
                f"at most {digits(most['error'])} where plain float32 errs by {digits(most['float32'])}",
                GRADIENT,
                "the first candidates, kept or not: more than 10 times the bar",
            ),
            Row(
                "gradients of critic and policy with gae, padded and packed, on one rank and on two",
                with_critics,
                f"at most {digits(max(case['error'] for case in of_critics))}, "
                f"{max(case['of_the_bar'] for case in of_critics)} of the bar",
                GRADIENT,
                f"unwrapped before {newest}, several micro-batches under ZeRO-2: at least {divided:,.0f} times the bar",
            ),
            Row(
                "gradient of every optimizer step with tensor parallelism, ZeRO-1 and 2, one group of ranks and two",
                f"OpenRLHF {newest}, CPU, passes in float64; {when(parts['measured_on'])}",
                f"at most {digits(max(case['error'] for case in cut))}; with passes in float32 at most "
                f"{digits(rounds['error'])}, where three times plain float32's error is {digits(rounds['bar'])}",
                "`3 x float32's epsilon`",
                f"gradients that are not added up over the group: at least {uncut:,.0f} times the bar",
            ),
            Row(
                "policy at the end with other micro-batches",
                one,
                f"{digits(found[newest]['native']['fit, other micro-batches']['apart'])} of its change",
                TRAJECTORY,
                f"unwrapped: {found[newest]['native']['fit, unwrapped']['apart'] * 100:.0f} %",
            ),
            Row(
                "parameters at the end of the stock entry under Ray: one rank, ZeRO-3, against two ranks with ZeRO-2",
                ray,
                f"at most {digits(max(runs['apart: one rank'], runs['apart: zero 3']))} of their movement, itself "
                f"{runs['moved'] * 100:.1f} % of their norm",
                TRAJECTORY,
                f"unwrapped: {runs['apart: unwrapped'] * 100:.0f} %",
            ),
            *suite("openrlhf"),
            *kernels("openrlhf"),
            *cost("openrlhf"),
            Row(
                "random command lines near the boundaries, against OpenRLHF's parser and its checks",
                own,
                f"{constant(native / 'test_parser_of_openrlhf.py', 'COUNT'):,}: the same verdict and the same first "
                "error on all",
                "all",
            ),
            Row(
                "random command lines, `train` up to its trainer",
                own,
                f"{constant(native / 'test_building_of_openrlhf.py', 'COUNT'):,}, likewise",
                "all",
            ),
            Row(
                "policies on 1 to 64 devices, against DeepSpeed's batch assertion",
                own,
                f"{64 * constant(native / 'test_batches_of_deepspeed.py', 'PER_WORLD'):,}, likewise",
                "all",
            ),
            Row(
                "recorded command lines that are tested without OpenRLHF",
                f"{len({row['version'] for row in kept})} releases",
                f"{len(kept)}, of every release and with every outcome",
                "all",
            ),
            *published("openrlhf"),
        ]
    )


def easyr1() -> str:
    """docs/easyr1.md: what its native tests measured, by release."""
    figures, rows = read(ADAPTERS / "easyr1" / "figures.json"), []
    versions = sorted(figures, key=by_age, reverse=True)
    for found in map(figures.get, versions):
        of = found["text"]
        rows.append(
            {
                "test_gradients_easyr1.py: gradient of every optimizer step against the float64 oracle": steps(of),
                "... of how many objectives": str(of["objectives"]),
                "... unwrapped, in bars: `seq`; floors": f"{of['natively_bars']:,.0f}; {of['floors_bars']:,.0f}",
                "... k3 against an oracle without its clamp, in bars": f"{of['unclamped_bars']:,.0f}",
                "test_fits_easyr1.py: what the parameters moved, over their norm, at least": f"{of['moved']:.1%}",
                "... on 1 and 2 ranks: what the policies say at the end is apart by, of its change "
                "([trajectories](testing.md#trajectories))": digits(of["ranks_apart"]),
                "... the same with `seq` and a token budget; with SGD; like another configuration": "; ".join(
                    digits(of[f"{name}_ranks_apart"]) for name in ("seq", "sgd", "like")
                ),
                "... unwrapped, no step has the planned members: apart by": f"{of['unwrapped_apart']:.0%}",
                **easyr1_ulysses(of),
                "the stock entry on one rank, cut by tokens: apart by, of its change": (
                    digits(of["budget_apart"]) if "budget_apart" in of else "no token budget"
                ),
                **easyr1_parts(found),
            }
        )
    commits = [f"{version} ({figures[version]['text']['checkout'][:7]})" for version in versions]
    runs = table(("proof", *commits), [(what, *(row[what] for row in rows)) for what in rows[0]])
    return f"{runs}\n\n{measured([*suite('easyr1'), *kernels('easyr1'), *cost('easyr1'), *published('easyr1')])}"


def steps(of: Mapping[str, Any]) -> str:
    """How many optimizer steps were held against the oracle, and the worst of them; when, where it is said."""
    said = f"{of['steps']} steps, at most {digits(of['error'])}, {of['of_the_bar']:.2f} of the bar"
    return f"{said}; {when(of['measured_on'])}" if "measured_on" in of else said


def easyr1_ulysses(of: dict[str, Any]) -> dict[str, str]:
    """Of one version: what is measured where ranks share the tokens of their rows."""
    names = (
        "... with Ulysses: gradients against the oracle",
        "... gathered without the factor for the ranks of a replica: at least, in bars",
        "... `fit` from the same without Ulysses; unwrapped: apart by, of its change",
    )
    if "ulysses_error" not in of:
        return dict.fromkeys(names, "refused")
    worst = steps({name: of[f"ulysses_{name}"] for name in ("steps", "error", "of_the_bar")})
    apart = f"{digits(of['ulysses_apart'])}; {of['ulysses_unwrapped_apart']:.0%}"
    return dict(zip(names, (worst, f"{of['ulysses_unscaled_bars']:,.0f}", apart), strict=True))


def easyr1_parts(found: dict[str, Any]) -> dict[str, str]:
    """Of one version: what is measured of images, videos and LoRA, where they are followed."""
    images, videos, lora = (found.get(name) for name in ("images", "videos", "lora"))
    rows: dict[str, Callable[[], str]] = {
        "test_images_easyr1.py: the same gradients of rows with no, one or two images": lambda: steps(images),
        "... of how many families of models": lambda: str(images["families"]),
        "... an oracle that is shown other pictures; that trains a frozen tower: at least, in bars": lambda: (
            f"{images['other_pictures_bars']:,.0f}; {images['trained_tower_bars']:,.0f}"
        ),
        "... `fit` on 1 and 2 ranks; with KL and a frozen tower: apart by, of its change": lambda: (
            f"{digits(images['ranks_apart'])}; {digits(images['penalised_apart'])}"
        ),
        "... images, unwrapped: apart by": lambda: f"{images['unwrapped_apart']:.0%}",
        "test_videos_easyr1.py: the same gradients of rows with no, one or two videos": lambda: steps(videos),
        "... an oracle with the videos of two prompts exchanged; with frames backwards; without videos; that trains a "
        "frozen tower: at least, in bars": lambda: "; ".join(
            f"{videos[name]:,.0f}"
            for name in ("first videos of two prompts exchanged", "frames backwards", "no videos", "a trained tower")
        ),
        "... Qwen2-VL, an oracle with the positions of transformers: at least, in bars": lambda: (
            f"{videos['positions of transformers']:,.0f}"
        ),
        "test_lora_easyr1.py: gradients of adapters": lambda: steps(lora),
        "... an oracle whose adapters are 1 % larger: at least, in bars": lambda: (
            f"{lora['larger_adapters_bars']:,.0f}"
        ),
        "... `fit` on 1 and 2 ranks; with KL in the loss; with images: apart by, of its change": lambda: "; ".join(
            digits(lora[f"{name}_apart"]) for name in ("ranks", "penalised", "images")
        ),
        "... from the same plan in plain torch, float64; with one fault in it, at least": lambda: (
            f"{digits(lora['plain_torch_apart'])}; {digits(lora['fault_apart'])}"
        ),
        "... with LoRA, unwrapped: apart by": lambda: f"{lora['unwrapped_apart']:.0%}",
    }
    if images is None:
        lora_begins = list(rows).index("test_lora_easyr1.py: gradients of adapters")
        return {what: "refused" if place < lora_begins else "no LoRA" for place, what in enumerate(rows)}
    return {what: said() for what, said in rows.items()}


def easyr1_against() -> str:
    """docs/easyr1.md: what EasyR1's own code said."""
    records = [lines(path) for path in sorted((ADAPTERS / "easyr1" / "recorded").glob("*.jsonl"))]
    return table(
        ("EasyR1", "random configurations"),
        [(f"{head['version']} ({head['commit'][:7]})", str(len(rows))) for head, *rows in records],
    )


def open_instruct_published() -> str:
    """docs/open_instruct.md: published commands that no longer start."""
    counted = read(ADAPTERS / "open_instruct" / "published.json")
    return (
        f"Of {counted['commands']} published commands {counted['stale']} pass such flags at 2026.8.20, among them "
        f"{counted['stale_with_both']} with both; without the named flags {counted['stale_and_valid_without']} of the "
        f"{counted['stale']} are valid."
    )


def check_cost() -> str:
    """docs/measured.md: the checks' share of a step, by framework."""
    found = read("benchmarks/check_cost.json")
    large = {name.partition(",")[0]: found.pop(name) for name in sorted(found) if name.endswith(", large")}
    names = list(next(iter(found.values()))["rows"])
    rows = [
        (framework, *(f"{of['rows'][name]['share'] * 100:.2f} %" for name in names))
        for framework, of in sorted(found.items())
    ]
    of_large = []
    for framework, of in large.items():
        ((what, row),) = of["rows"].items()
        measured = f"{of['measured_on']['commit']}, {of['measured_on']['date']}"
        times = (f"{row['step_milliseconds'] / 1e3:.1f}", f"{row['milliseconds_a_step']:.0f}")
        of_large.append((framework, *times, f"{row['share'] * 100:.2f} %", measured))
    heads = (what, "a step, s", "of which checks, ms", "share", "measured on")
    return f"{table(('share of a step on one CPU process', *names), rows)}\n\n{table(heads, of_large)}"


def gradient_noise() -> str:
    """docs/measured.md: the noise of gradients that are summed up, and the bar."""
    found = read("benchmarks/gradient_noise.json")
    rows = [(kind, f"{of['noise']:.1e}", f"{of['bar']:.1e}") for kind, of in found["rows"].items()]
    largest = f"largest departure of {found['runs']} runs, {found['date']}, torch {found['torch']}"
    return table(("gradients are summed up in", largest, "bar"), rows)


def trl_examples() -> str:
    """docs/measured.md: what came of TRL's own examples, by mode."""
    found = read("tests/adapters/trl/figures.json")
    release = max(found, key=by_age)
    came = dict(found[release]["examples"])
    on = came.pop("measured_on")
    names = sorted({name.rpartition(", ")[0] for name in came})
    rows = [(f"`{name}`", came[f"{name}, enforce"], came[f"{name}, verify"]) for name in names]
    return f"{table((f'TRL {release}', 'enforce', 'verify'), rows)}\n\nThese were {when(on)}."


def gpu() -> str:
    """docs/trl.md: the tables of benchmarks/gpu.md, a heading lower."""
    page = (ROOT / "benchmarks" / "gpu.md").read_text(encoding="utf-8").split("\n", 2)[2]
    return re.sub(r"(?m)^## ", "### ", page).replace("Written by `python benchmarks/gpu.py`: ", "").strip()


def of_page(page: str, row: str, block: str = "") -> list[str]:
    """The cells of a table's row in a page that a script writes and no JSON beside it holds; `row` begins its line.
    `block`: the script and its words, where the page has such a row in several blocks.

    Raises:
        LookupError: no row or several of the page begin so.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    if block:
        text = text.partition(f"<!-- written by {block} -->\n")[2].partition("<!-- end -->")[0]
    found = [line for line in text.splitlines() if line.startswith(f"| {row}")]
    if len(found) != 1:
        raise LookupError(f"{page}: {len(found)} rows begin with {row!r}")
    return [cell.strip() for cell in found[0].strip("|").split("|")]


def numbers_of_readme() -> dict[str, str]:
    """The numbers of README.md's list, by name: the same in every language."""
    cases = read("tests/equivalence/figures.json")["cases"].values()
    learned = read("tests/equivalence/real_run.json")["pairs"]
    alike, natively = (learned[mode]["trl / verl"] for mode in ("enforce", "observe"))
    by = "benchmarks/strangers/measure.py --write"
    strangers = of_page("docs/evidence.md", "all, ", f"{by} newest")
    fresh = of_page("docs/evidence.md", "all, ", f"{by} raw6")
    share = [
        row["share"]
        for name, of in read("benchmarks/check_cost.json").items()
        if name.endswith(", large")
        for row in of["rows"].values()
    ]
    text = (ROOT / "docs/fuzzing_run.md").read_text(encoding="utf-8")
    fuzzed = re.search(r"^(?P<inputs>[\d,]+) inputs, .* no wrong answer", text, re.MULTILINE)
    if fuzzed is None:
        raise LookupError("docs/fuzzing_run.md: no count of inputs without a wrong answer")
    return {
        "runs": f"{sum(len(case['oracle']) for case in cases)}",
        "wrapped": digits(max(run["error"] for case in cases for run in case["oracle"].values())),
        "alike": f"{alike['equal']:,} of {alike['drawn']:,}",
        "alike_natively": f"{natively['equal']:,}",
        "trainers": strangers[2],
        "read": strangers[3],
        "fresh": fresh[2],
        "fresh_read": fresh[3],
        "wrong_headlines": strangers[8],
        "milliseconds": of_page("benchmarks/cli_cpu_time.md", "check: trl, YAML |")[1],
        "texts": of_page("docs/first_five_minutes.md", "native messages that rules quote, known to `doctor`")[2],
        "least_share": f"{min(share) * 100:.2f}",
        "largest_share": f"{max(share) * 100:.2f}",
        "inputs": fuzzed["inputs"],
        "dragged": of_page("docs/playground.md", "an answer while one drags, median of 64")[1],
    }


README = (
    "**Explain** what trains, from YAML, launch scripts, Python, notebooks, past runs. [Strangers' "
    "trainers](docs/evidence.md#strangers): {read} of {trainers} are read, with {wrong_headlines} wrong numbers, after "
    "repairs; of {fresh} fresh ones, {fresh_read} at once.",
    "**Check**: every violation at once, with its line and ways out, in {milliseconds} ms of CPU.",
    "**Diff**: why two runs differ, the largest effect first: files, versions, frameworks, past runs.",
    "**Convert, scale**: the same run in another framework, or on other GPUs, with an account of what stays.",
    "**Doctor**: the rule behind an error text. It knows {texts} of the frameworks' own that rules quote.",
    "**Wrap**: in a [run that learns](docs/equivalence.md#a-run-that-learns) TRL and verl train {alike} completions "
    "alike, native {alike_natively}. {runs} runs, five frameworks: {wrapped} off a float64 oracle's gradients. "
    "Killed runs resume [exactly](docs/resume.md).",
    "**Verify**: every step against the configuration, for {least_share} to {largest_share} % of [a step's "
    "time](docs/measured.md) (0.5B model).",
    "**Guard** recipes: [CI](docs/howto/check_in_ci.md), [editors](docs/editors.md), "
    "[limits](docs/ci.md#a-projects-own-settings).",
    "**Drag** the GPUs in the [playground](docs/playground.md): {dragged} an answer, and nothing leaves your browser.",
    "**Safe**: nothing in a file is run. {inputs} [mutated inputs](docs/fuzzing.md), no wrong answer.",
)
"""README.md's list of what BatchBridge does; in braces the names of `numbers_of_readme`."""


README_IN_CHINESE = (
    "**解释**（explain）训练什么：YAML、启动脚本、Python、notebook、过去的训练。[陌生人的训练器](docs/evidence.md#strangers)："
    "{trainers} 个中读懂 {read} 个，修正之后错误的数字为 {wrong_headlines} 个；"
    "新的 {fresh} 个中一次读懂 {fresh_read} 个。",
    "**检查**（check）：一次列出所有违反的规则，带行号和修正办法，用 {milliseconds} ms 的 CPU 时间。",
    "**比较**（diff）：两次训练为什么不同，影响最大的在前：文件、版本、框架、过去的训练。",
    "**转换、缩放**（convert、scale）：在另一个框架里或用另外数量的 GPU 做同样的训练，并说明保留了什么。",
    "**诊断**（doctor）：错误信息背后的规则。规则引用的框架自己的信息，"
    "它在 {texts_in_rules} 条中认识 {texts_known} 条。",
    "**包装**（wrap）：在一次[真正学习的训练](docs/equivalence.md#a-run-that-learns)里，包装后的 TRL 和 verl "
    "训练的 {drawn} 个 completion 中有 {equal} 个相同，不包装时只有 {alike_natively} 个；"
    "五个框架里的 {runs} 次训练与 float64 的梯度相差不超过 {wrapped}。"
    "被中断的训练可以[准确恢复](docs/resume.md)。",
    "**核对**（verify）：每个训练步都与配置核对，"
    "占[一步时间](docs/measured.md)的 {least_share} 到 {largest_share} %（0.5B 模型）。",
    "**守住**配置：[CI](docs/howto/check_in_ci.md)、[编辑器](docs/editors.md)、[限制](docs/ci.md#a-projects-own-settings)。",
    "**拖动** GPU 数量：在 [playground](docs/playground.md) 里 {dragged} 一个回答，数据不离开您的浏览器。",
    "**安全**：不运行文件里的任何内容。{inputs} 个[变异的输入](docs/fuzzing.md)，没有错误的回答。",
)
"""The same list in README.zh.md."""


def readme_in_chinese() -> str:
    """README.zh.md: the list of README.md."""
    numbers = numbers_of_readme()
    numbers["texts_known"], numbers["texts_in_rules"] = numbers["texts"].split(" of ")
    numbers["equal"], numbers["drawn"] = numbers["alike"].split(" of ")
    return "\n".join(f"- {line.format_map(numbers)}" for line in README_IN_CHINESE)


def readme() -> str:
    """README.md: what BatchBridge does, with what was measured of it."""
    numbers = numbers_of_readme()
    return "\n".join(
        textwrap.fill(
            f"- {line.format_map(numbers)}",
            width=128,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in README
    )


def nemo_rl() -> str:
    """The README of the plugin for NeMo-RL: recipes that were compared."""
    found = read("plugins/batchbridge_nemo_rl/tests/recipes.json")
    rows = []
    for key, name in (("v7", "v0.7.0"), ("head", "main")):
        recipes = [recipe for recipe in found["recipes"] if recipe[0] == key]
        rows.append((name, str(len(recipes)), str(sum(len(recipe) > 4 for recipe in recipes))))
    compared = found["compared"]
    every = f"{compared['values']:,} settings of {compared['recipes']} recipes compared, {compared['differences']}"
    recorded = table(("recipes of", "recorded", "of these refused or undecided"), rows)
    return f"{every} differences.\n\n{recorded}"


def skyrl() -> str:
    """The README of the plugin for SkyRL: launch scripts that were compared."""
    found = read("plugins/batchbridge_skyrl/tests/launch_scripts.json")
    compared, refused = found["compared"], sum("refused" in script for script in found["scripts"])
    return (
        f"{compared['scripts']} scripts with {compared['keys']:,} settings compared, {compared['differences']} "
        f"differences; {refused} scripts that SkyRL's loader refuses."
    )
