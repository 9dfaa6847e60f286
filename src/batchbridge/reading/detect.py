"""Detection: how sure each installed framework is that a configuration is its own, and which one reads it.

A framework whose plugin gives `DetectionFacts` is not imported for this; of any other, the adapter's `detect` is asked.
"""

from __future__ import annotations

from collections.abc import Collection

from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.detection import DetectionFacts
from batchbridge.contract.reading import Source
from batchbridge.meaning.findings import LOOKS_LIKE_TRAINING, Finding
from batchbridge.reading.arguments import near_file
from batchbridge.reading.yaml_json import parse_yaml

DETECTED = 0.5
"""The least certainty with which a framework may claim an input on its own."""


def certainty(tells: DetectionFacts, source: Source) -> float:
    """The certainty of facts that a source is their framework's, with the file that its command names."""
    named = source.values.get(tells.file_option) if tells.file_option and source.argv else None
    path = near_file(named, source.path) if isinstance(named, str) else None
    try:
        text = "" if path is None else path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # the adapter that is found says so
        text = ""
    values = parse_yaml(text, "").value if text else None
    return tells.certainty(source, values if isinstance(values, dict) else {})


def certainties(source: Source, findings: list[Finding], frameworks: Collection[str] | None = None) -> dict[str, float]:
    """Framework to its certainty that `source` is its own, without those that are sure it is not. frameworks: those
    that are asked; None: all. An adapter that raises is left out, with a finding."""
    sure: dict[str, float] = {}
    for framework, tells in plugins.tells().items():
        if frameworks is not None and framework not in frameworks:
            continue
        if tells is None and framework not in plugins.adapters():
            continue  # it cannot be used, as the plugins' problems say
        try:
            score = plugins.adapters()[framework].detect(source) if tells is None else certainty(tells, source)
        except Exception as error:
            findings.append(plugins.failed(framework, "detect", error))
        else:
            sure |= {framework: score} if score > 0 else {}
    return sure


def chosen(source: Source, framework: str | None, findings: list[Finding]) -> Adapter | None:
    """The named adapter, or the one that alone is the most sure of `source`; else a finding."""
    installed = plugins.adapters()
    if framework is not None and framework in installed:
        return installed[framework]
    if framework is not None:
        listed = ", ".join(installed) or "none"
        findings.append(undecided("BB022", f"there is no adapter for framework {framework!r}; installed: {listed}"))
        return None
    recipe = not source.argv and source.native is None and source.construction is None and source.record is None
    if recipe:
        from batchbridge.reading.foreign_files import foreign_file

        if (foreign := foreign_file(source.values)) is not None:
            what, trains = foreign
            code = LOOKS_LIKE_TRAINING if trains else "BB020"
            findings.append(undecided(code, f"no adapter reads this configuration; it is {what}"))
            return None
    found = certainties(source, findings)
    scores = {name: score for name, score in found.items() if score < DETECTED or name in installed}
    ranked = sorted(scores, key=lambda name: (-scores[name], name))
    if not ranked:
        way = f"name one with --framework: {', '.join(installed) or 'none'}"
        findings.append(undecided("BB020", f"no adapter recognises this configuration; {way}"))
        return None
    if not source.argv and isinstance(source.values.get("defaults"), list) and not _composes(ranked[0]):
        text = "no adapter reads this configuration; it is a part of a Hydra configuration, of a program of its own"
        findings.append(undecided("BB020", text))
        return None
    first = [name for name in ranked if scores[name] == scores[ranked[0]]]
    if len(first) > 1 and source.construction is not None:  # a program's object is whose class it is
        first = [name for name in first if all(isinstance(installed[one], type(installed[name])) for one in first)]
        ranked = first + [name for name in ranked if name not in first]
    tied = len(ranked) > 1 and scores[ranked[0]] == scores[ranked[1]] and len(first) != 1
    if tied or scores[ranked[0]] < DETECTED:
        candidates = ", ".join(f"{name} ({scores[name]:.0%})" for name in ranked)
        slips = "" if tied else _slips(source, ranked[0])
        findings.append(
            undecided(
                "BB021", f"the framework is not certain; candidates: {candidates}{slips}; name one with --framework"
            )
        )
        return None
    return installed[ranked[0]]


_ALIKE = 0.9
"""The least likeness (difflib's ratio) of a key to a framework's own one, to be taken for a slip of it."""


def _slips(source: Source, framework: str) -> str:
    """The keys that look like slips of keys by which `framework` would be known; "" where there are none."""
    tells = plugins.tells().get(framework)
    if tells is None:
        return ""
    from difflib import get_close_matches

    known = tells.own.keys() | tells.shared.keys()
    others = [key for key in source.values if isinstance(key, str) and key not in known]
    near = {key: get_close_matches(key, tells.own, 1, _ALIKE) for key in others}
    found = [f"{key} looks like its {one[0]}" for key, one in near.items() if one]
    return f"; {framework}: {', '.join(found)}" if found else ""


def _composes(framework: str) -> bool:
    """Whether a framework's configurations have a defaults list, as far as its facts say it."""
    tells = plugins.tells().get(framework)
    return tells is None or any(key.startswith("defaults.") for key in tells.own)


def undecided(code: str, message: str) -> Finding:
    return Finding(code, "error", "config", message, undecided=True)
