"""The canonical batch schema: what a run means, in names that carry units.

A `Spec` says which completions are trained in which optimizer step, what each response token weighs there, and when
the learning rate moves. It knows no framework and imports the standard library only. A field whose type allows `None`
is unknown or unlimited when it is `None`; its annotation says which.

Bounds live in the annotations (`Quantity`) and are checked by `batchbridge.rules.core_rules`, all at once, with stable
codes; constructing a `Spec` never raises.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import field
from fractions import Fraction
from functools import cache, cached_property
from typing import Annotated, Any, Literal

from batchbridge.frozen import dataclass
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.fields import SpecField, built, leaves, replaced
from batchbridge.meaning.fields import walk as walk  # others have it from here
from batchbridge.meaning.quantity import Aggregation as Aggregation  # others have it from here
from batchbridge.meaning.quantity import DenominatorScope as DenominatorScope  # others have it from here
from batchbridge.meaning.quantity import Quantity as Quantity  # others have it from here

SCHEMA = "batchbridge/1"


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The devices that train the policy."""

    world_size: Annotated[int, Quantity("devices", "Processes that train the policy.", 1)]
    tensor_parallel: Annotated[int, Quantity("devices", "Devices that share one layer.", 1)] = 1
    pipeline_parallel: Annotated[int, Quantity("devices", "Devices that hold successive layers.", 1)] = 1
    context_parallel: Annotated[int, Quantity("devices", "Devices that share one sequence.", 1)] = 1

    @property
    def replica_size(self) -> int:
        """Devices that one replica of the model takes."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel

    @property
    def data_parallel_size(self) -> Fraction:
        """Model replicas; fractional when the world does not divide, which rule BB102 reports."""
        return Fraction(self.world_size, self.replica_size)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """The prompts and completions that one round of generation produces."""

    prompts_per_rollout: Annotated[
        int | None, Quantity("prompts", "Prompts that reach training from one rollout; None: streamed.", 1)
    ]
    completions_per_prompt: Annotated[int, Quantity("completions per prompt", "Size of a group.", 1)]
    prompts_per_generation_batch: Annotated[
        int | None, Quantity("prompts", "Prompts generated at a time, to fill a rollout; None: one rollout.", 1)
    ] = None
    sample_unit: Annotated[Literal["completion", "trajectory", "turn"], Quantity("kind", "What one completion is.")] = (
        "completion"
    )
    group_filter: Annotated[
        Literal["none", "drop_zero_variance", "mask_zero_variance", "replace_zero_variance", "custom"],
        Quantity(
            "kind",
            "What happens to groups whose rewards are all equal: the rollout is smaller for dropped ones, and for "
            "replaced ones more prompts are generated.",
        ),
    ] = "none"
    truncated_completions: Annotated[
        Literal["keep", "mask", "drop"], Quantity("kind", "What happens to completions cut at the length limit.")
    ] = "keep"


@dataclass(frozen=True, kw_only=True)
class OptimizerStep:
    """The completions that one optimizer step trains on. Exactly one of the four sizes is given; only the first can be
    planned."""

    completions_per_step: Annotated[int | None, Quantity("completions", "Completions in one optimizer step.", 1)] = None
    tokens_per_step: Annotated[int | None, Quantity("tokens", "Token budget of one optimizer step.", 1)] = None
    parts_per_rollout: Annotated[
        int | None, Quantity("optimizer steps", "Length-balanced parts that a rollout is cut into.", 1)
    ] = None
    micro_batches_per_step: Annotated[
        int | None, Quantity("micro-batches", "Token-packed micro-batches that make one optimizer step.", 1)
    ] = None
    passes_per_rollout: Annotated[
        int, Quantity("passes", "Times each rollout is trained on (ppo_epochs, num_iterations, max_epochs).", 0)
    ] = 1
    rollout_shuffle: Annotated[
        Literal["none", "completions", "groups"], Quantity("kind", "What a pass permutes inside its rollout.")
    ] = "none"
    step_may_span: Annotated[
        Literal["none", "rollout", "epoch", "run"],
        Quantity(
            "kind",
            "What one optimizer step may reach across: nothing (it ends with its pass over the rollout), the passes "
            "of one rollout, the rollouts of one epoch, or epochs.",
        ),
    ] = "none"


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """The cut of a step for memory and speed; no part of the meaning while every scope is the optimizer step."""

    completions_per_device: Annotated[int | None, Quantity("completions per device", "Fixed micro-batch.", 1)] = None
    tokens_per_device: Annotated[int | None, Quantity("tokens per device", "Token budget of a micro-batch.", 1)] = None
    cap: Annotated[
        Literal["hard", "soft"], Quantity("kind", "Whether one long completion may exceed the token budget.")
    ] = "hard"
    forward_completions_per_device: Annotated[
        int | None, Quantity("completions per device", "Micro-batch of forward-only passes; None: as in training.", 1)
    ] = None
    forward_tokens_per_device: Annotated[
        int | None, Quantity("tokens per device", "Token budget of forward-only passes; None: as in training.", 1)
    ] = None
    tokens_counted: Annotated[
        Literal["real", "padded"],
        Quantity("kind", "What token budgets count: real tokens (packing), or rows times the longest row."),
    ] = "real"


@dataclass(frozen=True, kw_only=True)
class LossTerm:
    """The weights of response tokens in one term of the loss; `batchbridge.meaning.weights` computes them."""

    aggregation: Annotated[Aggregation, Quantity("kind", "What is averaged or summed.")]
    denominator_scope: Annotated[DenominatorScope, Quantity("kind", "What the denominators are counted over.")] = (
        "optimizer_step"
    )
    constant: Annotated[int | None, Quantity("tokens", "c of sequence_sum_over_constant; None elsewhere.", 1)] = None
    count_empty: Annotated[bool, Quantity("flag", "Completions whose loss mask is all zero count in B.")] = True


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One entry per term; `None` means: as the policy term."""

    policy: LossTerm
    kl: LossTerm | None = None
    entropy: LossTerm | None = None


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """The way from rewards to advantages."""

    baseline: Annotated[
        Literal["group_mean", "leave_one_out", "value", "none", "open"],
        Quantity(
            "kind",
            "What is subtracted; open: what an open term of the advantage says, and a wrapped run takes the "
            "framework's own advantages.",
        ),
    ] = "group_mean"
    scale: Annotated[
        Literal["group", "batch", "none", "group_others"],
        Quantity(
            "kind",
            "Over what the standard deviation is taken; group_others: the other completions of the group, and where "
            "they all have one reward, nothing is divided.",
        ),
    ] = "group"
    epsilon: Annotated[float | None, Quantity("reward", "Added to the standard deviation.", 0)] = None
    ddof: Annotated[int | None, Quantity("completions", "1: unbiased standard deviation, 0: biased.", 0, 1)] = None
    minimum: Annotated[float | None, Quantity("advantage", "Smaller advantages become this; None: off.")] = None
    maximum: Annotated[float | None, Quantity("advantage", "Larger advantages become this; None: off.")] = None


@dataclass(frozen=True, kw_only=True)
class Order:
    """The order in which prompts are seen, and what happens to remainders."""

    seed: Annotated[int | None, Quantity("seed", "Key of the prompt order; None: the framework has none.")] = None
    prompt_shuffle: Annotated[
        Literal["none", "epoch_permutation", "weighted_sampling"], Quantity("kind", "How an epoch orders its prompts.")
    ] = "epoch_permutation"
    last_rollout: Annotated[
        Literal["drop", "short", "pad", "wrap", "error"],
        Quantity(
            "kind",
            "An epoch's remainder of prompts: dropped; a short rollout; a short rollout filled with rows that weigh "
            "nothing; filled with the next epoch's prompts; refused.",
        ),
    ] = "drop"
    last_optimizer_step: Annotated[
        Literal["drop", "short", "pad", "error"],
        Quantity("kind", "A remainder of completions: dropped; a short step; the same with empty rows; refused."),
    ] = "short"


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """The length of the run, and what moves the learning rate. Of several lengths, the one that ends first counts."""

    rollouts: Annotated[int | None, Quantity("rollouts", "Rollouts in the run.", 0)] = None
    epochs: Annotated[float | None, Quantity("epochs", "Passes over the prompts; may be fractional.", 0)] = None
    optimizer_steps: Annotated[int | None, Quantity("optimizer steps", "Optimizer steps in the run.", 0)] = None
    lr_tick: Annotated[
        Literal["optimizer_step", "rollout"], Quantity("kind", "After what the learning rate schedule advances.")
    ] = "optimizer_step"

    @property
    def lengths(self) -> dict[str, int | float]:
        """The lengths that are given, by name (`rollouts`, `epochs`, `optimizer_steps`)."""
        every = {"rollouts": self.rollouts, "epochs": self.epochs, "optimizer_steps": self.optimizer_steps}
        return {name: length for name, length in every.items() if length is not None}


@dataclass(frozen=True, kw_only=True)
class Staleness:
    """The allowed age of the weights that generated a completion."""

    mode: Annotated[Literal["sync", "lookahead", "bounded", "unbounded"], Quantity("kind", "Who waits for whom.")] = (
        "sync"
    )
    maximum: Annotated[int | None, Quantity("see unit", "Largest age; None: unlimited.", 0)] = 0
    unit: Annotated[
        Literal["optimizer_steps", "rollouts", "weight_versions"], Quantity("kind", "What `maximum` counts.")
    ] = "rollouts"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The loss of one response token. `None`: unknown, or the feature is off (see each field)."""

    surrogate: Annotated[str | None, Quantity("kind", "ppo, gspo, cispo, sapo, ...")] = None
    ratio_level: Annotated[Literal["token", "sequence"] | None, Quantity("kind", "What the ratio is taken over.")] = (
        None
    )
    clip_low: Annotated[float | None, Quantity("ratio", "Ratio is clipped below 1 - clip_low; None: not.", 0)] = None
    clip_high: Annotated[float | None, Quantity("ratio", "Ratio is clipped above 1 + clip_high; None: not.", 0)] = None
    dual_clip: Annotated[float | None, Quantity("ratio", "Bound for negative advantages; None: off.", 1)] = None
    old_logprobs: Annotated[
        Literal["detached", "rollout_start", "sampler"] | None,
        Quantity("kind", "Where the ratio's denominator comes from; None: unknown."),
    ] = None
    sampler_correction: Annotated[str | None, Quantity("kind", "Correction towards the sampler; None: off.")] = None
    kl_placement: Annotated[
        Literal["none", "reward", "loss"] | None, Quantity("kind", "Where the KL penalty sits.")
    ] = None
    kl_estimator: Annotated[str | None, Quantity("kind", "k1, k2, k3, ...; None: no KL term.")] = None
    kl_coefficient: Annotated[float | None, Quantity("1", "Factor of the KL penalty.", 0)] = None
    kl_log_ratio_clamp: Annotated[
        float | None, Quantity("nats", "Bound of the log ratio that KL is estimated from; None: off.", 0)
    ] = None
    kl_clamp: Annotated[float | None, Quantity("nats", "Bound of the KL estimate; None: off.", 0)] = None
    reward_clip: Annotated[float | None, Quantity("reward", "Bound of the reward; None: off.", 0)] = None
    entropy_coefficient: Annotated[float | None, Quantity("1", "Factor of the entropy bonus.")] = None
    nonfinite_step: Annotated[
        Literal["skip", "error", "apply"] | None, Quantity("kind", "What a non-finite gradient does.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Carried:
    """The settings besides those of batches that decide whether two runs agree. `None`: unknown or off."""

    learning_rate: Annotated[float | None, Quantity("1", "Peak learning rate.", 0)] = None
    lr_schedule: Annotated[str | None, Quantity("kind", "constant, linear, cosine, ...")] = None
    warmup_steps: Annotated[float | None, Quantity("learning-rate ticks", "Length of the warm-up.", 0)] = None
    warmup_ratio: Annotated[float | None, Quantity("share of the run", "Length of the warm-up.", 0, 1)] = None
    optimizer: Annotated[str | None, Quantity("kind", "adamw, sgd, ...")] = None
    beta1: Annotated[float | None, Quantity("1", "AdamW's first decay.", 0, 1)] = None
    beta2: Annotated[float | None, Quantity("1", "AdamW's second decay.", 0, 1)] = None
    optimizer_epsilon: Annotated[float | None, Quantity("1", "AdamW's epsilon.", 0)] = None
    weight_decay: Annotated[float | None, Quantity("1", "Decoupled weight decay.", 0)] = None
    weight_decay_excludes: Annotated[str | None, Quantity("kind", "Parameters without decay.")] = None
    max_gradient_norm: Annotated[float | None, Quantity("gradient norm", "Clipping bound; None or 0: off.", 0)] = None
    dropout: Annotated[str | None, Quantity("kind", "on (as the model says) or off.")] = None
    router_loss_coefficient: Annotated[float | None, Quantity("1", "Factor of a MoE router loss.")] = None
    reference_sync_steps: Annotated[
        int | None, Quantity("optimizer steps", "Between updates of the reference; None: never.", 1)
    ] = None
    max_prompt_tokens: Annotated[int | None, Quantity("tokens", "Longest prompt; None: unlimited.", 1)] = None
    max_completion_tokens: Annotated[int | None, Quantity("tokens", "Longest completion.", 1)] = None
    max_total_tokens: Annotated[
        int | None, Quantity("tokens", "Longest prompt and completion together; None: the sum of both.", 1)
    ] = None
    temperature: Annotated[float | None, Quantity("1", "Sampling temperature.", 0)] = None
    top_p: Annotated[float | None, Quantity("probability", "Nucleus sampling.", 0, 1)] = None
    top_k: Annotated[int | None, Quantity("tokens", "Top-k sampling; 0 or -1: off.")] = None
    precision: Annotated[str | None, Quantity("kind", "fp32, bf16, fp16.")] = None

    @property
    def longest_tokens(self) -> int | None:
        """The longest prompt and completion together (tokens), an unlimited prompt as empty; None where it is open."""
        both = (
            None if self.max_completion_tokens is None else (self.max_prompt_tokens or 0) + self.max_completion_tokens
        )
        return min((bound for bound in (both, self.max_total_tokens) if bound is not None), default=None)


STEP_SIZES = ("completions_per_step", "tokens_per_step", "parts_per_rollout", "micro_batches_per_step")
"""Fields of `OptimizerStep` that say its size; a specification has exactly one of them (rule BB103)."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Spec:
    """One run's batch semantics, whole; names as in the JSON."""

    topology: Topology
    rollout: Rollout
    optimizer_step: OptimizerStep
    loss: Loss
    horizon: Horizon
    micro_batch: MicroBatch = field(default_factory=MicroBatch)
    advantage: Advantage = field(default_factory=Advantage)
    order: Order = field(default_factory=Order)
    staleness: Staleness = field(default_factory=Staleness)
    objective: Objective = field(default_factory=Objective)
    carried: Carried = field(default_factory=Carried)
    critic: Critic | None = None
    open_terms: Annotated[
        tuple[str, ...],
        Quantity(
            "names", 'Terms that the schema has no word for, as "group: name", sorted; the rest holds beside them.'
        ),
    ] = ()

    def __repr__(self) -> str:
        from batchbridge.meaning.briefs import brief

        rollout, step = self.rollout, self.optimizer_step
        sized = [(name, getattr(step, name)) for name in STEP_SIZES]
        return brief(
            self,
            f"{rollout.prompts_per_rollout or 'streamed'} prompts x {rollout.completions_per_prompt} per rollout",
            *(f"{name} = {value}" for name, value in sized if value is not None),
            f"{self.loss.policy.aggregation} per {self.loss.policy.denominator_scope}",
            f"{self.topology.world_size} devices",
        )

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook

        said = [(path, value, of.unit) for path, value, of in walk(self) if value != default_of(path)]
        return notebook.fragment(repr(self), notebook.table(("field", "value", "unit"), said))

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The value of every leaf field that this specification has, by dotted path, in schema order."""
        return {path: value for path, value, _ in walk(self)}  # no proxy: specifications travel between processes

    @property
    def unfollowed_terms(self) -> tuple[str, ...]:
        """Open terms that leave what a token weighs unknown: all, but those of advantages that stay the framework's."""
        own = self.advantage.baseline == "open"
        return tuple(name for name in self.open_terms if not (own and name.startswith("advantage: ")))

    @property
    def completions_per_rollout(self) -> int | None:
        """`prompts_per_rollout * completions_per_prompt` (completions); None when prompts are streamed."""
        if self.rollout.prompts_per_rollout is None:
            return None
        return self.rollout.prompts_per_rollout * self.rollout.completions_per_prompt

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, with the schema's name; without a critic no word of one."""
        plain = dataclasses.asdict(self)
        return {"schema": SCHEMA} | {
            name: [*value] if isinstance(value, tuple) else value
            for name, value in plain.items()
            if value is not None or name not in OPTIONAL
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Spec":
        """Inverse of `to_dict`. Raises `ValueError` naming an unknown or missing group or field, or a wrong type."""
        if not isinstance(data, Mapping):
            raise ValueError(f"spec: expected a mapping, got {type(data).__name__}")
        data = dict(data)
        schema = data.pop("schema", SCHEMA)
        if schema != SCHEMA:
            raise ValueError(f"schema: {schema!r} is not {SCHEMA!r}")
        return built(cls, data)

    def digest(self) -> str:
        """16 hex digits that identify the whole spec. Equal specs have equal digests, also in a later schema.

        BLAKE2b of the sorted JSON of every field that is not at its default: a field that is added changes no digest.
        """
        import hashlib
        import json

        said = {path: _whole_float_as_int(value) for path, value in self.values.items() if value != default_of(path)}
        text = json.dumps({"schema": SCHEMA, **said}, sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def replace(self, **fields: Any) -> "Spec":
        """A copy with dotted fields replaced: `spec.replace(**{"rollout.prompts_per_rollout": 64})`."""
        new: Spec = replaced(self, fields)
        return new


OPTIONAL = tuple(known.name for known in dataclasses.fields(Spec) if known.default is None)
"""Groups that a spec may be without."""


def _whole_float_as_int(value: Any) -> Any:
    # 2 and 2.0 are equal, and JSON writers disagree on how to spell the second.
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _every_place() -> dict[str, SpecField]:
    return {place.path: place for place in leaves(Spec)}


def field_type(path: str) -> Any:
    """The type of a leaf field (`rollout.prompts_per_rollout`), without its unit. Raises `KeyError` for no leaf."""
    return _every_place()[path].type


def default_of(path: str) -> Any:
    """The default of a leaf field; `dataclasses.MISSING` where it has none. Raises `KeyError` for no leaf."""
    return _every_place()[path].default


def every_field() -> Iterator[tuple[str, Quantity]]:
    """Every leaf field that a spec may have, with its quantity, in schema order; each term of the loss has its own."""
    for path, place in _every_place().items():
        assert place.quantity is not None
        yield path, place.quantity
