"""A certificate as a section of a model card, in Markdown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from batchbridge.meaning.briefs import printable
from batchbridge.meaning.spec import Spec
from batchbridge.render.text import one_line

_MARKUP = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")


def section(certificate: Mapping[str, Any]) -> str:
    """Markdown: a heading, a table, and what a certificate does not show.

    certificate: as `batchbridge.ledger.certificates.certificate` makes it; its texts come from a ledger, and are
    escaped.
    """
    last = certificate["starts"][-1]
    steps, records = certificate["steps"], certificate["records"]
    rows = [
        ("framework", f"{_said(last['framework'])} {_said(last['framework_version'])}{_code(last['code'])}"),
        ("specification", f"`{_plain(last['spec_digest'])}`"),
        *_spec_rows(certificate["specs"].get(last["spec_digest"])),
        ("prompts in the dataset", f"{last['dataset_size']:,}"),
        ("optimizer steps", _steps(steps, certificate["starts"])),
        ("completions per optimizer step", _range(certificate["completions_per_step"])),
        ("completions trained", f"{certificate['completions']:,}"),
        ("response tokens trained", f"{certificate['response_tokens']:,}"),
        ("training processes", ", then ".join(map(str, certificate["world_sizes"]))),
        ("verified", verification(certificate)),
        ("ledger", f"{records['count']:,} records, digest `{_plain(records['digest'])}`"),
        ("certificate", f"`{_plain(certificate['digest'])}`"),
    ]
    lines = ["## What was trained", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines += [
        "Recorded by BatchBridge while it was trained. `batchbridge ledger verify CERTIFICATE RUN` compares the "
        "certificate with the run's ledger: it shows that the two agree, not who made them."
    ]
    return "\n".join(lines)


def verification(certificate: Mapping[str, Any]) -> str:
    """Whether every step was held against the plan, and how far weights were off."""
    found = certificate["verification"]
    total = certificate["steps"]["stop"] - certificate["steps"]["first"]
    if found["every_step"]:
        text = "every step was held against the plan before its update"
    else:
        text = f"{found['steps']:,} of {total:,} steps were held against the plan and agree with it"
        if found["first_departures"]:
            first = found["first_departures"][0]
            text += f" (first of the others: {first['step']}, {_said(first['what'])})"
    drift = found["largest_drift"]
    if drift is not None:
        text += f"; largest relative deviation of a weight {drift if isinstance(drift, str) else format(drift, '.2g')}"
    if found["without_a_weight"]:
        text += f"; {found['without_a_weight']:,} steps in which no gradient shows a weight"
    return text


def _spec_rows(told: Any) -> Sequence[tuple[str, str]]:
    try:
        spec = Spec.from_dict(told)
    except (ValueError, ArithmeticError, RecursionError):
        return [("meaning", "the specification cannot be read")]
    rollout = f"{spec.rollout.prompts_per_rollout} prompts of {spec.rollout.completions_per_prompt} completions"
    weights = f"{spec.loss.policy.aggregation}, denominators of the {spec.loss.policy.denominator_scope}"
    return [("rollout", rollout), ("loss weights", _said(weights))]


def _steps(steps: Mapping[str, Any], starts: Sequence[Mapping[str, Any]]) -> str:
    text = f"{steps['first']} to {steps['stop'] - 1}"
    if steps["planned"] is not None:
        text += f" of {steps['planned']:,} planned"
    if steps["skipped"]:
        text += f"; {steps['skipped']:,} without an update"
    resumed = [str(start["at_step"]) for start in starts if start["started"] != "fresh"]
    if resumed:
        shown = ", ".join(resumed[:5]) + (", ..." if len(resumed) > 5 else "")
        text += f"; resumed at {shown}"
    return text


def _range(sizes: Sequence[int]) -> str:
    least, most = sizes
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _code(code: Mapping[str, Any] | None) -> str:
    if code is None:
        return ""
    releases = code["releases"].items() if isinstance(code["releases"], dict) else ()
    named = ", ".join(f"{_said(name)} {_said(label or 'unrecorded')}" for name, label in releases)
    return f" (code {_said(code['grade'])}{': ' + named if named else ''})"


def _said(value: object) -> str:
    """A text of the ledger's in one line, without markup and control characters: a carriage return ends lines, too."""
    return _MARKUP.sub(r"\\\1", printable(one_line(value))[:200])


def _plain(value: object) -> str:
    """The text of a value between backticks."""
    return re.sub(r"[^\w.:-]", "?", str(value)[:80])
