"""Answers of a framework's own functions, recorded once and replayed where the framework is not installed.

`EvidenceContract` asks through `answered`. Where the framework is, and BATCHBRIDGE_EVIDENCE names the folder in which
the adapter's package is written, its tests write what they compare otherwise: the answers into the contract's `record`,
and `held.json` into the package, by which commands say what the adapter was compared with. Both have the digests of the
framework's functions, and nothing of our code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, ClassVar

from batchbridge.contract.held import LAWS
from batchbridge.distributions import installed
from batchbridge.kit import fingerprints
from batchbridge.kit.code_names import written_name
from batchbridge.kit.proven import folder_of
from batchbridge.testing.laws import Laws, ValidCase, vacuous

RECORD = "BATCHBRIDGE_EVIDENCE"
"""The environment variable that has records written: the folder that the adapter's package lies in, `src` say."""
ANEW = f"record it anew where the framework is, with {RECORD}=FOLDER"
DIGITS = 9
"""Significant digits of a recorded float."""
CLOSE = 1e-6
"""Relative difference of two floats that count as the same: kernels of other processors round float32 otherwise."""


@dataclasses.dataclass
class Answers:
    """Answers of one contract's functions in this process, by case and question, and by law those of the framework's
    functions that ran for them, of which the contract names all."""

    said: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    ran: dict[str, set[str]] = dataclasses.field(default_factory=dict)


class RecordedLaws(Laws):
    """Attributes of `EvidenceContract` that say whose functions answer, and the laws of what is recorded of them."""

    package: ClassVar[str] = ""
    """The framework's package, as it is imported."""
    marker: ClassVar[str] = "__init__.py"
    """A file in `package` that only this framework has, where another has a package of that name."""
    version: ClassVar[str] = ""
    """The release or commit whose functions answer; empty: the installed version of the adapter's distribution."""
    functions: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Law, by its name in `batchbridge.contract.held.LAWS`, to the framework's functions that answer it, `file:
    function` seen from the package's folder. Each must have been called."""
    record: ClassVar[Path | None] = None
    """The file of the answers, which are replayed where the framework is not there."""
    _answers: ClassVar[Answers]

    @classmethod
    def package_folder(cls) -> Path | None:
        """The folder of the framework's package, which is not imported; None: it is not there, or another's."""
        found = folder_of(cls.package) if cls.package else None
        return found if found is not None and (found / cls.marker).is_file() else None

    def test_the_functions_that_are_named_have_answered_as_recorded(self) -> None:
        if not self.functions:
            vacuous("functions names none of the framework's")
        if self.package_folder() is None:
            vacuous(f"{self.package} is not installed: what it answers was recorded")
        now = made(type(self))
        lost = [key for key, digest in now["code"].items() if not digest]
        assert not lost, f"{self.package} has no {', '.join(lost)}"
        if wanted():
            written(held_file(type(self)), held_of(now))
            if self.record is not None:
                written(self.record, now)
            return
        if self.record is not None:
            stored = read(self.record)
            code = list(differences(stored["code"], now["code"]))
            assert not code, f"{self.package} has other functions than {self.record.name}: {code[:4]}; {ANEW}"
            others = list(differences(self._of_filled(stored), now))
            assert not others, f"{len(others)} answers are not those of {self.record.name}: {others[:4]}"
        self._held(held_of(now))

    def test_the_adapter_says_what_it_was_compared_with(self) -> None:
        if self.record is None or not self.record.is_file():
            vacuous("nothing is recorded")
        self._held(held_of(read(self.record)))

    @classmethod
    def _is_filled(cls, law: str) -> bool:
        """Whether the author has written the method of a law."""
        raise NotImplementedError

    @classmethod
    def _of_filled(cls, record: Mapping[str, Any]) -> dict[str, Any]:
        """A record without the questions that were asked of nobody, as older ones have them."""

        def counts(question: str, answer: Any) -> bool:
            law = question.partition(" ")[0]
            return answer is not None or law not in LAWS or cls._is_filled(law)

        return {
            **record,
            "cases": {
                name: {**one, "answers": {key: said for key, said in one["answers"].items() if counts(key, said)}}
                for name, one in record["cases"].items()
            },
        }

    def _held(self, wanted: Mapping[str, Any]) -> None:
        held = self.adapter_class().held()
        found = {} if held is None else {"version": held.version, "laws": held.laws}
        others = list(differences(found, wanted))
        assert not others, f"held.json of the adapter: {others[:4]}; {ANEW}"

    def _asked(self, law: str, case: ValidCase, *given: Any) -> Any:
        """The answer of the framework's function; the law is skipped where there is none."""
        answer = answered(self, law, case, given)
        return vacuous("the framework has no function to ask") if answer is None else answer


def answered(contract: RecordedLaws, law: str, case: ValidCase, given: Sequence[Any]) -> Any:
    """The framework's answer; the recorded one where the framework is not there and there is a record. None: there is
    no function to ask."""
    kind = type(contract)
    if not kind._is_filled(law):  # a record may be older than the law
        return None
    if kind.record is not None and kind.package_folder() is None:
        return _replayed(kind.record, case, _question(law, given))
    answers = _answers_of(kind)
    said = answers.said.setdefault(case.name, {})
    if (question := _question(law, given)) not in said:
        ran, folder = answers.ran.setdefault(law, set()), kind.package_folder()
        waiting = set(kind.functions.get(law, ())) - ran if folder else set()

        def ask() -> Any:
            return _listed(getattr(contract, LAWS[law].method)(case, *given), given)

        if waiting and folder is not None:
            said[question], codes = _watched(ask, {re.split(r"[ .]", key)[-1] for key in waiting})
            ran |= waiting & {_key(code, folder) for code in codes}
        else:
            said[question] = ask()
    return said[question]


def made(contract: type[RecordedLaws]) -> dict[str, Any]:
    """The record of a contract whose framework is there; all its laws are asked. Raises `AssertionError` where a law
    fails, or where `functions` does not name what ran."""
    import pytest

    for case in contract.valid:
        for law in LAWS:
            try:
                getattr(contract(), LAWS[law].test)(case)
            except pytest.skip.Exception:
                continue
    answers, folder = _answers_of(contract), contract.package_folder()
    assert folder is not None
    asked = {law for said in answers.said.values() for law, answer in _laws_in(said) if answer is not None}
    named = {law: tuple(keys) for law, keys in contract.functions.items()}
    unnamed, idle = sorted(asked - set(named)), sorted(set(named) - asked)
    assert not unnamed, f"functions names none of the framework's for {', '.join(unnamed)}"
    assert not idle, f"no case has an answer of {', '.join(idle)}, of which functions names some"
    for law, keys in named.items():
        missing = [key for key in keys if key not in answers.ran[law]]
        assert not missing, f"{LAWS[law].method} calls no {', '.join(missing)} in any case: it proves nothing of that"
    every: dict[str, list[str]] = {}
    for key in sorted({key for keys in named.values() for key in keys}):
        file, _, name = key.partition(": ")
        every.setdefault(file, []).append(name)
    cases = {
        case.name: {"of": _fingerprint(case), "answers": _rounded(answers.said[case.name])} for case in contract.valid
    }
    version = contract.version or installed(contract.adapter_class.distribution or "") or ""
    assert version, "version: the release or the commit of the framework"
    return {
        "version": version,
        "code": fingerprints.digests(folder, every),
        "laws": {law: list(named[law]) for law in LAWS if law in named},
        "cases": cases,
    }


def held_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The `held.json` of a record: each law with the functions that it was asked of, and their digests."""
    laws = {law: {key: record["code"][key] for key in keys} for law, keys in record["laws"].items()}
    return {"version": record["version"], "laws": laws}


def held_file(contract: type[RecordedLaws]) -> Path:
    """The `held.json` to write: in the adapter's package, in the folder that the environment names."""
    return Path(os.environ[RECORD], *contract.adapter_class.__module__.split(".")[:-1], "held.json")


def differences(
    stored: Any, now: Any, place: str = "", *, relative: float = CLOSE, absolute: float = CLOSE
) -> Iterator[str]:
    """Places where two JSON values differ; floats that are as close as this count as the same."""
    near = {"relative": relative, "absolute": absolute}
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for name in [*stored, *(name for name in now if name not in stored)]:
            if name in stored and name in now:
                yield from differences(stored[name], now[name], f"{place}/{name}", **near)
            else:
                yield f"{place}/{name}: only {'recorded' if name in stored else 'here'}"
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for index, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from differences(one, other, f"{place}/{index}", **near)
    elif isinstance(stored, float) and isinstance(now, float):
        alike = math.isclose(stored, now, rel_tol=relative, abs_tol=absolute)
        if not alike and not (math.isnan(stored) and math.isnan(now)):
            yield f"{place}: {stored} recorded, {now} here"
    elif stored != now:
        yield f"{place}: {stored} recorded, {now} here"


def written(file: Path, value: Mapping[str, Any]) -> None:
    """The JSON file of a record, each case in a line of its own."""
    cases = [f'  "{name}": {json.dumps(one)}' for name, one in value.get("cases", {}).items()]
    head = json.dumps({name: part for name, part in value.items() if name != "cases"}, indent=1)
    text = f'{head[:-2]},\n "cases": {{\n' + ",\n".join(cases) + "\n }\n}" if cases else head
    file.write_text(text + "\n", encoding="utf-8")


def read(file: Path) -> dict[str, Any]:
    """A record."""
    status = file.stat()
    return _read(file, status.st_mtime_ns)


def wanted() -> bool:
    """Whether records are written in this process."""
    return bool(os.environ.get(RECORD))


@lru_cache(maxsize=16)
def _read(file: Path, changed_ns: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _answers_of(contract: type[RecordedLaws]) -> Answers:
    if "_answers" not in vars(contract):
        contract._answers = Answers()
    return vars(contract)["_answers"]  # type: ignore[no-any-return]  # made one line above


def _replayed(record: Path, case: ValidCase, question: str) -> Any:
    cases = read(record)["cases"]
    assert case.name in cases, f"{case.name} is not in {record.name}: {ANEW}"
    one = cases[case.name]
    assert one["of"] == _fingerprint(case), f"{case.name} was recorded with other settings: {ANEW}"
    recorded = question in one["answers"]
    assert recorded, f"natively nothing was asked of {case.name} about {question}; where the question is right, {ANEW}"
    return one["answers"][question]


def _laws_in(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for question, answer in said.items():
        yield question.partition(" ")[0], answer


def _question(law: str, given: Sequence[Any]) -> str:
    """A question as the key of its answer; the contract's long lists by a digest."""
    text = json.dumps(given, default=lambda one: dataclasses.astuple(one)) if given else ""
    return f"{law} {text if len(text) <= 100 else _digest(text)}".strip()


def _fingerprint(case: ValidCase) -> str:
    said = case.source.values, case.source.argv, case.context.framework_version, case.context.world_size
    return _digest(json.dumps(said, sort_keys=True, default=str))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _listed(answer: Any, given: Sequence[Any]) -> Any:
    """An answer as lists; of rollouts without end the first ones, of three epochs of prompts."""
    if answer is None or isinstance(answer, int | float):
        return answer
    if not hasattr(answer, "__next__"):
        return [list(one) if isinstance(one, Sequence) else one for one in answer]
    found: list[list[int]] = []
    while sum(map(len, found)) < 3 * given[0] and (one := next(answer, None)) is not None:
        found.append(list(one))
    return found


def _watched(ask: Callable[[], Any], names: set[str]) -> tuple[Any, set[CodeType]]:
    """An answer, and what ran under one of these names until it was there, in threads that it began too."""
    ran: set[CodeType] = set()

    def see(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name in names:
            ran.add(frame.f_code)

    before, threads_before = sys.getprofile(), threading.getprofile()
    sys.setprofile(see)
    threading.setprofile(see)
    try:
        return ask(), ran
    finally:
        sys.setprofile(before)
        threading.setprofile(threads_before)


def _key(code: CodeType, folder: Path) -> str:
    file = Path(code.co_filename)
    return f"{file.relative_to(folder).as_posix()}: {written_name(code)}" if folder in file.parents else ""


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
