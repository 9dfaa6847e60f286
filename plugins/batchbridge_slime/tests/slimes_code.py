"""slime's own functions out of a checkout that is on the path: each is taken out of its file, alone, and what it calls
besides is a stand-in. slime is on no package index, and imports Megatron, Ray and SGLang."""

from __future__ import annotations

import argparse
import ast
import builtins
import dataclasses
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from batchbridge.kit.proven import folder_of
from batchbridge.testing import Token

MARKER = "utils/dp_schedule.py"


class StandIns(dict[str, Any]):
    """The globals of a function that is taken alone: what is not given is a builtin, or else a stand-in."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name) if hasattr(builtins, name) else self.setdefault(name, MagicMock(name=name))


def folder() -> Path:
    """The checkout's package."""
    found = folder_of("slime")
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


def parsed(values: Mapping[str, Any]) -> argparse.Namespace:
    """The options as slime's own parser takes them."""
    provider = taken("utils/arguments.py", "get_slime_extra_args_provider")
    provider.__globals__.update(argparse=argparse, json=json, reset_arg=taken("utils/arguments.py", "reset_arg"))
    words = ["--hf-checkpoint", "x"]
    for key, value in values.items():
        words += [f"--{key}"] if value is True else [f"--{key}", str(value)]
    args, _ = provider()(argparse.ArgumentParser(allow_abbrev=False)).parse_known_args(words)
    for name in ("debug_rollout_only", "debug_train_only"):
        setattr(args, name, False)
    args.load_debug_rollout_data, args.train_backend = None, "megatron"
    return args


def validated(values: Mapping[str, Any]) -> argparse.Namespace:
    """The options as slime's own validation leaves them."""
    args, validate = parsed(values), taken("utils/arguments.py", "slime_validate_args")
    validate.__globals__["_resolve_eval_datasets"] = lambda _: []
    validate(args)
    return args


def scheduled(values: Mapping[str, Any]) -> tuple[list[list[list[int]]], list[int]]:
    """The micro-batches of each replica, by the places of their completions, and how many of them each step has."""
    args = validated(values)
    replicas = args.actor_num_nodes * args.actor_num_gpus_per_node // values["tensor-model-parallel-size"]
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
    return said[1], said[2]


def sample() -> Any:
    """slime's class of a sample, alone."""
    (node,) = (one for one in tree("utils/types.py").body if isinstance(one, ast.ClassDef) and one.name == "Sample")
    names = {"dataclass": dataclasses.dataclass, "field": dataclasses.field, "Enum": enum.Enum, "Any": Any}
    space = StandIns(__name__="slime_alone", **names)
    exec(compile(ast.Module([node], []), str(folder() / "utils/types.py"), "exec"), space)
    return space["Sample"]


def rollouts(values: Mapping[str, Any], dataset_size: int) -> Iterator[Sequence[int]]:
    args = validated(values)
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


def with_torch(function: Any) -> Any:
    import torch

    function.__globals__["torch"] = torch
    return function


def gradients(
    values: Mapping[str, Any], completions: Sequence[Sequence[Token]], sampled: Sequence[float] | None = None
) -> list[float]:
    """The gradient of slime's whole loss, as a sum over completions; of one alone where its sampler's log-probabilities
    are said, and then of its policy's term alone."""
    import torch

    args = validated(values)
    if sampled is not None:
        args.use_kl_loss = False
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
        "vanilla_tis_function": taken("backends/megatron_utils/loss.py", "vanilla_tis_function"),
        "load_function": lambda path: with_torch(taken("backends/megatron_utils/loss.py", path.rpartition(".")[2])),
    }
    with_torch(space["vanilla_tis_function"])
    function.__globals__.update(space)
    masks = [torch.ones(length, dtype=torch.float64) for length in lengths]
    batch = batch_of(lengths, loss_masks=masks, advantages=of("advantage"), ref_log_probs=of("reference"))
    if not args.use_rollout_logprobs:
        batch["log_probs"] = of("old")
    batch["unconcat_tokens"] = None
    batch["rollout_log_probs"] = of("old") if sampled is None else [torch.tensor(sampled, dtype=torch.float64)]
    if args.use_rollout_logprobs:  # the ratio's denominator is what the sampler says
        batch["rollout_log_probs"] = of("old")
    reducer = function.__globals__["get_sum_of_sample_mean"](
        lengths, lengths, masks, None, args.calculate_per_token_loss
    )
    loss, _ = function(args, batch, torch.zeros(1), reducer)
    loss.backward()
    return [float(one) for each in new for one in each.grad]
