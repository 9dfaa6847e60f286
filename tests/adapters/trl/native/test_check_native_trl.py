"""`check --native` with the real GRPOConfig: what it refuses is said, and a legal recipe has no false alarm."""

import pytest
import trl

from batchbridge import read
from batchbridge.contract import plugins
from batchbridge.native_check import native_findings
from batchbridge_trl.rules import RULES

LEGAL = {"per_device_train_batch_size": 8, "num_generations": 8}
REFUSED = {
    "BB-TRL-010": {"logging_steps": 0},
    "BB-TRL-013": {"dataloader_prefetch_factor": 2},
    "BB-TRL-015": {"log_completions_hub_repo": "someone/something"},
    "BB-TRL-082": {"torch_empty_cache_steps": 0},
    "BB-TRL-083": {"eval_strategy": "steps", "logging_strategy": "epoch", "logging_steps": 0},
    "BB-TRL-084": {"logging_steps": 2.5},
    "BB-TRL-085": {"load_best_model_at_end": True, "save_strategy": "steps"},
    "BB-TRL-088": {"fsdp": "full"},
    "BB-TRL-089": {"fp16_full_eval": True, "bf16_full_eval": True},
}
"""Settings that break each retired rule."""


def said(values, world_size=1):
    reading = read({**LEGAL, **values}, framework="trl", version=trl.__version__, world_size=world_size)
    return native_findings(plugins.adapters()["trl"], reading)


def test_every_retired_rule_is_here():
    assert {rule.code for rule in RULES if rule.retired} == set(REFUSED)


@pytest.mark.parametrize("code", ["BB-TRL-010", "BB-TRL-015", "BB-TRL-088"])
def test_the_constructor_says_what_a_retired_rule_said(code):
    refused = [one for one in said(REFUSED[code]) if one.severity == "error"]
    assert [one.code for one in refused] == ["BB036"]


@pytest.mark.parametrize("values", [{"bf16": True}, {"tf32": True, "learning_rate": 1e-6}])
def test_a_legal_recipe_on_a_machine_without_a_device_has_no_false_alarm(values):
    found = said(values)
    assert {one.severity for one in found} == {"note"}
    assert "use_cpu" in " ".join(one.message for one in found)


def test_sizes_are_judged_on_the_devices_of_the_run():
    values = {"per_device_train_batch_size": 1}
    assert next(one.severity for one in said(values, 8)) == "note"
    assert "divisible" in said(values, 7)[0].message
