"""The trainer process's side: which rows every optimizer step gets, for both trainers of verl.

The trainers differ in how a rollout's rows are held (`trainer_v1`, `trainer_v0`); what is done with them is one: one
call of `update_actor` per planned optimizer step, rows placed by what they cost, filler rows where verl's splits need
them. The forward passes, the loss and the rest of the training loop stay verl's.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge import BatchDrift, CannotAttach
from batchbridge.kit import (
    Length,
    Objective,
    Request,
    StepPlan,
    checkpoints,
    partition_packed,
    run_of_critic,
    workers_ray,
)
from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.identified_rows import STEP
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import settings_below
from batchbridge.kit.ranks import deal
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.step_driver import RolloutRows, StepDriver, merged
from batchbridge.kit.workers import Orders, Receipt
from batchbridge_verl import whole
from batchbridge_verl.refusals import run_of
from batchbridge_verl.settings import holds
from batchbridge_verl.terms import AGGREGATIONS

_SAMPLING = ("n", "temperature", "top_p", "top_k", "do_sample", "response_length", "prompt_length")
_EXACT = {"model": "weights", "optimizer": "optimizer", "extra": "schedule and random states"}
"""The parts of a checkpoint of verl's with which a run goes on exactly. Source: verl 0.9.1 checkpoint_manager.py."""
_READ_BY_PRODUCERS = ("algorithm", *(f"actor_rollout_ref.rollout.{name}" for name in _SAMPLING))


class VerlDriver(StepDriver):
    """The parts that both trainers need: the plan, the workers, and the cut of a rollout into steps."""

    other_ranks = whole.OF_ANOTHER_NUMBER

    def __init__(self, trainer: Any, request: Request, orders: Orders) -> None:
        self.trainer, self._config = trainer, trainer.config
        self.actor = trainer.config.actor_rollout_ref.actor
        super().__init__(request, orders)
        self.legacy = run_of(request).legacy
        """Whether legacy workers train, whose batches are of another form."""
        self.critic: VerlCriticDriver | None = None
        """The driver of the critic's optimizer steps, over the same rollouts; None without one."""
        self._trained: int | None = None
        """Optimizer steps of the plan that are done; None before the first rollout."""

    def settings_read(self) -> Mapping[str, Any]:
        """The settings that generation, scoring and advantages read; see `read_by_producers`."""
        return read_by_producers(self._config)

    def _resume(self, trainer: object, folder: Path) -> Mapping[str, Any]:
        roles = {"actor_rollout_ref.actor": self.actor}
        if self.critic is not None:
            roles["critic"] = self._config.critic
        for role, config in roles.items():
            # Without a word of it, verl loads all.
            loaded = getattr(getattr(config, "checkpoint", None), "load_contents", None) or _EXACT
            if lacking := [name for name in _EXACT if name not in loaded]:
                key = f"{role}.checkpoint.load_contents"
                reason = (
                    f"{key} leaves out {' and '.join(lacking)}: the run would go on from {folder} with a beginning's "
                    f"{' and '.join(_EXACT[name] for name in lacking)}; name all of {', '.join(_EXACT)} in "
                    f"{role}.checkpoint.save_contents and load_contents, or start a new run from the weights"
                )
                raise CannotAttach({"resume": reason})
        saved = super()._resume(trainer, folder)
        if not whole.has_shards(folder, self.shards) and whole.lies_in(folder, self._models):
            whole.check(folder, saved, legacy=self.legacy)
            checkpoints.tell(trainer, [f"resumed from the whole state in {folder}: {whole.RANDOM}"])
        return saved

    @property
    def _models(self) -> tuple[str, ...]:
        return whole.ROLES[: 1 if self.critic is None else 2]

    def other_ranks_of(self, folder: Path) -> str | None:
        """The reason as in `StepDriver`; None where a whole state lies in the checkpoint."""
        return None if whole.lies_in(folder, self._models) else self.other_ranks

    # ---- where rows run

    @property
    def model(self) -> str | None:
        """The policy's model, as verl is told it."""
        return getattr(getattr(self._config.actor_rollout_ref, "model", None), "path", None)

    def step_rows(self, step: StepPlan, rows: RolloutRows) -> list[tuple[int, int] | None]:
        """The rows of a step, as `StepDriver` has them; where prompts are shared, groups together."""
        if self.orders.padding == "padded":
            return super().step_rows(step, rows)
        members = [divmod(position, self.plan.completions_per_prompt) for position in step.positions]
        costs = self._costs(rows.costs[member] for member in members)
        return together(members, self.ranks, multiple=self.rows_per_micro_batch or 1, costs=costs)

    def rollout_order(self, rows: RolloutRows, filler_count: int) -> list[tuple[int, int] | None]:
        """The order of a rollout's rows, as `StepDriver` has it; where prompts are shared, groups together."""
        if self.orders.padding == "padded":
            return super().rollout_order(rows, filler_count)
        multiple = (len(rows.costs) + filler_count) // self.ranks
        return together([*rows.costs], self.ranks, multiple=multiple, costs=self._costs(rows.costs.values()))

    def fillers_needed(self, rows: RolloutRows) -> int:
        """The number of filler rows, as in `StepDriver`, enough for the critic's fullest step and its replicas."""
        whole = super().fillers_needed(rows)
        if self.critic is not None:
            most = self.critic.fillers_needed(rows)
            while whole < most or (len(rows.costs) + whole) % self.critic.ranks:
                whole += self.ranks * (self.forward_rows or 1)
        return whole

    # ---- steps that verl may leave out, or bring forward

    def expect_rollout(self, rollout: int, arrived: Mapping[tuple[int, int], Any]) -> None:
        """The check of an arrived rollout, as in `StepDriver`; also `BatchDrift` where an earlier step was left out."""
        super().expect_rollout(rollout, arrived)
        self._hold(rollout)
        self._trained = checkpoints.steps_before(self.plan, rollout)

    def save(self, folder: Path, rollouts_done: int, **more: int) -> None:
        """The saving of the plan's place, as in `StepDriver`; `BatchDrift` where a step was left out."""
        self._hold(rollouts_done)
        super().save(folder, rollouts_done, **more)

    def _hold(self, rollout: int) -> None:
        """The check (`BatchDrift`) that no step was left out: verl asks trainer.critic_warmup in every rollout
        again."""
        step = self._trained
        if step is not None and step != checkpoints.steps_before(self.plan, rollout):
            raise BatchDrift(step, "membership", f"rollout {rollout - 1} is over, and the step was not trained")

    # ---- workers

    def install(self, patches: Patches) -> None:
        """Gives every training worker its orders. Raises `CannotAttach` unless every one answers with the same."""
        self.receipts = install_everywhere(self.trainer.actor_rollout_wg, self.orders, patches)
        if self.critic is not None:
            self.critic.install(patches)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the actor."""
        group = self.trainer.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return int(max(group._dispatch_info["actor"])) + 1

    @property
    def rows_per_micro_batch(self) -> int | None:
        """verl's fixed micro-batch in training; None with a token budget."""
        if self.actor.use_dynamic_bsz:
            return None
        # Legacy workers read the deprecated size over all ranks before the other one.
        of_all = getattr(self.actor, "ppo_micro_batch_size", None) if self.legacy else None
        return int(self.actor.ppo_micro_batch_size_per_gpu if of_all is None else of_all // self.ranks)

    @property
    def forward_rows(self) -> int | None:
        """Rows of a forward-only micro-batch that both the actor's and the reference's passes split into."""
        if self.actor.use_dynamic_bsz:
            return None
        config = self.trainer.config.actor_rollout_ref
        sizes = [config.rollout.log_prob_micro_batch_size_per_gpu]
        if self.trainer.use_reference_policy:
            sizes.append(config.ref.log_prob_micro_batch_size_per_gpu)
        return math.lcm(*(int(size) for size in sizes if size))

    def train(
        self, rollout: int, rows: RolloutRows, send: Callable[[list[Any], dict[str, Any]], Any]
    ) -> dict[str, Any]:
        """One call of `send` per optimizer step of the rollout: its places, and the values that go with them. Returns
        the merged metrics."""
        critic, outputs = self.plan.asked.critic, []
        if critic is not None and rollout < critic.warmup_rollouts:
            said = (
                f"rollout {rollout} is of the critic's warm-up (critic.warmup_rollouts); the policy was to train on it"
            )
            raise BatchDrift(0, "membership", said)
        for step in self.steps_of(rollout):
            spare = iter(rows.fillers)
            order = self.step_rows(step, rows)
            places = [next(spare) if row is None else rows.places[row] for row in order]
            values = {
                STEP: step.index,
                ROW_DIGESTS: {row: self.digests[row] for row in order if row is not None and row in self.digests},
                "mini_batch_size": len(places),
                "global_batch_size": len(places),
                "epochs": 1,
                "dataloader_kwargs": {"shuffle": False},
            }
            if self.request.spec.objective.entropy_coefficient:
                values["calculate_entropy"] = True
            outputs.append(send(places, values))
            self._trained = step.index + 1
        return merged(outputs) or {"mfu": [0.0]}  # a rollout of which every row is dropped trains nothing


class VerlCriticDriver(VerlDriver):
    """The critic's optimizer steps, one call of its worker's `train_mini_batch` each. orders: of the critic's run."""

    def install(self, patches: Patches) -> None:
        """The workers' orders, as in `VerlDriver.install`, given to the critic's workers."""
        group = self.trainer.critic_wg
        self.receipts = install_everywhere(group, self.orders, patches, _in_critic, _critic_probed, name="critic_wg")

    @property
    def model(self) -> str | None:
        """The critic's model, as verl is told it."""
        return getattr(getattr(getattr(self._config, "critic", None), "model", None), "path", None)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks of the critic."""
        group = self.trainer.critic_wg
        if "train" not in group._dispatch_info:
            group._dispatch_info["train"] = group._query_dispatch_info("train")
        return int(max(group._dispatch_info["train"])) + 1

    @property
    def rows_per_micro_batch(self) -> int | None:
        """None for rows per micro-batch: the critic's worker cuts by a token budget, whatever the settings say."""
        return None

    @property
    def forward_rows(self) -> int | None:
        """None for rows of forward-only passes, as in training."""
        return None


def read_by_producers(config: Any) -> dict[str, Any]:
    """The settings of `algorithm`, and those by which completions are sampled. Source: verl 0.9.1
    trainer/ppo/v1/trainer_base.py, ray_trainer.py, agent_loop.py."""
    return settings_below(config, _READ_BY_PRODUCERS)


class ReadyResult:
    """The result of a worker group's call whose answer is there already."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        self._metrics = metrics

    def get(self) -> Any:
        """The answer, as verl's own future gives it."""
        from verl.utils import tensordict_utils as tu

        return tu.get_tensordict(tensor_dict={}, non_tensor_dict={"metrics": self._metrics})


def critic_driver(trainer: Any, request: Request, orders: Orders) -> VerlCriticDriver:
    """The driver of the critic's steps, by what the policy's workers are told."""
    critic, plan = request.spec.critic, request.plan
    assert critic is not None, "asked where a critic is trained"
    assert plan is not None, "wrap refuses to enforce without a plan"
    length = {"horizon.rollouts": plan.total_rollouts, "horizon.epochs": None, "horizon.optimizer_steps": None}
    spec = dataclasses.replace(run_of_critic(request.spec), objective=Objective()).replace(**length)
    settings: dict[str, Any] = {
        "loss_agg_mode": next(native for native, one in AGGREGATIONS.items() if one == critic.aggregation),
        "cliprange_value": UNREACHED if critic.value_clip is None else critic.value_clip,
    }
    if holds(">=0.9.0", orders.framework_version):
        settings["loss_scale_factor"] = critic.constant
    own = dataclasses.replace(
        orders,
        spec=spec,
        settings=settings,
        detached=False,
        padding="padded",
        report=False,
        temperature=None,
        ledger=None if orders.ledger is None else orders.ledger / "critic",
    )
    critics = own.plan()
    assert critics is not None, "the policy's run is planned, and so is this one"
    if spec.horizon.lr_tick == "optimizer_step":
        own = dataclasses.replace(own, ticks=critics.total_optimizer_steps)
    return VerlCriticDriver(trainer, dataclasses.replace(request, spec=spec, plan=critics), own)


def together(
    members: Sequence[tuple[int, int]], ranks: int, *, multiple: int, costs: Sequence[float]
) -> list[tuple[int, int] | None]:
    """Completions, (prompt, sample) each, in the order in which verl deals them out: one contiguous block per rank, all
    of one size, which is a multiple of `multiple`; None is a filler row. Ranks have equally many, give or take one, and
    whole groups as far as that allows, which are balanced by `costs` where it allows nothing else."""
    groups: dict[int, list[int]] = {}
    for item, (prompt, _) in enumerate(members):
        groups.setdefault(prompt, []).append(item)
    whole = list(groups.values())
    if len({len(group) for group in whole}) == 1 and len(whole) % ranks == 0:
        dealt = deal([sum(costs[item] for item in group) for group in whole], ranks)
        blocks = [[members[item] for number in hand for item in whole[number]] for hand in dealt]
    else:
        each = [Length(0, 1)] * len(members)
        hands = partition_packed(
            each, [prompt for prompt, _ in members], ranks=ranks, completions_per_device=len(members)
        )
        blocks = [[members[item] for part in hand for item in part if item is not None] for hand in hands]
    size = -(-max(map(len, blocks)) // multiple) * multiple
    return [row for block in blocks for row in (*block, *[None] * (size - len(block)))]


def checkpoint_to_resume(trainer: Any) -> Path | None:
    """The folder that verl will resume from, or None. Source: verl 0.9.1 _load_checkpoint of both trainers."""
    settings = trainer.config.trainer
    if settings.resume_mode == "disable":
        return None
    if settings.resume_mode == "resume_path":
        return Path(settings.resume_from_path).absolute()
    return newest_checkpoint(trainer)


def newest_checkpoint(trainer: Any) -> Path | None:
    """The newest checkpoint that the run, or one before it, has finished: the one that verl's own file names."""
    from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path

    found = find_latest_ckpt_path(str(Path(trainer.config.trainer.default_local_dir).absolute()))
    return None if found is None else Path(found)


def install_everywhere(
    group: Any,
    orders: Orders,
    patches: Patches,
    installing: Callable[[Any, Any], Receipt | None] | None = None,
    probing: Callable[[Any], None] | None = None,
    *,
    name: str = "actor_rollout_wg",
) -> list[Receipt]:
    """Runs `engine.install` in every process of a worker group, then `engine.probe`. installing, probing: of another
    model than the policy, whose group is the trainer's attribute `name`."""
    installing, probing = installing or _in_worker, probing or _probed
    receipts = workers_ray.install_everywhere(group.workers, orders, installing, probing)
    what, why = f"orders in {len(receipts)} training workers", "every optimizer step is measured there"

    def undo() -> None:
        workers_ray.install_everywhere(group.workers, None, installing)

    patches.made(name, undo, what=what, why=why)
    return receipts


def _in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
    """Orders in a Ray actor of the worker group: `orders` installed, or with None removed."""
    from batchbridge_verl import engine

    actor = _actor_of(worker)
    if _is_legacy(actor):
        from batchbridge_verl import legacy

        return legacy.remove(actor) if orders is None else legacy.install(actor, orders, _scoring_alone(worker))
    return engine.remove(actor) if orders is None else engine.install(actor, orders, _references_of(worker))


def _probed(worker: Any) -> None:
    """The worker's side of the probe, in a Ray actor of the worker group."""
    from batchbridge_verl.engine import probe

    probe(_actor_of(worker))


def _in_critic(worker: Any, orders: Orders | None) -> Receipt | None:
    """Orders in a Ray actor of the critic's worker group: `orders` installed, or with None removed."""
    from batchbridge_verl.critic_engine import VerlCriticLayer
    from batchbridge_verl.engine import install, remove

    if orders is None:
        remove(_critic_of(worker))
        return None
    return install(_critic_of(worker), orders, layer=VerlCriticLayer)


def _critic_probed(worker: Any) -> None:
    """The critic's side of the probe, in a Ray actor of its worker group."""
    from batchbridge_verl.engine import probe

    probe(_critic_of(worker))


def _critic_of(worker: Any) -> Any:
    """The critic's `TrainingWorker` in a process. Source: verl 0.8.0 to 0.9.1 init_workers, PPOTrainer._setup: held as
    `str(Role.Critic)`."""
    held = _held_by(worker)
    if "critic" not in held:
        raise CannotAttach({"critic": f"no critic in one of its training workers ({', '.join(held)})"})
    return held["critic"]


def _held_by(worker: Any) -> dict[str, Any]:
    """The workers in a Ray actor. Source: verl 0.8.0 to 0.9.1 single_controller/ray/base.py."""
    return getattr(worker, "fused_worker_dict", None) or getattr(worker, "worker_dict", None) or {"": worker}


def _references_of(worker: Any) -> list[Any]:
    """The engines in a process that score alone: the reference's, where there is one."""
    return [inner.ref.engine for inner in _held_by(worker).values() if getattr(inner, "ref", None) is not None]


def _scoring_alone(worker: Any) -> list[Any]:
    """The actors in a process of legacy workers that score alone, of one worker with the policy's or of another.
    Source: verl 0.6.1 to 0.7.1 fsdp_workers.ActorRolloutRefWorker."""
    return [inner.ref_policy for inner in _held_by(worker).values() if getattr(inner, "ref_policy", None) is not None]


def _actor_of(worker: Any) -> Any:
    """The object in a process that trains which has the layer: a `TrainingWorker`; a legacy worker, which has the
    actor, its optimizer and its schedule."""
    held = _held_by(worker)
    found = [inner for inner in held.values() if getattr(inner, "actor", None) is not None]
    if len(found) != 1:
        raise CannotAttach({"actor": f"{len(found)} actors in one training worker ({', '.join(held)})"})
    return found[0] if _is_legacy(found[0]) else found[0].actor


def _is_legacy(inner: Any) -> bool:
    """Whether a worker is one of the legacy ones. Source: verl 0.4.0 to 0.7.1 workers/fsdp_workers.py."""
    return any(base.__module__ == "verl.workers.fsdp_workers" for base in type(inner).__mro__)
