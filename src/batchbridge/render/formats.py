"""Findings of several configurations, as other programs read them: a line each, GitHub, GitLab, SARIF, JUnit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple, Protocol
from urllib.parse import quote

from batchbridge import address
from batchbridge.distributions import installed
from batchbridge.meaning.findings import Finding
from batchbridge.render import json
from batchbridge.render.findings import kind_of
from batchbridge.render.text import clean, one_line


class Report(Protocol):
    """A configuration's name (its path, as it was given) and its findings; `batchbridge.Check` is one."""

    @property
    def name(self) -> str: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...


def message(finding: Finding) -> str:
    """One printable line, with the nearest fix."""
    fix = f"; fix: {finding.fixes[0].text}" if finding.fixes else ""
    return _printable(f"{finding.message}{fix}")


def fingerprint(name: str, finding: Finding) -> str:
    """A fingerprint of a rule about the same settings of the configuration `name`, on whatever line they stand."""
    at = [f"{where.key} = {where.value}" for where in finding.where if where.key is not None]
    words = "\0".join([_posix(name), finding.code, *at])
    return hashlib.sha256(words.encode("utf-8", "backslashreplace")).hexdigest()


class ShownFinding(NamedTuple):
    """A finding as other programs show it: of which configuration, and the place, which is the configuration itself
    where the finding has no file."""

    name: str
    finding: Finding
    kind: str
    file: str
    line: int | None
    message: str

    def __str__(self) -> str:
        spot = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{_printable(spot)}: {self.finding.code} {self.kind}: {self.message}"


def shown(reports: Iterable[Report]) -> Iterator[ShownFinding]:
    """Every finding of every configuration."""
    for report in reports:
        for finding in report.findings:
            places = ((where.file, where.line) for where in finding.where if where.file is not None)
            file, line = next(places, (str(PurePath(report.name)), None))
            yield ShownFinding(report.name, finding, kind_of(finding), file, line, message(finding))


def concise(reports: Sequence[Report]) -> str:
    """`recipe.yaml:27: BB-TRL-003 error: message; fix: ...`, a line for each finding."""
    return "\n".join(map(str, shown(reports)))


def github(reports: Sequence[Report]) -> str:
    """Workflow commands, which GitHub shows beside the lines of a pull request."""
    levels = {"error": "error", "undecided": "warning", "warning": "warning", "note": "notice"}
    return "\n".join(f"::{levels[one.kind]} {_properties(one)}::{_escaped(one.message)}" for one in shown(reports))


def gitlab(reports: Sequence[Report]) -> str:
    """A Code Quality report."""
    severities = {"error": "major", "undecided": "minor", "warning": "minor", "note": "info"}
    found = [
        {
            "description": one.message,
            "check_name": one.finding.code,
            "fingerprint": fingerprint(one.name, one.finding),
            "severity": severities[one.kind],
            "location": {"path": _posix(one.file), "lines": {"begin": one.line or 1}},
        }
        for one in shown(reports)
    ]
    return json.dumps(found)


def sarif(reports: Sequence[Report]) -> str:
    """A SARIF 2.1.0 log of one run: what was found, and the rules with their pages. GitHub's code scanning shows a
    result beside its line, the first one where a finding has none."""
    found = list(shown(reports))
    rules = {code: _sarif_rule(code, found) for code in sorted({one.finding.code for one in found})}
    numbers = {code: number for number, code in enumerate(rules)}
    results = []
    for one in found:
        spot = {"artifactLocation": {"uri": _uri(one.file)}, "region": {"startLine": one.line or 1}}
        results.append(
            {
                "ruleId": one.finding.code,
                "ruleIndex": numbers[one.finding.code],
                "level": _SARIF_LEVELS[one.kind],
                "message": {"text": one.message},
                "locations": [{"physicalLocation": spot}],
                "partialFingerprints": {"batchbridge/v1": fingerprint(one.name, one.finding)},
                "properties": {"undecided": one.finding.undecided, "phase": one.finding.phase},
            }
        )
    driver: dict[str, object] = {"name": "batchbridge", "rules": [*rules.values()]}
    if (version := installed("batchbridge")) is not None:
        driver |= {"version": version, "semanticVersion": version}
    if address.are_set():
        driver["informationUri"] = address.SOURCE
    log = {"version": "2.1.0", "$schema": _SARIF, "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log)


_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"
_SARIF_LEVELS = {"error": "error", "undecided": "warning", "warning": "warning", "note": "note"}


def _sarif_rule(code: str, found: Iterable[ShownFinding]) -> dict[str, object]:
    """A rule with its title, why it matters, and its page, which GitHub shows beside a result; of an adapter without
    titles the message of a finding says what it is about."""
    from batchbridge.render.rule import page
    from batchbridge.rule_page import rule

    one, about = next(one for one in found if one.finding.code == code), rule(code)
    title = about.title if about is not None and about.title else one.message
    why = about.why if about is not None and about.why else one.message
    told = why if about is None else page(about)
    return {
        "id": code,
        "shortDescription": {"text": title},
        "fullDescription": {"text": why},
        "help": {"text": told, "markdown": told},
        "defaultConfiguration": {"level": _SARIF_LEVELS[one.kind]},
        **({"helpUri": address.rule_page(code)} if about is not None and address.are_set() else {}),
    }


def junit(reports: Sequence[Report]) -> str:
    """JUnit's XML: a suite for each configuration, a case for each finding; errors fail, what is undecided is an error.

    A configuration without findings has one case, which passes.
    """
    from xml.etree import ElementTree as Xml

    elements = {"error": "failure", "undecided": "error"}
    root = Xml.Element("testsuites", name="batchbridge")
    for report in reports:
        found, name = list(shown([report])), _printable(report.name)
        kinds = [one.kind for one in found]
        counts = {"failures": kinds.count("error"), "errors": kinds.count("undecided"), "tests": max(len(kinds), 1)}
        suite = Xml.SubElement(root, "testsuite", name=name)
        suite.attrib |= {kind: str(count) for kind, count in counts.items()}
        if not found:
            Xml.SubElement(suite, "testcase", name="check", classname=name)
        for one in found:
            case = Xml.SubElement(suite, "testcase", name=one.finding.code, classname=name)
            case.attrib |= {"file": _printable(one.file), **({} if one.line is None else {"line": str(one.line)})}
            said = {"type": one.finding.code, "message": one.message} if one.kind in elements else {}
            Xml.SubElement(case, elements.get(one.kind, "system-out"), said).text = str(one)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode")


FORMATS: Mapping[str, Callable[[Sequence[Report]], str]] = {
    made.__name__: made for made in (concise, github, gitlab, sarif, junit)
}


def _printable(text: str) -> str:
    return clean(one_line(text))


def _properties(one: ShownFinding) -> str:
    said = {"file": _printable(_posix(one.file)), "line": one.line, "title": one.finding.code}
    escapes = str.maketrans({":": "%3A", ",": "%2C"})
    words = ((name, _escaped(str(value)).translate(escapes)) for name, value in said.items() if value is not None)
    return ",".join("=".join(word) for word in words)


def _escaped(text: str) -> str:
    """A printable line as GitHub's workflow commands write it."""
    return text.replace("%", "%25")


def _posix(file: str) -> str:
    return PurePath(file).as_posix()


def _uri(file: str) -> str:
    address = quote(_posix(file), errors="backslashreplace")
    return f"file://{address}" if PurePath(file).is_absolute() else address
