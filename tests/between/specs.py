"""Random specifications: legal values of every field, mixed as nobody would mix them."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from toys import plain_spec

from batchbridge.comparing.differences import UNIT_OF
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.spec import LossTerm, Spec, field_type

_NUMBERS = {
    "topology.world_size": (1, 2, 4, 6),
    "topology.tensor_parallel": (1, 2),
    "rollout.prompts_per_rollout": (4, 16, 24, None),
    "rollout.completions_per_prompt": (1, 2, 8, 7),
    "optimizer_step.completions_per_step": (16, 32, 64, 96, 128, 56),
    "optimizer_step.passes_per_rollout": (1, 2),
    "micro_batch.completions_per_device": (1, 2, 4, 8, None),
    "micro_batch.tokens_per_device": (4096, None),
    "advantage.minimum": (-2.0, -0.5, None),
    "advantage.maximum": (0.0, 3.0, None),
    "open_terms": ((), ("advantage: gdpo",), ("advantage: gdpo", "objective: vapo_nll")),
}
_SINGLE = (
    "optimizer_step.tokens_per_step",
    "optimizer_step.parts_per_rollout",
    "optimizer_step.micro_batches_per_step",
)


_WORDS = {
    "objective.surrogate": ["ppo", "cispo", "sapo", "vespo", "gmpo", "reinforce"],
    "objective.kl_estimator": ["k1", "k2", "k3", "abs", "k3_times_ratio", "k1_times_ratio", "k1_with_score"],
    "objective.sampler_correction": ["token_truncate [-, 3.0]", "token_truncate [0.5, 5.0]", "sequence_mask [-, 3.0]"],
    "carried.lr_schedule": ["constant", "linear", "cosine", 'cosine_with_min_lr {"min_lr_rate": 0.1}'],
    "carried.optimizer": ["adamw", "sgd", "muon"],
    "carried.weight_decay_excludes": ["biases_and_norms", "nothing"],
    "carried.precision": ["bf16", "fp16", "fp32"],
    "carried.dropout": ["on", "off"],
}


def values_of(path: str) -> st.SearchStrategy[Any]:
    """Legal values of a leaf of the schema."""
    if path in _NUMBERS:
        return st.sampled_from(_NUMBERS[path])
    hint = field_type(path)
    options = (hint,) if get_origin(hint) is Literal or not get_args(hint) else get_args(hint)
    found: list[Any] = []
    for option in options:
        if get_origin(option) is Literal:
            found += get_args(option)
        elif option is type(None):
            found.append(None)
        elif option is bool:
            found += [True, False]
        elif option is int:
            found += [1, 2, 64, 100, 512]
        elif option is float:
            found += [0.0, 1e-6, 0.04, 0.2, 0.5, 0.9, 1.0, 3.0]
        else:
            found += _WORDS.get(path, ["off", "on"])
    return st.sampled_from(found)


_FREE = [path for path in UNIT_OF if not path.startswith(("loss.", "horizon.", "critic.")) and path not in _SINGLE]
_LENGTHS = st.sampled_from(
    [
        {"horizon.epochs": 1.0},
        {"horizon.epochs": None, "horizon.rollouts": 10},
        {"horizon.epochs": None, "horizon.optimizer_steps": 20},
        {"horizon.epochs": 2.0, "horizon.optimizer_steps": 20},
        {"horizon.epochs": 1.0, "horizon.rollouts": 10, "horizon.optimizer_steps": 30},
    ]
)
_TERMS = st.builds(
    LossTerm,
    aggregation=st.sampled_from(["token_mean", "sequence_mean", "sequence_sum", "token_sum", "prompt_mean"]),
    count_empty=st.booleans(),
)
_CRITICS = st.builds(
    Critic,
    completions_per_step=st.sampled_from([None, 64, 512]),
    aggregation=st.sampled_from(["token_mean", "sequence_mean"]),
    passes_per_rollout=st.sampled_from([1, 2]),
    gae_lambda=st.sampled_from([0.95, 1.0]),
    learning_rate=st.sampled_from([None, 1e-5]),
)


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A specification with up to 12 fields changed, a length of any kind, any loss terms, and perhaps a critic."""
    paths = draw(st.lists(st.sampled_from(_FREE), max_size=12, unique=True))
    changes = {path: draw(values_of(path)) for path in paths}
    changes |= draw(_LENGTHS) | {"horizon.lr_tick": draw(values_of("horizon.lr_tick"))}
    changes |= {
        "loss.policy": draw(_TERMS),
        "loss.kl": draw(st.none() | _TERMS),
        "loss.entropy": draw(st.none() | _TERMS),
        "critic": draw(st.none() | _CRITICS),
    }
    return plain_spec(**changes)
