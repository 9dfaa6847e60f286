"""A user's own copy of OpenRLHF: the options of its parser, and whose code decides its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchbridge import Source
from batchbridge.kit.declared_settings import DeclaredSetting, as_default, declared_options
from batchbridge.kit.own_copy import CopyFacts, OwnCopy, compared_copy
from batchbridge.kit.proven import methods
from batchbridge_openrlhf.settings import Option, options_of
from batchbridge_openrlhf.user_options import program_of

_TRAINER, _ACTOR, _MAKER = "trainer/ppo_trainer.py", "trainer/ray/ppo_actor.py", "trainer/ppo_utils/experience_maker.py"
_BUFFER, _DEEPSPEED = "trainer/ppo_utils/replay_buffer.py", "utils/deepspeed/deepspeed.py"
FACTS = CopyFacts(
    package="openrlhf",
    home="batchbridge_openrlhf",
    markers=("cli/train_ppo_ray.py", "trainer/ppo_trainer.py"),
    label=("version.txt", "../version.txt"),
    numbers={
        "rollout size": {
            _TRAINER: (
                *methods("BasePPOTrainer", "fit", "prepare_datasets", "train_step"),
                *("PPOTrainer.fit", "prepare_datasets"),
            ),
            _MAKER: methods("RemoteExperienceMaker", "make_experience_list", "make_experience_batch"),
            "trainer/ppo_utils/samples_generator.py": methods("SamplesGenerator", "generate_samples"),
        },
        "step size": {
            _ACTOR: methods("ActorPPOTrainer", "ppo_train", "training_step"),
            _DEEPSPEED: methods("DeepspeedStrategy", "backward", "optimizer_step", "get_ds_train_config"),
            _BUFFER: methods("NaiveReplayBuffer", "setup_dynamic_batch", "append"),
        },
        "passes": {_ACTOR: methods("ActorPPOTrainer", "ppo_train")},
        "token weights": {
            _ACTOR: methods("ActorPPOTrainer", "training_step"),
            "models/loss.py": ("PolicyLoss.forward", "aggregate_loss"),
            "models/utils.py": ("masked_mean", "compute_approx_kl"),
        },
        "order": {
            _TRAINER: ("BasePPOTrainer.prepare_datasets", "prepare_datasets"),
            _DEEPSPEED: methods("DeepspeedStrategy", "setup_dataloader"),
        },
    },
)
_KINDS = {"int": "int", "float": "float", "str": "str", "flag": "flag", "flag_off": "flag_off"}


def own_copy(source: Source) -> OwnCopy | None:
    """The copy that a source stands in; None where there is none, or the source starts another program."""
    if source.argv and program_of(source.argv) is None:
        return None
    return compared_copy(source, FACTS, _declared, options_of)


def _declared(folder: Path) -> dict[str, DeclaredSetting]:
    found = declared_options(folder / "cli" / "train_ppo_ray.py")
    if not found:
        raise ValueError("cli/train_ppo_ray.py declares no options")
    return found


def options_in(copy: OwnCopy) -> dict[str, Option]:
    """The options that the copy's parser has: what the release has too in the release's kind, with its own default."""
    known = options_of(copy.release)
    return {name: _option(name, one, known.get(name)) for name, one in copy.declared.items()}


def defaults_in(copy: OwnCopy, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Identity to default: the release's `settings` with those that the copy declares otherwise."""
    known = options_of(copy.release)
    own = {
        option.identity: _same_form(as_default(copy.declared, name, option.default), option.default)
        for name, option in known.items()
    }
    return {**settings, **own, **{name: one.default for name, one in copy.declared.items() if name not in known}}


def _option(name: str, one: DeclaredSetting, known: Option | None) -> Option:
    if known is not None:
        return replace(known, choices=tuple(map(str, one.choices)))
    kind = _KINDS.get(one.kind, "str") if one.words == 1 or one.kind.startswith("flag") else "words"
    return Option(name, name, kind, one.default)


def _same_form(default: Any, known: Any) -> Any:
    return tuple(default) if isinstance(known, tuple) and isinstance(default, list) else default
