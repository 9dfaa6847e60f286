"""The processes of an asynchronous run that is observed, from inside: the generator, and each training process."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.worker_layer import Seam
from batchbridge.kit.workers import Orders, Receipt, TrainedRow
from batchbridge_openrlhf.engine import OpenRlhfEngineLayer, install, remove
from batchbridge_openrlhf.observe import OpenRlhfObserver
from batchbridge_openrlhf.turns import IDENTITY
from batchbridge_openrlhf.weights import BORN, NAME, UNKNOWN, against, announce, born, everywhere, settle

# ---- where prompts are drawn


class GeneratedNumbering(OpenRlhfObserver):
    """The patches of one `GenerateSamplesActor`: completions are told apart, and keep their version.

    rollout: the number of the next one. One generation may be trained in several rollouts, and one rollout have
    completions of two: a place is a number over the run, and the rollout is the one that trains it.
    """

    def __init__(self, actor: Any, rollout: int, patches: Patches) -> None:
        nothing: Any = None
        seen = SimpleNamespace(
            samples_generator=actor.samples_generator,
            prompts_dataloader=actor.prompts_dataloader,
            init_checkpoint_states=None,  # the actor that trains has it
        )
        super().__init__(seen, nothing, nothing, patches)
        self._rollout = rollout

    def _samples(self, **options: Any) -> Any:
        found = self._native_samples(**options)
        for made in found[0]:
            made.info[IDENTITY][0][0] = self._rollout
        self._rollout += bool(found[0])
        return found

    def _process(self, response: Any, **options: Any) -> Any:
        import torch

        made = super()._process(response, **options)
        if IDENTITY in response and BORN in response:
            made.info[BORN] = torch.tensor([response[BORN]])
        return made


def in_generator(actor: Any, rollout: int) -> None:
    """The numbering of rollouts from `rollout` on, inside a `GenerateSamplesActor`."""
    out(actor)
    patches = actor.batchbridge_patches = Patches(Observation("observe"))
    GeneratedNumbering(actor, rollout, patches)


def out(actor: Any) -> None:
    """Undoes `in_generator`; an actor without it is left alone."""
    patches = vars(actor).pop("batchbridge_patches", None)
    if patches is not None:
        patches.undo()


# ---- where completions are trained


class OpenRlhfAheadLayer(OpenRlhfEngineLayer):
    """The patches of one `ActorPPOTrainer` that trains on what was generated before.

    Of rank 0 alone engines hear which weights come; every rank knows which were sent, since each takes part in a
    broadcast.
    """

    def __init__(self, trainer: Any, orders: Orders, patches: Patches) -> None:
        self._native_broadcast = trainer.broadcast_to_vllm
        steps = int(trainer.actor.model.global_steps)
        self._sent = {0} if steps == 0 else set[int]()
        self._born: list[int] = []
        super().__init__(trainer, orders, patches)

    def seams(self) -> Iterable[Seam]:
        """The seams of a trainer, and the sending of its weights."""
        yield from super().seams()
        yield Seam(self._trainer, "broadcast_to_vllm", self._broadcast, "engines are told which weights come")

    def _broadcast(self) -> None:
        """A stand-in for `ActorPPOTrainer.broadcast_to_vllm`."""
        version, engines = int(self._engine.global_steps), self._trainer.vllm_engines
        tells = self._rings.rank == 0
        if tells:
            everywhere(engines, announce, version)
        self._native_broadcast()
        if tells:
            everywhere(engines, settle, self._names())
        self._sent.add(version)

    def _names(self) -> list[str]:
        """The weights that engines need; of a model with images those that are trained."""
        actor = self._trainer.actor
        named, seeing = actor.model.module.named_parameters(), getattr(actor, "is_vlm", False)
        return [name for name, parameter in named if parameter.requires_grad or not seeing]

    def _train(self, *given: float) -> Any:
        self._hold()
        return super()._train(*given)

    def _hold(self) -> None:
        """Refusal (`CannotAttach`), on every rank, of a completion whose version is not believed. Collective."""
        found = [(None, why) for item in self._buffer.items if (why := self._against(item)) is not None]
        for _, why in self._rings.gather(found):
            raise CannotAttach({NAME: why})

    def _against(self, item: Any) -> str | None:
        import torch

        ids = item.sequences.cpu().to(torch.int64).numpy().tobytes()
        return against(born(item.info), ids, self._orders.start_id, self._sent)

    def _collate(self, batch: Any) -> Any:
        experience = super()._collate(batch)
        experience.info.pop(BORN, None)
        return experience

    def _row(self, item: Any, identity: Any) -> TrainedRow:
        row = super()._row(item, identity)
        (began, *_) = born(item.info) or (UNKNOWN,)
        self._born.append(began)
        return row

    def _forget(self) -> None:
        super()._forget()
        self._born = []

    def _generated_at(self) -> list[int]:
        return [self._born[row.index] for row in self._rows]


def in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
    """The installation of `orders`, or with None their removal, inside a `PolicyModelActor`."""
    if orders is None:
        remove(worker.trainer)
        return None
    return install(worker.trainer, orders, OpenRlhfAheadLayer)


def steps_of(worker: Any) -> int:
    """The optimizer steps that a policy has behind it, asked inside its `PolicyModelActor`."""
    return int(worker.trainer.actor.model.global_steps)
