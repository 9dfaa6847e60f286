"""Observing OpenRLHF's asynchronous trainer: the native run as it is, its ledger with the version of the weights that
generated each completion.

What is wrapped is the `PPOTrainerAsync`. It builds two actors that run at once and know nothing of each other but
queues: one generates, one trains. Each process that takes part is reached through Ray when `fit` begins: the generator,
where prompts are numbered; the engines, where completions get their version (`weights`); the training processes, where
it is held against what was sent, and written.

Source: openrlhf 0.11.2 ppo_trainer_async.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from batchbridge import CannotAttach, Source
from batchbridge.kit import Context, Request
from batchbridge.kit.code_names import has_base
from batchbridge.kit.lifecycle import Patched, Runtime
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import orders_of
from batchbridge_openrlhf import runtime
from batchbridge_openrlhf.proven import ASYNCHRONOUS

TRAINER = ("openrlhf.trainer.ppo_trainer_async", "PPOTrainerAsync")


def is_whole(trainer: object) -> bool:
    """Whether `trainer` is a `PPOTrainerAsync`, inside its Ray actor."""
    return has_base(trainer, *TRAINER)


def runtime_of(trainer: Any, request: Request) -> Runtime:
    """The runtime that attaches to a trainer. Raises `CannotAttach` for one half of an asynchronous trainer that should
    be observed: no part of it knows which weights the engines had."""
    if is_whole(trainer):
        return RUNTIME
    if request.mode == "observe" and trainer.args.train.async_enable:
        reason = "a part of an asynchronous trainer does not know whose weights generated what: wrap its"
        raise CannotAttach({"asynchronous": f"{reason} {TRAINER[1]}"})
    return runtime.RUNTIME


def source_of(trainer: Any) -> tuple[Source, Context]:
    """A trainer's source, as in `runtime.source_of`: arguments of the training actor, prompts of the generating one."""
    if not is_whole(trainer):
        return runtime.source_of(trainer)
    prompts = _asked(trainer.generator_actor, _prompts)
    seen = SimpleNamespace(args=_arguments(trainer), prompts_dataloader=SimpleNamespace(dataset=range(prompts)))
    return runtime.source_of(seen)


def _asked(actor: Any, function: Any, *values: Any) -> Any:
    """The answer of `function(actor, *values)` in the actor's process. Raises `CannotAttach`."""
    from batchbridge.kit.workers_ray import asked

    (answer,) = asked([actor], function, *values)
    return answer


def _arguments(trainer: Any) -> Any:
    return _asked(trainer.trainer_actor, _args)


def _args(actor: Any) -> Any:
    return actor.args


def _prompts(actor: Any) -> int:
    return len(actor.prompts_dataloader.dataset)


def _parts(actor: Any) -> tuple[list[Any], list[Any]]:
    """The policy's processes, and the engines, of the actor that trains."""
    return list(actor.actor_model_group._actor_handlers), list(actor.vllm_engines or ())


class OpenRlhfAsyncObserver:
    """The patches of one `PPOTrainerAsync`."""

    def __init__(self, trainer: Any, request: Request, version: str, patches: Patches) -> None:
        # What a specification asks for is not a plan of what timing decides.
        self._orders = dataclasses.replace(orders_of(request, version), planned=False)
        self._generator, self._native = trainer.generator_actor, trainer.trainer_actor
        self._workers, self._engines = _asked(self._native, _parts)
        self._started = False
        what = "every process is reached when it begins"
        patches.set(trainer, "trainer_actor", _Starting(self._native, self._start), what=what, why="ledger")

    def _start(self) -> Any:
        """A stand-in for `TrainingActor.init_checkpoint_states.remote`, which `fit` begins with."""
        import ray

        from batchbridge.kit.workers_ray import install_everywhere
        from batchbridge_openrlhf import ahead, weights

        states = self._native.init_checkpoint_states.remote()
        self._started = True  # also where one of them refuses
        install_everywhere(self._workers, self._orders, ahead.in_worker)
        steps = _asked(self._workers[0], ahead.steps_of)
        # Before their first step engines have what they loaded themselves, which is what the policy was loaded from.
        weights.reach(self._engines, self._orders.start_id, 0 if steps == 0 else weights.UNKNOWN)
        _asked(self._generator, ahead.in_generator, int(ray.get(states)["global_step"]))
        return states

    def detach(self) -> None:
        """Undoes what is in other processes."""
        if not self._started:
            return
        import ray

        from batchbridge.kit.workers_ray import install_everywhere
        from batchbridge_openrlhf import ahead, weights

        self._started = False
        install_everywhere(self._workers, None, ahead.in_worker)
        for actor, function in (*((one, weights.out_of_engine) for one in self._engines), (self._generator, ahead.out)):
            try:
                ray.get(actor.__ray_call__.remote(function))
            except ray.exceptions.RayActorError:
                continue  # its patches died with it


class _Starting:
    """The handle of a `TrainingActor` whose first call is the start's."""

    def __init__(self, native: Any, start: Any) -> None:
        self._native = native
        self.init_checkpoint_states = SimpleNamespace(remote=start)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def _patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    return Patched(detach=OpenRlhfAsyncObserver(trainer, request, version, patches).detach)


RUNTIME = dataclasses.replace(
    runtime.RUNTIME,
    parts=lambda trainer: [trainer],
    uses=lambda trainer: (ASYNCHRONOUS,),
    patch=_patch,
)
"""The runtime of a `PPOTrainerAsync`."""
