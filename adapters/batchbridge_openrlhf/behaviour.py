"""The real behaviour of OpenRLHF itself: in words, and, where its configuration decides it, optimizer step by step.

The prompts' order comes from random numbers that nobody seeds, and results are taken as the engines finish, so that a
run is decided only where one optimizer step holds a whole episode on one replica in one micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from fractions import Fraction

from batchbridge import Behaviour, Reading
from batchbridge.kit import DenominatorScope, NativeStep
from batchbridge.kit.native_steps import dealt_steps
from batchbridge.kit.records import dataclass
from batchbridge_openrlhf.facts import OpenRlhfFacts
from batchbridge_openrlhf.meaning import UNSEEDED, inexpressible, sequence_mean, shuffles
from batchbridge_openrlhf.rules import defects
from batchbridge_openrlhf.settings import holds


@dataclass(frozen=True)
class OpenRlhfDenominator:
    """The denominator of the policy loss: `scope`, the `formula` of one token's weight in an optimizer step, by
    versions, kind of batch and average.

    Symbols: W replicas, k micro-batches of the step and replica, T tokens and B completions that have a token of the
    step, T_m and b_m tokens and completions of a replica's micro-batch, T_w and B_w of a micro-batch over all replicas,
    b completions of a replica's step, L the completion's tokens.
    """

    versions: str
    dynamic: bool
    by_sequence: bool
    scope: DenominatorScope
    formula: str
    source: str


_OLD = "openrlhf 0.8.0 to 0.10.2 PolicyLoss.forward (masked_mean)"
_OLD_DYNAMIC = "openrlhf 0.8.6 to 0.10.2 ActorPPOTrainer.training_step (dynamic_loss_scale)"
_MIDDLE = "openrlhf 0.10.3 get_loss_batch_info, aggregate_loss"
_NEW = "openrlhf 0.10.4 to 0.11.2 iter_grad_accum_global_norm, aggregate_loss"
_NEW_DYNAMIC = "openrlhf 0.10.3 to 0.11.2 NaiveReplayBuffer.setup_dynamic_batch, aggregate_loss"
DENOMINATORS = (
    OpenRlhfDenominator("<0.10.3", False, False, "micro_batch", "1 / (W k T_m)", _OLD),
    OpenRlhfDenominator("<0.10.3", False, True, "optimizer_step", "1 / (W k b_m L)", _OLD),
    OpenRlhfDenominator("<0.10.3", True, False, "micro_batch", "b_m / (W b T_m)", _OLD_DYNAMIC),
    OpenRlhfDenominator("<0.10.3", True, True, "optimizer_step", "1 / (W b L)", _OLD_DYNAMIC),
    OpenRlhfDenominator(">=0.10.3,<0.10.4", False, False, "micro_batch", "1 / (k T_w)", _MIDDLE),
    OpenRlhfDenominator(">=0.10.3,<0.10.4", False, True, "micro_batch", "1 / (k B_w L)", _MIDDLE),
    OpenRlhfDenominator(">=0.10.4", False, False, "optimizer_step", "1 / T", _NEW),
    OpenRlhfDenominator(">=0.10.4", False, True, "optimizer_step", "1 / (B L)", _NEW),
    OpenRlhfDenominator(">=0.10.3", True, False, "optimizer_step", "1 / T", _NEW_DYNAMIC),
    OpenRlhfDenominator(">=0.10.3", True, True, "optimizer_step", "1 / (B L)", _NEW_DYNAMIC),
)


def behaviour(facts: OpenRlhfFacts) -> Behaviour | None:
    """The behaviour of OpenRLHF with these options; None where a size is below 1."""
    if not facts.sizes.positive:
        return None
    s = facts.sizes
    kind = (s.dynamic, sequence_mean(facts.settings, s.version))
    row = next(row for row in DENOMINATORS if holds(row.versions, s.version) and (row.dynamic, row.by_sequence) == kind)
    seed = facts.name("train.seed")
    by = f"keyed by {seed} and the episode"
    if holds(UNSEEDED, s.version):
        by = f"from a random state that nothing seeds, {seed} neither: another order on every launch"
    last = "dropped" if s.drops_tail else "a short rollout"
    mixed = "permuted in every pass, all replicas by the same positions, then " if _shuffled(facts) else ""
    share = "a share, dealt out by length," if s.dynamic else "a contiguous block"
    cut = (
        "cut into length-balanced micro-batches under the token budget; completions beyond the last full step are "
        "dropped"
        if s.dynamic
        else f"cut into micro-batches of {s.micro} and steps of {s.accumulation} of them per replica; micro-batches "
        "that fill no step go into the next pass's or rollout's first one"
    )
    return Behaviour(
        order=(
            f"a permutation per episode {by}; rollouts of {s.prompts_per_rollout} prompts, an episode's remainder is "
            f"{last}; inside a rollout groups stand in the order in which the engines finish them"
        ),
        membership=(
            f"each replica ({s.replicas} in all) takes {share} of the rollout's completions, {mixed}{cut}; "
            f"passes over it: {s.passes}"
        ),
        denominator_scope=row.scope,
        denominator_formula=row.formula,
        lr_tick="after every optimizer step; the schedule's length is "
        f"prompts x {s.group} // {s.train} x {s.episodes} x {s.passes} optimizer steps",
        resume="checkpoints are taken between rollouts, with the prompt loader's state; not tested",
        defects=defects(facts),
        undecided=tuple(_open(facts)),
        source=row.source,
    )


def native_steps(
    reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
) -> Iterator[NativeStep]:
    """The optimizer steps of the unwrapped run, where the options decide them; weights as exact fractions.

    Raises `ValueError` naming all that is left open.
    """
    facts: OpenRlhfFacts | None = getattr(reading, "run", None)
    if facts is None or not facts.decided or not facts.sizes.positive or inexpressible(facts.settings):
        raise ValueError("the options give no run: see the findings")
    s = facts.sizes
    prompts = max(min(dataset_size, facts["data.max_samples"]), 0)
    if prompts == 0 or (prompts < s.prompts_per_rollout and s.drops_tail):
        return iter(())
    undecided = list(_open(facts, prompts))
    if undecided:
        raise ValueError("; ".join(undecided))
    return _steps(facts, prompts, response_tokens)


def _steps(facts: OpenRlhfFacts, prompts: int, tokens: Mapping[tuple[int, int], int]) -> Iterator[NativeStep]:
    """One step per pass: everything at once, on replica 0."""
    s = facts.sizes
    by_sequence = sequence_mean(facts.settings, s.version)
    counted = sum(tokens[prompt, sample] > 0 for prompt in range(prompts) for sample in range(s.group))
    # masked_mean divides 0 by 0 there, and the step is not a number
    undefined = by_sequence and counted < prompts * s.group and holds("<0.10.3", s.version)

    def weight(length: int, total: int, lengths: list[int]) -> Fraction | None:
        if undefined:
            return None
        return Fraction(1, counted * length if by_sequence else total) if length else Fraction(0)

    episodes = itertools.repeat(range(prompts), s.episodes)
    return dealt_steps(episodes, tokens, group=s.group, passes=s.passes, deal=lambda rows: [[(0, rows)]], weight=weight)


def _open(facts: OpenRlhfFacts, prompts: int | None = None) -> Iterator[str]:
    """Questions that the options do not decide. `prompts` of an episode, where they are known."""
    s = facts.sizes
    one_step = prompts is not None and prompts <= s.prompts_per_rollout and prompts * s.group == s.train
    one_micro_batch = s.world == 1 and not s.dynamic and s.micro == s.train
    if not (one_step and one_micro_batch):
        if holds(UNSEEDED, s.version):
            seed = facts.name("train.seed")
            yield f"the order of the prompts: it comes from an unseeded random state, not from {seed}"
        else:
            yield "the order of the prompts: torch's permutation by the seed is not reproduced here"
        yield "the order of a rollout's groups: results are taken as the engines finish"
        if _shuffled(facts):
            yield "the replay buffer's shuffle: it comes from the global random state of the workers"
        if s.dynamic:
            yield "micro-batches: completion lengths decide them"
    if s.filtered:
        yield f"which groups are trained: {facts.name('algo.dynamic_filtering_enable')} looks at their scores"
    if facts["train.async_enable"]:
        yield "which weights generated a completion: generation runs ahead"
    if facts["train.agent_func_path"]:
        yield f"what a completion is: {facts.name('train.agent_func_path')} decides"
    if facts["data.prompt_probs"]:
        yield f"which prompts an episode has: {facts.name('data.prompt_probs')} mixes datasets"


def _shuffled(facts: OpenRlhfFacts) -> bool:
    return shuffles(facts.settings, facts.version)
