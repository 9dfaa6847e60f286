"""The columns that a completion carries to its loss, digested where its advantages are computed and compared in the
process that trains it.

The digests travel in the experience's `info`, past everything that makes batches, balances and pads. Values are those
of the tokens that are trained, so that no padding and no packing changes a digest.

Its own file: the trainer's process writes, training processes read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchbridge import Spec
from batchbridge.kit.producers import HeldAdvantages, settings_below
from batchbridge.kit.row_digests import InputObjection, digests_of, input_objection

SENT = "batchbridge_sent"
"""Key of an experience's `info`: a digest for each of `COLUMNS`, in their order; `NONE` without such a column."""
COLUMNS = (
    *("sequences", "action_mask", "advantages", "returns"),
    *("action_log_probs", "base_action_log_probs", "rollout_log_probs", "values"),
)
NONE = -1


def mark_sent(experience: Any) -> None:
    """Puts digests of all rows beside an experience whose advantages are there."""
    import torch

    rows = [_of_row(experience, operator.itemgetter(row)) for row in range(len(experience.sequences))]
    experience.info[SENT] = torch.tensor([[row.get(name, NONE) for name in COLUMNS] for row in rows])


def sent_objection(item: Any, who: str) -> InputObjection | None:
    """The objection that an experience of one completion does not carry what its digests are of. None also where it
    has no digests. who: the completion, as a user knows it."""
    if SENT not in item.info:
        return None
    sent = [int(digest) for digest in item.info[SENT].flatten()]
    told = {name: digest for name, digest in zip(COLUMNS, sent, strict=True) if digest != NONE}
    return input_objection(told, _of_row(item, lambda values: values), who)


def _of_row(experience: Any, row: Callable[[Any], Any]) -> dict[str, int]:
    return digests_of(dict(_columns(experience, row)))


def _columns(experience: Any, row: Callable[[Any], Any]) -> Iterator[tuple[str, Any]]:
    """A row's columns without padding: its tokens, their mask, and of the others what trained tokens have."""
    attended, mask = row(experience.attention_mask).bool(), row(experience.action_mask)
    yield "sequences", row(experience.sequences)[attended]
    # The mask is about the token after each position.
    yield "action_mask", mask[attended[len(attended) - len(mask) :]]
    for name in COLUMNS[2:]:
        values = getattr(experience, name, None)
        yield name, None if values is None else row(values)[mask.bool()]


# ---- in the trainer's process


def hold_advantages(made: Sequence[Any], advantages: HeldAdvantages, own: Spec, step: int) -> list[float]:
    """The check (`BatchDrift` at `step`) of a rollout's advantages where its rewards decide them. own: the meaning of
    the trainer's own configuration. Returns the rewards of its completions, group by group."""
    import torch

    found = {
        place: float(reward)
        for experience in made
        for place, reward in zip(experience.index, experience.rewards, strict=True)
    }
    rewards = [found[place] for place in sorted(found)]
    # A rollout that is not whole departs by its membership, in the process that trains it.
    whole = sorted(found) == [*range(len(found))] and not len(found) % advantages.size
    if own.objective.kl_placement != "reward" and whole:
        coarse = max((torch.finfo(one.advantages.dtype).eps for one in made), default=0.0)
        advantages.hold(rewards, _each(made), step, coarse=coarse)
    return rewards


def _each(made: Sequence[Any]) -> Iterator[tuple[int, float]]:
    """The advantages of each completion, the largest and the smallest of its trained tokens."""
    for experience in made:
        for place, values, mask in zip(experience.index, experience.advantages, experience.action_mask, strict=True):
            if bool(mask.any()):
                for value in values[mask.bool()].aminmax():
                    yield place, float(value)


def settings_read(trainer: Any) -> dict[str, Any]:
    """The settings that generation, rewards and advantages read, by option. Source: openrlhf 0.11.2
    samples_generator.py, experience_maker.py, where gamma is set to 1 by all estimators but two."""
    found = settings_below(trainer.args, _READ_BY_PRODUCERS)
    if found.get("algo.advantage.estimator") not in ("gae", "reinforce"):
        found.pop("algo.advantage.gamma", None)
    given = getattr(trainer, "generate_kwargs", None) or {}
    return found | {f"generate_kwargs[{name}]": value for name, value in given.items()}


_READ_BY_PRODUCERS = ("rollout", "reward", "algo.advantage", "algo.kl")
