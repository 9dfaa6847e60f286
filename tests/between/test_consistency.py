"""What two statements of ours about one run must have in common, over random configurations of every framework.

The same cases every time; `BATCHBRIDGE_CASES` asks for others, as in test_properties.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from cases import DATASET, VERSIONS, Case, cases
from hypothesis import given
from hypothesis import strategies as st
from registered import adapters
from test_properties import FRAMEWORKS, many

from batchbridge.comparing.differences import compare
from batchbridge.comparing.scale import scale_with
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.kit.config_texts import as_groups
from batchbridge.meaning.derived import derive
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read, read_source
from batchbridge.reports import Explanation

RELEASES = {name: adapters()[name].releases or VERSIONS[name] for name in FRAMEWORKS}
OF_HYDRA = ("verl",)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of its own for each case."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def said(case: Case) -> dict[str, Any]:
    return {
        "framework": case.framework,
        "version": case.version,
        "world_size": case.world_size,
        "dataset_size": DATASET,
    }


def wandb_of(values: Mapping[str, Any], place: Path) -> Path:
    """W&B's record of a run with these settings."""
    file = place / "run-20261128_120000-abcd1234" / "files" / "config.yaml"
    file.parent.mkdir(parents=True)
    own = {"_wandb": {"cli_version": "0.31.0"}, "model_type": "llama", **as_groups(values)}
    file.write_text(yaml.safe_dump({key: {"value": value} for key, value in own.items()}), encoding="utf-8")
    return file.parent.parent


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_same_settings_as_a_mapping_and_as_a_past_run_are_one_run(framework: str) -> None:
    @many(60, len(FRAMEWORKS))
    @given(case=cases(framework))
    def law(case: Case) -> None:
        with folder() as place:
            past = read(wandb_of(case.values, place), **said(case))
            assert past.spec == case.spec, past.findings
            assert past.verdict == "valid", past.findings
            (place / "flat.json").write_text(json.dumps({"_wandb": {}, **as_groups(case.values)}), encoding="utf-8")
            assert read(place / "flat.json", **said(case)).spec == case.spec

    law()


@pytest.mark.parametrize("framework", OF_HYDRA)
def test_the_same_settings_as_words_and_as_what_hydra_keeps_are_one_run(framework: str) -> None:
    @many(20, 1)
    @given(case=cases(framework))
    def law(case: Case) -> None:
        written = adapters()[framework].write(case.spec, case.version)
        words = shlex.split(written.text["hydra"], comments=True)
        overrides = [word for word in words[3:] if word.strip() and not word.startswith("--")]
        flags = [word.partition("=")[2] for word in words if word.startswith("--config-name=")]
        own = {"provider": "main", "schema": "pkg", "path": "verl.trainer.config"}
        job = {"name": "main_ppo", "config_name": flags[0].removesuffix(".yaml") if flags else "ppo_trainer"}
        with folder() as place:
            kept = place / ".hydra"
            kept.mkdir()
            (kept / "overrides.yaml").write_text(yaml.safe_dump(overrides), encoding="utf-8")
            told = {"hydra": {"job": job, "runtime": {"config_sources": [own]}}}
            (kept / "hydra.yaml").write_text(yaml.safe_dump(told), encoding="utf-8")
            past = read(kept / "overrides.yaml", **said(case))
            (kept / "config.yaml").write_text(yaml.safe_dump(as_groups(written.values)), encoding="utf-8")
            composed = read(place, **said(case))
            log = place / "job.log"
            log.write_text(f"Error executing job with overrides: {overrides!r}\n", encoding="utf-8")
            pasted = read(log, **said(case))
            script = place / "run.sh"
            script.write_text(f"#!/bin/bash\n{written.text['hydra']}\n", encoding="utf-8")
            started = read(script, **said(case))
        assert started.spec == case.spec, started.findings
        assert composed.spec == case.spec, composed.findings
        assert past.spec == case.spec, past.findings
        assert flags or pasted.spec == case.spec, pasted.findings  # an error's line does not say the configuration

    law()


def test_a_python_program_and_the_mapping_of_its_call_are_one_run() -> None:
    @many(20, 1)
    @given(case=cases("trl"))
    def law(case: Case) -> None:
        text = ", ".join(f"{key}={value!r}" for key, value in case.values.items() if key != "num_processes")
        with folder() as place:
            program = place / "train.py"
            program.write_text(
                f"from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer('m', [len], args=GRPOConfig({text})).train()\n"
            )
            built = read(program, **said(case))
        assert built.spec == case.spec, built.findings

    law()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_scale_calls_the_same_run_is_equivalent_to_diff(framework: str) -> None:
    @many(60, len(FRAMEWORKS))
    @given(case=cases(framework), world_size=st.sampled_from([1, 2, 4, 8]))
    def law(case: Case, world_size: int) -> None:
        found = scale_with(adapters()[framework], case.reading, world_size)
        if found.verdict != "kept":
            return
        compared = compare(case.reading, found.choices[0].reading)
        # What a specification does not say is the user's own, and stays in their file.
        fields = {one.field for one in compared.differences if not one.field.startswith("outside.")}
        assert not fields, (framework, case.version, world_size, fields)

    law()


SMALL = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 100, 127, 130, 200, 257, 1000, 1001)
"""Prompts of datasets that leave remainders, and of some that fill no rollout."""
_DROPPED = re.compile(r"(\d[\d,]*) of (?:the )?\d[\d,]* prompts are dropped")
_ENDS = re.compile(r"the run ends after (\d[\d,]*) of them")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_totals_are_those_that_findings_name(framework: str) -> None:
    """A valid run trains something; what a finding counts is the number that is shown, where one is."""

    @many(300, len(FRAMEWORKS))
    @given(case=cases(framework), prompts=st.sampled_from(SMALL))
    def law(case: Case, prompts: int) -> None:
        context = Context(framework_version=case.version, world_size=case.world_size, dataset_size=prompts)
        found = read_source(Source(values=case.values), adapters()[framework], context)
        if found.verdict == "valid":
            for name in ("total_rollouts", "total_optimizer_steps"):
                assert found.derived[name] != 0, (case, prompts, name)
        for finding in found.findings:
            for pattern, name in ((_DROPPED, "prompts_dropped_per_epoch"), (_ENDS, "total_optimizer_steps")):
                told, shown = pattern.search(finding.message), found.derived.get(name)
                assert told is None or shown in (None, int(told[1].replace(",", ""))), (case, prompts, finding.message)

    law()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_release_says_something_of_a_configuration_and_never_crashes(framework: str) -> None:
    """Of another release's settings, too; and what is said is printed. Numbers and specification agree."""

    @many(60, len(FRAMEWORKS))
    @given(case=cases(framework), version=st.sampled_from(RELEASES[framework]))
    def law(case: Case, version: str) -> None:
        context = Context(framework_version=version, world_size=case.world_size, dataset_size=DATASET)
        found = read_source(Source(values=case.values), adapters()[framework], context)
        assert not [one for one in found.findings if " failed in " in one.message or "failed:" in one.message]
        assert found.framework_version == version
        assert Explanation(name="case", reading=found).text(verbose=True)
        if found.spec is not None:
            numbers_agree(found, found.spec)

    law()


def numbers_agree(found: Reading, spec: Spec) -> None:
    """The numbers that are printed are those of the specification, and each whole."""
    numbers = derive(spec, found.dataset_size)
    assert dict(found.derived) == numbers
    rollout, group = numbers["completions_per_rollout"], spec.rollout.completions_per_prompt
    if rollout is not None and spec.rollout.prompts_per_rollout is not None and group:
        assert rollout == spec.rollout.prompts_per_rollout * group
    steps, a_step = numbers["optimizer_steps_per_rollout"], numbers["completions_per_step"]
    if steps is not None and rollout is not None and a_step:
        passes = spec.optimizer_step.passes_per_rollout
        assert abs(steps * a_step - rollout * passes) < 1e-6 * rollout * passes
