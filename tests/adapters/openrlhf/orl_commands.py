"""Random OpenRLHF command lines near the boundaries of what its parser takes: sizes that just fit or just do not, every
switch that a check looks at, and words as argparse does and does not take them."""

from __future__ import annotations

import random
from collections.abc import Iterator

from batchbridge_openrlhf.settings import Option, names_of, options_of

INT = ("0", "1", "2", "8", "-1", "64", "4294967296", "1_000", " 7 ", "٣", "1.0", "a", "", "1e3", "-1e3", "9" * 70)
FLOAT = ("0", "0.5", "1e-3", "-1.5", "-.5", "-1e-3", "nan", "-inf", "1e999", "a", "", "0,5")
TEXT = ("m", "a,b", "", "-1", "-x", "-- text with spaces", "- x", "-", "{}", "a b")
WORDS = {"int": INT, "float": FLOAT, "str": TEXT, "pair": FLOAT, "texts": (*FLOAT, "b"), "floats": FLOAT, "words": TEXT}
"""Kind of an option to values of its own and of other kinds. Doubtful: exponents after a minus are options to Python
3.11; empty text is not a number."""
COUNTS = {"pair": (2, 2, 2, 2, 1, 3), "texts": (2, 2, 2, 2, 1, 3), "floats": (1, 2, 3, 0), "words": (0, 1, 2)}
ODD = ("stray", "--", "-", "--no.such.option", "--no.such.option=1", "-x", "-3", "", "--=", "two words", "--two words")

SWITCHES: dict[str, tuple[object, ...]] = {
    "algo.advantage.estimator": (
        *("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce"),
    ),
    "train.async_enable": (True,),
    "train.partial_rollout_enable": (True,),
    "train.colocate_all": (True,),
    "train.dynamic_batch_enable": (True,),
    "vllm.enable_sleep": (True,),
    "vllm.num_engines": (-1, 0, 1, 1, 4),
    "ds.packing_samples": (True,),
    "ds.attn_implementation": ("eager", "flash_attention_2"),
    "algo.dynamic_filtering_enable": (True,),
    "algo.dynamic_filtering_range": ((0, 1), (1, 0), (0.5, 0.5), ("nan", 1), (0, "1e999")),
    "reward.clip_range": ((-10, 10), (1, -1), (0, 0)),
    "algo.advantage.is_correction_threshold": ((2,), (0.5, 2), (1, 2, 3)),
    "data.max_images_per_prompt": (-1, 0, 1, 2),
    "reward.remote_url": ("http://one,http://two", ""),
    "train.agent_func_path": ("agent.py", ""),
    "eval.dataset": ("aime", ""),
    "actor.model_name_or_path": ("policy",),
    "critic.model_name_or_path": ("critic", ""),
    "reward.model_name_or_path": ("one,two", ""),
    "use_ms": (True,),
    "actor.eps_clip_low_high": ((0.2, 0.28),),
    "actor.adam.lr": ("1e-6", "nan"),
    "train.seed": (1, 4294967296),
}
"""What the checks look at, or nearly; each is given in about a third of the commands."""
MOSTLY = ("actor.model_name_or_path", "reward.model_name_or_path", "vllm.num_engines", "reward.remote_url")
"""Given in most commands: without them little else is come to."""


def commands(seed: int, count: int, version: str) -> Iterator[list[str]]:
    """`count` command lines of `version`, without the program before them."""
    random_ = random.Random(f"{seed} {version}")
    for _ in range(count):
        yield _command(random_, version)


def _command(random_: random.Random, version: str) -> list[str]:
    names, options = names_of(version), options_of(version)
    groups = [_said(names[identity], value) for identity, value in _sizes(random_).items() if identity in names]
    for identity, values in SWITCHES.items():
        if identity in names and random_.random() < (0.8 if identity in MOSTLY else 0.3):
            groups.append(_said(names[identity], random_.choice(values)))
    while random_.random() < 0.25:
        name = random_.choice([*options])
        groups.append(_any(random_, name, options[name]))
    if random_.random() < 0.04:
        groups.append([random_.choice(ODD)])
    random_.shuffle(groups)
    return [word for group in groups for word in group]


def _sizes(random_: random.Random) -> dict[str, object]:
    """As many batches of completions as there are replicas, one more or fewer; now and then a size of 0 or below."""
    sizes = {
        "actor.num_nodes": random_.choice((1, 1, 2)),
        "actor.num_gpus_per_node": random_.choice((1, 2, 3, 4, 8)),
        "ds.ring_attn_size": random_.choice((1, 1, 2, 3)),
        "ds.tensor_parallel_size": random_.choice((1, 1, 1, 2)),
        "rollout.micro_batch_size": random_.choice((1, 2, 3, 8)),
        "rollout.n_samples_per_prompt": random_.choice((1, 1, 2, 3, 8)),
    }
    world = sizes["actor.num_nodes"] * sizes["actor.num_gpus_per_node"]
    batches = world // sizes["ds.ring_attn_size"] // sizes["ds.tensor_parallel_size"]
    completions = batches * sizes["rollout.micro_batch_size"]
    sizes["rollout.batch_size"] = completions // sizes["rollout.n_samples_per_prompt"] + random_.choice((-1, 0, 1))
    sizes["rollout.vllm_generate_batch_size"] = sizes["rollout.batch_size"] + random_.choice((-1, 0, 0, 1))
    if random_.random() < 0.1:
        sizes[random_.choice([*sizes])] = random_.choice((0, 0, -1, -8))
    return {name: value for name, value in sizes.items() if random_.random() < 0.9}


def _any(random_: random.Random, name: str, option: Option) -> list[str]:
    """Any option with values of its own or of other kinds, attached or not, shortened now and then."""
    shown = name[: random_.randint(1, len(name))] if random_.random() < 0.2 else name
    if option.kind in ("flag", "flag_off"):
        return [f"--{shown}=1" if random_.random() < 0.1 else f"--{shown}"]
    pool = (*WORDS[option.kind], *option.choices * 3)
    values = [random_.choice(pool) for _ in range(random_.choice(COUNTS.get(option.kind, (1, 1, 1, 1, 1, 1, 1, 0, 2))))]
    if values and random_.random() < 0.2:
        return [f"--{shown}={values[0]}", *values[1:]]
    return [f"--{shown}", *values]


def _said(name: str, value: object) -> list[str]:
    if value is True:
        return [f"--{name}"]
    return [f"--{name}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
