"""The playground without a browser: what its questions are answered, the same over every transport."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import batchbridge
from batchbridge.errors import CannotEdit
from batchbridge.meaning.findings import Finding
from batchbridge.playground import answer, answer_json
from batchbridge.playground.links import state_in_link, state_of_link
from batchbridge.playground.pasted_text import PastedText, kind_of_text
from batchbridge.playground.serving import LivePage, page_files
from batchbridge.render.torn import torn_picture
from batchbridge.render.torn_sizes import TornSize, torn_size
from batchbridge.rule_page import known_codes, rule

EXAMPLES = json.loads(page_files()["examples.json"])
RECIPE = """per_device_train_batch_size: 16  # completions
gradient_accumulation_steps: 4
num_generations: 14
"""
COMMAND = """#!/bin/bash
GROUP=5
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 \\
    actor_rollout_ref.rollout.n=$((GROUP)) actor_rollout_ref.actor.ppo_mini_batch_size=32 trainer.n_gpus_per_node=8
"""
PROGRAM = """from trl import GRPOConfig, GRPOTrainer
é = "two bytes"; args = GRPOConfig(output_dir="out", per_device_train_batch_size=8, num_generations=len(é))
trainer = GRPOTrainer(model="m", args=args, reward_funcs=f, train_dataset=d)
trainer.train()
"""


def meaning(text: str, **more: Any) -> dict[str, Any]:
    return answer({"want": "meaning", "text": text, **more})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["title"])
def test_an_example_is_read_as_what_its_title_says_and_every_pane_answers(example: dict[str, Any]) -> None:
    said = answer({"want": "meaning", **example})
    assert said["framework"] == example["title"].partition(":")[0].lower().replace("-", "_")
    assert said["verdict"] in ("valid", "invalid")
    assert said["version"] in said["versions"]
    assert len(said["knobs"]) >= 3
    devices = answer({"want": "strip", **example})
    assert (example["devices"] in devices["valid"]) == (said["verdict"] == "valid")
    to = "verl" if said["framework"] != "verl" else "trl"
    for more in ({"want": "convert", "to": to}, {"want": "diff", "other": RECIPE}, {"want": "same"}):
        found = answer({**example, "devices": 8, **more})
        assert "problem" not in found, found
        assert found["html"]


def test_the_first_example_is_torn_and_its_way_out_is_one_click_away() -> None:
    said = answer({"want": "meaning", **EXAMPLES[0]})
    assert said["verdict"] == "invalid"
    assert "in groups of 14: 36 whole groups, and 8 left over" in said["html"]
    assert said["brief"] == "512 completions in groups of 14"
    assert 'class="torn"' in said["html"]
    again = meaning(said["text"], devices=8, changes={"num_processes": 7})
    assert (again["verdict"], again["devices"], again["text"]) == ("valid", 7, said["text"])


def test_a_slider_writes_into_the_text_and_leaves_the_rest() -> None:
    said = meaning(RECIPE, devices=8, changes={"num_generations": 16, "num_iterations": 2})
    assert said["text"] == RECIPE.replace("14", "16") + "num_iterations: 2\n"
    assert said["verdict"] == "valid"
    assert {one["key"]: one["value"] for one in said["knobs"]} == {
        "per_device_train_batch_size": 16,
        "gradient_accumulation_steps": 4,
        "num_generations": 16,
        "num_iterations": 2,
    }


def test_what_a_text_cannot_take_stands_beside_it_until_the_text_takes_it_back() -> None:
    said = meaning(COMMAND, devices=8, changes={"actor_rollout_ref.rollout.n": 8, "data.train_batch_size": 128})
    assert said["set"] == {"actor_rollout_ref.rollout.n": 8, "data.train_batch_size": 128}
    assert "does not say actor_rollout_ref.rollout.n as one plain word" in said["told"]
    assert said["text"] == COMMAND
    assert {one["key"]: one["value"] for one in said["knobs"]}["data.train_batch_size"] == 128
    again = meaning(said["text"], devices=8, set=said["set"], changes={"data.train_batch_size": 256})
    assert again["set"] == {"actor_rollout_ref.rollout.n": 8}
    assert "data.train_batch_size=256" in again["text"]


def test_a_program_takes_plain_values_only() -> None:
    said = meaning(PROGRAM, devices=4, changes={"per_device_train_batch_size": 16, "beta": 0.5})
    assert said["text"] == PROGRAM.replace("=8", "=16").replace("len(é))", "len(é), beta=0.5)")
    held = meaning(PROGRAM, devices=4, changes={"num_generations": 4})
    assert held["text"] == PROGRAM
    assert held["set"] == {"num_generations": 4}
    with pytest.raises(CannotEdit, match="not read"):
        PastedText.of("x = f(a=1", "a.py").changed(batchbridge.read({}, framework="trl"), {"a": 1})


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (RECIPE, "yaml"),
        ("", "yaml"),
        (COMMAND, "shell"),
        ("accelerate launch train.py --num_generations 8", "shell"),
        (PROGRAM, "python"),
        ('{"num_generations": 8}', "json"),
        ('{"cells": [], "nbformat": 4}', "notebook"),
        ("num_generations = 8\n", "toml"),
        ("(TaskRunner pid=7) {'data': {'train_batch_size': 64},\n(TaskRunner pid=7)  'trainer': {'nnodes': 1}}", "log"),
        ("key: [1", "shell"),
    ],
)
def test_the_kind_of_a_text(text: str, kind: str) -> None:
    assert kind_of_text(text) == kind


def test_devices_that_nobody_says_are_eight_and_a_text_s_own_are_kept() -> None:
    assert meaning(RECIPE)["devices"] == 8
    assert meaning(EXAMPLES[2]["text"].replace("trainer.nnodes=1", "trainer.nnodes=2"))["devices"] == 16


@pytest.mark.parametrize(
    ("question", "problem"),
    [
        ("[]", "is not known"),
        ("{", "is not known"),
        ('{"want": "explode"}', "is not known"),
        ('{"want": "meaning", "text": 7}', "is not known"),
        ('{"want": "meaning", "text": "a: 1", "devices": -1}', "world_size"),
        ('{"want": "meaning", "text": "num_generations: 8", "framework": "trl", "version": "9.9"}', "9.9"),
        ('{"want": "convert", "text": "a: 1"}', "choose a framework"),
        ('{"want": "diff", "text": "a: 1", "other": " "}', "paste a second"),
        ('{"want": "same", "number": -3}', "whole numbers"),
        (json.dumps({"want": "meaning", "text": "x" * (1 << 20) + "x"}), "at most"),
    ],
)
def test_a_question_that_cannot_be_answered_has_a_sentence(question: str, problem: str) -> None:
    said = json.loads(answer_json(question))
    assert problem in (said.get("problem") or said.get("html", ""))


def test_texts_are_escaped() -> None:
    said = meaning(
        "num_generations: 8\n<img src=x onerror=alert(1)>: 2\nloss_type: <script>alert(1)</script>\n", framework="trl"
    )
    assert "&lt;img" in said["html"]
    assert "<img" not in said["html"]
    assert "<script" not in said["html"]


def test_a_link_is_what_the_page_itself_makes() -> None:
    state = {"text": RECIPE, "devices": 8, "set": {"a": [1, 2]}, "other": "é€"}
    link = state_in_link(state)
    assert state_of_link(f"https://example.org/play/{link}") == state
    assert set(link[3:]) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    for broken in ("https://example.org/", f"{link[:12]}", "#s=!!"):
        with pytest.raises(ValueError, match="link"):
            state_of_link(broken)


def test_every_rule_about_a_multiple_has_its_picture_and_the_numbers_are_true() -> None:
    found = {}
    for code in known_codes():
        finding = getattr(rule(code), "finding", None)
        if isinstance(finding, Finding) and (torn := torn_size(finding)) is not None:
            found[code] = torn
            assert str(torn.whole) in finding.message
            assert 0 < torn.rest < torn.part
            assert torn.said in torn_picture(torn, 340)
    assert len(found) > 20
    assert found["BB-TRL-021"] == TornSize(8, 16, "completions", "groups")
    assert found["BB-VERL-098"].whole == 128  # and not its 8 replicas
    assert torn_size(Finding("BB1", "error", "config", "8 completions are not a multiple of 4")) is None
    assert torn_size(Finding("BB1", "error", "config", "no learning rate")) is None


WITHOUT = """
import sys

class Compiled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tree_sitter", "tree_sitter_bash", "pydantic", "vl_convert", "rich", "click"):
            raise ImportError(name)

sys.meta_path.insert(0, Compiled())
import json
from batchbridge.playground import answer_json
for line in sys.stdin:
    print(answer_json(line))
"""


def test_recipes_and_programs_need_no_compiled_package() -> None:
    texts = [one["text"] for one in EXAMPLES[:2]]
    asked = "\n".join(
        json.dumps({"want": want, "text": text, "to": "verl"})
        for text in texts
        for want in ("meaning", "strip", "convert")
    )
    done = subprocess.run([sys.executable, "-c", WITHOUT], input=asked, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one.get("problem") for one in answers] == [None] * 6
    assert [one["verdict"] for one in answers[::3]] == ["invalid", "valid"]


IN_BROWSER = """
import json, sys
import tree_sitter, tree_sitter_bash
from batchbridge.playground.browser_bash import has_shell, install
parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))

def told(node, field, units):
    flags = node.is_named | node.is_missing << 1 | node.has_error << 2
    children = [[node.field_name_for_child(at) or "", told(one, "", units)] for at, one in enumerate(node.children)]
    places = [units[node.start_byte], units[node.end_byte], *node.start_point, *node.end_point]
    return [node.type, *places, flags, children]

def parse(text):
    units, at = {}, 0
    for place, character in enumerate(text):
        units[at] = place
        at += len(character.encode())
    units[at] = len(text)
    return json.dumps(told(parser.parse(text.encode()).root_node, "", units))

install(parse)
from batchbridge.playground import answer_json
for line in sys.stdin:
    assert has_shell(line)
    print(answer_json(line))
assert sys.modules["tree_sitter"].Parser.parse_text is parse
"""


def test_bash_in_a_browser_reads_as_bash_here() -> None:
    texts = [
        COMMAND,
        COMMAND.replace("GROUP=5", "# é€\nif [ -z $X ]; then GROUP=${Y:-6}; fi"),
        *(one["text"] for one in EXAMPLES[2:]),
    ]
    asked = [json.dumps({"want": "meaning", "text": text, "devices": 8}) for text in texts]
    words = [sys.executable, "-c", IN_BROWSER]
    done = subprocess.run(words, input="\n".join(asked), capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [json.loads(answer_json(one)) for one in asked]


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LivePage]:
    (tmp_path / "accelerate.yaml").write_text("num_processes: 7\n", encoding="utf-8")
    page = LivePage(RECIPE, tmp_path / "recipe.yaml", {"version": "1.16.0", "set": {}}, {"env": {}})
    thread = threading.Thread(target=page.serve)
    thread.start()
    yield page
    page.close()
    thread.join()


def asked(live: LivePage, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection(live.host, timeout=20)) as connection:
        connection.request(method, path, body, headers)
        answered = connection.getresponse()
        return answered.status, answered.read()


def test_the_local_server_has_the_page_and_the_same_answers(live: LivePage) -> None:
    folder = live.address.removeprefix(f"http://{live.host}").partition("#")[0]
    status, page = asked(live, "GET", folder)
    assert status == 200
    assert b'data-transport="server"' in page
    for name in ("playground.js", "playground.css", "page.css", "examples.json"):
        assert asked(live, "GET", f"{folder}{name}") == (200, page_files()[name])
    question = {"want": "meaning", "text": RECIPE, "version": "1.16.0", "devices": 8}
    status, said = asked(live, "POST", f"{folder}answer", json.dumps(question).encode())
    assert (status, json.loads(said)["verdict"]) == (200, "invalid")
    assert state_of_link(live.address)["text"] == RECIPE
    assert "devices" not in state_of_link(live.address)
    status, said = asked(live, "POST", f"{folder}answer", json.dumps({**question, "devices": None}).encode())
    assert json.loads(said)["devices"] == 7  # of the file beside it, as `explain` finds it
    assert json.loads(asked(live, "POST", f"{folder}answer", b"no json")[1])["problem"]


def test_the_local_server_tells_nobody_else_anything(live: LivePage) -> None:
    folder = live.address.removeprefix(f"http://{live.host}").partition("#")[0]
    for path in ("/", "/index.html", "/answer", f"{folder}../recipe.yaml", f"{folder}recipe.yaml", f"{folder}page/"):
        assert asked(live, "GET", path)[0] == 404, path
    assert asked(live, "GET", folder, Host="evil.example")[0] == 404
    assert asked(live, "POST", "/answer", b"{}")[0] == 404
    assert asked(live, "POST", f"{folder}answer", b"{}", Origin="https://evil.example")[0] == 404
    assert asked(live, "POST", f"{folder}answer", b"{}", **{"Content-Length": "99999999"})[0] == 404
    assert live.host.startswith("127.0.0.1:")


def test_a_notebook_shows_the_picture_of_what_is_wrong() -> None:
    settings = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 14}
    wrong, right = (
        batchbridge.explain(settings, framework="trl", version="1.16.0", world_size=devices)._repr_html_()
        for devices in (8, 7)
    )
    assert "8 left over" in wrong
    assert "optimizer steps" in right
    assert "left over" not in right
