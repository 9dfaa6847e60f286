"""What OpenRLHF's own `train` checks while it builds its groups of workers, against our rules for that."""

from __future__ import annotations

import random

from real_openrlhf import build

from batchbridge.contract.reading import Context, Source
from batchbridge_openrlhf.config import OpenRlhfAdapter

VERSION = "0.11.2"
COUNT = 1_000
NAMED = {
    "BF16 is required": "BB-ORL-035",
    "when colocate actor and ref model": "BB-ORL-031",
    "must be equal to vllm_num_engines": "BB-ORL-030",
    "when colocate critic and reward model": "BB-ORL-032",
}
FLAGS = ("train.colocate_all", "train.colocate_actor_ref", "train.colocate_critic_reward", "train.async_enable")
VALUES = {
    "algo.kl.init_coef": ("0", "0.01"),
    "algo.advantage.estimator": ("gae", "reinforce"),
    "vllm.num_engines": ("0", "1", "2", "4"),
    "vllm.tensor_parallel_size": ("1", "2"),
    "ds.tensor_parallel_size": ("1", "1", "2"),
    "ds.param_dtype": ("bf16", "bf16", "fp16"),
    **{f"{model}.num_nodes": ("1", "1", "2") for model in ("actor", "ref", "critic", "reward")},
    **{f"{model}.num_gpus_per_node": ("2", "2", "4") for model in ("actor", "ref", "critic", "reward")},
}


def commands() -> list[list[str]]:
    """Command lines that the parser takes, with devices that are near those of the other models."""
    random_, found = random.Random(3), []
    for _ in range(COUNT):
        words = ["--reward.model_name_or_path", "reward", "--actor.model_name_or_path", "policy"]
        words += [f"--{name}" for name in FLAGS if random_.random() < 0.4]
        for name, values in VALUES.items():
            words += [f"--{name}", random_.choice(values)]
        found.append(words)
    return found


def ours(words: list[str]) -> str | None:
    """The first rule that we name for the building."""
    adapter = OpenRlhfAdapter()
    reading = adapter.read(Source(argv=("openrlhf.cli.train_ppo_ray", *words)), Context(framework_version=VERSION))
    found = adapter.check(reading)
    assert not [finding for finding in found if finding.severity == "error" and finding.phase == "config"]
    return next((finding.code for finding in found if finding.phase == "construction"), None)


def test_the_first_rule_that_train_names_is_ours_for_every_command_line():
    disagreements, outcomes = [], set()
    for words in commands():
        said = build(words)
        native = said and next((code for text, code in NAMED.items() if text in said), said)
        outcomes.add(native)
        if native != (mine := ours(words)):
            disagreements.append((words, said, mine))
    assert disagreements == []
    assert outcomes == {None, *NAMED.values()}
