"""Observing: the native run as it is, with every completion identified and every applied weight measured.

The rows get columns that say which prompt they are; order, membership, loss and clock stay verl's. In mode "verify" the
engine layer holds each optimizer step against the plan before it is applied. Where engines have devices of their own,
they get one that says whose weights generated them, too (`apart`, `queued`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.carried_rows import ComputedRows, compute_advantage_told, hold_sent
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.rollout_observer import RolloutObserver
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.workers import Orders
from batchbridge_verl.advantages import held_in_queue, keys_of_rows
from batchbridge_verl.apart import SeparateEngines, is_one_step_off, number_dataset
from batchbridge_verl.columns import CARRIED, column, told_by_keys
from batchbridge_verl.driver import install_everywhere, read_by_producers
from batchbridge_verl.queued import QueuedTrainer, is_fully_async
from batchbridge_verl.refusals import run_of


class VerlObserver(RolloutObserver):
    """The patches of one trainer: V1, V0, V0's kind whose engines have devices of their own, or that with a queue."""

    def __init__(self, trainer: Any, request: Request, orders: Orders, patches: Patches) -> None:
        super().__init__(request, orders, lambda: read_by_producers(trainer.config))
        self._trainer, self._patches = trainer, patches
        self._legacy = run_of(request).legacy
        self._computed: ComputedRows | None = None
        if is_fully_async(trainer):
            self.receipts = QueuedTrainer(trainer, orders, patches).receipts
            return
        self._apart = SeparateEngines(trainer, orders.steps_per_rollout, patches) if is_one_step_off(trainer) else None
        number_dataset(trainer, patches)
        if hasattr(trainer, "_fetch_one_gen_batch"):
            patches.set(trainer, "_init_dataloader", lambda: None, what="loaded already, for its length", why="ledger")
            self._native_fetch = self._read("_fetch_one_gen_batch", self._fetch)
            self._native_load = self._read("_load_checkpoint", self._load)
            if self._held is not None:
                what, why = "held, and digests of what its rows carry ride with it", "inputs of the step"
                held: dict[str, Any] = {"what": what, "why": why}
                self._native_advantage = patches.set(trainer, "_compute_advantage", self._advantages_v1, **held)
        else:
            if self._held is not None:
                self._computed = compute_advantage_told(patches, "verl.trainer.ppo.ray_trainer", CARRIED)
            self._native_split = self._read("_get_gen_batch", self._split)
            self._native_init = self._read("init_workers", self._init_workers)
        if getattr(trainer, "actor_rollout_wg", None) is not None:
            self._arrive()

    def _read(self, name: str, ours: Callable[..., Any]) -> Any:
        return self._patches.read(self._trainer, name, ours, what="rows are told apart", why="ledger")

    def _arrive(self) -> None:
        trainer = self._trainer
        self.receipts = install_everywhere(trainer.actor_rollout_wg, self._orders, self._patches)
        if self._apart is not None:
            self._apart.arrive()
        if self._computed is not None and self._held is not None:
            group, what = trainer.actor_rollout_wg, "digests of what its rows carry ride with it"
            telling = self._update_padded if self._legacy else self._update
            update = telling(self._computed, self._held, group.update_actor)
            self._patches.set(group, "update_actor", update, what=what, why="inputs of the step")
        if not hasattr(trainer, "_fetch_one_gen_batch"):
            manager = generates(trainer)
            group = self._orders.spec.rollout.completions_per_prompt
            told: dict[str, Any] = {"what": "rows are told apart", "why": "ledger"}
            if self._apart is not None:
                value = self._apart.generating(manager.generate_sequences, group)
                self._patches.set(manager, "generate_sequences", value, **told)
                return
            native: Any = None
            ours = numbered(lambda *arguments, **options: native(*arguments, **options), group)
            native = self._patches.read(manager, "generate_sequences", ours, **told)

    # ---- V1

    def _fetch(self) -> Any:
        from verl.utils import tensordict_utils as tu

        self._begin()
        batch = self._native_fetch()
        size = len(batch)
        for name, values in ((ROLLOUT, [self._rollout] * size), (POSITION, list(range(size)))):
            tu.assign_non_tensor_stack(batch, name, values)
        return batch

    def _advantages_v1(self, batch: Any, metrics: dict[str, Any]) -> Any:
        made = self._native_advantage(batch, metrics)
        group = self._orders.spec.rollout.completions_per_prompt or 1
        assert self._held is not None, "patched where they are held"
        held_in_queue(self._trainer, made, self._held, group, self._next_step)
        made.extra_info[ROW_DIGESTS] = told_by_keys(made, keys_of_rows(made))
        return made

    def _load(self) -> None:
        self._arrive()
        self._native_load()

    # ---- V0

    def _update(self, computed: ComputedRows, held: HeldAdvantages, native: Any) -> Any:
        def update_actor(batch: Any) -> Any:
            from verl.utils import tensordict_utils as tu

            marks = column(batch, POSITION), column(batch, SAMPLE)
            digests = hold_sent(computed, held, batch, *marks, self._next_step)
            tu.assign_non_tensor(batch, **{ROW_DIGESTS: digests})
            return native(batch)

        return update_actor

    def _update_padded(self, computed: ComputedRows, held: HeldAdvantages, native: Any) -> Any:
        """The update of legacy workers, whose batches are a `DataProto`."""

        def update_actor(batch: Any) -> Any:
            marks = batch.non_tensor_batch[POSITION], batch.non_tensor_batch[SAMPLE]
            batch.meta_info[ROW_DIGESTS] = hold_sent(computed, held, batch.batch, *marks, self._next_step)
            try:
                return native(batch)
            finally:
                del batch.meta_info[ROW_DIGESTS]

        return update_actor

    def _split(self, batch: Any) -> Any:
        import numpy as np

        self._begin()
        size, rollout = len(batch), self._rollout
        if self._apart is not None and PROMPT in batch.non_tensor_batch:  # else it is evaluated
            rollout = self._apart.begin()
        batch.non_tensor_batch[ROLLOUT] = np.array([rollout] * size, dtype=object)
        batch.non_tensor_batch[POSITION] = np.array(range(size), dtype=object)
        return self._native_split(batch)

    def _init_workers(self) -> None:
        self._native_init()
        self._arrive()

    @property
    def _rollout(self) -> int:
        return int(self._trainer.global_steps) - 1


def generates(trainer: Any) -> Any:
    """The object whose `generate_sequences` the V0 trainer calls: its manager of agent loops, or the workers
    themselves. Source: verl 0.6.1 RayPPOTrainer.init_workers, `rollout.mode`; since 0.7.0 the manager alone."""
    return getattr(trainer, "async_rollout_manager", None) or trainer.actor_rollout_wg


def numbered(native: Any, group: int) -> Any:
    """`generate_sequences` of the V0 trainer's manager, each row knowing its sample's number: prompts are repeated in
    place, `group` times. Source: verl 0.9.1 ray_trainer.RayPPOTrainer.fit; the manager keeps the rows' order, and
    returns their columns only where a reward model asks for them (agent_loop.py:1104)."""

    def generate_sequences(prompts: Any, *arguments: Any, **options: Any) -> Any:
        import numpy as np

        columns = prompts.non_tensor_batch
        if PROMPT not in columns:
            return native(prompts, *arguments, **options)
        columns[SAMPLE] = (np.arange(len(prompts)) % group).astype(object)
        output = native(prompts, *arguments, **options)
        for name in (ROLLOUT, PROMPT, POSITION, SAMPLE):
            output.non_tensor_batch[name] = columns[name]
        return output

    return generate_sequences
