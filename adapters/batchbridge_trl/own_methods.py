"""Methods of a derived trainer's own that are held by their effect (`proven.BY_EFFECT`), of any class.

One has run when the trainer is wrapped: the accelerator that it made is looked at. One makes the schedule, one the
rewards: what else TRL, transformers and Accelerate read of the trainer stays what it was over each call, and what is
made has the form that the run needs. Everything else that a class may override is control flow, and refused.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch.optim import Optimizer

from batchbridge.kit.optimizer_groups import GroupObjection, rates_of
from batchbridge.kit.proven import UNPROVEN
from batchbridge.kit.worker_layer import Seam
from batchbridge_trl.overrides import overrides_of
from batchbridge_trl.proven import ACCELERATOR, BY_EFFECT, CODE, REWARDS, SCHEDULER
from batchbridge_trl.sharding import deepspeed_configuration

_MAKES = {SCHEDULER: ("lr_scheduler", "_created_lr_scheduler"), REWARDS: ()}
"""The attributes of a trainer that a method is there to set. Source: transformers 4.52.3 to 5.24.0 Trainer; trl 0.19.0
to 1.16.0 GRPOTrainer."""
_OF_SCHEDULES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas"})
_OF_SCHEDULES |= {"base_momentum", "max_momentum"}
"""Values that schedulers write into an optimizer's groups. Source: torch 2.13.0 optim/lr_scheduler.py."""
_PLAIN = (type(None), bool, int, float, str, tuple)
_NAMED = 3
_ALLOWS = f'allow=("{UNPROVEN}",) goes on without this check'


def own_methods(trainer: Any) -> dict[str, str]:
    """The trainer's own methods that are held by their effect, by name: where each stands."""
    return {name: where for name, where in overrides_of(trainer).items() if name in BY_EFFECT}


def setup_objection(trainer: Any) -> str | None:
    """The objection to how the trainer's own methods have set it up, or will; None: there is none."""
    own = own_methods(trainer)
    if SCHEDULER in own and not {"optimizer", "scheduler"}.isdisjoint(deepspeed_configuration(trainer)):
        return "transformers makes an optimizer or schedule of DeepSpeed's configuration without this trainer"
    return _objection_to_accelerator(trainer) if ACCELERATOR in own else None


def _objection_to_accelerator(trainer: Any) -> str | None:
    accelerator, args = trainer.accelerator, trainer.args
    if type(accelerator) is not Accelerator:
        return f"the accelerator is a {type(accelerator).__qualname__}, none of Accelerate's own"
    recorded = {name.rpartition(".")[2] for one in CODE.packages for names in one.functions.values() for name in names}
    hidden = [name for name in vars(accelerator) if callable(getattr(Accelerator, name, None))]
    if foreign := sorted(set(hidden) - recorded):  # those that are recorded are told by themselves
        return f"methods were set on the accelerator: {', '.join(foreign)}"
    state = accelerator.state
    for name, have, want in (
        ("use of DeepSpeed", getattr(state, "deepspeed_plugin", None) is not None, trainer.is_deepspeed_enabled),
        ("use of FSDP", getattr(state, "fsdp_plugin", None) is not None, trainer.is_fsdp_enabled),
        ("num_processes", accelerator.num_processes, args.world_size),
        ("process_index", accelerator.process_index, args.process_index),
        ("device", accelerator.device.type, args.device.type),
    ):
        if have != want:
            return f"the accelerator's {name} is {have}, by the trainer and its arguments {want}"
    return None


class HeldMethods:
    """The calls of a trainer's own methods, held by their effect. allow: see `wrap`. require: raises `BatchDrift` on
    every rank where one of them has an objection to an aspect; collective. gather: see `Ranks.gather`."""

    def __init__(
        self,
        trainer: Any,
        allow: Collection[str],
        require: Callable[[str, str | None], None],
        gather: Callable[[Sequence[tuple[Any, ...]]], list[tuple[Any, ...]]],
    ) -> None:
        self._trainer, self._require, self._gather = trainer, require, gather
        self._own = {} if UNPROVEN in allow else own_methods(trainer)

    def seams(self, native: dict[str, Any]) -> Iterator[Seam]:
        """The seams of what the trainer has of its own. native: the layer's, where the native functions will be."""
        trainer, what, why = self._trainer, "held by what it does", "a method of your own"
        schedule, rewards = f"own {SCHEDULER}", f"own {REWARDS}"

        def scheduled(*words: Any, **options: Any) -> Any:
            return self._schedule(native[schedule], *words, **options)

        def scored(*words: Any) -> Any:
            return self._rewards(native[rewards], *words)

        if SCHEDULER in self._own:
            yield Seam(trainer, SCHEDULER, scheduled, what, why, name=schedule)
        if REWARDS in self._own:
            yield Seam(trainer, REWARDS, scored, what, why, name=rewards)

    def _schedule(self, native: Callable[..., Any], *words: Any, **options: Any) -> Any:
        trainer, before = self._trainer, _Ground(self._trainer)
        made = native(*words, **options)
        optimizer = options.get("optimizer") or next(iter(words[1:2]), None) or trainer.optimizer
        self._require("settings", before.objection(self._own[SCHEDULER], SCHEDULER) or self._untold(optimizer))
        return made

    def objections(self) -> list[str]:
        """Objections to the step in hand, before its update: the schedule goes on telling its rates."""
        untold = self._untold(self._trainer.optimizer) if SCHEDULER in self._own else None
        return [] if untold is None else [GroupObjection(untold)]

    def _untold(self, optimizer: Any) -> str | None:
        groups = getattr(optimizer, "param_groups", ())
        if len(rates_of(self._trainer.lr_scheduler)) == len(groups):
            return None
        return (
            f"{self._own[SCHEDULER]} made a schedule that does not tell the learning rate of each of the optimizer's "
            f"{len(groups)} groups (get_last_lr), so that no rate can be held against it; {_ALLOWS}"
        )

    def _rewards(self, native: Callable[..., Any], *words: Any) -> Any:
        trainer, before, own = self._trainer, _Ground(self._trainer), self._own[REWARDS]
        rows, prompts, ids = words[0], words[1], words[3]
        was = [tuple(one) for one in ids], [dict(one) for one in rows], list(prompts)
        made = native(*words)
        said = before.objection(own, REWARDS)
        if said is None and not _are(was, ([tuple(one) for one in ids], [dict(one) for one in rows], list(prompts))):
            said = f"{own} changed the completions or prompts that it was given to score; {_ALLOWS}"
        shape = (len(prompts) * trainer.accelerator.num_processes, len(trainer.reward_funcs))
        if said is None and not (isinstance(made, torch.Tensor) and tuple(made.shape) == shape):
            form = tuple(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
            said = (
                f"{own} gave {form}, and a rollout needs a tensor of the shape {shape}: a row for each completion of "
                "all ranks, a column for each reward function"
            )
        self._require("advantages", said)
        mine = hashlib.sha256(made.detach().float().cpu().numpy().tobytes()).hexdigest()
        several = len(set(self._gather([(mine,)]))) > 1
        self._require("advantages", f"{own} gave ranks different rewards of one rollout" if several else None)
        return made


class _Ground:
    """Everything that code of the frameworks reads of a trainer and its parts, as it is now."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._was = trainer, dict(_parts(trainer))

    def objection(self, own: str, method: str) -> str | None:
        """The objection to what is another one now; None: all is as it was. own: what was called."""
        now, may = dict(_parts(self._trainer)), _MAKES[method]
        names = sorted({*now, *self._was} - {*may})
        changed = [name for name in names if not _same(self._was.get(name, _Ground), now.get(name, _Ground))]
        if not changed:
            return None
        more = f" and {len(changed) - _NAMED} more" if len(changed) > _NAMED else ""
        return f"{own} changed {', '.join(changed[:_NAMED])}{more}, which a step of the plan rests on; {_ALLOWS}"


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _PLAIN and bool(one == other))


def _are(one: tuple[list[Any], ...], other: tuple[list[Any], ...]) -> bool:
    """Whether rows hold the same objects; token ids, equal ones."""
    if one[0] != other[0] or len(one[1]) != len(other[1]) or len(one[2]) != len(other[2]):
        return False
    rows = zip(one[1], other[1], strict=True)
    same = (was.keys() == now.keys() and all(now[key] is was[key] for key in was) for was, now in rows)
    return all(same) and all(was is now for was, now in zip(one[2], other[2], strict=True))


def _parts(trainer: Any) -> Iterator[tuple[str, Any]]:
    cls: type = type(trainer)
    inner = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    read = _read_of_itself(cls)
    yield from ((name, value) for name, value in vars(trainer).items() if name in read)
    for part in ("args", "accelerator", "state"):
        owner = getattr(trainer, part)
        for name, value in vars(owner).items():
            yield f"{part}.{name}", value
    for number, parameter in enumerate(trainer.model.parameters()):
        yield f"parameter {number} of the model", (id(parameter), parameter._version, parameter.requires_grad)
    yield "callbacks", tuple(map(id, trainer.callback_handler.callbacks))
    if isinstance(inner, Optimizer):
        yield from _parts_of_optimizer(inner)
        yield from _set_on_optimizer(inner)
        yield from _set_on_optimizer(trainer.optimizer)  # Accelerate's, around it
    for one in {*cls.__mro__, type(trainer.accelerator), type(inner)} - {object}:
        for name, value in vars(one).items():
            if name in read or one not in cls.__mro__:
                yield f"{one.__module__}.{one.__qualname__}.{name}", value


def _parts_of_optimizer(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    for number, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name == "params":
                yield f"optimizer group {number}", tuple(map(id, value))
            elif name not in _OF_SCHEDULES:
                yield f"{name} of optimizer group {number}", value
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        yield f"optimizer.{name}", tuple(map(id, getattr(optimizer, name).values()))


def _set_on_optimizer(optimizer: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(optimizer).items():
        counts = getattr(getattr(value, "__func__", value), "__globals__", {}).get("__name__")
        # A schedule counts the updates of its optimizer by a function around `step`.
        if callable(getattr(type(optimizer), name, None)) and counts != torch.optim.lr_scheduler.__name__:
            yield f"{type(optimizer).__name__}.{name}", value


@functools.lru_cache(maxsize=8)
def _read_of_itself(cls: type) -> frozenset[str]:
    """The attributes that the frameworks' own classes of a trainer have, and that their code names."""
    bases = [base for base in cls.__mro__ if base.__module__.partition(".")[0] in ("trl", "transformers")]
    texts = [inspect.getsource(sys.modules[name]) for name in {base.__module__ for base in bases}]
    named = (name for text in texts for name in re.findall(r"\bself\.(\w+)", text))
    return frozenset((*named, *(name for base in bases for name in vars(base))))
