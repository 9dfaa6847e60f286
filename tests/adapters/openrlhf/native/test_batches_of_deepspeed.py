"""DeepSpeed's own assertion on batch sizes, fed by OpenRLHF's own strategy, against our rules for workers' start."""

from __future__ import annotations

import random

import pytest
from real_openrlhf import prepare, run, strategy_of, world_of

from batchbridge.contract.reading import Context, Source
from batchbridge_openrlhf.config import OpenRlhfAdapter

VERSION = "0.11.2"
MODELS = ("actor", "ref", "critic", "reward")
TRAINED = ("actor", "critic")
ARGUMENTS = run(["--reward.model_name_or_path", "reward", "--actor.model_name_or_path", "policy"])
PER_WORLD = 40


def said(native: object, model: str, sizes: dict[str, int | bool]) -> str | None:
    """Our code for what starting a worker said; where replicas do not share out the devices, several things may be."""
    if not isinstance(native, str):
        return None
    if model != "actor":
        return "BB-ORL-052"
    if sizes["actor.num_gpus_per_node"] % (sizes["ds.ring_attn_size"] * sizes["ds.tensor_parallel_size"]):
        return "BB-ORL-033"
    return "BB-ORL-034" if "batch related parameters" in native or "accumulation steps: 0" in native else native


def runs(world: int) -> list[dict[str, int | bool]]:
    """Sizes near those that DeepSpeed takes, for a policy on `world` devices and its further models on some others."""
    random_ = random.Random(world)
    found = []
    for _ in range(PER_WORLD):
        ring, tensor = random_.choice((1, 1, 2, 3, 4)), random_.choice((1, 1, 2, 4))
        micro, steps = random_.randint(1, 9), random_.randint(1, 6)
        others = [random_.choice((world, world, random_.randint(1, 64))) for _ in MODELS[1:]]
        replicas = max(world // ring // tensor, 1)
        found.append(
            {
                "ds.ring_attn_size": ring,
                "ds.tensor_parallel_size": tensor,
                "train.micro_batch_size": micro,
                "train.batch_size": max(micro * replicas * steps + random_.choice((-1, 0, 0, 0, 1, micro)), 1),
                "train.dynamic_batch_enable": random_.random() < 0.25,
                **{f"{m}.num_gpus_per_node": d for m, d in zip(MODELS, (world, *others), strict=True)},
                **{f"{m}.num_nodes": 1 for m in MODELS},
            }
        )
    return found


def ours(sizes: dict[str, int | bool]) -> tuple[set[str], int | None]:
    """Our codes about workers' start, and the accumulation that we derive."""
    words = ["--reward.model_name_or_path", "reward", "--actor.model_name_or_path", "policy", "--vllm.num_engines", "1"]
    for name, value in sizes.items():
        words += [f"--{name}"] if value is True else [] if value is False else [f"--{name}", str(value)]
    adapter = OpenRlhfAdapter()
    reading = adapter.read(Source(argv=("openrlhf.cli.train_ppo_ray", *words)), Context(framework_version=VERSION))
    codes = {finding.code for finding in adapter.check(reading) if finding.phase == "worker_start"}
    return codes, reading.derived["gradient_accumulation_steps"]


@pytest.mark.parametrize("world", range(1, 65))
def test_deepspeed_takes_and_refuses_what_we_say_with_the_accumulation_that_we_derive(world):
    every = runs(world)
    native: list[dict[str, object]] = [{} for _ in every]
    for devices in sorted({sizes[f"{model}.num_gpus_per_node"] for sizes in every for model in MODELS}):
        with world_of(devices):
            for sizes, found in zip(every, native, strict=True):
                for model in MODELS:
                    if sizes[f"{model}.num_gpus_per_node"] == devices:
                        found[model] = prepare(strategy_of(ARGUMENTS, sizes), model in TRAINED)
    for sizes, found in zip(every, native, strict=True):
        codes, accumulation = ours(sizes)
        assert codes == {code for model, outcome in found.items() if (code := said(outcome, model, sizes))}, (
            sizes,
            found,
        )
        if not codes and not sizes["train.dynamic_batch_enable"]:
            assert found["actor"] == (accumulation, accumulation)


def test_the_accumulation_is_the_train_batch_over_micro_batch_and_replicas():
    # The articles' number forgets the replicas: 128 / 2 would be 64.
    sizes = {"train.batch_size": 128, "train.micro_batch_size": 2, "actor.num_gpus_per_node": 8}
    with world_of(8):
        assert prepare(strategy_of(ARGUMENTS, sizes), True) == (8, 8)


def test_tensor_parallelism_without_bf16_is_refused_when_the_strategy_is_built():
    with pytest.raises(AssertionError, match="BF16 is required"):
        strategy_of(ARGUMENTS, {"ds.tensor_parallel_size": 2, "ds.param_dtype": "fp16"})
