"""Random command lines: what Hydra composes of them with verl's configuration, and what verl's validator says of it,
against what is read here."""

from __future__ import annotations

import contextlib
import io
import random
from importlib import metadata

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import ConfigAttributeError

from batchbridge.contract.reading import Context
from batchbridge.kit.omegaconf_kinds import TRUTH
from batchbridge.reading.files import load_source
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.installed import package_folder
from batchbridge_verl.programs import NEEDED
from batchbridge_verl.settings import BY_KEY, defaults_of

VERSION = metadata.version("verl")
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
BASE = {
    "data.train_batch_size": 256,
    f"{ACTOR}ppo_mini_batch_size": 64,
    f"{ROLLOUT}n": 8,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 4,
    f"{ROLLOUT}name": "vllm",
    "algorithm.adv_estimator": "grpo",
    "trainer.nnodes": 1,
    "trainer.n_gpus_per_node": 8,
    "trainer.total_epochs": 3,
}
VALUES = ("1", "2", "0", "4.0", "0.5", "true", "False", "null", "yes", "no", '"64"', '"true"', "text", "[1]")
TYPOS = (
    "rollout.n",
    "actor.ppo_epochs",
    "trainer.total_epoch",
    "reward.x",
    "distillation.x",
    "ray_kwargs.x",
    "critic.x",
)
pytestmark = pytest.mark.filterwarnings("default")  # verl's dependencies deprecate each other


def words_of(seed):
    """A launch that verl takes, and one to three words more."""
    draw, known = random.Random(seed), sorted(key for key in defaults_of(VERSION, "fsdp") if "_target_" not in key)
    words = [f"{key}={value}" for key, value in BASE.items()]
    for _ in range(draw.choice((1, 1, 2, 3))):
        key = draw.choice(draw.choice((sorted(BY_KEY), sorted(BY_KEY), known, TYPOS)))
        if draw.random() < 0.1:
            parts = key.split(".")
            parts[draw.randrange(len(parts))] += draw.choice("sx")
            key = ".".join(parts)
        sign = draw.choice(("", "", "", "+", "++", "~"))
        words.append(f"~{key}" if sign == "~" and draw.random() < 0.7 else f"{sign}{key}={draw.choice(VALUES)}")
    return words


def composed(words):
    """What Hydra composes; None where it refuses the words."""
    folder = package_folder(VERSION) / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        try:
            return compose("ppo_trainer", overrides=words)
        except Exception:
            return None


def validated(config):
    """Whether verl's validator takes the configuration; a critic's needs a model, and is not asked for."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            if not need_critic(config):
                validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=False)
        except Exception:
            return False
    return True


def read(words):
    source = load_source(["python3", "-m", "verl.trainer.main_ppo", *words])
    return VerlAdapter().read(source, Context(framework_version=VERSION))


def differences(words):
    """What is said here of the words, and is not so."""
    reading = read(words)
    errors = [finding for finding in reading.findings if finding.severity == "error"]
    codes, config = {finding.code for finding in errors}, composed(words)
    refused = codes & {"BB-VERL-003", "BB-VERL-008"}
    # Of a key that hydra refuses and a dataclass would refuse as well, the latter is said; of a group, that it is one.
    if refused if config is not None else not refused | codes & {"BB-VERL-006", "BB-VERL-080"}:
        yield f"composed: {config is not None}, said: {[finding.message for finding in errors]}"
    if config is None or refused:
        return
    told = {place.key for finding in errors for place in finding.where}
    for key, row in BY_KEY.items():
        try:
            theirs = OmegaConf.select(config, key, default=...)
        except Exception:
            theirs = ...
        at = {key, *(key[:at] for at, mark in enumerate(key) if mark == ".")}
        if theirs is ... and key in defaults_of(VERSION, "fsdp") and not told & at:
            yield f"{key}: is not there, and nothing is said"
        if theirs is ... or told & at or not row.kind.takes(theirs):
            continue
        if key in defaults_of(VERSION, "fsdp") and reading.native.get(key) != row.kind.convert(theirs):
            yield f"{key}: {theirs!r} is read as {reading.native[key]!r}"
    checked = [finding for finding in VerlAdapter().check(reading) if finding.severity == "error"]
    ours = all(word.lstrip("+~").partition("=")[0] in BY_KEY for word in words)
    if ours and not errors and not checked and not validated(config):
        yield "verl's validator refuses it"


@pytest.mark.parametrize("part", range(3))
def test_random_words_come_to_what_hydra_and_verl_make_of_them(part):
    found = {seed: list(differences(words_of(seed))) for seed in range(25 * part, 25 * part + 25)}
    assert {seed: (words_of(seed)[len(BASE) :], told) for seed, told in found.items() if told} == {}


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["model_engine=dp"], True),
        (["model_engine=megatron"], True),
        (["model_engine=fsdp"], False),
        (["+model_engine=megatron"], False),
        (["+model_engine=dp"], False),
        (["++model_engine=dp"], False),
        (["model_engine=null"], False),
        (["~model_engine"], False),
        (["~model_engine=dp"], False),
        (["data={}"], True),
        (["+data={}", "++trainer={}"], True),
        (["algorithm.kl_ctrl.kl_coef=0.5", "algorithm.kl_ctrl={}"], True),
        (["actor_rollout_ref.actor={}", "actor_rollout_ref.actor.ppo_epochs=2"], True),
        (["reward.nope={}"], False),
        (["hydra/job_logging=disabled", "hydra/hydra_logging=none"], True),
        (["~hydra/job_logging"], True),
    ],
)
def test_groups_are_chosen_and_merged_as_hydra_has_them(words, taken):
    words = [*(f"{one}={value}" for one, value in BASE.items()), *words]
    config, reading = composed(words), read(words)
    assert (config is not None, reading.verdict == "valid") == (taken, taken)
    for key in ("algorithm.kl_ctrl.kl_coef", f"{ACTOR}ppo_epochs", "data.max_prompt_length", "trainer.nnodes"):
        assert config is None or reading.native[key] == OmegaConf.select(config, key)


@pytest.mark.parametrize(("name", "text"), [("lr", False), ("weight_decay", False), ("clip_grad", True)])
def test_text_is_no_number_of_an_optimizer_and_a_bound_of_a_norm(name, text):
    import torch
    from verl.workers.config import FSDPOptimizerConfig
    from verl.workers.config.optimizer import build_optimizer

    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    for value, taken in ((0.5, True), ("0.5", text)):
        config = FSDPOptimizerConfig(**{"lr": 0.1, name: value})
        with contextlib.nullcontext() if taken else pytest.raises(TypeError):
            build_optimizer([weight], config).step()
            torch.nn.utils.clip_grad_norm_([weight], max_norm=config.clip_grad)
        shown = f'"{value}"' if isinstance(value, str) else value
        reading = read([*(f"{one}={given}" for one, given in BASE.items()), f"{ACTOR}optim.{name}={shown}"])
        assert (reading.verdict, reading.native[f"{ACTOR}optim.{name}"]) == (
            ("valid", 0.5) if taken else ("invalid", None)
        )


@pytest.mark.parametrize("key", sorted(NEEDED))
def test_what_every_run_reads_is_missed_where_a_word_takes_it_out(key):
    config = composed([*(f"{one}={value}" for one, value in BASE.items()), f"~{key}"])
    group, _, name = key.rpartition(".")
    with pytest.raises(ConfigAttributeError):
        getattr(OmegaConf.select(config, group), name)


@pytest.mark.parametrize(("value", "shuffles"), [(1, True), (0, False), (None, False), ("yes", True), ("no", True)])
def test_the_sampler_asks_for_the_truth_of_what_is_given(value, shuffles):
    from verl.trainer.ppo.utils import create_rl_sampler

    config = OmegaConf.create({"shuffle": value, "sampler": None, "seed": 1})
    assert (type(create_rl_sampler(config, [1, 2])).__name__ == "RandomSampler") == shuffles
    assert not TRUTH.takes(value) or TRUTH.convert(value) == shuffles


@pytest.mark.parametrize(
    ("told", "taken"),
    [
        ({"mini_batch_size": 4.0}, False),
        ({"epochs": 1.0}, False),
        ({"seed": 1.0}, False),
        ({"dataloader_kwargs": {"shuffle": 1}}, True),
    ],
)
def test_a_whole_float_is_no_size_of_a_mini_batch_no_number_of_passes_and_no_seed(told, taken):
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils

    rows = TensorDict({"a": torch.ones(8, 2)}, batch_size=[8])
    told = {"mini_batch_size": 4, "epochs": 1, "seed": 1, "dataloader_kwargs": {"shuffle": False}} | told
    with contextlib.nullcontext() if taken else pytest.raises((TypeError, ValueError, RuntimeError)):
        assert len(list(tensordict_utils.make_iterator(rows, **told))) == 2


def test_whole_floats_are_lengths_of_a_schedule_and_constants_of_a_loss():
    import torch
    from verl.trainer.ppo.core_algos import agg_loss
    from verl.utils.torch_functional import get_cosine_schedule_with_warmup

    rates = []
    for warmup, steps in ((2, 10), (2.0, 10.0)):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=warmup, num_training_steps=steps)
        for _ in range(5):
            optimizer.step()
            schedule.step()
        rates.append(schedule.get_last_lr())
    losses = [
        agg_loss(torch.ones(2, 3), torch.ones(2, 3), "seq-mean-token-sum-norm", loss_scale_factor=factor).item()
        for factor in (10, 10.0, 10.5)
    ]
    assert (rates[0], losses[0]) == (rates[1], losses[1])
    assert losses[2] < losses[1]  # and one that is not whole divides as well
