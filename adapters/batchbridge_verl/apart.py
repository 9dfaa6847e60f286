"""Trainers whose engines have devices of their own (one_step_off_policy): whose weights generated every completion.

Weights are told by what they are, not by the number that is sent with them: a digest is taken of them where the trainer
hands them over and where an engine is given them, and the ledger has the optimizer steps that the trainer had done when
it handed over what the engines held as a rollout began. A hand-over that never arrived is none, whatever says it was.
Such trainers are observed alone: what cannot be told ends the observing, in whatever process that is found.

Source: verl 0.9.1 experimental/{one_step_off_policy,separation}/ray_trainer.py, checkpoint_engine/base.py.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge import CannotAttach, Source
from batchbridge.kit import workers_ray
from batchbridge.kit.code_names import has_base
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, NumberedDataset
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge_verl.driver import _actor_of
from batchbridge_verl.engine import WEIGHTS_OF

if TYPE_CHECKING:
    import torch

SAMPLED = 4096
"""Numbers of each tensor that its digest is of, evenly spaced."""
CONFIGURATION = "one_step_off_ppo_trainer"
"""The key that says in a configuration file that it is this program's."""
_WHY = "whose weights generate is counted"


def is_one_step_off(trainer: object) -> bool:
    """Whether `trainer` is that of one_step_off_policy."""
    return has_base(trainer, "verl.experimental.one_step_off_policy.ray_trainer", "OneStepOffRayTrainer")


def as_started(trainer: object, source: Source) -> Source:
    """The configuration of a trainer, as one of the program that builds it."""
    if not is_one_step_off(trainer):
        return source
    return Source(values={"defaults": [CONFIGURATION, "_self_"], **source.values})


def number_dataset(owner: Any, patches: Patches) -> None:
    """Rows of `owner.train_dataset` and of its loader know their index."""
    told = {"what": "rows are told apart", "why": "ledger"}
    dataset = NumberedDataset(owner.train_dataset)
    patches.set(owner, "train_dataset", dataset, **told)
    # torch forbids a loader another dataset, but its iterator reads this entry.
    entries = vars(owner.train_dataloader)
    undo, again = (functools.partial(entries.__setitem__, "dataset", one) for one in (entries["dataset"], dataset))
    again()
    patches.made("train_dataloader.dataset", undo, again=again, **told)


class SeparateEngines:
    """One trainer's hand-overs and rollouts. steps_per_rollout: optimizer steps."""

    def __init__(self, trainer: Any, steps_per_rollout: int, patches: Patches) -> None:
        self._trainer, self._steps, self._patches = trainer, steps_per_rollout, patches
        self._first: int | None = None
        self._rollout = -1

    def begin(self) -> int:
        """The number of the rollout whose prompts are taken now: generation is ahead of `global_steps`."""
        if self._first is None:
            self._first = self._rollout = self._done_before()
        else:
            self._rollout += 1
        return self._rollout

    def _done_before(self) -> int:
        """The rollouts that were trained before this start."""
        return int(self._trainer.global_steps) - 1

    def arrive(self) -> None:
        """Follows the weights in the process that hands them over, and in every one that gives them to an engine."""
        self._everywhere(self._trainer.actor_rollout_wg.workers[:1], _follow_sent, "actor_rollout_wg")
        self._everywhere(self._engines, _follow_held, "llm_server_manager")

    def _everywhere(self, workers: list[Any], follow: Callable[[Any, Any], None], name: str) -> None:
        workers_ray.asked(workers, follow, True)

        def undo() -> None:
            workers_ray.install_everywhere(workers, None, follow)

        self._patches.made(name, undo, what=f"weights are told apart in {len(workers)} processes", why=_WHY)

    @property
    def _engines(self) -> list[Any]:
        return [worker for replica in self._trainer.checkpoint_manager.replicas for worker in replica.workers]

    def generating(self, native: Callable[..., Any], group: int) -> Callable[..., Any]:
        """`generate_sequences` of the trainer's manager: its rows say which completions they are, and which rollout's
        policy they are of. Where nobody waits for it (evaluation), it is the native one."""

        async def generated(prompts: Any, *arguments: Any, **options: Any) -> Any:
            import numpy as np

            columns, held = prompts.non_tensor_batch, self._held()
            columns[SAMPLE] = (np.arange(len(prompts)) % group).astype(object)
            policy = self._policy_of(held, self._sent())
            output = await heard(prompts, *arguments, **options)
            if self._held() != held:
                text = f"weights arrived while rollout {columns[ROLLOUT][0]} was generated; the ledger has the older"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            columns[WEIGHTS_OF] = np.array([policy] * len(prompts), dtype=object)
            for name in (ROLLOUT, PROMPT, POSITION, SAMPLE, WEIGHTS_OF):
                output.non_tensor_batch[name] = columns[name]
            return output

        observation = self._patches.observation
        guarded, heard = observation.guarded(native, generated)

        def generate_sequences(prompts: Any, *arguments: Any, **options: Any) -> Any:
            known = observation.read(lambda: PROMPT in prompts.non_tensor_batch, default=False)
            return (guarded if known else native)(prompts, *arguments, **options)

        return generate_sequences

    def _held(self) -> list[str | None]:
        """The digest of what every engine was given last."""
        return workers_ray.asked(self._engines, _held)

    def _sent(self) -> dict[str, int | None]:
        """The weights that were handed over, as `SentWeights.steps`."""
        (sent,) = workers_ray.asked(self._trainer.actor_rollout_wg.workers[:1], _sent)
        found: dict[str, int | None] = sent
        return found

    def _policy_of(self, held: Sequence[str | None], sent: Mapping[str, int | None]) -> int:
        """The number of rollouts that the generating policy was trained on; where engines hold several, the fewest.

        held: the digest of each engine's weights. sent: digest of weights that the trainer handed over -> the optimizer
        steps done before; None: none since this start.
        """
        told = [digest for digest in held if digest is not None]
        if len(told) < len(held):
            self._untold("an engine that generates was given no weights, or not all of them")
        if not sent.keys() >= set(told):
            self._untold("an engine that generates holds weights that this trainer did not hand over")
        assert self._first is not None, "a rollout is generated once its prompts are taken"
        steps = [sent[digest] for digest in told]
        return min(self._first if done is None else done // self._steps for done in steps)

    def _untold(self, what: str) -> None:
        reason = f"{what}: nothing shows whose completions rollout {self._rollout} has"
        raise CannotAttach({"weights_version": f"{reason}; look at actor_rollout_ref.rollout.checkpoint_engine"})


# ---- in the processes


class SentWeights:
    """The record, beside the training worker of rank 0, of weights that were handed over. steps: digest -> optimizer
    steps done before; None: none since this start."""

    def __init__(self, actor: Any) -> None:
        self.steps: dict[str, int | None] = {}
        self._actor, self.patches = actor, Patches(Observation("observe"))
        told: dict[str, Any] = {"what": "digested", "why": _WHY}
        self._native = self.patches.read(actor.engine, "get_per_tensor_param", self._export, **told)

    def _export(self, *arguments: Any, **options: Any) -> Any:
        weights, config = self._native(*arguments, **options)
        last = self._actor.batchbridge._last
        done = None if last is None else last + 1

        def sent(digest: str) -> None:
            self.steps[digest] = done

        return digested(weights, sent, read=self.patches.observation.read), config


class HandedWeights:
    """The record, beside an engine, of the weights that it was given last. digest: None while it is given something,
    and before. giving: whether that is right now."""

    def __init__(self, worker: Any) -> None:
        self.digest: str | None = None
        self.giving = False
        self.patches = Patches(Observation("observe"))
        form = getattr(worker.checkpoint_engine, "wire_format", "named_tensors")
        if form != "named_tensors":
            reason = f"weights come as {form}, and whole ones alone are told apart; take the checkpoint engine nccl"
            raise CannotAttach({"weights_version": reason})
        told: dict[str, Any] = {"what": "digested", "why": _WHY}
        self._native: Callable[..., Awaitable[Any]]
        self._native = self.patches.read(worker.server_adapter, "update_weights", self._update, **told)

    async def _update(self, weights: Any, *arguments: Any, **options: Any) -> Any:
        arrived: list[str] = []
        self.giving = True
        seen = digested(weights, arrived.append, self._forget, read=self.patches.observation.read)
        try:
            result = await self._native(seen, *arguments, **options)
            if arrived:
                self.digest = arrived[-1]
        finally:
            self.giving = False
        return result

    def _forget(self) -> None:
        self.digest = None


def digested(
    weights: Any,
    done: Callable[[str], None],
    begun: Callable[[], None] = lambda: None,
    *,
    read: Callable[..., Any],
) -> Any:
    """The given (name, tensor) pairs, awaited where they were; `done` gets the digest of all of them once the last one
    was taken, `begun` is called before the first. read: `Observation.read`; where a digest fails there is none."""
    parts: dict[str, bytes] = {}

    def keep(name: str, tensor: torch.Tensor) -> None:
        parts[name] = _digest(tensor)

    def end() -> None:
        whole = hashlib.blake2b(digest_size=16)
        for name in sorted(parts):
            whole.update(name.encode() + b"\0" + parts[name])
        done(whole.hexdigest())

    def plain() -> Iterator[tuple[str, Any]]:
        begun()
        for name, tensor in weights:
            read(keep, name, tensor)
            yield name, tensor
        read(end)

    async def awaited() -> AsyncIterator[tuple[str, Any]]:
        begun()
        async for name, tensor in weights:
            read(keep, name, tensor)
            yield name, tensor
        read(end)

    return awaited() if hasattr(weights, "__aiter__") else plain()


def _digest(tensor: torch.Tensor) -> bytes:
    """The digest of a tensor's form and `SAMPLED` of its numbers."""
    import torch

    flat = tensor.detach().reshape(-1)
    some = flat[:: max(1, -(-flat.numel() // SAMPLED))].contiguous().view(torch.uint8).cpu().numpy().tobytes()
    return hashlib.blake2b(f"{tensor.dtype}{tuple(tensor.shape)}".encode() + some, digest_size=16).digest()


_HERE = "batchbridge_weights"


def _follow(target: Any, made: Callable[[Any], SentWeights | HandedWeights] | None) -> None:
    earlier = vars(target).pop(_HERE, None)
    if earlier is not None:
        earlier.patches.undo()
    if made is not None:
        setattr(target, _HERE, made(target))


def _follow_sent(worker: Any, on: bool | None) -> None:
    """The start of a `SentWeights` inside a Ray actor of the worker group. on: None undoes it."""
    _follow(_actor_of(worker), SentWeights if on else None)


def _follow_held(worker: Any, on: bool | None) -> None:
    """The start of a `HandedWeights` inside a Ray actor of a replica. on: None undoes it."""
    _follow(worker, HandedWeights if on else None)


def _sent(worker: Any) -> dict[str, int | None]:
    """The steps of a `SentWeights`, asked inside a Ray actor of the worker group."""
    found: dict[str, int | None] = getattr(_actor_of(worker), _HERE).steps
    return found


def _held(worker: Any) -> str | None:
    """The digest of a `HandedWeights`, asked inside a Ray actor of a replica."""
    found: str | None = getattr(worker, _HERE).digest
    return found
