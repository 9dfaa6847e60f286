"""Programs of other people that are built on verl: what a batch counts there, where it is not what verl counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import BuiltTrainer, Condition
from batchbridge.kit.known_programs import CountedSizes, KnownProgram, condition, known_program, positive
from batchbridge_verl.run import GROUP, MINI, PROMPTS

_VOTES = "reward_model.reward_kwargs.n_votes_per_prompt"
_TRAINED = "reward_model.reward_kwargs.n_samples_per_prompt"
_AGENTS = "actor_rollout_ref.rollout.n_agent"
_RESEARCHERS = "agent_grpo.n"
_TOOLS = "actor_rollout_ref.rollout.n_repeat"
_PRUNING = "cppo.pruning_rate"
_REJECTION = "trainer.rejection_sample"
_MULTIPLIER = "trainer.rejection_sample_multiplier"
_RECURRENT = "recurrent.enable"
_MOST_BATCHES = "max_num_gen_batches"
_TRAINERS = frozenset({"verl.trainer.ppo.ray_trainer.RayPPOTrainer", "verl.trainer.ppo.v1.trainer_base.PPOTrainer"})


def condition_of(
    source: Source, own_program: str | None, native: Mapping[str, Any], declared: Mapping[str, Any]
) -> Condition | None:
    """The condition that the run of a source rests on; None: verl's own program runs, and no key tells of a fork.

    own_program: the module that the command starts, where it is not one of verl's. declared: the settings of the copy
    of verl that runs.
    """
    said = {key.lstrip("+~"): key for key in source.values} if source.argv else {key: key for key in source.values}
    telling = {**declared, **{key: source.values[said[key]] for key in TELLING if key in said}}  # others stay unparsed
    known = known_program(
        KNOWN,
        _names(source.trainers or ()),
        (own_program or "",),
        (key for key in TELLING if str(telling.get(key)).lower() not in _OFF),
    )
    if known is None and (own_program is None or _is_verls(source.trainers)):
        return None
    where, who = Where(own_program), own_program or "a program without a name"
    if own_program is None:
        places = [Where(key, source.values[said[key]]) for key in said if known is not None and key in known.keys]
        where = [*places, *(one.place for one in source.trainers or ()), where][0]
        who = "this copy of main_ppo"
    why = f"{who} is not a program of verl's, and what it changes is not seen"
    values = {} if known is None else {key: _number(telling[key]) for key in TELLING if key in telling}
    return condition("verl", "trainer", who, why, known, {**native, **values}, where)


_OFF = ("none", "null", "false", "0")
"""Values under which a setting tells of nothing."""


def _number(value: Any) -> Any:
    """A value of a command line as the number that it is."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


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


def _agents_sizes(native: Mapping[str, Any]) -> CountedSizes | None:
    """A mini-batch counts rows, and is multiplied by the other setting's number of samples alone."""
    found = positive(native, PROMPTS, _AGENTS, GROUP, MINI)
    if found is None:
        return None
    prompts, agents, group, mini = found
    return CountedSizes(prompts, agents * group, prompts * agents * group, mini * group)


def _repeats(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda native: f"each prompt gets {native.get(key, key)} completions ({key}), whatever {GROUP} says"


def _repeats_sizes(key: str) -> Callable[[Mapping[str, Any]], CountedSizes | None]:
    """A mini-batch counts rows, and is multiplied by verl's own number of samples alone."""

    def sizes(native: Mapping[str, Any]) -> CountedSizes | None:
        found = positive(native, PROMPTS, key, GROUP, MINI)
        if found is None:
            return None
        prompts, samples, group, mini = found
        return CountedSizes(prompts, samples, prompts * samples, mini * group)

    return sizes


def _ttrl_sizes(native: Mapping[str, Any]) -> CountedSizes | None:
    found = positive(native, PROMPTS, _TRAINED, GROUP, MINI)
    if found is None:
        return None
    prompts, trained, group, mini = found
    return CountedSizes(prompts, trained, prompts * trained, mini * group)


def _rejected(native: Mapping[str, Any]) -> str:
    return "groups that all succeed or all fail are dropped before the steps, so that their sizes are not decided"


def _recurrent(native: Mapping[str, Any]) -> str:
    return "each turn of a completion is a row of its own, so that the steps are not decided"


def _generated_alone(native: Mapping[str, Any]) -> CountedSizes | None:
    found = positive({_MULTIPLIER: 1, **native}, PROMPTS, GROUP, _MULTIPLIER)
    return None if found is None else CountedSizes(found[0] * found[2], found[1])


def _not_decided(native: Mapping[str, Any]) -> CountedSizes | None:
    return None


def _cppo(native: Mapping[str, Any]) -> str:
    return f"it fetches {PROMPTS} / (1 - {_PRUNING}) prompts and trains on the completions that pruning keeps"


_ABOUT_SIZES = frozenset({"BB-VERL-012", "BB-VERL-023", "BB-VERL-037"})
"""Rules about numbers that such a program counts otherwise."""
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
        "TTRL",
        _ttrl,
        "TTRL 3e2cc93 verl/verl/trainer/ppo/ray_trainer.py:320, 874-881, 932",
        keys=frozenset({_VOTES}),
        sizes=_ttrl_sizes,
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "Search-R1",
        _agents,
        "Search-R1 a14dc3a verl/trainer/ppo/ray_trainer.py:702, 716; workers/fsdp_workers.py:97-100",
        keys=frozenset({_AGENTS}),
        sizes=_agents_sizes,
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "DeepResearcher",
        _repeats(_RESEARCHERS),
        "DeepResearcher c93be8f verl/trainer/ppo/ray_trainer.py:1061; workers/fsdp_workers.py:119 (as IGPO 8660196)",
        keys=frozenset({_RESEARCHERS}),
        sizes=_repeats_sizes(_RESEARCHERS),
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "Agent-R1",
        _repeats(_TOOLS),
        "EarlyKnowledgeAlignment 90b5b95 verl/trainer/ppo/ray_trainer.py:1125; workers/fsdp_workers.py:119 "
        "(as Compiler-R1 b905454 agent_r1/src/agent_ray_trainer.py:997)",
        keys=frozenset({_TOOLS}),
        sizes=_repeats_sizes(_TOOLS),
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "Skywork-OR1",
        _rejected,
        "Skywork-OR1 64e96af verl/trainer/ppo/ray_trainer.py:505, 1061",
        keys=frozenset({_REJECTION}),
        sizes=_generated_alone,
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "MemAgent",
        _recurrent,
        "MemAgent 76b7a65 recurrent/, verl/trainer/config/ppo_trainer.yaml:234-254",
        keys=frozenset({_RECURRENT}),
        sizes=_generated_alone,
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "CPPO",
        _cppo,
        "CPPO 52faeb3 cppo_verl/recipe/cppo/src/cppo_ray_trainer.py:69-71, 310-322",
        classes="RayCPPOTrainer",
        program=r"(^|[./])recipe[./]cppo[./]",
        keys=frozenset({_PRUNING}),
        sizes=_not_decided,
    ),
)
"""Programs, and copies of verl's own that are told by a setting."""
TELLING = frozenset(key for row in KNOWN for key in row.keys) | {_TRAINED, _MULTIPLIER}
"""The settings that tell them, and those that decide their sizes."""
