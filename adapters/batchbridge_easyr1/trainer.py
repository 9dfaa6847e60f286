"""EasyR1's `RayPPOTrainer` on the plan. Patches one instance, before or after `init_workers()`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge import CannotAttach
from batchbridge.kit import CandidatePlan, Request, workers_ray
from batchbridge.kit.carried_rows import (
    ComputedRows,
    compute_advantage_told,
    hold_sent,
    rewrite_advantages,
    told_by_batch,
)
from batchbridge.kit.checkpoints import FSDP_SHARDS
from batchbridge.kit.identified_rows import (
    POSITION,
    PROMPT,
    ROLLOUT,
    SAMPLE,
    SEED,
    STEP,
    NumberedDataset,
    PlannedLoader,
)
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.ranks import layout
from batchbridge.kit.rollout_observer import RolloutObserver
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.step_driver import RolloutRows, StepDriver, merged
from batchbridge.kit.workers import Orders, Receipt
from batchbridge_easyr1.images import require
from batchbridge_easyr1.inputs import CARRIED, PRODUCER, read_by_producers
from batchbridge_easyr1.sampling import SeededLoader

CANDIDATE = "batchbridge_candidate"
"""Column: a row's candidate, by its number."""


class EasyR1Driver(StepDriver):
    """The plan, the workers, and the cut of a rollout into steps."""

    other_ranks = FSDP_SHARDS

    def __init__(self, trainer: Any, request: Request, orders: Orders) -> None:
        self._trainer, self._actor = trainer, trainer.config.worker.actor
        super().__init__(request, orders)

    def settings_read(self) -> Mapping[str, Any]:
        """The settings that generation, rewards and advantages read; see `read_by_producers`."""
        return read_by_producers(self._trainer)

    @property
    def model(self) -> str | None:
        """The policy's model, as EasyR1 is told it."""
        return getattr(getattr(self._actor, "model", None), "model_path", None)

    def install(self, patches: Patches) -> None:
        """Gives every training worker its orders. Raises `CannotAttach` unless every one answers with the same, and its
        loss is the plan's."""
        self.receipts = install_everywhere(self._trainer.actor_rollout_ref_wg, self.orders, patches)

    @property
    def ranks(self) -> int:
        return self.shards // int(self._actor.ulysses_size)

    @property
    def shards(self) -> int:
        return int(self._trainer.actor_rollout_ref_wg.world_size)

    def require_images(self, columns: Mapping[str, Any]) -> None:
        """Refusal (`CannotAttach`) of a rollout whose images cannot follow their rows."""
        require(columns, ranks=self.ranks, padding_free=self._actor.padding_free)

    @property
    def rows_per_micro_batch(self) -> int | None:
        return self._whole(self._actor.micro_batch_size_per_device_for_update)

    @property
    def forward_rows(self) -> int | None:
        return self._whole(self._actor.micro_batch_size_per_device_for_experience)

    def _whole(self, fixed: int) -> int | None:
        """Rows of which a replica has whole numbers: of its micro-batches where they are `fixed`, and for its ranks,
        which are sent a part each and put them together; None: of single ones. Source: EasyR1
        FSDPUlyssesShardingManager.preprocess_data."""
        together = int(self._actor.ulysses_size)
        if self._actor.dynamic_batching:
            return together if together > 1 else None
        return math.lcm(int(fixed), together)


class EasyR1PlanPatches:
    """The patches of one trainer; the rollout that is being trained on."""

    def __init__(self, trainer: Any, driver: EasyR1Driver, patches: Patches) -> None:
        self._trainer, self._driver, self._patches = trainer, driver, patches
        self._rows: RolloutRows | None = None
        self._native_init, self._native_make = trainer.init_workers, trainer._make_batch_data
        self._native_save, self._native_load = trainer._save_checkpoint, trainer._load_checkpoint
        self._computed = compute_advantage_told(patches, PRODUCER, CARRIED)
        total = driver.rollouts()
        self._candidates, loader = None, self._planned_loader()
        if isinstance(driver.plan, CandidatePlan):
            loader = self._candidates = self._candidate_loader(driver.plan)
        self._loader = loader = SeededLoader(loader)
        order, resume = "order and membership of the plan", "exact resume"
        for name, value, what, why in (
            ("train_dataloader", loader, "the plan's prompts, not the sampler's", order),
            ("training_steps", total, f"{total} rollouts", "clock of the spec"),
            ("init_workers", self._init_workers, "the workers get their orders", order),
            ("_make_batch_data", self._make_batch, "the plan's rollout is complete, its rows are known", order),
            ("_balance_batch", self._leave, "rows are placed by the step that trains them", order),
            ("_save_checkpoint", self._save, "the place in the plan is saved with it", resume),
            ("_load_checkpoint", self._load, "the plan is held against the file", resume),
        ):
            patches.set(trainer, name, value, what=what, why=why)
        if getattr(trainer, "actor_rollout_ref_wg", None) is not None:
            self._arrive()

    def _planned_loader(self) -> Any:
        trainer, native = self._trainer, self._trainer.train_dataloader
        return PlannedLoader(
            self._driver.plan,
            dataset=native.dataset,
            collate=native.collate_fn,
            rollouts_done=lambda: int(trainer.global_step) - 1,
            prompts_at_once=trainer.config.data.mini_rollout_batch_size,
        )

    def _candidate_loader(self, plan: CandidatePlan) -> CandidateLoader:
        native, at_once = self._trainer.train_dataloader, self._trainer.config.data.mini_rollout_batch_size
        return CandidateLoader(
            plan,
            dataset=native.dataset,
            collate=native.collate_fn,
            prompts_at_once=at_once or plan.prompts_per_rollout,
        )

    def _init_workers(self) -> None:
        self._native_init()
        self._arrive()

    def _arrive(self) -> None:
        self._driver.install(self._patches)
        group, order = self._trainer.actor_rollout_ref_wg, "membership of the plan"
        for name, patch, what in (
            ("generate_sequences", self._generate, "any number of prompts, each with its completions' seeds"),
            ("compute_log_probs", self._forward, "rows split evenly"),
            ("compute_ref_log_probs", self._forward, "rows split evenly"),
            ("update_actor", self._update, "one call per planned optimizer step"),
        ):
            self._patches.set(group, name, patch(getattr(group, name)), what=what, why=order)

    # ---- a rollout

    @staticmethod
    def _leave(batch: Any, metrics: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Replaces balancing."""

    def _make_batch(self, metrics: dict[str, Any]) -> Any:
        trainer, driver = self._trainer, self._driver
        rollout = int(trainer.global_step) - 1
        driver.hold_settings(rollout)
        data = trainer.config.data
        own, data.rollout_batch_size = data.rollout_batch_size, len(driver.plan.rollout(rollout).prompts)
        try:
            batch = self._native_make(metrics)
        finally:
            data.rollout_batch_size = own
        number_samples(batch, driver.plan.completions_per_prompt)
        columns = batch.non_tensor_batch
        driver.require_images(columns)
        if self._candidates is not None:
            self._take(self._candidates, columns, rollout)
        arrived = {
            (int(position), int(sample)): row
            for row, (position, sample) in enumerate(zip(columns[POSITION], columns[SAMPLE], strict=True))
        }
        driver.expect_rollout(rollout, arrived)
        lengths = lengths_of(batch)
        costs = {row: lengths[arrived[row]] for row in sorted(arrived)}
        self._rows = RolloutRows(rollout, costs, {row: arrived[row] for row in costs})
        return batch

    def _take(self, loader: CandidateLoader, columns: dict[str, Any], rollout: int) -> None:
        """The candidates that were kept fill the rollout's places, lowest number first; those generated beyond the last
        of them, which EasyR1 throws away, are offered again."""
        import numpy as np

        loader.next = int(columns[CANDIDATE][-1]) + 1
        size, group = len(columns[CANDIDATE]), self._driver.plan.completions_per_prompt
        columns[ROLLOUT] = np.array([rollout] * size, dtype=object)
        columns[POSITION] = (np.arange(size) // group).astype(object)

    def _generate(self, native: Any) -> Any:
        def generate_sequences(prompts: Any) -> Any:
            from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

            if (seeds := self._loader.take(len(prompts))) is not None:
                prompts.non_tensor_batch[SEED] = seeds
            padded, extra = pad_dataproto_to_divisor(prompts, self._driver.shards)
            group = prompts.meta_info.get("n", self._trainer.config.worker.rollout.n)
            try:
                return unpad_dataproto(native(padded), extra * group)
            finally:
                prompts.non_tensor_batch.pop(SEED, None)

        return generate_sequences

    def _forward(self, native: Any) -> Any:
        def compute(batch: Any) -> Any:
            driver = self._driver
            places = layout(lengths_of(batch), ranks=driver.ranks, rows_per_micro_batch=driver.forward_rows)
            back = {row: place for place, row in enumerate(places) if row is not None}
            return native(selected(batch, places))[[back[row] for row in range(len(batch))]]

        return compute

    def _update(self, native: Any) -> Any:
        def update_actor(batch: Any) -> Any:
            import numpy as np
            from verl.protocol import DataProto

            rows, driver = self._rows, self._driver
            assert rows is not None, "rows are identified before they are trained on"
            marks = batch.non_tensor_batch[POSITION], batch.non_tensor_batch[SAMPLE]
            self._computed.require(batch.batch, *marks, driver.generated_at(rows.index))
            rewrite_advantages(batch.batch, rows, driver)
            digests = told_by_batch(batch.batch, CARRIED, *marks)
            outputs = []
            for step in driver.steps_of(rows.index):
                order = driver.step_rows(step, rows)
                part = selected(batch, [None if row is None else rows.places[row] for row in order])
                told = {row: digests[row] for row in order if row is not None}
                values = {"global_token_num": lengths_of(part), STEP: step.index, ROW_DIGESTS: told}
                part.meta_info = {**batch.meta_info, **values}
                metrics = native(part).non_tensor_batch
                outputs.append({name: values.tolist() for name, values in metrics.items()})
            return DataProto(non_tensor_batch={name: np.array(values) for name, values in merged(outputs).items()})

        return update_actor

    # ---- checkpoints

    def _save(self) -> None:
        step = self._trainer.global_step
        folder = Path(self._trainer.config.trainer.save_checkpoint_path) / f"global_step_{step}"
        more = {} if self._candidates is None else {"next_candidate": self._candidates.next}
        self._driver.save(folder, step, **more)
        self._native_save()

    def _load(self) -> Any:
        saved = self._driver.begin(self._trainer, checkpoint_to_resume(self._trainer), newest_checkpoint(self._trainer))
        if saved and self._candidates is not None:
            self._candidates.next = int(saved["next_candidate"])
        return self._native_load()


class CandidateLoader:
    """A stand-in for the data loader where rewards decide which prompts fill a rollout: generation batches of the
    native collator, candidates in the plan's order, without an end.

    next: the number of the next candidate.
    """

    def __init__(
        self,
        plan: CandidatePlan,
        *,
        dataset: Any,
        collate: Callable[[list[Any]], dict[str, Any]],
        prompts_at_once: int,
    ) -> None:
        self._plan, self.dataset, self._collate = plan, dataset, collate
        self._at_once, self.next = prompts_at_once, 0

    def __len__(self) -> int:
        return self._plan.total_rollouts

    def __iter__(self) -> Iterator[Any]:
        import numpy as np

        while True:
            numbers = range(self.next, self.next + self._at_once)
            prompts = self._plan.candidates(numbers.start, numbers.stop)
            self.next = numbers.stop
            columns = self._collate([self.dataset[prompt] for prompt in prompts])
            seeds = self._plan.candidate_seeds(numbers.start, numbers.stop)
            for name, values in ((PROMPT, prompts), (CANDIDATE, numbers), (SEED, seeds)):
                columns[name] = np.array(values, dtype=object)
            yield columns

    def state_dict(self) -> dict[str, Any]:
        """An empty state: the driver saves the place."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """The reading of an empty state, which does nothing: see `state_dict`."""


class EasyR1Observer(RolloutObserver):
    """The native run as it is, with every completion identified; order, membership, loss and clock stay EasyR1's."""

    def __init__(self, trainer: Any, request: Request, orders: Orders, patches: Patches) -> None:
        super().__init__(request, orders, lambda: read_by_producers(trainer))
        self._trainer, self._patches = trainer, patches
        self._computed: ComputedRows | None = None
        """The rows from where advantages are computed to where they are sent; None in a run that is observed."""
        if self._held is not None:
            self._computed = compute_advantage_told(patches, PRODUCER, CARRIED)
        # torch forbids a loader another dataset, but its iterator reads this entry.
        self._loader, self._dataset = trainer.train_dataloader, trainer.train_dataloader.dataset
        vars(self._loader)["dataset"] = NumberedDataset(self._dataset)
        told: dict[str, Any] = {"what": "rows are told apart", "why": "ledger"}
        self._native_init = patches.read(trainer, "init_workers", self._init_workers, **told)
        self._native_make = patches.read(trainer, "_make_batch_data", self._make_batch, **told)
        if getattr(trainer, "actor_rollout_ref_wg", None) is not None:
            self._arrive()

    def detach(self) -> None:
        """Undoes what is not an attribute."""
        vars(self._loader)["dataset"] = self._dataset

    def _init_workers(self) -> None:
        self._native_init()
        self._arrive()

    def _arrive(self) -> None:
        group = self._trainer.actor_rollout_ref_wg
        self.receipts = install_everywhere(group, self._orders, self._patches)
        if self._computed is not None and self._held is not None:
            what, why = "digests of what its rows carry ride with it", "inputs of the step"
            update = self._update(self._computed, self._held, group.update_actor)
            self._patches.set(group, "update_actor", update, what=what, why=why)

    @property
    def _rollout(self) -> int:
        return int(self._trainer.global_step) - 1

    def _update(self, computed: ComputedRows, held: HeldAdvantages, native: Any) -> Any:
        def update_actor(batch: Any) -> Any:
            marks = batch.non_tensor_batch[POSITION], batch.non_tensor_batch[SAMPLE]
            digests = hold_sent(computed, held, batch.batch, *marks, self._next_step)
            batch.meta_info[ROW_DIGESTS] = digests
            try:
                return native(batch)
            finally:
                del batch.meta_info[ROW_DIGESTS]

        return update_actor

    def _make_batch(self, metrics: dict[str, Any]) -> Any:
        import numpy as np

        self._begin()
        batch = self._native_make(metrics)
        group = self._trainer.config.worker.rollout.n
        number_samples(batch, group)
        columns = batch.non_tensor_batch
        columns[ROLLOUT] = np.array([self._rollout] * len(batch), dtype=object)
        columns[POSITION] = (np.arange(len(batch)) // group).astype(object)
        return batch


def number_samples(batch: Any, group: int) -> None:
    """Each row's sample: answers are prompt-major, in whole groups. Source: EasyR1 _make_batch_data."""
    import numpy as np

    columns = batch.non_tensor_batch
    prompts = columns[PROMPT]
    if len(batch) % group or any(len(set(prompts[at : at + group])) > 1 for at in range(0, len(batch), group)):
        raise CannotAttach({"groups": f"the rollout's rows are not whole groups of {group} in order"})
    columns[SAMPLE] = (np.arange(len(batch)) % group).astype(object)


def lengths_of(batch: Any) -> list[int]:
    """Tokens of each row, prompt and completion."""
    return [int(length) for length in batch.batch["attention_mask"].sum(-1).tolist()]


def selected(batch: Any, places: Sequence[int | None]) -> Any:
    """The rows of a `DataProto` at `places`, in this order; None is a filler: the first row with nothing to train."""
    part = batch[[0 if place is None else place for place in places]]
    spare = [row for row, place in enumerate(places) if place is None]
    for name in ("response_mask", "advantages"):
        if name in part.batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            part.batch[name][spare] = 0
    part.non_tensor_batch[POSITION][spare] = -1
    return part


def checkpoint_to_resume(trainer: Any) -> Path | None:
    """The folder that EasyR1 will resume from, or None. Source: EasyR1 ray_trainer._load_checkpoint."""
    settings = trainer.config.trainer
    if settings.load_checkpoint_path is not None:
        return Path(settings.load_checkpoint_path)
    if not settings.find_last_checkpoint:
        return None
    return newest_checkpoint(trainer)


def newest_checkpoint(trainer: Any) -> Path | None:
    """The newest checkpoint that the run, or one before it, has finished: the one that EasyR1's own file names."""
    from verl.utils.checkpoint import find_latest_ckpt

    found = find_latest_ckpt(trainer.config.trainer.save_checkpoint_path)[0]
    return None if found is None else Path(found)


def install_everywhere(group: Any, orders: Orders, patches: Patches) -> list[Receipt]:
    """Runs `engine.install` in every process of a worker group, then `engine.probe`."""
    receipts = workers_ray.install_everywhere(group.workers, orders, _in_worker, _probed)
    what, why = f"orders in {len(receipts)} training workers", "every optimizer step is measured there"

    def undo() -> None:
        workers_ray.install_everywhere(group.workers, None, _in_worker)

    patches.made("actor_rollout_ref_wg", undo, what=what, why=why)
    return receipts


def _in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
    """Orders in a Ray actor of the worker group: `orders` installed, or with None removed."""
    from batchbridge_easyr1.engine import install, remove

    if orders is None:
        remove(_actor_worker(worker))
        return None
    return install(_actor_worker(worker), orders)


def _probed(worker: Any) -> None:
    """The worker's side of the probe, in a Ray actor of the worker group."""
    from batchbridge_easyr1.engine import probe

    probe(_actor_worker(worker))


def _actor_worker(worker: Any) -> Any:
    """The `FSDPWorker` in a process that trains. Source: EasyR1 single_controller/ray/base.py."""
    held = getattr(worker, "worker_dict", None) or {"": worker}
    actors = [inner for inner in held.values() if getattr(inner, "actor", None) is not None]
    if len(actors) != 1:
        raise CannotAttach({"actor": f"{len(actors)} actors in one training worker ({', '.join(held)})"})
    return actors[0]
