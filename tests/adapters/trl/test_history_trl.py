"""TRL 0.15 to 1.9.0 against what these releases themselves did: recorded verdicts, and recorded optimizer steps.

`history/` has the records and the scripts that made them; `nox -s trl_history` makes them again and compares.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trl_verdicts import our_rule, retired_rule_of_text, rule_of_text

from batchbridge.contract.reading import Context, Source
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.settings import transformers_of

HISTORY = Path(__file__).parent / "history"


def records(name):
    return [json.loads(line) for line in (HISTORY / name).read_text(encoding="utf-8").splitlines()]


VERDICTS, STEPS = records("verdicts.jsonl"), records("steps.jsonl")
LENGTHS = (1, 2, 3, 5, 8, 12, 17, 23)
COMMON = {"num_generations": 4, "max_completion_length": 24, "learning_rate": 0.0, "beta": 0.0, "seed": 42}


def length(prompt, sample):
    return LENGTHS[(prompt * 3 + sample) % len(LENGTHS)] + 1


def label(record):
    return f"{record['trl']} {record['case']} on {record['world']}"


def predicted(record, version=None):
    """Our rows of each optimizer step: process, micro-batch, prompt, sample, weight."""
    adapter = TrlAdapter()
    release = version or record["trl"]
    context = Context(framework_version=release, world_size=record["world"], dataset_size=record["prompts"])
    reading = adapter.read(Source(values={**COMMON, **record["settings"]}), context)
    assert reading.findings == ()
    tokens = {(p, s): length(p, s) for p in range(record["prompts"]) for s in range(4)}
    return [
        sorted([row.rank, row.micro_batch, row.prompt, row.sample, float(row.weight)] for row in step.rows)
        for step in adapter.native_steps(reading, record["prompts"], tokens)
    ]


@pytest.mark.parametrize("version", sorted({record["trl"] for record in VERDICTS}))
def test_verdict_and_rule_are_those_of_the_releases_own_construction(version):
    wrong = [
        (record["settings"], record["world"], record["error"])
        for record in VERDICTS
        if record["trl"] == version
        and retired_rule_of_text(record["error"]) is None
        and our_rule(record["settings"], record["world"], version) != rule_of_text(record["error"], record["settings"])
    ]
    assert wrong == []


def test_only_what_the_retired_rows_quote_is_not_judged():
    quoted = [(code, record["error"]) for record in VERDICTS if (code := retired_rule_of_text(record["error"]))]
    said = {
        "BB-TRL-010": "ValueError: logging strategy IntervalStrategy.STEPS requires non-zero --logging_steps",
        "BB-TRL-013": "ValueError: --dataloader_prefetch_factor can only be set when data is loaded in a different",
        "BB-TRL-015": "ValueError: log_completions_hub_repo is set, but log_completions is False.",
    }
    assert {code for code, _ in quoted} == set(said)
    assert [(code, error) for code, error in quoted if not error.startswith(said[code])] == []
    assert len(quoted) == sum(str(record["error"]).startswith(tuple(said.values())) for record in VERDICTS)


def test_every_record_was_made_beside_the_transformers_release_that_is_assumed():
    made = {(record["trl"], record["transformers"]) for record in [*VERDICTS, *STEPS]}
    assert made == {(version, transformers_of(version)) for version, _ in made}


def test_the_last_release_that_does_not_import_beside_transformers_5_is_read_with_4():
    assert (transformers_of("0.28.0"), transformers_of("0.29.0")) == ("4.57.6", "5.23.0")
    shares = {"warmup_ratio": 0.1, "num_generations": 8, "per_device_train_batch_size": 8}
    context = [Context(framework_version=version, world_size=1) for version in ("0.28.0", "0.29.0")]
    codes = [[found.code for found in TrlAdapter().read(Source(values=shares), one).findings] for one in context]
    assert codes == [[], ["BB-TRL-003"]]


@pytest.mark.parametrize("record", STEPS, ids=label)
def test_the_completions_of_every_optimizer_step_are_the_recorded_ones(record):
    ours, theirs = predicted(record), [sorted(step) for step in record["steps"]]
    assert [[row[:4] for row in step] for step in ours] == [[row[:4] for row in step] for step in theirs]


@pytest.mark.parametrize("record", STEPS, ids=label)
def test_the_weight_of_every_completion_is_the_recorded_one(record):
    ours = [row[4] for step in predicted(record) for row in step]
    theirs = [row[4] for step in record["steps"] for row in sorted(step)]
    assert ours == pytest.approx(theirs, rel=2e-5)  # float32 gradients, rounded to nine decimals


def recorded(version, case):
    return next(r for r in STEPS if (r["trl"], r["case"], r["world"]) == (version, case, 1))


def weights(steps):
    return [row[4] for step in steps for row in sorted(step)]


@pytest.mark.parametrize(
    ("version", "other", "case", "factor"),
    [("1.9.0", "1.9.1", "long rollouts", 0.5), ("1.9.0", "1.9.1", "short rollouts", 2.0)],
)
def test_the_record_tells_the_dapo_denominators_of_1_9_0_and_1_9_1_apart(version, other, case, factor):
    record = recorded(version, case)
    assert weights(record["steps"]) == pytest.approx(
        [factor * weight for weight in weights(predicted(record, other))], rel=2e-5
    )


@pytest.mark.parametrize(
    ("version", "other", "case"),
    [("0.15.2", "0.16.1", "window"), ("0.17.0", "0.18.2", "window"), ("0.19.1", "0.20.0", "out of step")],
)
def test_the_record_tells_neighbouring_versions_apart(version, other, case):
    record = recorded(version, case)
    theirs, rows = record["steps"], [[row[1:4] for row in sorted(step)] for step in predicted(record, other)]
    assert rows != [[row[1:4] for row in sorted(step)] for step in theirs]
