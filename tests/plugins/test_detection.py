"""A framework is detected by the facts that its plugin gives as data: no other framework's adapter is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Adapter, AdapterEntry, DetectionFacts, Reading, Source, Spec, Written, hookimpl, read
from batchbridge.contract import plugins
from batchbridge.contract.reading import Context
from batchbridge.meaning.findings import Finding
from batchbridge.reading.arguments import parse_arguments
from batchbridge.reading.detect import certainties

ROOT = Path(__file__).parents[2]
CORPUS = ROOT.parent / "shared" / "corpus"
REPOSITORIES = {
    "verl-project/verl": "verl",
    "hiyouga/EasyR1": "easyr1",
    "OpenRLHF/OpenRLHF": "openrlhf",
    "allenai/open-instruct": "open_instruct",
}
COUNT = """
import contextlib, io, json, os, sys
import batchbridge, batchbridge_trl

homes = {os.path.dirname(os.path.dirname(os.path.abspath(one.__file__))) for one in (batchbridge, batchbridge_trl)}
seen = set()


def entered(frame, event, argument):
    seen.add(frame.f_code.co_filename)


sys.setprofile(entered)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    from batchbridge.cli.main import main

    main(sys.argv[1:])
sys.setprofile(None)
seen.update(one.__file__ for one in [*sys.modules.values()] if getattr(one, "__file__", None))
own = {os.path.relpath(name, home) for home in homes for name in seen if name.startswith(home + os.sep)}
print(json.dumps(sorted(name.replace(os.sep, "/") for name in own if name.startswith("batchbridge"))))
"""


def entered(*words: str) -> list[str]:
    """The files of BatchBridge and of its adapters that a command enters, `batchbridge_trl/config.py`."""
    found = subprocess.run([sys.executable, "-c", COUNT, *words], capture_output=True, text=True, check=True, cwd=ROOT)
    files: list[str] = json.loads(found.stdout)
    return files


def adapters_entered(files: list[str]) -> set[str]:
    """The frameworks whose adapters were imported. The module of an entry point is imported by every command, and holds
    nothing but the facts; rules of old versions are not a framework's."""
    homes = {name.split("/")[0] for name in files if not name.endswith("/__init__.py") or name.count("/") > 1}
    return {home.removeprefix("batchbridge_") for home in homes} - {"batchbridge", "history"}


def test_a_check_of_a_plain_file_enters_no_other_frameworks_adapter_and_at_most_102_files() -> None:
    files = entered("check", "examples/recipe.yaml", "--framework-version", "1.16.0", "--gpus", "8")
    assert adapters_entered(files) == {"trl"}
    assert "batchbridge_trl/rules/steps.py" in files
    assert len(files) <= 102  # the aim is 100


OWNERS = """
import json, sys
from batchbridge.contract import plugins

module, _, name = sys.argv[1].rpartition(".")
trainer = type("Mine", (type(name, (), {"__module__": module}),), {})()
found = [one.framework for one in plugins.owners(trainer)]
print(json.dumps([found, sorted(name.partition(".")[0] for name in sys.modules if name.endswith(".config"))]))
"""


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("trl.trainer.grpo_trainer.GRPOTrainer", "trl"),
        ("unsloth_compiled_cache.UnslothGRPOTrainer.UnslothGRPOTrainer", "trl"),
        ("verl.trainer.ppo.ray_trainer.RayPPOTrainer", "verl"),
        ("verl.trainer.ray_trainer.RayPPOTrainer", "easyr1"),
        ("openrlhf.trainer.ppo_trainer.BasePPOTrainer", "openrlhf"),
        ("open_instruct.grpo_fast.PolicyTrainerRayProcess", "open_instruct"),
        ("mine.Trainer", None),
    ],
)
def test_a_trainer_is_known_by_its_classes_and_no_other_adapter_is_imported(name: str, framework: str | None) -> None:
    """A mock: a class of that name, and one that is derived from it."""
    found = subprocess.run([sys.executable, "-c", OWNERS, name], capture_output=True, text=True, check=True, cwd=ROOT)
    owners, imported = json.loads(found.stdout)
    expected = [] if framework is None else [framework]
    assert owners == expected
    assert {one for one in imported if one.startswith("batchbridge_")} == {f"batchbridge_{one}" for one in expected}


def test_a_trainer_of_transformers_may_be_a_copy_of_trls_and_is_nobody_elses() -> None:
    """A mock: only TRL's adapter is asked, which does not take it."""
    words = [sys.executable, "-c", OWNERS, "transformers.trainer.Trainer"]
    found = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    owners, imported = json.loads(found.stdout)
    assert owners == []
    assert {one for one in imported if one.startswith("batchbridge_")} == {"batchbridge_trl"}


PLAIN = {
    "a launch script": ("#!/bin/bash\npython -m verl.trainer.main_ppo data.train_batch_size=8\n", "run.sh", {"verl"}),
    "a file of keys": ("worker: {rollout: {n: 4}}\ndata: {rollout_batch_size: 8}\n", "easy.yaml", {"easyr1"}),
    "a script of options": ("python grpo_fast.py --num_unique_prompts_rollout 8\n", "run.sh", {"open_instruct"}),
    "a module": ("python -m openrlhf.cli.train_ppo_ray --rollout.batch_size 8\n", "run.sh", {"openrlhf"}),
    # It is built upon TRL's adapter.
    "a recipe of Open-R1": (
        "num_generations: 8\nscale_rewards: false\nbenchmarks: []\n",
        "r1.yaml",
        {"open_r1", "trl"},
    ),
}


@pytest.mark.parametrize("kind", PLAIN)
def test_a_plain_source_enters_the_adapter_that_it_is_of_and_no_other(tmp_path: Path, kind: str) -> None:
    text, name, frameworks = PLAIN[kind]
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert adapters_entered(entered("check", str(tmp_path / name))) == frameworks


def test_a_command_in_words_enters_the_adapter_that_it_is_of_and_no_other() -> None:
    words = ("python", "-m", "verl.trainer.main_ppo", "data.train_batch_size=8")
    assert adapters_entered(entered("check", "--", *words)) == {"verl"}


def test_what_no_facts_tell_imports_all_to_list_them(tmp_path: Path) -> None:
    (tmp_path / "strange.yaml").write_text("colour: blue\n", encoding="utf-8")
    assert len(adapters_entered(entered("check", str(tmp_path / "strange.yaml")))) >= 6


@pytest.mark.shared
def test_every_launch_command_of_the_corpus_is_its_repositorys() -> None:
    if not CORPUS.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    rows = map(json.loads, (CORPUS / "launch_argv.jsonl").read_text(encoding="utf-8").splitlines())
    commands = [(REPOSITORIES[row["repository"]], words) for row in rows for words in row["commands"]]
    assert len(commands) > 100
    for framework, words in commands:
        found = read(words)
        if "verl.trainer.main_generation_server" in words:  # trains nothing
            assert [finding.code for finding in found.findings] == ["BB021"]
            continue
        assert found.framework == framework, words
        if "mason.py" in words:  # a launcher with options of its own stands before the command
            continue
        start = next(place for place, word in enumerate(words) if "=" in word or word.startswith("--"))
        alone = Source(values=parse_arguments(words[start:]), argv=tuple(words[start:]))
        sure = certainties(alone, [])
        assert max(sure, key=sure.__getitem__, default=None) == framework, words


WHOSE: list[tuple[dict[str, Any] | tuple[str, ...], dict[str, float]]] = [
    ({"num_generations": 8, "scale_rewards": False, "beta": 0.0}, {"trl": 0.75, "open_r1": 0.375}),
    ({"num_generations": 8}, {"trl": 0.35, "open_r1": 0.175}),  # one key alone claims nothing
    ({"packing": True, "learning_rate": 1e-5}, {"trl": 0.5, "open_r1": 0.25}),
    ({"num_generations": 8, "benchmarks": []}, {"trl": 0.35, "open_r1": 0.45}),
    ({"defaults": ["ppo_trainer", "_self_"], "data": {"train_batch_size": 8}}, {"verl": 0.9}),
    ({"+data.train_batch_size": 8}, {"verl": 0.4}),
    ({"worker": {"actor": {}}}, {"easyr1": 0.4}),
    ({"worker": {"actor": {}, "rollout": {"n": 4}}}, {"easyr1": 0.95}),
    ({"train": {"batch_size": 8}, "rollout.batch-size": 8}, {"openrlhf": 0.1}),  # anybody may call them so
    ({"vllm": {"num_engines": 8}, "rollout.n-samples-per-prompt": 8}, {"openrlhf": 0.8}),
    ({"pack_length": 8}, {"open_instruct": 0.4}),
    ({"seed": 1}, {}),
    (("python", "-m", "verl.trainer.main_ppo", "a=1"), {"verl": 1.0}),
    (("python3", "/x/verl/trainer/main_ppo.py"), {"verl": 1.0}),
    (("python3", "-m", "verl.trainer.sft_trainer", "actor_rollout_ref.a=1"), {"verl": 0.4}),
    (("python3", "-m", "verl.trainer.main", "config=a.yaml"), {"easyr1": 1.0}),
    (("trl", "grpo", "--num_generations", "8"), {"trl": 0.97, "open_r1": 0.485}),
    (("python", "src/open_r1/grpo.py", "--num_generations", "8"), {"open_r1": 0.97, "trl": 0.35}),
    (("python", "grpo.py", "--pack_length", "8"), {}),
    (("python", "open_instruct/grpo.py", "--pack_length", "8"), {"open_instruct": 0.99}),
    (("python", "-m", "openrlhf.cli.train_sft", "--ckpt.path", "x"), {"openrlhf": 0.9}),
    (("python", "mine.py", "--ckpt.path", "x"), {}),
    (("--ckpt.path", "x"), {}),
    (("--vllm.num_engines", "2", "--ds.zero_stage", "3"), {"openrlhf": 0.8}),
]


@pytest.mark.parametrize(("said", "expected"), WHOSE)
def test_own_facts_tell_whose_a_configuration_is(said: dict[str, Any] | tuple[str, ...], expected: object) -> None:
    argv = said if isinstance(said, tuple) else ()
    source = Source(values=parse_arguments(argv) if isinstance(said, tuple) else said, argv=argv)
    assert certainties(source, []) == pytest.approx(expected)


class Telling(Adapter):
    """An adapter that has facts and no method `detect`."""

    framework = "telling"
    versions = ">=1"
    tells = DetectionFacts(own={"mine": 0.7})

    def read(self, source: Source, context: Context) -> Reading:
        raise NotImplementedError

    def check(self, reading: Reading) -> tuple[Finding, ...]:
        raise NotImplementedError

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        raise NotImplementedError


class Plugin:
    """A plugin of these entries and classes."""

    def __init__(self, *entries: AdapterEntry | type[Adapter]) -> None:
        self.entries = entries

    @hookimpl
    def batchbridge_adapters(self) -> tuple[AdapterEntry | type[Adapter], ...]:
        return self.entries


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> plugins.Registry:
    """A registry without plugins in place of the installed ones."""
    registry = plugins.load(())
    monkeypatch.setattr(plugins, "_installed", lambda: registry)
    return registry


def test_two_frameworks_that_tell_alike_are_asked_which(registered: plugins.Registry) -> None:
    registered.manager.register(Plugin(Telling, type("Other", (Telling,), {"framework": "another"})))
    (finding,) = read({"mine": 1}).findings
    assert finding.code == "BB021"
    assert "candidates: another (70%), telling (70%)" in finding.message


def test_the_slips_of_a_file_that_nobody_claims_are_named() -> None:
    (finding,) = read({"per_device_train_batch_size": 8, "num_generation": 8, "max_completion_lenght": 64}).findings
    assert finding.code == "BB021"
    assert "trl: num_generation looks like its num_generations, max_completion_lenght looks like" in finding.message
    found = read({"per_device_train_batch_size": 8, "generations": 8, 4: 5}).findings
    (finding,) = (one for one in found if one.code == "BB021")
    assert "looks like" not in finding.message


def test_a_winner_that_cannot_be_imported_is_named_and_the_next_is_taken(registered: plugins.Registry) -> None:
    from batchbridge_trl import batchbridge_adapters

    own = Plugin(*batchbridge_adapters())
    lost = Plugin(AdapterEntry("lost", "nowhere_at_all:A", DetectionFacts(own={"num_generations": 1.0}, most=1.0)))
    registered.manager.register(own, "own")
    registered.manager.register(lost, "lost")
    found = read({"num_generations": 8, "scale_rewards": True}, version="1.16.0", world_size=8)
    assert found.framework == "trl"
    (problem,) = [one for one in found.findings if one.code == "BB034"]
    assert problem.message.startswith("plugin lost (registered in this process): adapter nowhere_at_all.A is unusable")
    assert problem.severity == "warning"


def test_facts_that_raise_are_a_finding_and_the_others_are_asked(registered: plugins.Registry) -> None:
    from batchbridge_trl import batchbridge_adapters

    registered.manager.register(Plugin(*batchbridge_adapters()), "own")
    registered.manager.register(
        Plugin(AdapterEntry("bad", "nowhere:A", DetectionFacts(own={}, programs={"(": 1.0}))), "bad"
    )
    findings: list[Finding] = []
    source = Source(values=parse_arguments(("--num_generations", "8")), argv=("--num_generations", "8"))
    assert certainties(source, findings) == {"trl": 0.35}
    (finding,) = findings
    assert finding.code == "BB023"
    assert "adapter bad failed in detect" in finding.message
