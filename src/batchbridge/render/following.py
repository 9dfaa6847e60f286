"""A run that is going on, for people: a few lines that a terminal draws again, or a line a step where nobody looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchbridge.render.ledger import run_of
from batchbridge.render.text import number, one_line

if TYPE_CHECKING:
    from batchbridge.ledger.following import FollowedLedger, Progress

_BAR = 24
_HOUR_S, _MINUTE_S = 3600, 60


def screen(ledger: FollowedLedger, progress: Progress, left_s: float | None, columns: int) -> list[str]:
    """The lines that are drawn, each of at most `columns` characters."""
    if ledger.header is None:
        return [_cut(f"{one_line(ledger.folder)}: no ledger yet; waiting for its first start", columns)]
    lines = [f"{one_line(ledger.folder)}: {run_of(ledger.header)}", f"steps      {_steps(ledger, progress, left_s)}"]
    if (last := progress.last) is not None:
        tokens, mean = sum(last["response_tokens"]), progress.response_tokens / progress.steps
        completions = f"{number(len(last['prompt']))} completions"
        lines.append(f"tokens     {number(tokens)} in {completions}, {number(round(mean))} on average")
        lines.append(f"drift      {_drift(progress)}")
        rate, norm = (one_line(last[name]) for name in ("learning_rate", "gradient_norm"))
        lines.append(
            f"optimizer  learning rate {_short(rate)}, gradient norm {_short(norm)}, {progress.skipped} skipped"
        )
        lines.append(f"slowest    {_slowest(progress)}")
    return [_cut(line, columns) for line in lines]


def step_words(step: Mapping[str, Any], drift: float | None) -> list[str]:
    """The words behind a step's line, where its weights were measured."""
    return [] if drift is None else [f"drift {drift:.1g}"]


def _steps(ledger: FollowedLedger, progress: Progress, left_s: float | None) -> str:
    if progress.last is None:
        return "none yet" if ledger.total is None else f"none of {number(ledger.total)} yet"
    done = progress.last["step"] + 1
    if not ledger.total:
        return number(done)
    filled = min(_BAR * done // ledger.total, _BAR)
    rest = "" if left_s is None or done >= ledger.total else f", {_duration(left_s)} left"
    bar = f"[{'#' * filled}{'-' * (_BAR - filled)}]"
    return f"{bar} {number(done)} of {number(ledger.total)}, {100 * done // ledger.total} %{rest}"


def _drift(progress: Progress) -> str:
    if progress.drift is None:
        return "no weight is measured"
    last = "not measured" if progress.last_drift is None else f"{progress.last_drift:.1g}"
    return f"{last} in this step, at most {progress.drift:.1g} (step {progress.drift_step})"


def _slowest(progress: Progress) -> str:
    from batchbridge.ledger.summary import slowest_rank

    assert progress.last is not None
    if not progress.timed or (now := slowest_rank(progress.last)) is None:
        return "the ranks' seconds are not known, or there is one rank"
    rank = max(progress.slowest, key=progress.slowest.__getitem__)
    often = f"rank {rank} in {number(progress.slowest[rank])} of {number(progress.timed)} steps"
    return f"rank {now[0]}, {now[1]:.2f} times the mean; {often}"


def _short(text: str) -> str:
    """A float of a ledger in few digits; "nan", "None" as they are."""
    try:
        return f"{float(text):.4g}"
    except ValueError:
        return "unknown"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole >= _HOUR_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} min"
    return f"{whole // _MINUTE_S} min" if whole >= _MINUTE_S else f"{whole} s"


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: max(columns - 3, 0)] + "..."
