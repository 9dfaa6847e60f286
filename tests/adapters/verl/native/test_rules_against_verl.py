"""Our verdicts against verl's own validator and dataclasses, and our defaults against its composed configuration."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_on_cpu.scripts import module_at
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.rules import RULES, VALIDATED
from batchbridge_verl.settings import holds

SCRIPT = Path(__file__).parent / "validator.py"
CONFIGURATIONS = 10_000
FEW = 2_500
"""Of every change; the rest by name."""

pytestmark = pytest.mark.filterwarnings("default")  # verl's dependencies deprecate each other


@pytest.fixture(scope="module")
def script():
    return module_at(SCRIPT, "validator")


RETIRED = {rule.code for rule in RULES if rule.retired}


@pytest.fixture(scope="module")
def validator(script):
    made = script.Validator()
    gc.collect()
    gc.freeze()  # torch's and transformers' objects: a collection would look at all of them again and again
    return made


def refused(values, version):
    """The rules that speak before any worker starts, in their order."""
    findings = read_source(load_source(values), VerlAdapter(), Context(framework_version=version)).findings
    return [finding.code for finding in findings if finding.severity == "error" and finding.phase == "config"]


@pytest.mark.parametrize("count", [FEW, pytest.param(CONFIGURATIONS, marks=pytest.mark.by_hand)])
def test_thousands_of_verdicts_and_the_first_rule_that_speaks_are_verls(script, validator, count):
    seen, different = Counter(), []
    for values in script.configurations(count, validator.known):
        theirs = validator.error(values)
        theirs = theirs and script.code_of(theirs)
        ours = next(iter(refused(values, validator.version)), None)
        seen[theirs] += 1
        if theirs in RETIRED:  # says what no rule of ours repeats, and may hide a later one
            continue
        if ours != theirs:
            different.append((ours, theirs, values))
    assert different[:5] == []
    comparable = {rule.code for rule in VALIDATED if holds(rule.versions, validator.version)}
    assert {code for code in comparable if seen[code] >= count / 500} == comparable, seen
    assert count / 4 < seen[None] < 3 * count / 4


def test_settings_that_our_rules_do_not_read_change_no_verdict(script, validator):
    whole = script.Validator(whole=True)
    for values in script.configurations(150, validator.known, seed=3):
        assert whole.error(values) == validator.error(values)


def test_the_validator_stands_as_composed_after_a_verdict(script, validator):
    before = validator.bases["fsdp"][0].copy()
    for values in script.configurations(30, validator.known, seed=4):
        validator.error(values)
    assert validator.bases["fsdp"][0] == before


@pytest.mark.parametrize(
    ("values", "refuses"),
    [
        ({}, False),
        ({"mode": "sync"}, True),
        ({"pipeline_model_parallel_size": 2}, True),
        ({"pipeline_model_parallel_size": 2, "name": "hf"}, False),
        ({"expert_parallel_size": 4}, True),
        ({"expert_parallel_size": 4, "data_parallel_size": 2}, False),
        ({"expert_parallel_size": 2}, False),
        ({"expert_parallel_size": 4, "name": "trtllm"}, False),
        ({"pipeline_model_parallel_size": 2, "name": "trtllm"}, True),
    ],
)
def test_the_rollouts_dataclass_refuses_what_our_rule_refuses(values, refuses, validator):
    from verl.utils.config import omega_conf_to_dataclass

    rollout = validator.bases["fsdp"][0].actor_rollout_ref.rollout.copy()
    rollout.update({"name": "vllm", "tensor_model_parallel_size": 2, **values})
    rollout._set_parent(validator.bases["fsdp"][0].actor_rollout_ref)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.ExitStack() as stack:
        if refuses:
            stack.enter_context(pytest.raises(Exception))  # noqa: PT011 - hydra wraps what the dataclass raises
        omega_conf_to_dataclass(rollout)
    said = {f"actor_rollout_ref.rollout.{key}": value for key, value in {"name": "vllm", **values}.items()}
    findings = read_source(load_source(said), VerlAdapter(), Context(framework_version=validator.version)).findings
    assert ("BB-VERL-069" in [finding.code for finding in findings]) is refuses


@pytest.mark.parametrize(("rollout", "critic", "rows"), [(4, True, 64), (5, True, 704), (4, False, 0), (5, False, 128)])
def test_the_rows_of_a_padded_rollout_are_verls(rollout, critic, rows):
    # 64 prompts x 4 completions on 8 replicas; BB-VERL-023 says the same rows, see test_rules_verl.py.
    base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base", reason="verl before 0.9 has no V1 trainer")
    (trainer,) = [one for one in vars(base).values() if hasattr(one, "_get_required_batch_multiple")]
    config = {
        "trainer": {"critic_warmup": 5},
        "critic": {"ppo_mini_batch_size": 40},
        "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 48}, "rollout": {"n": 4}},
    }
    itself = SimpleNamespace(config=OmegaConf.create(config), use_critic=critic, global_steps=rollout)
    assert -256 % trainer._get_required_batch_multiple(itself, 8) == rows


def test_the_place_that_the_padding_rule_cites_is_verls():
    from verl.trainer.ppo import padding_utils

    (place,) = [
        re.search(r"padding_utils\.py:(\d+)", rule.source) for rule in RULES if "padding_utils.py" in rule.source
    ]
    assert inspect.getsourcelines(padding_utils.upsample_batch_to_divisible_size)[1] == int(place[1])


@pytest.mark.parametrize(
    ("estimator", "raises"),
    [
        ("opo", None),
        ("gpg", None),
        ("grpo_passk", None),
        ("remax", (TypeError, "reward_baselines")),
        ("gdpo", (KeyError, "prompts")),
        ("optimal_token_baseline", (AssertionError, "sum_pi_squared")),
        ("tir_optimal_token_baseline", (AssertionError, "sum_pi_squared")),
    ],
)
def test_v1_lacks_what_some_estimators_need(estimator, raises):
    """On what V1's `_compute_advantage` hands its function: BB-VERL-088."""
    base = pytest.importorskip("verl.trainer.ppo.v1.trainer_base", reason="the V1 trainer came with verl 0.9.0")
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    handed = inspect.getsource(base.PPOTrainer._compute_advantage)
    assert not re.search("reward_baselines|sum_pi_squared|prompts", handed)
    rewards = torch.arange(8.0)[:, None] * torch.tensor([0.0, 0.0, 1.0])
    columns = {"token_level_rewards": rewards, "rm_scores": rewards, "response_mask": torch.ones(8, 3)}
    columns |= {"old_log_probs": torch.zeros(8, 3), "rollout_log_probs": torch.zeros(8, 3)}
    data = DataProto.from_single_dict({**columns, "uid": np.array(list("aaaabbbb"), dtype=object)})
    found = VerlAdapter().check(read(estimator))
    assert bool(raises) == ("BB-VERL-088" in [finding.code for finding in found])
    with pytest.raises(raises[0], match=raises[1]) if raises else contextlib.nullcontext():
        compute_advantage_for_multi_trajectories(
            data, [f"p_{row}_0" for row in range(8)], estimator, config={"gdpo_reward_keys": ["one"]}
        )


def read(estimator):
    values = {"algorithm.adv_estimator": estimator, "actor_rollout_ref.rollout.n": 4}
    return VerlAdapter().read(load_source(values), Context(framework_version="0.9.1"))
