"""The page of a suite's run: `python report.py FOLDER docs/equivalence.md tests/equivalence/figures.json`.
`python report.py docs/equivalence.md tests/equivalence/figures.json` writes the page alone.

Writes what the page needs of the run, with the commit and the date, without places on a machine; and the page from it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from matrix import CASES, REAL

HEAD = """\
# One run, every framework

Written by `tests/equivalence/native/report.py` from a run of the suite; no figure here is typed.

One source configuration is converted for every framework by `batchbridge convert`; each real framework then runs its
own native configuration in its own environment on CPU, with the same tiny policy and the same scripted rollouts, which
arrive in any order: once wrapped, to train what the source means, and once as it is (observed). Float32 of policy and
reference, SGD where a framework's command line has none, and AdamW's epsilon where it cannot be set, are injected by
the testing kits. (A reference in bf16, which verl and OpenRLHF have by default, bends KL terms from the first step on;
its precision is not a field of the schema.)

Wrapped runs must have the same ledger. The gradient of every optimizer step is the float64 oracle's at the run's own
parameters within max(1e-6, 3 x the float32 noise), the bar; so are the differences of two runs' gradients, each taken
against the oracle at its own parameters, which float noise has parted after the first step. First gradients as they
are, and the way that the policy went, by [what it says](testing.md#trajectories), agree within 1e-5 of the norm. The
unwrapped runs are the negative control: those of different frameworks that train other completions must miss the bar of
the trajectory more than tenfold, and those that differ in advantages or the clock alone must miss it. How many times a
small change of the start's parameters has grown at the end, in plain torch, is said with each case: the difference of
two first gradients, grown as much, must stay below a third of the bar. Column "predicted" has what `batchbridge diff`
says of the two configurations without running anything: whatever the runs then show first must be among it.
"""
CRITIC = """\
A critic is trained beside the policy, and both are compared. verl's value heads have a bias, OpenRLHF's have none: here
neither has, so that both frameworks begin with the same critic; SGD is injected for it, too. Values, GAE's advantages
and returns, and their whitening are the frameworks' own work. The oracle computes them itself, from the parameters that
the run had when a rollout began. Faults are put into both models' steps; with `undiscounted`, one rollout's advantages
and returns are GAE's without its discount.

What is not the same: verl divides advantages by their deviation over n - 1 of a rollout's n trained tokens, OpenRLHF by
that over n, and a specification that asks either for the other is refused (`batch_scale`). So each is told the source's
meaning with its own deviation, and held against the oracle with it. Two policies' first gradients are compared after
each was divided by what its advantages are in proportion to; as they are, they are apart by as much as that says. Every
gradient of the policy is clipped to the same norm, so that no update shows it, and trajectories are compared as they
are. Returns, and so the critic's gradients, know of no whitening.
"""


LEARNS = """\
## A run that learns

The cases above play a script, so that they can be compared to the last digit. Here a policy learns: it adds two digits
right about every other time, and GRPO trains it with a reward that is checked, 1 for the right sum and 0 for anything
else. Completions are drawn from the run's own policy, by one generator that every framework asks
(`tests/on_cpu/batchbridge_on_cpu/drawn.py`): the same parameters say the same tokens. It reads the parameters that the
last optimizer step left, so how a framework sends weights to its engine is not compared. The policy has
two layers of width 32, and has learned beforehand, for seconds, from a teacher who is right half of the time: a package
registry ships no model and no data set that a processor could train for so many steps.

![Mean rewards of three wrapped runs on top of each other, and of the same three as they are](pictures/real_run.svg)

Wrapped runs draw and train the same completions until float noise turns one draw; from there on they are runs of one
plan with another chance. As they are, the frameworks train the same numbers of completions in an order of their own.
"""


def learns(figures: dict[str, Any]) -> str:
    """The part on the run that learns, see `real_run.py`."""
    on, ran = figures["measured_on"], figures["versions"]
    lines = [LEARNS]
    lines.append(f"Source: `tests/equivalence/native/sources/{REAL.source}` ({REAL.framework} {REAL.version}),")
    lines.append(f"{REAL.prompts} prompts. Ran: {', '.join(f'{run} {version}' for run, version in ran.items())}.")
    lines.append(f"Measured on commit `{on['commit']}`, {on['date']}.\n")
    rows = []
    for mode, words in (("enforce", "wrapped"), ("observe", "as it is")):
        for name, curve in figures["curves"][mode].items():
            tenth = len(curve) // 10
            first, last = (sum(mean for _, mean in part) / tenth for part in (curve[:tenth], curve[-tenth:]))
            rows.append([f"{name}, {words}", str(len(curve)), f"{curve[0][1]:.2f}", f"{first:.2f}", f"{last:.2f}"])
    lines += table(["run", "rollouts", "mean reward of the first rollout", "first tenth", "last tenth"], rows)
    rows = []
    for mode, words in (("enforce", "wrapped"), ("observe", "as they are")):
        for pair, found in figures["pairs"][mode].items():
            first = "none" if found["first"] is None else f"before step {found['first']}"
            equal = f"{found['equal']:,} of {found['drawn']:,}"
            rows.append([f"{pair}, {words}", first, equal, f"{found['rewards_apart']:.2f}"])
    lines += table(["pair", "first other completion", "equal completions", "mean rewards apart, most"], rows)
    return "\n".join(lines)


def page(figures: dict[str, Any], learned: dict[str, Any]) -> str:
    """The whole page. learned: figures of the run that learns."""
    return f"{of_cases(figures)}\n{learns(learned)}"


def of_cases(figures: dict[str, Any]) -> str:
    """The part on the cases."""
    on, cases = figures["measured_on"], figures["cases"]
    said = f"Measured on commit `{on['commit']}`, {on['date']}.\n"
    return "\n".join([HEAD, said, *(line for name, result in cases.items() for line in section(name, result))])


def section(name: str, result: dict[str, Any]) -> Iterator[str]:
    """One case."""
    case = CASES[name]
    yield f"## {name}\n"
    ran = ", ".join(f"{run} {version}" for run, version in result["versions"].items())
    yield f"Source: `tests/equivalence/native/sources/{case.source}` ({case.framework} {case.version}), {case.prompts}"
    yield f"prompts, {case.ranks} {'rank' if case.ranks == 1 else 'ranks'}, {case.optimizer}. Ran: {ran}. A small"
    yield f"change grows {result['amplification']:.1f} times.\n"
    if case.flat:
        yield f"All completions of prompts {', '.join(map(str, case.flat))} earn the same, 0 or 1: their groups are"
        yield "replaced by those of the next prompts in the plan's order.\n"
    if case.images:
        yield "The policy is a tiny Qwen2.5-VL, its vision tower trained, too; every prompt stands behind one or two"
        yield "images, the same in every framework. With the fault `altered`, one completion is trained behind other"
        yield "images of the same sizes. What may be compared so: runs of data whose every prompt has an image, because"
        yield "[verl's own forward](verl.md#images) ends where a micro-batch has none. [TRL](trl.md#images) and"
        yield "[EasyR1](easyr1.md#images) train prompts without one as well, each held against the oracle.\n"
    rows = []
    for target, said in result["accounts"].items():
        rows.append([target, str(said["same"]), ", ".join(said["patched"]), ", ".join(said["lost"])])
    yield from table(["converted to", "exact or equivalent", "patched by the wrapped run", "lost"], rows)
    for run, why in case.left_out.items():
        yield f"Not run: {run}: {why}.\n"
    for target, lost in result["refused"].items():
        yield f"Not run: {target}, which cannot say {'; '.join(f'{field} ({why})' for field, why in lost.items())}.\n"
    if case.critic:
        yield from of_critic(result)
    yield "Wrapped:\n"
    yield from wrapped(result)
    wrong = ["of its bar if nothing were dropped, least"] if case.flat else []
    wrong += ["of its bar with other images, least"] if case.images else []
    wrong += ["of its bar with the other deviation, least"] if case.critic else []
    yield from against_the_oracle(result, "tokens clipped, most", wrong)
    yield from in_plain_torch(result)
    if case.critic:
        yield from critics(result["critic"])
    yield "As they are:\n"
    if case.critic:
        yield from as_they_are({"policy": result, "critic": result["critic"]})
        return
    rows = []
    for pair, found in result["pairs"]["observe"].items():
        told, apart = predictions(case.framework, result, pair), figure(found["trajectory"])
        first = found["first_difference"]
        if first is None:
            rows.append([pair, "none", "", "", told, apart])
        else:
            where, also = f"step {first['step']}: {first['aspect']}", ", ".join(first["also"])
            rows.append([pair, where, first["detail"], also, told, apart])
    yield from table(["pair", "first difference", "its size", "also", "predicted", "trajectories apart"], rows)


def wrapped(result: dict[str, Any]) -> Iterator[str]:
    """Pairs of wrapped runs."""
    yield from table(
        ["pair", "ledgers", "first gradient apart", "any gradient, of the bar", "trajectories apart"],
        [
            [
                pair,
                "equal" if found["ledgers_equal"] else "different",
                figure(found["first_gradient"]),
                f"{found['gradients_of_the_bar']:.2f}",
                figure(found["trajectory"]),
            ]
            for pair, found in result["pairs"]["enforce"].items()
        ],
    )


def against_the_oracle(result: dict[str, Any], clipped: str, wrong: Sequence[str]) -> Iterator[str]:
    """Every run's gradients. wrong: the negative control's column, where there is one."""
    yield from table(
        ["run", "gradient against the oracle, worst step", "of its bar", clipped, *wrong],
        [
            [
                *(run, figure(found["error"]), f"{found['of_the_bar']:.2f}", f"{found['clipped']:.0%}"),
                *([f"{found['kept']:,.0f}"] if wrong else []),
            ]
            for run, found in result["oracle"].items()
        ],
    )


def in_plain_torch(result: dict[str, Any]) -> Iterator[str]:
    """Every run's end."""
    faults = sorted({fault for found in result["plain_torch"].values() for fault in found} - {"sound"})
    yield from table(
        ["run", "end apart from the plan's in plain torch", *(f"... with one fault: {fault}" for fault in faults)],
        [
            [run, figure(found["sound"]), *(figure(found[fault]) for fault in faults)]
            for run, found in result["plain_torch"].items()
        ],
    )


def of_critic(result: dict[str, Any]) -> Iterator[str]:
    """What a case with a critic is, and what is compared of it."""
    yield CRITIC
    told = result["critic"]["whitening"]
    yield from table(
        ["pair", "first gradients of the policy apart, as they are", "by their deviations alone"],
        [[pair, figure(found["first_gradient"]), figure(found["expected"])] for pair, found in told.items()],
    )
    least = result["critic"]["least_over_its_clip"]
    yield from table(
        ["run", "the policy's gradient over the norm that it is clipped to, least"],
        [[run, f"{value:.1f}"] for run, value in least.items()],
    )


def critics(critic: dict[str, Any]) -> Iterator[str]:
    """A critic's tables, as the policy's."""
    yield f"Their critics, of which a small change grows {critic['amplification']:.1f} times; their ends are compared"
    yield "by the values that they give:\n"
    yield from wrapped(critic)
    wrong = ["of its bar without the discount, least"]
    yield from against_the_oracle(critic, "tokens whose value has moved beyond its clip, most", wrong)
    yield from in_plain_torch(critic)
    yield from table(
        ["run", "weights of the critic's tokens apart from the plan's, most", "completions that show theirs"],
        [[run, figure(found["off"]), f"{found['shown']:.0%}"] for run, found in critic["weights"].items()],
    )


def as_they_are(models: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Unwrapped runs that are the frameworks' commands alone, without ledgers: verl's critics are not observed."""
    pairs = models["policy"]["pairs"]["observe"]
    yield from table(
        ["pair", *(f"{model}'s {what} apart" for model in models for what in ("first gradients", "trajectories"))],
        [
            [
                pair,
                *(
                    figure(result["pairs"]["observe"][pair][what])
                    for result in models.values()
                    for what in ("first_gradient", "trajectory")
                ),
            ]
            for pair in pairs
        ],
    )


def predictions(source: str, result: dict[str, Any], pair: str) -> str:
    """What `batchbridge diff` said beforehand, of pairs with the source's own framework."""
    frameworks = {name.partition(" ")[0] for name in pair.split(" / ")}
    others = [name for name in result["predicted"] if frameworks == {source, name}]
    return ", ".join(sorted(aspects(result["predicted"][others[0]]))) if others else ""


NAMED = {"native.order": "order", "order": "order", "plan": "membership", "weights": "weights", "clock": "clock"}


def aspects(predicted: dict[str, Any]) -> set[str]:
    """What `diff` says the unwrapped runs will differ in, in the ledger's words."""
    told = set()
    for difference in predicted["differences"]:
        field, aspect = difference["field"], difference["aspect"]
        if field == "native.order":
            told |= {"order", "membership"}
        elif field.startswith("native.denominator"):
            told.add("weights")
        elif field.startswith("advantage."):
            told.add("advantage")
        elif aspect in NAMED:
            told.add(NAMED[aspect])
    left = predicted["left_open_natively"]
    return told | ({"order", "membership"} if left["a"] or left["b"] else set())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, and a blank line."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def figure(value: float | None) -> str:
    """Two digits."""
    return "-" if value is None else f"{value:.1e}" if value < 0.1 else f"{value:.2f}"


def kept(result: dict[str, Any]) -> dict[str, Any]:
    """What the page needs of one case."""
    predicted = {
        target: {
            "differences": [{key: one[key] for key in ("field", "aspect")} for one in said["differences"]],
            "left_open_natively": {side: bool(said["left_open_natively"][side]) for side in ("a", "b")},
        }
        for target, said in result["predicted"].items()
    }
    runs = {
        name: {mode: {"code": run["code"]} for mode, run in modes.items()} for name, modes in result["runs"].items()
    }
    found = {**result, "predicted": predicted, "runs": runs, "pairs": pairs_of(result)}
    return found | ({"critic": result["critic"] | {"pairs": pairs_of(result["critic"])}} if "critic" in result else {})


def pairs_of(result: dict[str, Any]) -> dict[str, Any]:
    """mode -> pair -> what two runs came to."""
    return {mode: {pair: measured(found) for pair, found in said.items()} for mode, said in result["pairs"].items()}


def measured(found: dict[str, Any]) -> dict[str, Any]:
    """What two runs came to, without the words that name their folders."""
    first = found["first_difference"]
    return {
        **{name: value for name, value in found.items() if name != "problems" or found["ledgers_equal"]},
        "first_difference": first and {name: first[name] for name in ("step", "aspect", "detail", "also")},
    }


def main(folder: Path, page_file: Path, figures_file: Path) -> None:
    """See the module. A run that left cases out is refused: figures of one commit stand in one page."""
    from batchbridge_on_cpu.figures import measured_on

    results = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    if missing := [name for name in CASES if name not in results]:
        raise SystemExit(f"{folder} has no run of {', '.join(missing)}: suite.py --all makes them")
    figures = {"measured_on": measured_on(page_file), "cases": {name: kept(results[name]) for name in CASES}}
    figures_file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    write_page(page_file, figures_file)


def write_page(page_file: Path, figures_file: Path) -> None:
    """Writes the page from both files of figures."""
    read = [json.loads(file.read_text("utf-8")) for file in (figures_file, figures_file.with_name("real_run.json"))]
    page_file.write_text(page(*read), encoding="utf-8")


if __name__ == "__main__":
    (main if len(sys.argv) > 3 else write_page)(*map(Path, sys.argv[1:]))
