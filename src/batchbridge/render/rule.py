"""The page of a rule as Markdown that reads well in a terminal too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchbridge.kit.config_texts import shell_word
from batchbridge.render.text import PHASES, clean, count, one_line
from batchbridge.rule_page import EVERY_FRAMEWORK

if TYPE_CHECKING:
    from batchbridge.contract.error_text import RuleRow
    from batchbridge.rule_page import ExampleSettings, RulePage

_STOPS = {
    "config": "before anything is loaded. Under a queue it has waited for its devices anyway.",
    "construction": "often with the model loaded by then.",
    "worker_start": "with every device of the job allocated.",
    "first_rollout": "hours of waiting may be paid for by then.",
    "optimizer_step": "hours of generation may be paid for by then.",
}
"""The time when a run stops, and at what cost."""
_GOES_ON = {
    "error": "{framework} never reports it. The run goes on, and no run like this can be wanted.",
    "warning": "{framework} never reports it. The run goes on, and trains something else than one would think.",
    "note": "{framework} never reports it. It is not a mistake; it is worth knowing when runs are compared.",
}


def page(about: RulePage) -> str:
    """Code and title, what is wrong and why it matters, an example, what to use instead, versions with native
    messages."""
    # A page without a source ends in an empty line.
    return clean("\n\n".join(_parts(about))).removesuffix("\n") + "\n"


def whose(about: RulePage) -> str:
    """The framework of a page; a rule of the core is every framework's, whoever breaks it in the example."""
    return EVERY_FRAMEWORK if about.code[2:].isdigit() else about.framework


def _parts(about: RulePage) -> Iterator[str]:
    finding, framework = about.finding, about.framework
    yield f"# {about.code}{f': {about.title}' if about.title else ''}"
    yield f"{whose(about)}, {about.kind}{'' if about.phase is None else _noticed(about.phase)}"
    if about.summary:
        yield "## What"
        yield one_line(about.summary)
    reasons = [about.why] if about.why else []
    if about.phase is not None:
        reasons.append(_when(whose(about), about.kind, about.phase))
    if reasons:
        yield "## Why"
        yield " ".join(reasons)
    if about.example is not None:
        yield "## Example"
        yield _under(framework, about.example)
        yield "\n".join(_example(about.example))
    if finding is not None:
        if finding.native is not None:
            yield f"{framework} itself: {one_line(finding.native)}"
        if finding.fixes:
            yield "## Use instead"
            yield "\n".join(f"- {one_line(fix.text)}" for fix in finding.fixes)
    elif about.rows and not getattr(about.rows[0], "retired", ""):
        yield "It holds for every run of its kind: `explain` says it, and `check` does not."
    if about.rows:
        yield "## Versions"
        yield "\n".join(f"- {one_line(_row(framework, row))}" for row in about.rows)
    if finding is not None:
        yield "" if finding.source is None else f"Source: {one_line(finding.source)}"


def _example(example: ExampleSettings) -> tuple[str, ...]:
    if argv := example.get("argv"):
        words = [shell_word(word) for word in argv]
        lines = " ".join(f"\n{word}" if word.startswith("--") or "=" in word else word for word in words)
        return ("```sh", lines.strip().replace(" \n", " \\\n    "), "```")
    if program := example.get("program"):
        return ("```python", str(program).rstrip(), "```")
    settings = [_setting(key, value) for key, value in example["values"].items()]
    return ("```yaml", *(settings or ["# nothing: the defaults"]), "```")


def _noticed(phase: str) -> str:
    return ", never reported" if phase == "never" else f", noticed {PHASES[phase]}"


def _when(framework: str, kind: str, phase: str) -> str:
    if kind == "undecided":
        return "BatchBridge cannot say what the run trains, and judges nothing that depends on it."
    if phase == "never":
        return _GOES_ON[kind].format(framework="The framework" if framework == EVERY_FRAMEWORK else framework)
    return f"The run {'stops' if kind == 'error' else 'may stop'} {PHASES[phase]}, {_STOPS[phase]}"


def _row(framework: str, row: RuleRow) -> str:
    native = f": {row.native}" if isinstance(row.native, str) else ""
    versions = f" {row.versions}" if row.versions else ", every version that is read"
    return f"{framework}{versions}{native} ({row.source})"


def _under(framework: str, example: ExampleSettings) -> str:
    sizes = [f"{framework} {example['version']}"]
    for name, word in (("world_size", "device"), ("dataset_size", "prompt")):
        if (size := example.get(name)) is not None:
            sizes.append(count(size, word))
    return f"Under {', '.join(sizes)}:"


def _setting(key: str, value: object) -> str:
    return f"{key if key.replace('.', '').replace('_', '').isalnum() else json.dumps(key)}: {json.dumps(value)}"
