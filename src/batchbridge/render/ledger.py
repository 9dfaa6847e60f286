"""A ledger for people: its summary (`batchbridge ledger show --summary`), and what `ledger verify` recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from batchbridge.render.text import clean, number, one_line, plain_table

if TYPE_CHECKING:
    from batchbridge.ledger.summary import LedgerSummary
    from batchbridge.ledger.verifying import LedgerVerification

_RANKS = 64
"""The number of ranks that are listed."""


def summary(found: LedgerSummary) -> str:
    """A run's ledger in a few lines, then what each figure did over the steps, then what each rank trained."""
    from batchbridge.ledger.summary import FIGURES

    lines = [f"{one_line(found.folder)}: {run(found)}"]
    lines += [f"  {word}: {said}" for word, said in facts(found)]
    rows = []
    for name, about in FIGURES.items():
        ranges = [one.figures[name] for one in found.bins if name in one.figures]
        if ranges:
            least, most = min(one.least for one in ranges), max(one.most for one in ranges)
            rows.append((name, *(figure(value) for value in (*found.ends[name], least, most)), about.unit))
    if rows:
        lines += ["", *plain_table(("figure", "first", "last", "least", "most", "unit"), rows).splitlines()]
    if found.ranks:
        titles, by_rank = ranks(found)
        lines += ["", *plain_table(titles, by_rank[:_RANKS]).splitlines()]
        if (more := len(found.ranks) - _RANKS) > 0:
            lines.append(f"and {number(more)} ranks more")
    return clean("\n".join(lines))


def verification(found: LedgerVerification) -> str:
    """The table of what was recomputed and how closely it agrees, then what was not recomputed, then what departs."""
    last = found.headers[-1]
    run_of = f"{last['framework']} {last['framework_version']}, {last['mode']}, world size {last['world_size']}"
    steps = f"optimizer steps {number(found.first)} to {number(found.stop - 1)}"
    rows, wrong = [], []
    left: dict[str, list[str]] = {}
    for check in found.checks:
        closeness = "-" if not check.held else "exact" if check.largest is None else f"{check.largest:.1e}"
        recomputed = f"{number(check.held + check.departed)} {check.unit}"
        rows.append((check.name, recomputed, number(check.departed), closeness, check.of))
        for why, count in check.skipped.items():
            left.setdefault(why, []).append(f"{check.name} of {number(count)} {check.unit}")
        wrong += [f"step {number(step)}: {check.name}: {what}" for step, what in check.departures]
        more = check.departed - len(check.departures)
        wrong += [f"and {number(more)} departures more of {check.name}"] if more else []
    table = plain_table(("what", "recomputed", "departed", "difference", "from"), rows)
    ends = [f"incomplete: {found.incomplete}"] if found.incomplete else []
    if found.unseen:
        ends.append(f"{number(found.unseen)} optimizer steps show no weight: all their advantages are zero")
    verdict = f"{number(found.departed)} departures" if found.departed else "nothing departs"
    if not found.departed and not found.decided:
        verdict += ", and not every step's membership and weights were recomputed"
    unknown = [f"not recomputed: {', '.join(names)}: {why}" for why, names in left.items()]
    lines = [f"{found.folder}: {run_of}; {steps}: {verdict}", "", *table.splitlines(), "", *unknown, *ends, *wrong]
    return clean("\n".join(map(one_line, lines)).rstrip())


def ranks(found: LedgerSummary) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The training of each rank, and how long it took where that is known: titles and rows of a table."""
    titles = ["rank", "completions", "response tokens"]
    rows = [
        [str(rank), number(one.completions), number(one.response_tokens)] for rank, one in sorted(found.ranks.items())
    ]
    if any(one.seconds is not None for one in found.ranks.values()):
        titles += ["seconds", "slowest in steps"]
        for row, (_, one) in zip(rows, sorted(found.ranks.items()), strict=True):
            row += [number(one.seconds), number(one.slowest)]
    return tuple(titles), [tuple(row) for row in rows]


def run(found: LedgerSummary) -> str:
    """`trl 1.16.0, enforce, world size 8`."""
    if not found.starts:
        return "no header"
    return run_of(found.starts[-1])


def run_of(header: Mapping[str, Any]) -> str:
    """The same of one start's header."""
    said = f"{header['framework']} {header['framework_version']}, {header['mode']}, world size {header['world_size']}"
    return one_line(said)


def facts(found: LedgerSummary) -> Iterator[tuple[str, str]]:
    """(word, sentence) pairs of the summary, in reading order."""
    if found.first is None or found.last is None:
        yield "steps", "none is complete"
    else:
        yield "steps", f"{number(found.steps)}: {number(found.first)} to {number(found.last)}"
        yield "completions", f"{number(found.completions)}, of which {number(found.masked)} have no trained token"
        yield "response tokens", number(found.response_tokens)
        yield "skipped steps", f"{number(found.skipped)} (the optimizer did not step)"
        if found.not_finite:
            yield "not finite", f"the gradient of {number(found.not_finite)} steps"
        if found.drift is None:
            yield "drift", f"not held against a plan: {one_line(found.no_plan)}"
        elif found.first_drift is None:
            yield "drift", "none: every step trained the completions of the plan"
        else:
            yield (
                "drift",
                f"{number(found.drift)} steps trained other completions than planned, from {found.first_drift}",
            )
    if (straggler := found.straggler) is not None:
        rank, of_rank = straggler
        yield (
            "slowest rank",
            f"{rank}, in {number(of_rank.slowest)} of {number(found.timed)} steps; the slowest of a step computes "
            f"{found.ratios / found.timed:.2f} times the ranks' mean",
        )
    resumed = [f"at step {header['at_step']} on {header['world_size']} ranks" for header in found.resumed]
    yield "resumed", one_line(", ".join(resumed) or "never")
    if found.incomplete:
        yield "incomplete", one_line(found.incomplete)


def figure(value: float) -> str:
    """A value of a figure: a whole one in all its digits."""
    return number(int(value) if value == int(value) else value)
