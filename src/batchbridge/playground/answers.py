"""The answers to the page's questions, as JSON types: what a text means, on how many devices it is valid, what it is in
another framework, and how it differs from another text.

A question is a mapping with `want`, one of `ANSWERS`, and the state of the page: `text`, `name`, `framework`,
`version`, `devices`, `set` (settings that the text could not take), `width` (pixels for a picture). What a question
lacks has its default. A question that cannot be answered has an answer, too: `problem`, a sentence for the person.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from batchbridge.contract import plugins
from batchbridge.contract.reading import Provenance, Reading, Source
from batchbridge.errors import CannotEdit
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Verdict
from batchbridge.playground import fragments
from batchbridge.playground.pasted_text import MOST_CHARACTERS, PastedText
from batchbridge.playground.same_number import same_number
from batchbridge.reading.read import read
from batchbridge.reports import Explanation, explain

MOST_DEVICES = 64
"""World sizes (devices) that the strip shows."""
USUAL_DEVICES = 8
"""Devices of a text that does not say how many, until the person does."""
_NARROWEST, _WIDEST = 280, 1080
"""Pixels of a picture."""

JsonObject = Mapping[str, Any]

_LABELS = {
    "rollout.completions_per_prompt": "completions per prompt (group)",
    "optimizer_step.passes_per_rollout": "passes over a rollout",
    "micro_batch.completions_per_device": "micro-batch",
    "rollout.prompts_per_rollout": "prompts per rollout",
    "optimizer_step.completions_per_step": "size of an optimizer step",
}
"""Canonical fields whose settings are sliders, with what a setting is that alone decides one."""
_DEVICES = "topology.world_size"


def answer_json(question: str) -> str:
    """The answer to a question, both as texts of JSON."""
    try:
        asked = json.loads(question)
    except ValueError:
        asked = None
    return json.dumps(answer(asked if isinstance(asked, dict) else {"want": ""}))


def answer(question: JsonObject) -> dict[str, Any]:
    """The answer to a question; see the module."""
    want = question.get("want", "meaning")
    text = question.get("text", "")
    if want not in ANSWERS or not isinstance(text, str):
        return {"problem": f"the page asks for {want!r:.40}, which is not known; load it again"}
    if len(text) > MOST_CHARACTERS:
        return {"problem": f"the text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read"}
    try:
        return {**ANSWERS[want](question)}
    except (ValueError, TypeError) as error:  # a size, a version or a name that is none
        return {"problem": str(error)}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A text and how it is read. version: None where the framework has none. settings: what it could not take."""

    pasted: PastedText
    framework: str | None
    version: str | None
    devices: int | None
    settings: Mapping[str, Any]

    @classmethod
    def of(cls, question: JsonObject, text: str = "text") -> Asked:
        """The question's, with the installed or else the newest release where it names no version, and `USUAL_DEVICES`
        where nothing says how many. text: the key of the text."""
        own = text == "text"
        of_file = (question.get(key) if own else None for key in ("name", "env", "command"))
        pasted = PastedText.of(question.get(text) or "", *of_file)
        framework, devices = question.get("framework") or None, question.get("devices") or None
        settings = question.get("set") or {}
        if not own:
            framework, settings = None, {}
        source = pasted.source(framework=framework, devices=devices, settings=settings)
        first = read(source, framework=framework, world_size=devices)
        version = (question.get("version") if own else None) or first.framework_version
        adapter = plugins.adapters().get(first.framework)
        if version is None and adapter is not None and adapter.releases:
            version = adapter.releases[-1]
        made = cls(pasted=pasted, framework=framework, version=version, devices=devices, settings=settings)
        if devices is None and adapter is not None and made.read().spec is None:
            return cls(pasted=pasted, framework=framework, version=version, devices=USUAL_DEVICES, settings=settings)
        return made

    @property
    def source(self) -> Source:
        """The source that the text is."""
        return self.pasted.source(framework=self.framework, devices=self.devices, settings=self.settings)

    def read(self, devices: int | None = None) -> Reading:
        """The reading; devices: others than those that were asked for."""
        return read(self.source, framework=self.framework, version=self.version, world_size=devices or self.devices)

    def explained(self) -> Explanation:
        """The reading with its text, verdict and ways out."""
        return explain(
            self.source,
            framework=self.framework,
            version=self.version,
            world_size=self.devices,
            name=str(self.pasted.path),
        )


def meaning(question: JsonObject) -> dict[str, Any]:
    """The meaning of a text: `html` for the page, and what its controls are set by. `changes` (native key to value,
    None where it goes) are put into the text first, or into `set` where it cannot take them."""
    asked, told = Asked.of(question), ""
    if changes := question.get("changes"):
        asked, told = _changed(asked, changes)
    found = asked.explained()
    reading = found.reading
    adapter = plugins.adapters().get(reading.framework)
    spec = reading.supposed.spec
    return {
        "text": asked.pasted.text,
        "kind": asked.pasted.path.suffix.removeprefix("."),
        "set": dict(asked.settings),
        "told": told,
        "framework": reading.framework,
        "frameworks": list(plugins.adapters()),
        "version": reading.framework_version,
        "versions": list(adapter.releases) if adapter is not None else [],
        "verdict": found.verdict,
        "devices": asked.devices or (None if spec is None else spec.topology.world_size),
        "knobs": list(_knobs(found)),
        "said": _said(found),
        "brief": fragments.brief(found),
        "html": fragments.answer(found, _width(question)),
    }


def _changed(asked: Asked, changes: JsonObject) -> tuple[Asked, str]:
    """The question with `changes` in it, and a sentence where the text could not take them."""
    rest = {key: value for key, value in asked.settings.items() if key not in changes}
    reading = replace(asked, settings=rest).read()
    ours = {key for key, place in reading.given.items() if place.file is None} - {*asked.settings}  # of `devices`
    known = {*reading.native, *reading.given} - ours
    of_text = {key: value for key, value in changes.items() if key in known or value is None}
    launcher = next((value for key, value in changes.items() if key not in of_text and type(value) is int), None)
    devices = asked.devices if launcher is None else launcher
    pasted, settings, told = asked.pasted, dict(asked.settings), ""
    if of_text:
        try:
            pasted = asked.pasted.changed(reading, of_text)
            settings = {key: value for key, value in settings.items() if key not in of_text}
        except CannotEdit as refused:
            told = f"{'; '.join(refused.problems)}. It is set beside the text."
            settings |= {key: value for key, value in of_text.items() if value is not None}
        origin = reading.provenance.get(_DEVICES)
        if origin is not None and set(origin.keys) & set(of_text):
            devices = None  # the text says them now
    said = {"framework": asked.framework, "version": asked.version}
    return Asked(pasted=pasted, settings=settings, devices=devices, **said), told


def _knobs(found: Explanation) -> Iterator[dict[str, Any]]:
    """The settings that decide the sizes, in the user's keys: what is a slider. Of an invalid text they are those of a
    way out."""
    readings = [found.reading, *(way.reading for _, ways in found.ways_out for way in ways)]
    origins = next((one.provenance for one in readings if one.spec is not None), {})
    native = found.reading.native
    devices = origins[_DEVICES].keys if _DEVICES in origins else ()
    labels: dict[str, str] = {}
    for field, label in _LABELS.items():
        labels |= {key: label for key in _alone(origins.get(field)) if key not in labels}
    for field in _LABELS:
        keys = origins[field].keys if field in origins else ()
        labels |= {key: "a factor of the step's size" for key in keys if key not in labels}
    if not origins:
        wrong = [place.key for one in found.reading.wrong for place in one.where]
        labels |= {key: "" for key in wrong if key is not None}
    for key, label in labels.items():
        value = native.get(key)
        if type(value) is int and value > 0 and key not in devices:
            yield {"key": key, "label": label, "value": value, "most": max(16, 4 * value)}


def _alone(origin: Provenance | None) -> tuple[str, ...]:
    return () if origin is None else origin.keys[:1] if origin.key is not None else ()


def _said(found: Explanation) -> str:
    """A sentence for whoever does not see the picture."""
    lead = fragments.lead(found)
    return f"{found.verdict}. {lead}" if lead else found.verdict


def strip(question: JsonObject) -> dict[str, Any]:
    """The verdict on every number of devices from 1 to `MOST_DEVICES`: `valid` and `undecided`, lists of numbers."""
    asked = Asked.of(question)
    found: dict[Verdict, list[int]] = {"valid": [], "undecided": [], "invalid": []}
    for devices in range(1, MOST_DEVICES + 1):
        found[asked.read(devices).supposed.verdict].append(devices)
    return {"valid": found["valid"], "undecided": found["undecided"], "most": MOST_DEVICES}


def converted(question: JsonObject) -> dict[str, Any]:
    """The text in another framework (`to`): its form, and what is not kept, as `html`."""
    from batchbridge.comparing.convert import convert_to

    asked = Asked.of(question)
    target = plugins.named(str(question.get("to") or ""))
    if target is None:
        return {"problem": "choose a framework to write for"}
    reading = asked.read().supposed
    found = convert_to(plugins.adapters()[target], reading, given=asked.source.values)
    return {"html": fragments.conversion(found), "verdict": found.verdict}


def difference(question: JsonObject) -> dict[str, Any]:
    """The differences in meaning from another text (`other`), the largest effect first, as `html`."""
    from batchbridge.comparing.differences import compare

    if not str(question.get("other") or "").strip():
        return {"problem": "paste a second configuration below"}
    sides = Asked.of(question), Asked.of(question, "other")
    found = compare(*(side.read().supposed for side in sides))
    return {"html": fragments.differences(found, _width(question)), "verdict": found.verdict}


def side_by_side(question: JsonObject) -> dict[str, Any]:
    """The same number in every framework, as a picture of what an optimizer step trains on."""
    sizes = {name: int(question.get(name) or usual) for name, usual in (("number", 128), ("group", 16))}
    devices = int(question.get("devices") or USUAL_DEVICES)
    if not all(1 <= size <= 1 << 20 for size in (*sizes.values(), devices)):
        raise ValueError("the number, the group and the devices are whole numbers from 1 on")
    rows = same_number(**sizes, devices=devices)
    return {"html": fragments.side_by_side(rows, **sizes, devices=devices, width=_width(question))}


def _width(question: JsonObject) -> int:
    width = question.get("width")
    return min(max(width, _NARROWEST), _WIDEST) if type(width) is int else _WIDEST


ANSWERS: Mapping[str, Callable[[JsonObject], dict[str, Any]]] = {
    "meaning": meaning,
    "strip": strip,
    "convert": converted,
    "diff": difference,
    "same": side_by_side,
}
"""The answers that a page can ask for."""
