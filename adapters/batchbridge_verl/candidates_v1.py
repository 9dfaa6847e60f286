"""The V1 trainer where rewards or timing decide which prompts fill a rollout: filter_groups, colocate_async.

Candidates are offered in the plan's order, and a rollout takes those that verl kept, lowest number first. With a filter
and synchronous generation that is a function of the rewards alone: verl takes a rollout's groups only when nothing that
it offered is still running, and the next rollout's candidates begin after the last one that was taken. Those offered
beyond it, which verl throws away, are offered again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit import CandidatePlan
from batchbridge.kit.identified_rows import POSITION, ROLLOUT, SEED
from batchbridge.kit.patches import Patches
from batchbridge_verl.driver import VerlDriver
from batchbridge_verl.engine import WEIGHTS_OF
from batchbridge_verl.trainer_v1 import VerlTrainerV1, name_of, objects


class VerlCandidatesV1(VerlTrainerV1):
    """The patches of one trainer; the number of the next candidate."""

    def __init__(self, trainer: Any, driver: VerlDriver, plan: CandidatePlan, patches: Patches) -> None:
        self._candidates, self._next = plan, 0
        self._ahead = trainer.trainer_mode != "sync"
        super().__init__(trainer, driver, patches)
        buffer = trainer.replay_buffer
        self._native_select = buffer._select_prompt_uids
        why = "order and membership of the plan"
        patches.set(buffer, "_select_prompt_uids", self._select, what="the candidates with the lowest numbers", why=why)

    def _prompts(self, num_prompts: int | None = None) -> Any:
        plan, start = self._candidates, self._next
        self._next = stop = start + (num_prompts or plan.prompts_per_rollout)
        seeds = {SEED: list(plan.candidate_seeds(start, stop))}
        return self._batch_of(plan.candidates(start, stop), [f"c{number}" for number in range(start, stop)], seeds)

    def _select(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        """Replaces the choice among what is ready, which natively is a set's order."""
        if partition_id != "train":
            return self._native_select(partition_id, sampleable_keys, batch_size)
        chosen = sorted(sampleable_keys, key=_number)[:batch_size]
        if not self._ahead:
            self._next = _number(chosen[-1]) + 1
        return chosen, *self._native_select(partition_id, sampleable_keys, 0)[1:]

    def _arrived(self, batch: Any) -> dict[tuple[int, int], tuple[str, int]]:
        import transfer_queue as tq
        from verl.utils import tensordict_utils as tu

        names = [name_of(key) for key in batch.keys]
        place = {uid: index for index, uid in enumerate(sorted({uid for uid, _ in names}, key=_number))}
        # Weights are numbered by the rollouts done when they were sent; an agent loop may leave the number out.
        versions = [tag.get("min_global_steps") for tag in batch.tags]
        dispatched = [tag["global_steps"] - 1 for tag in batch.tags]
        columns = {
            ROLLOUT: [self._rollout] * len(names),
            POSITION: [place[uid] for uid, _ in names],
            WEIGHTS_OF: [known if known is not None else at for known, at in zip(versions, dispatched, strict=True)],
        }
        fields = tu.get_tensordict({name: objects(values) for name, values in columns.items()})
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)
        return {
            (place[uid], sample): (key, tag["seq_len"])
            for key, tag, (uid, sample) in zip(batch.keys, batch.tags, names, strict=True)
        }

    def _memory(self) -> dict[str, int]:
        return {"next_candidate": self._next}

    def _remember(self, state: Mapping[str, Any]) -> None:
        if "next_candidate" not in state:
            raise CannotAttach(
                {"resume": "the checkpoint is of a run without candidates: its place among them is unknown"}
            )
        self._next = int(state["next_candidate"])


def _number(uid: str) -> int:
    return int(uid[1:])
