"""The tables of gpu.md, from what gpu.py measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import slices

Record = Mapping[str, Any]
Columns = Mapping[str, Callable[[Record], str]]


class NothingMeasured(Exception):
    """No row is there yet."""


def share(value: float) -> str:
    return f"{value:.2%}"


def error(value: float) -> str:
    return f"{value:.1e}"


def both(name: str, said: Callable[[Any], str]) -> Callable[[Record], str]:
    """A figure of both sides: wrapped, native."""

    def cell(record: Record) -> str:
        figures = record.get(name)
        return "not measured" if figures is None else f"{said(figures['wrapped'])}, {said(figures['native'])}"

    return cell


def verdict(record: Record) -> str:
    """Whether the bar was met, and whether the control missed it as it must."""
    held = "met" if record["held"] else "**missed**"
    return held if record["control_missed"] else f"{held}; **the control meets it too**"


def ratio(record: Record, name: str = "ratio") -> str:
    low, high = record[f"{name}_spread"]
    middle = record["same_split_ratio" if name == "same_split" else "ratio_median"]
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


TABLES: Mapping[str, tuple[str, str, Columns]] = {
    # kind of row: heading, what it says, its columns
    "gradient": (
        "Gradients against the float64 oracle",
        "Norm of the first step's gradient minus the oracle's, over the oracle's; sdpa unless a row says otherwise. "
        "Bar: three times the native run's own error, at least 1e-6. Control: a native run whose loss is normalised by "
        "micro-batches (bnpo), which must miss it. A float32 product is off by what its column says: 1e-4 with TF32.",
        {
            "wrapped": lambda record: error(record["wrapped"]),
            "native": lambda record: error(record["native"]),
            "oracle's own code": lambda record: error(record["oracle_s_own_code"]),
            "bar": lambda record: error(record["bar"]),
            "control": lambda record: error(record["control"]),
            "float32 product": lambda record: error(record["float32_product"]),
            "verdict": verdict,
        },
    ),
    "step": (
        "A step's time and memory",
        "Wrapped with a budget of what a native micro-batch holds, over native, in pairs within one process; "
        "generation left out. Pairs of figures are wrapped, native. Padding: share of what the policy reads. "
        "Shapes: different ones of what it reads in the timed steps. "
        "Gradients: the first step's, wrapped minus native, over native; bar: three times what the native one moves "
        "with micro-batches half the size; control: other completions of one prompt, which must miss it.",
        {
            "wrapped / native (spread)": ratio,
            "step, s": lambda record: f"{record['wrapped_step_seconds']:.3f}, {record['native_step_seconds']:.3f}",
            "tokens/s": both("tokens_per_second", lambda value: f"{value:,.0f}"),
            "peak memory, GiB": both("device_peak_bytes", lambda value: f"{value / 2**30:.2f}"),
            "padding": both("padding_share", lambda value: f"{value:.0%}"),
            "shapes": both("shapes", str),
            "gradients apart": lambda record: error(record["gradients_apart"]),
            "bar": lambda record: error(record["bar"]),
            "control": lambda record: error(record["control"]),
            "verdict": verdict,
        },
    ),
    "cost": (
        "What checks and the ledger cost",
        "Shares of a wrapped step of equal lengths, each measured function by a clock that waits for the device; aims: "
        "2 % and 1 %. Last: a wrapped step with the native split over a native one, in pairs. Control: "
        "one check, alone, made slower by a fiftieth of a step: 2 % must be seen.",
        {
            "step, ms": lambda record: f"{record['step_milliseconds']:.1f}",
            "checks": lambda record: share(record["checks_share"]),
            "ledger": lambda record: share(record["ledger_share"]),
            "control": lambda record: (
                share(record["slowed_share"]) + ("" if record["control_missed"] else " **not seen**")
            ),
            "same split (spread)": lambda record: ratio(record, "same_split"),
        },
    ),
    "drawn": (
        "Gradients of what the policy draws",
        "The first step's gradient of a wrapped run whose completions were drawn, in float32, against the oracle on "
        "what was drawn. Bar: three times what the oracle's own code is off in float32, at least 1e-6. Control: "
        "advantages in the reverse order.",
        {
            "wrapped": lambda record: error(record["wrapped"]),
            "oracle's own code": lambda record: error(record["oracle_s_own_code"]),
            "bar": lambda record: error(record["bar"]),
            "control": lambda record: error(record["control"]),
            "tokens": lambda record: str(record["completion_tokens"]),
            "verdict": verdict,
        },
    ),
    "framework": (
        "The same step in another framework",
        "A wrapped step of 64 completions of 150 tokens, float32, without checkpointing.",
        {"step, ms": lambda record: f"{record['step_milliseconds']:.1f}"},
    ),
}


def write(rows: Iterable[Any], results: slices.Results) -> None:
    """Writes the page beside the results. Raises `NothingMeasured`."""
    text = "\n".join(page(tuple(rows), results.read())) + "\n"
    results.path.with_suffix(".md").write_text(text, encoding="utf-8")


def page(rows: tuple[Any, ...], results: Mapping[str, Any]) -> Iterator[str]:
    """The page, a line at a time; of a row that has no figures, why."""
    where, records = results["where"], results["rows"]
    if where is None:
        raise NothingMeasured("no row is measured: python benchmarks/gpu.py")
    versions = ", ".join(f"{name} {said}" for name, said in where["versions"].items())
    minutes = sum(results["slice_seconds"]) / 60
    yield "# On a GPU\n"
    yield f"Written by `python benchmarks/gpu.py`: {where['machine']}; {versions}; {minutes:.1f} minutes in all."
    if where["tiny"]:
        yield "**Tiny sizes, to try the command: these figures mean nothing.**"
    yield "Policies have random weights of Qwen2's shapes; lengths are lognormal, of 150 tokens in the mean, unless a"
    yield "row says otherwise. Every row has its options in `gpu.py`.\n"
    done = {row.name for row in rows if records.get(row.name, {}).get("status") == slices.DONE}
    for kind, (heading, says, columns) in TABLES.items():
        if not (told := [row for row in rows if row.kind == kind and row.name in done]):
            continue
        yield f"## {heading}\n\n{says}\n"
        yield f"| row | {' | '.join(columns)} |"
        yield f"|{'---|' * (1 + len(columns))}"
        for row in told:
            yield f"| {' | '.join((row.name, *(cell(records[row.name]) for cell in columns.values())))} |"
        yield ""
    if left := [row for row in rows if row.name not in done]:
        yield "## Not measured\n\n| row | why |\n|---|---|"
        for row in left:
            yield f"| {row.name} | {why(records.get(row.name))} |"


def why(record: Record | None) -> str:
    """The reason that a row has no figures."""
    if record is None:
        return "its turn did not come"
    if record["status"] == slices.NOT_THERE:
        return f"not there: {', '.join(record['needs'])}"
    last = record["error"].splitlines()[-1:] or ["no word of it"]
    return f"{record['status']}: {last[0]}".replace("|", "\\|")
