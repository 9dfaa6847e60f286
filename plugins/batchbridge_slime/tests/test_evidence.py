"""slime's specification against slime's own functions, and misreadings of its options, each of which they tell.

slime is on no package index and imports Megatron, Ray and SGLang: where its checkout is on the path (`PYTHONPATH`) and
torch is installed, functions are taken out of its files one by one, and what they call besides is a stand-in. Elsewhere
`evidence.json` has what they answered.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

from batchbridge import Reading, Source
from batchbridge.kit import Context
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_slime.config import SlimeAdapter

RUN: dict[str, Any] = {
    "rollout-batch-size": 4,
    "n-samples-per-prompt": 4,
    "global-batch-size": 8,
    "num-rollout": 9,
    "actor-num-nodes": 2,
    "actor-num-gpus-per-node": 2,
    "tensor-model-parallel-size": 2,
    "attention-dropout": 0.0,
    "hidden-dropout": 0.0,
    "lr-decay-style": "constant",
}
KL = {"use-kl-loss": True, "kl-loss-coef": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "in the file's order": {},
    "shuffled": {"rollout-shuffle": True},
    "tokens": {"calculate-per-token-loss": True, **KL, "kl-loss-type": "low_var_kl"},
    "no deviation": {"disable-grpo-std-normalization": True, **KL, "kl-loss-type": "k2", "num-steps-per-rollout": 2},
    "no mean": {"disable-rewards-normalization": True, "eps-clip": 0.1, "eps-clip-high": 0.28, "eps-clip-c": 3.0},
    "a step a rollout": {"global-batch-size": 16, **KL, "kl-loss-type": "low_var_kl", "use-unbiased-kl": True},
    "a remainder": {"global-batch-size": 6, "micro-batch-size": 3, "eps-clip-high": 0.28},
    "steps": {"global-batch-size": None, "num-steps-per-rollout": 4, **KL, "kl-loss-type": "k3"},
    "whole completions": {"advantage-estimator": "gspo", "eps-clip": 0.003, "global-batch-size": 16},
    "cispo": {"advantage-estimator": "cispo", "eps-clip": 1.0, "eps-clip-high": 0.25, **KL, "kl-loss-type": "k1"},
    "packed": {"use-dynamic-batch-size": True, "max-tokens-per-gpu": 12, "use-rollout-logprobs": True},
    "an epoch": {"num-rollout": None, "num-epoch": 1, "n-samples-per-prompt": 1, "global-batch-size": 4},
}
ARGUMENTS, LOSS, PPO = "utils/arguments.py: ", "backends/megatron_utils/loss.py: ", "utils/ppo_utils.py: "
PARSED = (f"{ARGUMENTS}slime_validate_args",)
REDUCED = ("backends/megatron_utils/cp_utils.py: get_sum_of_sample_mean",)
TRAINED = (*REDUCED, f"{LOSS}policy_loss_function")


def case(name: str, **changes: Any) -> ValidCase:
    said = {**RUN, **CASES[name], **changes}
    values = {key: value for key, value in said.items() if value is not None}
    return ValidCase(name=name, source=Source(values=values), context=Context(framework_version="0.3.1"))


class StandIns(dict[str, Any]):
    """The globals of a function that is taken alone: what is not given is a builtin, or else a stand-in."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name) if hasattr(builtins, name) else self.setdefault(name, MagicMock(name=name))


class SlimesFunctions(EvidenceContract):
    """What slime's own code says of a case."""

    adapter_class = SlimeAdapter
    package = "slime"
    marker = "utils/dp_schedule.py"
    version = "0.3.1 (624b824)"
    record = Path(__file__).with_name("evidence.json")
    valid = tuple(map(case, CASES))
    functions: ClassVar[Mapping[str, Sequence[str]]] = {
        "devices": ("backends/megatron_utils/arguments.py: megatron_parse_args",),
        "rollouts": (
            *PARSED,
            "ray/placement_group.py: create_rollout_manager",
            "ray/rollout.py: RolloutManager.get_num_rollout_per_epoch",
        ),
        "prompts": ("rollout/data_source.py: RolloutDataSource.get_samples", "utils/data.py: Dataset.shuffle"),
        "steps": (*PARSED, "utils/dp_schedule.py: build_dp_schedule"),
        "advantages": (*PARSED, "ray/rollout.py: RolloutManager._post_process_rewards"),
        "weights": (*REDUCED, f"{LOSS}loss_function"),
        "gradients": (*TRAINED, *(f"{PPO}compute_{name}" for name in ("policy_loss", "approx_kl", "cispo_loss"))),
        "ratio": (*TRAINED, f"{PPO}compute_gspo_kl"),
    }

    def native_devices(self, case: ValidCase) -> int:
        args = parsed(case)
        parse = taken("backends/megatron_utils/arguments.py", "megatron_parse_args")
        parse.__globals__.update(_megatron_parse_args=lambda **_: args, _set_default_megatron_args=lambda args: args)
        return int(parse(None, skip_hf_validate=True).world_size)

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        args = validated(case)
        count = taken("ray/rollout.py", "RolloutManager.get_num_rollout_per_epoch")
        manager = SimpleNamespace(args=args, data_source=range(dataset_size))
        asked = SimpleNamespace(get_num_rollout_per_epoch=SimpleNamespace(remote=lambda: count(manager)))
        beside, create = ModuleType("slime_alone.rollout"), taken("ray/placement_group.py", "create_rollout_manager")
        beside.RolloutManager = SimpleNamespace(  # type: ignore[attr-defined]  # a stand-in
            options=lambda **_: SimpleNamespace(remote=lambda *_: asked)
        )
        sys.modules |= {"slime_alone": ModuleType("slime_alone"), "slime_alone.rollout": beside}
        create.__globals__.update(__package__="slime_alone", ray=SimpleNamespace(get=lambda value: value))
        create(args, None)
        return int(args.num_rollout)

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]] | None:
        if "num-epoch" in case.source.values:
            return None  # no second epoch comes
        return rollouts(case, dataset_size)

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        args = validated(case)
        replicas = (
            args.actor_num_nodes * args.actor_num_gpus_per_node // case.source.values["tensor-model-parallel-size"]
        )
        total = args.rollout_batch_size * args.n_samples_per_prompt
        devices = {"dp_size": replicas, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
        schedule = taken("utils/dp_schedule.py", "build_dp_schedule")
        helpers = {
            name: taken("utils/seqlen_balancing.py", name) for name in ("first_fit_pack", "expand_bins_by_splitting")
        }
        pack = taken("utils/dp_schedule.py", "_pack_step_into_mbs")
        pack.__globals__.update(helpers)
        schedule.__globals__.update(helpers, _pack_step_into_mbs=pack)
        said = schedule(
            args, devices, [5] * total, global_batch_size=args.global_batch_size, rollout_indices=[*range(total)]
        )
        _, micro_batches, counts, _ = said
        sizes, begun = [], 0
        for count in counts:
            sizes.append(sum(len(one) for rank in micro_batches for one in rank[begun : begun + count]))
            begun += count
        return sizes

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        import torch

        normalise, args = taken("ray/rollout.py", "RolloutManager._post_process_rewards"), validated(case)
        normalise.__globals__["torch"] = torch
        args.rollout_batch_size = len(groups)
        samples = [
            SimpleNamespace(get_reward_value=lambda _, reward=reward: reward) for group in groups for reward in group
        ]
        _, flat = normalise(SimpleNamespace(args=args, custom_reward_post_process_func=None), samples)
        return [flat[at : at + len(groups[0])] for at in range(0, len(flat), len(groups[0]))]

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        """A step of two micro-batches on one replica: Megatron divides by their number, or by the step's tokens."""
        import torch

        args, new = validated(case), [torch.zeros(length, requires_grad=True) for length in lengths]
        half, total = len(new) // 2, torch.zeros(())
        for part in (new[:half], new[half:]):
            args.loss_type, masks = "custom_loss", [torch.ones(len(one)) for one in part]
            function = loss_function(lambda _, batch, logits, mean, part=part: (mean(torch.cat(part)), {}))
            batch = batch_of(list(map(len, part)), loss_masks=masks)
            loss, _, _ = function(args, batch, 2, len(new), torch.zeros(1))
            total = total + loss
        (total / (sum(lengths) if args.calculate_per_token_loss else 2)).backward()
        return [float(one.grad[0]) for one in new]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case, [[token] for token in tokens])

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        share = len(tokens) if case.source.values.get("calculate-per-token-loss") else 1
        return [one / share for one in gradients(case, [list(tokens)])]


class TestSlimesFunctions(SlimesFunctions):
    """slime's own answers, or what was recorded of them."""


def folder() -> Path:
    found = SlimesFunctions.package_folder()
    assert found is not None
    return found


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((folder() / file).read_text("utf-8"))


def taken(file: str, name: str) -> Any:
    """A function of slime's, alone, by its own code; of a class it has the name, and no method beside."""
    *owner, own = name.split(".")
    body = tree(file).body
    space = StandIns(__name__="slime_alone")
    for outer in owner:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == outer).body
    node = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == own)
    alone: ast.stmt = ast.FunctionDef(node.name, node.args, node.body, [], None, None)
    for outer in owner:
        alone = ast.ClassDef(outer, [], [], [alone], [])
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    code = ast.fix_missing_locations(ast.Module([future, ast.copy_location(alone, node)], []))
    exec(compile(code, str(folder() / file), "exec"), space)
    return getattr(space[owner[0]], own) if owner else space[own]


def parsed(case: ValidCase) -> argparse.Namespace:
    """The options as slime's own parser takes them."""
    provider = taken("utils/arguments.py", "get_slime_extra_args_provider")
    provider.__globals__.update(argparse=argparse, json=json, reset_arg=taken("utils/arguments.py", "reset_arg"))
    words = ["--hf-checkpoint", "x"]
    for key, value in case.source.values.items():
        words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    args, _ = provider()(argparse.ArgumentParser(allow_abbrev=False)).parse_known_args(words)
    for name in ("debug_rollout_only", "debug_train_only"):
        setattr(args, name, False)
    args.load_debug_rollout_data, args.train_backend = None, "megatron"
    return args


def validated(case: ValidCase) -> argparse.Namespace:
    """The options as slime's own validation leaves them."""
    args, validate = parsed(case), taken("utils/arguments.py", "slime_validate_args")
    validate.__globals__["_resolve_eval_datasets"] = lambda _: []
    validate(args)
    return args


def rollouts(case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
    args = validated(case)
    get, shuffle = (
        taken("rollout/data_source.py", "RolloutDataSource.get_samples"),
        taken("utils/data.py", "Dataset.shuffle"),
    )
    get.__globals__["copy"] = __import__("copy")
    shuffle.__globals__["random"] = __import__("random")
    prompts = [SimpleNamespace(place=place) for place in range(dataset_size)]

    class Dataset(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.samples)

    data = Dataset(origin_samples=prompts, samples=prompts, seed=args.rollout_seed, epoch_id=-1)
    data.shuffle = lambda epoch: shuffle(data, epoch)
    beginning = dict.fromkeys(("epoch_id", "sample_group_index", "sample_index", "sample_offset"), 0)
    origin = SimpleNamespace(args=args, dataset=data, **beginning)
    if args.rollout_shuffle:
        data.shuffle(0)
    while True:
        yield [group[0].place for group in get(origin, args.over_sampling_batch_size)]


def batch_of(lengths: list[int], **more: Any) -> dict[str, Any]:
    import torch

    sums = [torch.tensor(float(length)) for length in lengths]
    return {"total_lengths": lengths, "response_lengths": lengths, "rollout_mask_sums": sums, **more}


def reduced(function: Any) -> Any:
    """A function of loss.py on one device, with slime's own reducer."""
    import torch

    devices = {"get_context_parallel_world_size": 1, "get_data_parallel_world_size": 1}
    mpu = SimpleNamespace(**{name: lambda *_, number=number, **__: number for name, number in devices.items()})
    make = taken("backends/megatron_utils/cp_utils.py", "get_sum_of_sample_mean")
    make.__globals__.update(torch=torch, mpu=mpu)
    function.__globals__.update(torch=torch, mpu=mpu, get_sum_of_sample_mean=make)
    return function


def loss_function(own: Any) -> Any:
    function = reduced(taken("backends/megatron_utils/loss.py", "loss_function"))
    function.__globals__["load_function"] = lambda _: own
    return function


def scored(args: argparse.Namespace, steps: int) -> bool:
    """Whether slime scores a rollout of so many steps before it trains on it."""
    train = taken("backends/megatron_utils/actor.py", "MegatronTrainRayActor.train_actor")
    actor, data = MagicMock(), {"num_microbatches": [1] * steps, "global_batch_sizes": [args.global_batch_size] * steps}
    actor.args, actor.weights_backuper.backup_tags, actor.rollout_data_postprocess = args, (), None
    actor.compute_log_prob = lambda *_, store_prefix: {f"{store_prefix}log_probs": []}
    args.save_debug_train_data = None
    train(actor, 0, data)
    return "log_probs" in data


def gradients(case: ValidCase, completions: Sequence[Sequence[Token]]) -> list[float]:
    """The gradient of slime's whole loss, as a sum over completions."""
    import torch

    args = validated(case)
    function, space = reduced(taken("backends/megatron_utils/loss.py", "policy_loss_function")), {}
    for name in ("compute_policy_loss", "compute_cispo_loss", "compute_approx_kl", "compute_gspo_kl"):
        space[name] = taken("utils/ppo_utils.py", name)
        space[name].__globals__["torch"] = torch

    def of(name: str) -> list[Any]:
        return [torch.tensor([getattr(token, name) for token in one], dtype=torch.float64) for one in completions]

    new, lengths = [one.requires_grad_() for one in of("logprob")], list(map(len, completions))
    said = {"log_probs": new, "entropy": [torch.zeros_like(one) for one in new]}
    space |= {
        "get_log_probs_and_entropy": lambda *_, **__: (None, said),
        "get_rollout_top_p_logprob_kwargs": lambda *_: {},
        "_maybe_capture_log_probs": lambda *_: None,
        "all_gather_with_cp": lambda one, *_: one,
    }
    function.__globals__.update(space)
    masks = [torch.ones(length, dtype=torch.float64) for length in lengths]
    old = {"rollout_log_probs" if args.use_rollout_logprobs else "log_probs": of("old")}
    batch = batch_of(lengths, loss_masks=masks, advantages=of("advantage"), ref_log_probs=of("reference"), **old)
    batch["unconcat_tokens"] = None
    reducer = function.__globals__["get_sum_of_sample_mean"](
        lengths, lengths, masks, None, args.calculate_per_token_loss
    )
    loss, _ = function(args, batch, torch.zeros(1), reducer)
    loss.backward()
    return [float(one) for each in new for one in each.grad]


MISREAD: dict[str, tuple[str, dict[str, Any]]] = {
    "steps are counted in prompts": ("steps", {"optimizer_step.completions_per_step": 2}),
    "a rollout's remainder is trained": ("steps", {"order.last_optimizer_step": "short"}),
    "a rollout is trained on twice": ("steps", {"optimizer_step.passes_per_rollout": 2}),
    "the devices are the nodes": ("devices", {"topology.world_size": 2}),
    "an epoch drops its remainder": ("prompts", {"order.last_rollout": "drop"}),
    "prompts are shuffled unless that is off": ("prompts", {"order.prompt_shuffle": "epoch_permutation"}),
    "the deviation is that of the batch": ("advantages", {"advantage.scale": "batch"}),
    "the deviation is the biased one": ("advantages", {"advantage.ddof": 0}),
    "the mean is that of the others": ("advantages", {"advantage.baseline": "leave_one_out"}),
    "losses are a mean over tokens": ("weights", {"loss.policy.aggregation": "token_mean"}),
    "the upper bound is not the lower one": ("gradients", {"objective.clip_high": 0.28}),
    "low_var_kl is k1": ("gradients", {"objective.kl_estimator": "k1"}),
    "low_var_kl is not clamped": ("gradients", {"objective.kl_clamp": None}),
    "gspo has a ratio for each token": ("ratio", {"objective.ratio_level": "token"}),
}
OF = {
    "a rollout's remainder is trained": "a remainder",
    "low_var_kl is k1": "tokens",
    "low_var_kl is not clamped": "tokens",
    "gspo has a ratio for each token": "whole completions",
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_misreading_is_told(name: str) -> None:
    from batchbridge.contract.held import LAWS

    law, changes = MISREAD[name]
    if law in ("gradients", "ratio"):
        pytest.importorskip("torch")

    class Misread(SlimeAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            return dataclasses.replace(reading, spec=reading.spec.replace(**changes))

    class Told(SlimesFunctions):
        adapter_class = Misread

    with pytest.raises(AssertionError):
        getattr(Told(), LAWS[law].test)(case(OF.get(name, "in the file's order")))


@pytest.mark.parametrize("name", CASES)
def test_a_rollout_is_scored_before_it_is_trained_on_where_that_is_said(name: str) -> None:
    """The decision is in the middle of `train_actor`, which is run around stand-ins; no law asks for it."""
    if SlimesFunctions.package_folder() is None:
        pytest.skip("slime's checkout is not on the path")
    one = case(name)
    spec = SlimeAdapter().read(one.source, one.context).spec
    assert spec is not None
    steps = SlimesFunctions().native_step_sizes(one)
    assert scored(validated(one), len(steps)) == (spec.objective.old_logprobs == "rollout_start")
