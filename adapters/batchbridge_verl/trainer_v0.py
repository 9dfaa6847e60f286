"""The V0 trainer (`RayPPOTrainer`, rows in a `DataProto`) on the plan. Patches one instance, before or after
`init_workers()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from batchbridge.kit.carried_rows import compute_advantage_told, rewrite_advantages, told_by_batch
from batchbridge.kit.identified_rows import POSITION, ROLLOUT, SAMPLE, PlannedLoader
from batchbridge.kit.patches import Patches
from batchbridge.kit.step_driver import RolloutRows
from batchbridge_verl.advantages import GAE, hold_gae
from batchbridge_verl.columns import CARRIED, column
from batchbridge_verl.driver import ReadyResult, VerlCriticDriver, VerlDriver, checkpoint_to_resume, newest_checkpoint
from batchbridge_verl.observe import generates, numbered
from batchbridge_verl.sampling import hand_seeds

NAMED = (ROLLOUT, POSITION, SAMPLE)
"""Columns that say which completion a row is."""


class VerlTrainerV0:
    """The patches of one trainer; the rollout that is being trained on."""

    def __init__(self, trainer: Any, driver: VerlDriver, patches: Patches) -> None:
        self._trainer, self._driver, self._patches = trainer, driver, patches
        self._rows: RolloutRows | None = None
        self._native_init = trainer.init_workers
        self._native_save, self._native_load = trainer._save_checkpoint, trainer._load_checkpoint
        total = driver.rollouts()
        loader = PlannedLoader(
            driver.plan,
            dataset=trainer.train_dataset,
            collate=trainer.train_dataloader.collate_fn,
            rollouts_done=lambda: int(trainer.global_steps) - 1,
            before=driver.hold_settings,
        )
        order, resume = "order and membership of the plan", "exact resume"
        for name, value, what, why in (
            ("train_dataloader", loader, "the plan's prompts, not the sampler's", order),
            ("total_training_steps", total, f"{total} rollouts", "clock of the spec"),
            ("init_workers", self._init_workers, "the workers get their orders", order),
            ("_balance_batch", self._leave, "rows are placed by the step that trains them", order),
            ("_save_checkpoint", self._save, "the place in the plan is saved with it", resume),
            ("_load_checkpoint", self._load, "the plan is held against the file", resume),
        ):
            patches.set(trainer, name, value, what=what, why=why)
        if hasattr(trainer, "_compute_old_log_prob"):
            self._score(trainer, "_compute_old_log_prob", self._old)
            for name in ("_compute_ref_log_prob", *(("_compute_values",) if driver.critic is not None else ())):
                self._score(trainer, name, self._evenly)
        self._computed = compute_advantage_told(patches, "verl.trainer.ppo.ray_trainer", CARRIED)
        if getattr(trainer, "actor_rollout_wg", None) is not None:
            self._arrive()

    def _init_workers(self) -> None:
        self._native_init()
        self._arrive()

    def _score(self, owner: Any, name: str, ours: Callable[[Any, Any], Any]) -> None:
        """Has a function that scores a rollout's rows run through `ours`, which gets it and the rows."""
        native = getattr(owner, name)
        what, why = "the plan's rollout is complete; rows split evenly", "order and membership of the plan"
        self._patches.set(owner, name, lambda batch: ours(native, batch), what=what, why=why)

    def _arrive(self) -> None:
        trainer = self._trainer
        self._driver.install(self._patches)
        if not hasattr(trainer, "_compute_old_log_prob"):  # before verl 0.7.0 `fit` calls the workers
            self._score(trainer.actor_rollout_wg, "compute_log_prob", self._old)
            if trainer.use_reference_policy:
                scoring = trainer.actor_rollout_wg if trainer.ref_in_actor else trainer.ref_policy_wg
                self._score(scoring, "compute_ref_log_prob", self._evenly)
        self._patches.set(
            trainer.actor_rollout_wg,
            "update_actor",
            (self._update_padded if self._driver.legacy else self._update)(trainer.actor_rollout_wg.update_actor),
            what="one call per planned optimizer step",
            why="membership of the plan",
        )
        if self._driver.critic is not None:
            self._patches.set(
                trainer.critic_wg,
                "train_mini_batch",
                self._update_critic(self._driver.critic, trainer.critic_wg.train_mini_batch),
                what="one call per planned optimizer step of the critic",
                why="membership of the critic's plan",
            )
        generator = generates(trainer)
        if hasattr(generator, "agent_loop_workers"):
            hand_seeds(generator, trainer.config.actor_rollout_ref.rollout.name, self._patches)
        self._patches.set(
            generator,
            "generate_sequences",
            numbered(generator.generate_sequences, self._driver.plan.completions_per_prompt),
            what="each row knows its sample's number",
            why="membership of the plan",
        )

    # ---- a rollout

    @staticmethod
    def _leave(batch: Any, metrics: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Replaces balancing."""

    def _old(self, native: Any, batch: Any) -> Any:
        columns = batch.non_tensor_batch
        lengths = batch.batch["attention_mask"].sum(-1).tolist()
        self._identify([columns[name] for name in NAMED], lengths)
        return self._evenly(native, batch)

    def _identify(self, columns: Sequence[Sequence[Any]], lengths: Sequence[int]) -> RolloutRows:
        """The rows of a rollout that has arrived. columns: `NAMED`."""
        rollouts, positions, samples = columns
        places = enumerate(zip(positions, samples, strict=True))
        arrived = {(int(position), int(sample)): row for row, (position, sample) in places}
        rollout = int(rollouts[0])
        self._driver.expect_rollout(rollout, arrived)
        costs = {row: int(lengths[arrived[row]]) for row in sorted(arrived)}
        self._rows = RolloutRows(rollout, costs, {row: arrived[row] for row in costs})
        return self._rows

    def _rows_of(self, batch: Any) -> RolloutRows:
        """The rows of a TensorDict. With the sampler's log-probabilities as the old ones, nothing was scored, and they
        are seen here first."""
        columns = [column(batch, name) for name in NAMED]
        if self._rows is None or self._rows.index != int(columns[0][0]):
            return self._identify(columns, batch["attention_mask"].sum(-1).tolist())
        return self._rows

    def _evenly(self, native: Any, batch: Any) -> Any:
        """The scores of a batch, which is scored with copies of its first rows, as many as verl's split needs; from
        verl 0.7.0 on the old log-probabilities come with a utilisation."""
        from verl.protocol import pad_dataproto_to_divisor

        padded, extra = pad_dataproto_to_divisor(batch, self._driver.ranks * (self._driver.forward_rows or 1))
        made = native(padded)
        return (_cut(made[0], extra), *made[1:]) if isinstance(made, tuple) else _cut(made, extra)

    def _tell(self, batch: Any, rows: RolloutRows) -> None:
        """Puts the rule's advantages in place of verl's, and digests of all rows beside the steps. `BatchDrift` where
        the batch is no more what it was when its advantages were computed."""
        marks = column(batch, POSITION), column(batch, SAMPLE)
        self._computed.require(batch, *marks, self._driver.generated_at(rows.index))
        rewrite_advantages(batch, rows, self._driver)
        self._driver.digests = told_by_batch(batch, CARRIED, *marks)

    def _update(self, native: Any) -> Any:
        def update_actor(batch: Any) -> Any:
            from verl.utils import tensordict_utils as tu

            rows = self._rows_of(batch)
            self._tell(batch, rows)
            rows.fillers = [None] * self._driver.fillers_needed(rows)

            def send(places: list[int | None], values: dict[str, Any]) -> Any:
                part = selected(batch, places)
                tu.assign_non_tensor(part, **values)
                return tu.get(native(part), "metrics")

            metrics = self._driver.train(rows.index, rows, send)
            return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": metrics})

        return update_actor

    def _update_padded(self, native: Any) -> Any:
        """The update of legacy workers, whose batches are a `DataProto` of padded rows."""

        def update_actor(batch: Any) -> Any:
            from verl import DataProto

            rows, marks = self._rows, [batch.non_tensor_batch[name] for name in (POSITION, SAMPLE)]
            assert rows is not None, "rows are identified before they are trained on"
            self._computed.require(batch.batch, marks[0], marks[1], self._driver.generated_at(rows.index))
            rewrite_advantages(batch.batch, rows, self._driver)
            self._driver.digests = told_by_batch(batch.batch, CARRIED, *marks)
            rows.fillers = [None] * self._driver.fillers_needed(rows)

            def send(places: list[int | None], values: dict[str, Any]) -> Any:
                part = selected_padded(batch, places)
                lengths = part.batch["attention_mask"].sum(-1).tolist()
                part.meta_info = {**batch.meta_info, **values, "global_token_num": lengths}
                return native(part).meta_info["metrics"]

            return DataProto(meta_info={"metrics": self._driver.train(rows.index, rows, send)})

        return update_actor

    def _update_critic(self, critic: VerlCriticDriver, native: Any) -> Any:
        def train_mini_batch(batch: Any) -> ReadyResult:
            from verl.utils import tensordict_utils as tu

            rows = self._rows_of(batch)
            hold_gae({name: batch[name] for name in GAE}, self._driver.plan, rows.index)
            critic.digests = told_by_batch(batch, CARRIED, column(batch, POSITION), column(batch, SAMPLE))
            rows.fillers = [None] * self._driver.fillers_needed(rows)

            def send(places: list[int | None], values: dict[str, Any]) -> Any:
                part = selected(batch, places)
                tu.assign_non_tensor(part, **values)
                return tu.get(native(part).get(), "metrics")

            return ReadyResult(critic.train(rows.index, rows, send))

        return train_mini_batch

    # ---- checkpoints

    def _save(self) -> None:
        trainer = self._trainer
        folder = Path(trainer.config.trainer.default_local_dir) / f"global_step_{trainer.global_steps}"
        self._driver.save(folder, trainer.global_steps)
        self._native_save()

    def _load(self) -> Any:
        self._driver.begin(self._trainer, checkpoint_to_resume(self._trainer), newest_checkpoint(self._trainer))
        return self._native_load()


def selected(batch: Any, places: list[int | None]) -> Any:
    """The rows of a TensorDict at `places`, in this order; None is a filler: the first row with nothing to train."""
    from verl.utils import tensordict_utils as tu

    part = tu.index_select_tensor_dict(batch, [0 if place is None else place for place in places])
    spare = [row for row, place in enumerate(places) if place is None]
    for name in ("loss_mask", "response_mask", "advantages"):
        part[name] = part[name].clone()
        part[name][spare] = 0
    own = column(part, POSITION)
    marks = [-1 if place is None else int(value) for place, value in zip(places, own, strict=True)]
    tu.assign_non_tensor_stack(part, POSITION, marks)
    return part


def selected_padded(batch: Any, places: list[int | None]) -> Any:
    """The rows of a `DataProto` at `places`, in this order; None is a filler, as in `selected`."""
    part = batch[[0 if place is None else place for place in places]]
    spare = [row for row, place in enumerate(places) if place is None]
    for name in ("response_mask", "advantages"):
        part.batch[name][spare] = 0
    part.non_tensor_batch[POSITION][spare] = -1
    return part


def _cut(output: Any, extra: int) -> Any:
    from verl.protocol import unpad_dataproto

    return unpad_dataproto(output, extra)
