"""Programs of other people that are built on verl: what a batch counts there, where it is not what verl counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import BuiltTrainer, Condition
from batchbridge.kit.known_programs import KnownProgram, condition, known_program
from batchbridge_verl.run import GROUP, PROMPTS

_VOTES = "reward_model.reward_kwargs.n_votes_per_prompt"
_TRAINED = "reward_model.reward_kwargs.n_samples_per_prompt"
_AGENTS = "actor_rollout_ref.rollout.n_agent"
_PRUNING = "cppo.pruning_rate"
_MOST_BATCHES = "max_num_gen_batches"
_TRAINERS = frozenset({"verl.trainer.ppo.ray_trainer.RayPPOTrainer", "verl.trainer.ppo.v1.trainer_base.PPOTrainer"})


def condition_of(source: Source, own_program: str | None, native: Mapping[str, Any]) -> Condition | None:
    """The condition that the run of a source rests on; None: verl's own program runs, and no key tells of a fork.

    own_program: the module that the command starts, where it is not one of verl's.
    """
    said = {key.lstrip("+~"): key for key in source.values} if source.argv else {key: key for key in source.values}
    known = known_program(KNOWN, _names(source.trainers or ()), (own_program or "",), said)
    if known is None and (own_program is None or _is_verls(source.trainers)):
        return None
    where, who = Where(own_program), own_program or "a program without a name"
    if own_program is None:
        telling = [Where(key, source.values[said[key]]) for key in said if known is not None and key in known.keys]
        where = [*telling, *(one.place for one in source.trainers or ())][0]
        who = "this copy of main_ppo"
    why = f"{who} is not a program of verl's, and what it changes is not seen"
    values = {} if known is None else {key: source.values[name] for key, name in said.items()}
    return condition("verl", "trainer", who, why, known, {**native, **values}, where)


def taken_by_program(own_program: str | None) -> frozenset[str]:
    """The settings that a known program reads itself, whatever verl does with them."""
    known = None if own_program is None else known_program(KNOWN, (), (own_program,), ())
    return frozenset() if known is None else known.takes


def _names(built: Iterable[BuiltTrainer]) -> list[str]:
    return [one.name.rpartition(".")[2] for one in built]


def _is_verls(built: tuple[BuiltTrainer, ...] | None) -> bool:
    """Whether a program that was read builds verl's own trainer, and no other."""
    return bool(built) and all(one.name in _TRAINERS for one in built or ())


def _dapo(native: Mapping[str, Any]) -> str:
    return (
        "it generates data.gen_batch_size prompts at a time and drops groups without a difference in reward, until "
        f"{PROMPTS} are kept: the numbers are of those"
    )


def _ttrl(native: Mapping[str, Any]) -> str:
    votes, trained = native.get(_VOTES), native.get(_TRAINED)
    of = f"{votes} and trains on {trained}" if votes and trained else f"{_VOTES} and trains on {_TRAINED}"
    return f"each prompt gets {of} completions of these, whatever {GROUP} says"


def _agents(native: Mapping[str, Any]) -> str:
    sizes = f"{native.get(_AGENTS, _AGENTS)} x {native.get(GROUP, GROUP)}"
    return f"each prompt gets {sizes} completions ({_AGENTS} x {GROUP})"


def _cppo(native: Mapping[str, Any]) -> str:
    return f"it fetches {PROMPTS} / (1 - {_PRUNING}) prompts and trains on the completions that pruning keeps"


KNOWN = (
    KnownProgram(
        "DAPO's recipe",
        _dapo,
        "TTRL 3e2cc93 verl/recipe/dapo/src/dapo_ray_trainer.py:38, 215-228 (as verl 0.3 to 0.6 recipe/dapo)",
        classes="RayDAPOTrainer",
        program=r"(^|[./])recipe[./]dapo[./]",
        takes=frozenset(
            ("data.gen_batch_size", *(f"algorithm.filter_groups.{key}" for key in ("enable", "metric", _MOST_BATCHES)))
        ),
    ),
    KnownProgram(
        "TTRL", _ttrl, "TTRL 3e2cc93 verl/verl/trainer/ppo/ray_trainer.py:320, 874-881, 932", keys=frozenset({_VOTES})
    ),
    KnownProgram(
        "Search-R1", _agents, "Search-R1 a14dc3a verl/trainer/ppo/ray_trainer.py:702, 716", keys=frozenset({_AGENTS})
    ),
    KnownProgram(
        "CPPO",
        _cppo,
        "CPPO 52faeb3 cppo_verl/recipe/cppo/src/cppo_ray_trainer.py:69-71, 310-322",
        classes="RayCPPOTrainer",
        program=r"(^|[./])recipe[./]cppo[./]",
        keys=frozenset({_PRUNING}),
    ),
)
"""Programs, and copies of verl's own that are told by a setting."""
