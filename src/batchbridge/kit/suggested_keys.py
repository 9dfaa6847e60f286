"""The settings that a key which is none may stand for: the same setting in other words, or a slip of the pen.

What is only alike to look at is not suggested: `num_iterations` is not `num_generations`, and a count of completions is
no count of mini-batches. A key is known by its meaning where people and frameworks have several words for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache

from batchbridge.kit.near_names import near_names

CONCEPTS: Mapping[str, str] = {
    # canonical field, or what is set: the words of frameworks and of people, all counted in the field's own unit
    "rollout.completions_per_prompt": (
        "num_generations n_samples_per_prompt rollout.n_samples_per_prompt actor_rollout_ref.rollout.n "
        "worker.rollout.n num_samples_per_prompt_rollout number_samples_per_prompt group_size "
        "num_generations_per_prompt rollout_n num_return_sequences generations_per_prompt num_rollouts_per_prompt"
    ),
    "objective.kl_coefficient": (
        "beta kl_coef init_kl_coef algo.kl.init_coef algorithm.kl_coef kl_beta kl_coefficient kl_loss_coef "
        "actor_rollout_ref.actor.kl_loss_coef"
    ),
    "carried.max_completion_tokens": (
        "max_completion_length max_response_length data.max_response_length max_new_tokens rollout.max_new_tokens "
        "generate_max_len response_length max_completion_tokens max_response_len"
    ),
    "carried.max_prompt_tokens": (
        "max_prompt_length data.max_prompt_length prompt_max_len max_prompt_token_length max_prompt_tokens"
    ),
    "carried.temperature": (
        "temperature actor_rollout_ref.rollout.temperature worker.rollout.temperature rollout.temperature "
        "sampling_temperature"
    ),
    "the schedule of the learning rate": (
        "lr_scheduler_type actor_rollout_ref.actor.optim.warmup_style actor_rollout_ref.actor.optim.lr_scheduler_type "
        "worker.actor.optim.lr_scheduler_type actor.lr_scheduler lr_scheduler warmup_style lr_schedule"
    ),
    "the learning rate": (
        "learning_rate actor_rollout_ref.actor.optim.lr worker.actor.optim.lr actor_learning_rate actor.adam.lr"
    ),
    "the epochs of a run": (
        "num_train_epochs trainer.total_epochs num_episodes train.num_episodes num_epochs total_epochs"
    ),
    "optimizer_step.passes_per_rollout": (
        "num_iterations actor_rollout_ref.actor.ppo_epochs worker.actor.ppo_epochs max_epochs train.max_epochs "
        "ppo_epochs"
    ),
    "rollout.prompts_per_rollout": (
        "data.train_batch_size data.rollout_batch_size num_unique_prompts_rollout rollout_batch_size rollout.batch_size"
    ),
}
"""Words for one thing in one unit. A word that means several things, by framework, is in none."""

_MOST_SLIPS = 2
"""Characters that may be wrong, missing, too many or exchanged in one part of a name."""


def suggested_keys(
    wrong: Iterable[str], known: Collection[str], cutoff: float, *, taken: Collection[str] = ()
) -> dict[str, list[str]]:
    """The settings that each wrong key may stand for, the same meaning first; none where only the looks are alike.

    taken: settings that are said already, which a suggestion would overwrite. cutoff: see `near_names`.
    """
    names = list(wrong)
    near = near_names(names, known, cutoff)
    found = {}
    for name in names:
        same = [one for one in _of_concept(name) if one in known]
        slips = [one for one in near.get(name, ()) if is_slip(name, one)]
        found[name] = [one for one in dict.fromkeys((*same, *slips)) if one not in taken][:2]
    return found


@cache
def _words() -> Mapping[str, tuple[str, ...]]:
    """Word, or the last part of a dotted one that is longer than a letter or two, to all words of its concept."""
    found: dict[str, tuple[str, ...]] = {}
    for words in CONCEPTS.values():
        whole = tuple(words.split())
        for word in whole:
            found[word] = whole
    return found


def _of_concept(name: str) -> tuple[str, ...]:
    """The words that mean what a name means: the whole name's, or its last part's."""
    table = _words()
    return table.get(name) or table.get(name.rpartition(".")[2], ())


def is_slip(wrong: str, right: str) -> bool:
    """Whether a name is another one with a slip of the pen: the same parts in the same order, of which one or two have
    a few wrong characters; or the same last part in a group that is misspelt so. Two words of different meanings are
    never a slip of each other."""
    if _of_concept(wrong) and right not in _of_concept(wrong):
        return False
    ours, theirs = (_parts(name) for name in (wrong, right))
    if len(ours) != len(theirs):
        return _distance("".join(ours), "".join(theirs)) <= 1
    slips = [(one, _distance(one, other)) for one, other in zip(ours, theirs, strict=True) if one != other]
    fits = all(distance <= min(_MOST_SLIPS, max(1, len(one) // 3)) for one, distance in slips)
    return fits and len(slips) <= _MOST_SLIPS


def _parts(name: str) -> list[str]:
    return name.lower().replace("-", "_").replace(".", "_").split("_")


def _distance(one: str, other: str) -> int:
    """Insertions, deletions, replacements and exchanges of neighbours that make one text the other."""
    if abs(len(one) - len(other)) > _MOST_SLIPS + 4:
        return abs(len(one) - len(other))
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, char in enumerate(one, 1):
        current = [row]
        for column, there in enumerate(other, 1):
            cost = min(last[column] + 1, current[-1] + 1, last[column - 1] + (char != there))
            if row > 1 and column > 1 and char == other[column - 2] and one[row - 2] == there:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, last = last, current
    return last[-1]
