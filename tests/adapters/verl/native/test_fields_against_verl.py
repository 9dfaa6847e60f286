"""The keys that verl's dataclasses take beside its composed configuration, and what they do with any other."""

from __future__ import annotations

import dataclasses
import importlib
from importlib import metadata

import pytest

from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge_verl.composed import defaults_for
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.fields import stranger
from batchbridge_verl.installed import package_folder
from batchbridge_verl.settings import defaults_of, engines_of

VERSION = metadata.version("verl")
ROLES = ("actor_rollout_ref.actor", "critic")
pytestmark = pytest.mark.filterwarnings("default")  # verl's dependencies deprecate each other


def groups(engine):
    """Group of the actor or the critic -> its dataclass."""
    for key, target in defaults_of(VERSION, engine).items():
        if key.endswith("._target_") and key.startswith(ROLES):
            module, _, name = target.rpartition(".")
            yield key.removesuffix("._target_"), getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("engine", engines_of(VERSION))
def test_every_field_of_a_dataclass_is_taken_and_no_other(engine):
    known, different = defaults_for(VERSION, engine), []
    for group, cls in groups(engine):
        for field in dataclasses.fields(cls):
            if stranger(f"{group}.{field.name}", VERSION, known) is not None:
                different.append((group, field.name))
        assert stranger(f"{group}.no_such_field", VERSION, known) == group
    assert different == []


def test_the_table_has_no_field_that_a_dataclass_lacks():
    lacking = [
        (engine, group, name)
        for engine in ("fsdp", "megatron")
        for group, cls in groups(engine)
        for name in ("no_such_field", "rollout_n", "manual_save", "model_config", "grad_offload", "profile")
        if name not in {field.name for field in dataclasses.fields(cls)}
        if stranger(f"{group}.{name}", VERSION, defaults_for(VERSION, engine)) is None
    ]
    assert lacking == []


@pytest.mark.parametrize(
    ("word", "taken"),
    [
        ("+actor_rollout_ref.actor.unknown=1", False),
        ("+actor_rollout_ref.actor.optim.eps=1e-6", False),
        ("+actor_rollout_ref.actor.fsdp_config.mixed_precision.anything=1", True),
        ("+actor_rollout_ref.actor.optim.override_optimizer_config.eps=1e-6", True),
        ("+actor_rollout_ref.actor.use_rollout_log_probs=true", True),
        ("+data.unknown=1", True),
    ],
)
def test_a_key_that_is_appended_is_refused_where_verl_refuses_it(word, taken):
    from hydra import compose, initialize_config_dir
    from verl.utils.config import omega_conf_to_dataclass

    words = [
        word,
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
        "algorithm.adv_estimator=grpo",
    ]
    folder = package_folder(VERSION) / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=words)
    if taken:
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    else:
        with pytest.raises(Exception, match="unexpected keyword argument"):
            omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    source = load_source(["python3", "-m", "verl.trainer.main_ppo", *words])
    codes = [finding.code for finding in VerlAdapter().read(source, Context(framework_version=VERSION)).findings]
    assert ("BB-VERL-080" in codes) == (not taken)


def test_an_optimizer_gets_its_epsilon_from_the_override():
    import torch
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    parameters = [torch.nn.Parameter(torch.zeros(2))]
    plain = build_optimizer(parameters, FSDPOptimizerConfig(lr=1e-3)).param_groups[0]
    own = FSDPOptimizerConfig(lr=1e-3, override_optimizer_config={"eps": 1e-6, "betas": (0.8, 0.9)})
    changed = build_optimizer(parameters, own).param_groups[0]
    assert (plain["eps"], plain["betas"]) == (1e-8, (0.9, 0.999))
    assert (changed["eps"], changed["betas"]) == (1e-6, (0.8, 0.9))


def test_the_optimizers_of_torch_that_take_verls_arguments_are_listed():
    import torch
    from verl.workers.config.optimizer import FSDPOptimizerConfig, build_optimizer

    from batchbridge_verl.terms import TORCH_OPTIMIZERS

    built = set()
    for name, cls in vars(torch.optim).items():
        if not isinstance(cls, type) or cls is torch.optim.Optimizer:
            continue
        try:
            vector = torch.nn.Parameter(torch.zeros(2))  # a bias: Muon takes matrices only
            build_optimizer([vector], FSDPOptimizerConfig(lr=1e-3, optimizer=name))
        except (TypeError, ValueError):
            continue
        built.add(name)
    assert built == set(TORCH_OPTIMIZERS)
