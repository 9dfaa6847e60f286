"""The V1 trainer (verl 0.9: `PPOTrainerSync`, rows in TransferQueue) on the plan. Patches one instance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SEED
from batchbridge.kit.patches import Patches
from batchbridge.kit.step_driver import RolloutRows
from batchbridge_verl.advantages import hold_advantages, rewrite_advantages
from batchbridge_verl.columns import told_by_queue
from batchbridge_verl.driver import ReadyResult, VerlCriticDriver, VerlDriver, checkpoint_to_resume, newest_checkpoint
from batchbridge_verl.sampling import hand_seeds


class VerlTrainerV1:
    """The patches of one trainer; the rollout that is being trained on."""

    def __init__(self, trainer: Any, driver: VerlDriver, patches: Patches) -> None:
        self._trainer, self._driver, self._patches = trainer, driver, patches
        # The one that the plan is of, as verl's own data loader keeps the one that it was built with.
        self._dataset = trainer.train_dataset
        self._rows: RolloutRows | None = None
        self._native_fit, self._native_step = trainer.fit, trainer._step_once
        self._native_advantage = trainer._compute_advantage
        self._native_save, self._native_load = trainer._save_checkpoint, trainer._load_checkpoint
        order, resume = "order and membership of the plan", "exact resume"
        for name, value, what, why in (
            (
                "_init_dataloader",
                self._clock,
                "the dataset is loaded already; the plan's rollouts",
                "clock of the spec",
            ),
            ("fit", self._fit, "every request has its completion's seed", "rollout identity"),
            ("_next_train_batch", self._prompts, "the plan's prompts, not the data loader's", order),
            ("_step_once", self._step, "waits for the planned rollout, however long", order),
            ("_balance_batch", self._place, "rows by what they cost; arrival order forgotten", order),
            ("_compute_advantage", self._advantages, "by the spec's rule", "advantage of the spec"),
            ("_save_checkpoint", self._save, "the place in the plan is saved with it", resume),
            ("_load_checkpoint", self._load, "the workers get their orders; the plan is held against the file", resume),
        ):
            patches.set(trainer, name, value, what=what, why=why)
        loader, why = trainer.train_dataloader, "the plan holds the place in the data"
        # Asking it for its state would start its worker processes.
        patches.set(loader, "state_dict", dict, what="no state", why=why)
        patches.set(loader, "load_state_dict", lambda state: None, what="no state", why=why)
        self._clock()

    # ---- clock

    def _clock(self) -> None:
        trainer, plan = self._trainer, self._driver.plan
        total = self._driver.rollouts()
        self._patches.set(trainer, "total_training_steps", total, what=f"{total} rollouts", why="horizon of the spec")
        # The native loop also ends when steps_per_epoch says that total_epochs are over.
        epoch = plan.rollouts_per_epoch or total
        last_epoch = -(-total // max(epoch, 1))
        if last_epoch > trainer.config.trainer.total_epochs:
            epoch = total
        self._patches.set(
            trainer, "steps_per_epoch", max(epoch, 1), what=f"{epoch} rollouts", why="horizon of the spec"
        )

    def _arrive(self) -> None:
        self._driver.install(self._patches)
        self._patches.set(
            self._trainer.actor_rollout_wg,
            "update_actor",
            self._update(self._trainer.actor_rollout_wg.update_actor),
            what="one call per planned optimizer step",
            why="membership of the plan",
        )
        if self._driver.critic is not None:
            group = self._trainer.critic_wg
            self._patches.set(
                group,
                "train_mini_batch",
                self._update_critic(self._driver.critic, group.train_mini_batch),
                what="one call per planned optimizer step of the critic",
                why="membership of the critic's plan",
            )

    def _fit(self, agent_loop_manager: Any) -> Any:
        hand_seeds(agent_loop_manager, self._trainer.config.actor_rollout_ref.rollout.name, self._patches)
        return self._native_fit(agent_loop_manager)

    @property
    def _rollout(self) -> int:
        return int(self._trainer.global_steps) - 1

    # ---- a rollout

    def _prompts(self, num_prompts: int | None = None) -> Any:
        planned = self._driver.plan.rollout(self._rollout)
        prompts = planned.prompts
        if num_prompts not in (None, len(prompts)):
            raise CannotAttach({"refill": f"verl asks for {num_prompts} more prompts: the plan has none in reserve"})
        places = range(len(prompts))
        columns = {
            ROLLOUT: [planned.index] * len(prompts),
            POSITION: list(places),
            SEED: list(self._driver.plan.sampling_seeds(planned.index)),
        }
        # verl cuts the keys of trajectories at "_".
        return self._batch_of(prompts, [f"r{planned.index}p{place}" for place in places], columns)

    def _batch_of(self, prompts: Sequence[int], uids: list[str], columns: Mapping[str, list[int]]) -> Any:
        """A batch of the given prompts as verl's data loader would make it, under these names and with `columns`."""
        from verl.utils import tensordict_utils as tu
        from verl.utils.dataset.rl_dataset import collate_fn

        self._driver.hold_settings(self._rollout)
        trainer, group = self._trainer, self._driver.plan.completions_per_prompt
        made = collate_fn([self._dataset[prompt] for prompt in prompts])
        more: dict[str, list[Any]] = {"uid": uids, PROMPT: list(prompts), **columns}
        if group != trainer.config.actor_rollout_ref.rollout.n:
            more["__rollout_n__"] = [group] * len(prompts)
        made |= {name: objects(values) for name, values in more.items()}
        batch = tu.get_tensordict(made)
        tu.assign_non_tensor_data(batch, "global_steps", trainer.global_steps)
        return batch

    def _step(self, metrics: dict[str, Any], timing_raw: dict[str, Any], sample_batch_size: int) -> Any:
        return self._native_step(metrics, timing_raw, len(self._driver.plan.rollout(self._rollout).prompts))

    def _place(self, batch: Any, metrics: dict[str, Any], *arguments: Any, **options: Any) -> Any:
        """Replaces balancing: the whole rollout for the forward passes, with every filler row that a step will need."""
        import transfer_queue as tq
        from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
        from verl.utils import tensordict_utils as tu

        driver, rollout = self._driver, self._rollout
        arrived = self._arrived(batch)
        driver.expect_rollout(rollout, arrived)
        costs = {row: arrived[row][1] for row in sorted(arrived)}
        rows = RolloutRows(rollout, costs, {row: arrived[row][0] for row in costs})
        if count := driver.fillers_needed(rows):
            real = len(batch)
            batch = upsample_batch_to_divisible_size(batch, real + count, self._trainer.tokenizer.eos_token_id)
            rows.fillers = list(batch.keys[real:])
            marks = tu.get_tensordict({POSITION: objects([-1] * count)})
            tq.kv_batch_put(keys=rows.fillers, partition_id=batch.partition_id, fields=marks)
        spare = iter(rows.fillers)
        order = driver.rollout_order(rows, len(rows.fillers))
        batch = _selected(batch, [next(spare) if row is None else rows.places[row] for row in order])
        loads = [tag["seq_len"] for tag in batch.tags]
        share = len(loads) // driver.ranks
        per_rank = [sum(loads[rank * share : (rank + 1) * share]) for rank in range(driver.ranks)]
        metrics.update({"global_seqlen/max": max(per_rank), "global_seqlen/min": min(per_rank)})
        metrics["global_seqlen/minmax_diff"] = max(per_rank) - min(per_rank)
        self._rows = rows
        return batch

    def _arrived(self, batch: Any) -> dict[tuple[int, int], tuple[str, int]]:
        """(position, sample) -> key and tokens of what arrived for this rollout."""
        found = {}
        for key, tag in zip(batch.keys, batch.tags, strict=True):
            uid, sample = name_of(key)
            made_in, _, position = uid[1:].partition("p")
            if int(made_in) == self._rollout:
                found[int(position), sample] = key, tag["seq_len"]
        return found

    def _advantages(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = self._native_advantage(batch, metrics)
        assert self._rows is not None, "rows are placed before their advantages are computed"
        rewrite_advantages(self._trainer, batch, self._rows, self._driver)
        if self._driver.critic is not None:
            hold_advantages(self._trainer, batch, self._rows, self._driver.plan)
        self._driver.digests = told_by_queue(batch, self._rows)
        if self._driver.critic is not None:
            self._driver.critic.digests = self._driver.digests
        return batch

    def _update(self, native: Any) -> Any:
        def update_actor(batch: Any) -> Any:
            from verl.utils import tensordict_utils as tu

            rows = self._rows
            assert rows is not None, "rows are placed before they are trained on"

            def send(keys: list[str], values: dict[str, Any]) -> Any:
                part = _selected(batch, keys)
                part.extra_info = {**batch.extra_info, **values}
                return tu.get(native(part), "metrics")

            metrics = self._driver.train(rows.index, rows, send)
            return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics})

        return update_actor

    def _update_critic(self, critic: VerlCriticDriver, native: Any) -> Any:
        def train_mini_batch(batch: Any) -> ReadyResult:
            rows = self._rows
            assert rows is not None, "rows are placed before they are trained on"

            def send(keys: list[str], values: dict[str, Any]) -> Any:
                part = _selected(batch, keys)
                part.extra_info = {**batch.extra_info, **values}
                return native(part).get()["metrics"]

            return ReadyResult(critic.train(rows.index, rows, send))

        return train_mini_batch

    # ---- checkpoints

    def _save(self) -> None:
        trainer = self._trainer
        folder = Path(trainer.config.trainer.default_local_dir) / f"global_step_{trainer.global_steps}"
        self._driver.save(folder, trainer.global_steps, **self._memory())
        self._native_save()

    def _load(self) -> None:
        saved = self._driver.begin(self._trainer, checkpoint_to_resume(self._trainer), newest_checkpoint(self._trainer))
        self._arrive()
        if saved:
            self._remember(saved)
        self._native_load()

    def _memory(self) -> dict[str, int]:
        """The entries of a checkpoint beside the place in the plan."""
        return {}

    def _remember(self, state: Mapping[str, Any]) -> None:
        """Goes on from what a checkpoint remembers."""


def name_of(key: str) -> tuple[str, int]:
    """The prompt's name and the sample's number in a trajectory's key. Source: verl 0.9.1 ppo/v1/replay_buffer.py."""
    uid, sample, output = key.rsplit("_", 2)
    if output != "0":
        reason = f"the agent loop gave several outputs for one session ({key}); the plan counts completions"
        raise CannotAttach({"trajectories": reason})
    return uid, int(sample)


def objects(values: Sequence[Any]) -> Any:
    """A column of plain values, as verl's data loader gives them."""
    import numpy as np

    column = np.empty(len(values), dtype=object)
    column[:] = values
    return column


def _selected(batch: Any, keys: list[str]) -> Any:
    """The rows of a `KVBatchMeta` under `keys`, in this order."""
    return batch.select_keys(keys)
