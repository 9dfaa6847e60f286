"""Findings of several configurations, as other programs read them: a line each, GitHub, GitLab, SARIF, JUnit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Protocol
from urllib.parse import quote

from batchbridge.meaning.findings import Finding
from batchbridge.render import json
from batchbridge.render.text import clean, one_line


class Report(Protocol):
    """A configuration's name (its path, as it was given) and its findings; `batchbridge.Check` is one."""

    @property
    def name(self) -> str: ...

    @property
    def findings(self) -> tuple[Finding, ...]: ...


def place(report: Report, finding: Finding) -> tuple[str, int | None]:
    """The file and line that a finding is shown at; the configuration's name where the finding has no file."""
    for where in finding.where:
        if where.file is not None:
            return where.file, where.line
    return str(PurePath(report.name)), None


def message(finding: Finding) -> str:
    """One printable line, with the nearest fix."""
    fix = f"; fix: {finding.fixes[0].text}" if finding.fixes else ""
    return _printable(f"{finding.message}{fix}")


def fingerprint(name: str, finding: Finding) -> str:
    """The same for the same rule about the same settings of the configuration `name`, on whatever line they stand."""
    at = [f"{where.key} = {where.value}" for where in finding.where if where.key is not None]
    words = "\0".join([_posix(name), finding.code, *at])
    return hashlib.sha256(words.encode("utf-8", "backslashreplace")).hexdigest()


def concise(reports: Sequence[Report]) -> str:
    """`recipe.yaml:27: BB-TRL-003 error: message; fix: ...`, a line for each finding."""
    return "\n".join(_line(report, finding) for report, finding in _all(reports))


def github(reports: Sequence[Report]) -> str:
    """Workflow commands, which GitHub shows beside the lines of a pull request."""
    levels = {"error": "error", "undecided": "warning", "warning": "warning", "note": "notice"}
    return "\n".join(
        f"::{levels[_kind(finding)]} {_properties(report, finding)}::{_escaped(message(finding))}"
        for report, finding in _all(reports)
    )


def gitlab(reports: Sequence[Report]) -> str:
    """A Code Quality report."""
    severities = {"error": "major", "undecided": "minor", "warning": "minor", "note": "info"}
    found = []
    for report, finding in _all(reports):
        file, line = place(report, finding)
        found.append(
            {
                "description": message(finding),
                "check_name": finding.code,
                "fingerprint": fingerprint(report.name, finding),
                "severity": severities[_kind(finding)],
                "location": {"path": _posix(file), "lines": {"begin": line or 1}},
            }
        )
    return json.dumps(found)


def sarif(reports: Sequence[Report]) -> str:
    """A SARIF 2.1.0 log of one run."""
    levels = {"error": "error", "undecided": "warning", "warning": "warning", "note": "note"}
    results = []
    for report, finding in _all(reports):
        file, line = place(report, finding)
        spot: dict[str, object] = {"artifactLocation": {"uri": _uri(file)}}
        if line is not None:
            spot["region"] = {"startLine": line}
        results.append(
            {
                "ruleId": finding.code,
                "level": levels[_kind(finding)],
                "message": {"text": message(finding)},
                "locations": [{"physicalLocation": spot}],
                "partialFingerprints": {"batchbridge/v1": fingerprint(report.name, finding)},
                "properties": {"undecided": finding.undecided, "phase": finding.phase},
            }
        )
    codes = sorted({finding.code for _, finding in _all(reports)})
    driver = {"name": "batchbridge", "rules": [{"id": code} for code in codes]}
    log = {"version": "2.1.0", "$schema": _SARIF, "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log)


_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def junit(reports: Sequence[Report]) -> str:
    """JUnit's XML: a suite for each configuration, a case for each finding; errors fail, what is undecided is an error.

    A configuration without findings has one case, which passes.
    """
    from xml.etree import ElementTree as Xml

    root = Xml.Element("testsuites", name="batchbridge")
    for report in reports:
        kinds = [_kind(finding) for finding in report.findings]
        counts = {"failures": kinds.count("error"), "errors": kinds.count("undecided"), "tests": max(len(kinds), 1)}
        suite = Xml.SubElement(root, "testsuite", name=_printable(report.name))
        suite.attrib |= {name: str(count) for name, count in counts.items()}
        if not report.findings:
            Xml.SubElement(suite, "testcase", name="check", classname=_printable(report.name))
        for finding, kind in zip(report.findings, kinds, strict=True):
            file, line = place(report, finding)
            case = Xml.SubElement(suite, "testcase", name=finding.code, classname=_printable(report.name))
            case.attrib |= {"file": _printable(file), **({} if line is None else {"line": str(line)})}
            if kind in ("error", "undecided"):
                element = "failure" if kind == "error" else "error"
                said = {"type": finding.code, "message": message(finding)}
                Xml.SubElement(case, element, said).text = _line(report, finding)
            else:
                Xml.SubElement(case, "system-out").text = _line(report, finding)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode")


FORMATS: Mapping[str, Callable[[Sequence[Report]], str]] = {
    "concise": concise,
    "github": github,
    "gitlab": gitlab,
    "sarif": sarif,
    "junit": junit,
}


def _all(reports: Sequence[Report]) -> Iterator[tuple[Report, Finding]]:
    return ((report, finding) for report in reports for finding in report.findings)


def _kind(finding: Finding) -> str:
    return "undecided" if finding.undecided else finding.severity


def _line(report: Report, finding: Finding) -> str:
    file, line = place(report, finding)
    spot = file if line is None else f"{file}:{line}"
    return f"{_printable(spot)}: {finding.code} {_kind(finding)}: {message(finding)}"


def _printable(text: str) -> str:
    return clean(one_line(text))


def _properties(report: Report, finding: Finding) -> str:
    file, line = place(report, finding)
    said = {"file": _printable(_posix(file)), "line": line, "title": finding.code}
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
