"""Detection: how sure each installed framework is that a configuration is its own.

A framework whose plugin gives `DetectionFacts` is not imported for this; of any other, the adapter's `detect` is asked.
"""

from __future__ import annotations

from collections.abc import Collection

from batchbridge.contract import plugins
from batchbridge.contract.detection import DetectionFacts
from batchbridge.contract.reading import Source
from batchbridge.meaning.findings import Finding
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
