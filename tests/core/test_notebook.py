"""What consoles and notebooks show of results: one line, and a fragment of HTML that no text can break out of."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

import batchbridge
from batchbridge import (
    Conversion,
    Diagnoses,
    Diagnosis,
    FieldReport,
    Finding,
    Fix,
    Plan,
    Problem,
    Reading,
    Scaling,
    Spec,
    Where,
)
from batchbridge.contract.error_text import ErrorText
from batchbridge.meaning import notebook
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Topology

HOSTILE = "</td></table></div><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\n\u202e"
SPEC = Spec(
    topology=Topology(world_size=2),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=8),
    optimizer_step=OptimizerStep(completions_per_step=16),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1),
    order=Order(seed=1),
)


def reading(text: str = "", **fields: Any) -> Reading:
    finding = Finding("BB-X-001", "warning", "never", text, (Where(text, text, text, 1),))
    said = {"framework": "trl", "framework_version": "1.16.0", "spec": SPEC, "dataset_size": 100}
    return Reading(**{**said, "findings": (finding,), **fields})


KNOWN = ErrorText(name=HOSTILE, framework=HOSTILE, rule=HOSTILE, meaning=HOSTILE)
RESULTS = {
    "reading": lambda: reading(HOSTILE, framework=HOSTILE),
    "reading without a specification": lambda: reading(HOSTILE, spec=None),
    "plan": lambda: Plan(SPEC, 100),
    "spec": lambda: SPEC.replace(open_terms=(f"loss: {HOSTILE}",)),
    "streamed": lambda: SPEC.replace(
        **{"rollout.prompts_per_rollout": None, "optimizer_step.completions_per_step": None}
    ),
    "comparison": lambda: batchbridge.diff(
        reading(), reading(spec=SPEC.replace(open_terms=(HOSTILE,)), framework=HOSTILE)
    ),
    "explanation": lambda: batchbridge.explain(reading(HOSTILE)),
    "check": lambda: batchbridge.check(reading(HOSTILE, framework=HOSTILE), name=HOSTILE),
    "finding": lambda: Finding(
        "BB-X-001", "error", "config", HOSTILE, (Where(*[HOSTILE] * 3, 1),), (Fix(HOSTILE),), HOSTILE, HOSTILE
    ),
    "scaling": lambda: Scaling(reading=reading(HOSTILE, framework=HOSTILE), world_size=8, problems=(HOSTILE,)),
    "conversion": lambda: Conversion(
        source=reading(HOSTILE),
        framework=HOSTILE,
        framework_version=HOSTILE,
        refused=(Problem(reason=HOSTILE, fields=()),),
        fields=(FieldReport(HOSTILE, HOSTILE, HOSTILE, "inexpressible", HOSTILE, HOSTILE, HOSTILE),),
    ),
    "diagnoses": lambda: Diagnoses(
        [Diagnosis(text=KNOWN, line=1, said=HOSTILE, numbers={}, fixes=(Fix(HOSTILE),), codes=(HOSTILE,))]
    ),
}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def tags(fragment: str) -> Tags:
    found = Tags()
    found.feed(fragment)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("name", RESULTS)
def test_a_console_gets_one_line(name: str) -> None:
    said = repr(RESULTS[name]())
    assert said.startswith("<")
    assert said.isprintable()
    assert len(said) < 200


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_gets_a_fragment_that_no_text_breaks_out_of(name: str) -> None:
    fragment = RESULTS[name]()._repr_html_()
    found = tags(fragment)
    of_a_picture = {"svg", "title", "rect", "polygon", "polyline", "text"} if name == "explanation" else set()
    assert found.seen <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"} | of_a_picture
    assert fragment.isprintable()


def test_the_fragments_say_what_they_are_of() -> None:
    assert "64 per step" not in repr(SPEC)
    assert repr(SPEC) == (
        "<Spec: 4 prompts x 8 per rollout, completions_per_step = 16, token_mean per optimizer_step, 2 devices>"
    )
    assert "rollout.prompts_per_rollout4prompts" in tags(SPEC._repr_html_()).text
    assert "completions_per_step16" in tags(Plan(SPEC, 100)._repr_html_()).text
    of_reading = tags(reading("too few prompts")._repr_html_()).text
    assert "BB-X-001warningtoo few prompts" in of_reading
    assert "completions_per_rollout32completions" in of_reading
    other = reading(spec=SPEC.replace(**{"optimizer_step.completions_per_step": 32}))
    assert (
        "differsoptimizer_step.completions_per_step1632completions"
        in tags(batchbridge.diff(reading(), other)._repr_html_()).text
    )


def test_the_flagship_and_the_others_show_what_they_found() -> None:
    found = batchbridge.check(
        {"num_generations": 16, "per_device_train_batch_size": 8}, framework="trl", version="1.16.0", gpus=1
    )
    text = tags(found._repr_html_()).text
    assert text.startswith("arguments: trl 1.16.0: invalid, 1 error")
    assert "BB-TRL-021errorper_device_train_batch_size 8 x num_processes 1" in text
    (finding,) = [one for one in found.findings if one.severity == "error"]
    assert "use insteadnum_generations = 8" in tags(finding._repr_html_()).text
    assert str(finding) in repr(finding) or repr(finding).endswith("...>")
    said = batchbridge.doctor("ValueError: generation_batch_size must be divisible by num_generations (14)")
    assert isinstance(said, tuple)
    assert said
    assert "BB-TRL-021" in tags(said._repr_html_()).text
    assert str(said).startswith("line 1: ")
    assert str(batchbridge.doctor("nothing of the kind")) == "no known text"
    open_one = batchbridge.read({"num_generations": 8, "beta": 0}, framework="trl", version="1.16.0")
    scaled = batchbridge.scale(open_one, 8)
    assert "BB-TRL-005" in str(scaled)
    sound = batchbridge.read({"per_device_train_batch_size": 8}, framework="trl", version="1.16.0", gpus=7)
    assert "per_device_train_batch_size = 7" in tags(batchbridge.scale(sound, 8)._repr_html_()).text
    converted = batchbridge.convert(sound, "verl", target_version="0.9.1")
    assert str(converted).startswith("trl to verl 0.9.1, ")
    assert "data.train_batch_size" in tags(converted._repr_html_()).text


def test_a_reading_counts_its_findings_as_the_command_does() -> None:
    def kind(severity: Any) -> Finding:
        return Finding("BB-X-001", severity, "never", "text")

    assert repr(reading(findings=())) == "<Reading: trl 1.16.0, valid, no findings>"
    assert repr(reading(findings=(kind("note"),))) == "<Reading: trl 1.16.0, valid, 1 note>"
    several = (kind("warning"), kind("error"), kind("warning"))
    assert repr(reading(findings=several)) == "<Reading: trl 1.16.0, invalid, 1 error, 2 warnings>"


def test_a_long_table_is_cut_and_says_so() -> None:
    found = tags(notebook.fragment("x", notebook.table(("number",), [(number,) for number in range(50)])))
    assert found.text.endswith("and 30 more")
    assert notebook.table(("number",), []) == ""
