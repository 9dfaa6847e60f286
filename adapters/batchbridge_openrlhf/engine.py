"""Inside a training process: every optimizer step of an `ActorPPOTrainer` is cut by the plan, weighed, held against it
and written down.

OpenRLHF's own code for dynamic batches runs any list of micro-batches with given denominators and given steps, and
skips its shuffle; here that list is the plan's. The forward and backward passes, the loss, DeepSpeed's engine, the
optimizer and the learning rate's schedule stay theirs. DeepSpeed is told where a step ends before each forward pass:
counting micro-batches, it would let remainders leak into the next step, and with dynamic batches under ZeRO-1 and 2
it would keep the last micro-batch's gradient alone.

Source: openrlhf 0.11.2 ppo_actor.ActorPPOTrainer, replay_buffer.NaiveReplayBuffer, loss_utils.get_loss_batch_info,
loss.aggregate_loss; deepspeed 0.19.6 engine.set_gradient_accumulation_boundary, zero/stage_1_and_2.py.
"""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchbridge import plugins, proven
from batchbridge.attach import BatchDrift, CannotAttach
from batchbridge.drift import compare_with_plan
from batchbridge.ledger import Header, StepRecord, Writer
from batchbridge.microbatch import Length
from batchbridge.patching import Patches
from batchbridge.plan import StepPlan
from batchbridge.shares import cut_shares, steps_of_rollout
from batchbridge.weights import Normaliser, Row
from batchbridge.workers import Orders, Receipt, facts
from batchbridge_openrlhf.proven import CODE

IDENTITY = "batchbridge"
"""Key of an experience's `info`: which completion it is, five integers per row. See `identify`."""
_NOBODY = (-1,) * 5
"""The identity of a filler row."""
NO_TOKEN = 1e-9
"""Tokens that a micro-batch without any reports: upstream divides its metrics by them."""
KL_COEFFICIENT = "algo.kl.init_coef"
"""A setting that the native step is called with; the others it reads."""


@dataclass
class TrainedRow:
    """One completion of the current step on this rank. turn: its micro-batch, counted from the step's first.

    The core's `workers.Recorder` knows one pass per step; here a step may reach across the passes of its rollout, and
    its micro-batches may have lost their gradients.
    """

    rollout: int
    pass_index: int
    prompt: int
    position: int
    sample: int
    tokens: int
    turn: int
    weight: float
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class _Held:
    """What every rank knows of one completion in somebody's replay buffer. index: its place there."""

    rollout: int
    prompt: int
    position: int
    sample: int
    prompt_tokens: int
    all_tokens: int
    tokens: int
    index: int

    @property
    def row(self) -> tuple[int, int]:
        return self.position, self.sample

    @property
    def length(self) -> Length:
        return Length(self.prompt_tokens, self.all_tokens - self.prompt_tokens)


@dataclass(frozen=True)
class _Turn:
    """One step as it will run: its plan, its denominators, and how many micro-batches; none where it has no token.
    silent: this rank's rows of such a step, by their places in the buffer."""

    step: StepPlan
    normaliser: Normaliser
    micro_batches: int
    silent: tuple[int, ...] = ()


def identify(experience: Any, *, rollout: int, prompt: int, position: int, sample: int, prompt_tokens: int) -> Any:
    """Marks an experience of one completion before it is appended to a replay buffer, and returns it.

    rollout: from 0 over the run. prompt: index in the dataset. position: the prompt's place in its rollout, as the plan
    has it. sample: the completion's number in its group. prompt_tokens: tokens before the response.
    """
    import torch

    experience.info[IDENTITY] = torch.tensor([[rollout, prompt, position, sample, prompt_tokens]])
    return experience


def install(trainer: Any, orders: Orders) -> Receipt:
    """Patches an `ActorPPOTrainer`; replaces what an earlier call installed. Raises `CannotAttach`."""
    import torch

    remove(trainer)
    held = (trainer.actor.model, trainer.replay_buffer, trainer.actor_loss_fn)
    proven.require(CODE, orders.allow, trainer, *held)
    trainer.batchbridge_engine = EngineLayer(trainer, orders)
    return Receipt.here(orders, rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())


def remove(trainer: Any) -> None:
    """Undoes `install`; a trainer without it is left alone."""
    layer = vars(trainer).pop("batchbridge_engine", None)
    if layer is not None:
        layer.remove()


class EngineLayer:
    """The patches of one `ActorPPOTrainer`.

    `Orders.settings` are attributes of its loss (`loss.clip_eps_low`) and of its arguments (`actor.entropy_coef`).
    """

    def __init__(self, trainer: Any, orders: Orders) -> None:
        self._trainer, self._orders = trainer, orders
        self._engine, self._buffer, self._loss = trainer.actor.model, trainer.replay_buffer, trainer.actor_loss_fn
        self._plan = orders.plan()
        self._writer: Writer | None = None
        self._turns: deque[_Turn] = deque()
        self._rows: list[TrainedRow] = []
        self._micro_batch: Sequence[tuple[int, ...]] = ()
        self._items: Sequence[Any] = ()
        self._turn = 0
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._first_step_on: dict[int, int] = {}
        self._ticks = True
        self._patches = Patches()
        self._native_train, self._native_training_step = trainer.ppo_train, trainer.training_step
        self._native_loss, self._native_engine_step = self._loss.forward, self._engine.step
        self._native_collate = self._buffer.collate_fn
        try:
            self._patch()
        except BaseException:
            self.remove()
            raise

    @property
    def patches(self) -> Patches:
        """What was patched."""
        return self._patches

    def remove(self) -> None:
        """Restores the trainer and closes the ledger."""
        self._patches.undo()
        self._engine._is_gradient_accumulation_boundary = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _patch(self) -> None:
        trainer, buffer = self._trainer, self._buffer
        if self._enforces:
            self._check_clock()
            self._apply_settings()
            cut, why = "the plan's steps, whole", "membership and weights of the plan"
            self._patches.set(trainer, "max_epochs", 1, what="every pass is laid out at once", why=why)
            self._patches.set(buffer, "dynamic_batch", True, what="micro-batches are given", why=why)
            self._patches.set(buffer, "sample_batch_size", 1, what="micro-batches are given", why=why)
            self._patches.set(buffer, "setup_dynamic_batch", self._lay_out, what=cut, why=why)
            if self._orders.spec.horizon.lr_tick == "rollout":
                schedule = trainer.actor_scheduler
                self._native_tick = schedule.step
                self._patches.set(schedule, "step", self._tick, what="once per rollout", why="clock of the spec")
        held, why = "held against the plan", "ledger"
        self._patches.set(buffer, "collate_fn", self._collate, what="rows are told apart", why=why)
        self._patches.set(trainer, "ppo_train", self._train, what=held, why=why)
        self._patches.set(trainer, "training_step", self._training_step, what=held, why=why)
        self._patches.set(self._loss, "forward", self._forward_loss, what="its denominators are read", why=why)
        self._patches.set(self._engine, "step", self._engine_step, what=held, why=why)

    @property
    def _enforces(self) -> bool:
        return self._orders.mode == "enforce"

    # ---- what the native loss and clock read

    def _apply_settings(self) -> None:
        args = copy.copy(self._trainer.args)  # shared with the strategy and others
        args.train, args.actor, args.algo = (copy.copy(part) for part in (args.train, args.actor, args.algo))
        args.algo.kl = copy.copy(args.algo.kl)
        args.train.dynamic_batch_enable = True
        for path, value in self._orders.settings.items():
            *owners, name = path.split(".")
            if owners == ["loss"]:
                self._patches.set(self._loss, name, value, what=str(value), why="the requested spec")
            else:
                setattr(functools.reduce(getattr, owners, args), name, value)
        self._patches.set(
            self._trainer, "args", args, what="the code for given micro-batches runs", why="membership of the plan"
        )

    def _check_clock(self) -> None:
        """Raises `CannotAttach` where the schedule was built for another number of ticks than the plan has."""
        ticks = self._orders.ticks
        for function in getattr(self._trainer.actor_scheduler, "lr_lambdas", ()):
            built = getattr(function, "keywords", {}).get("num_training_steps")
            if ticks is not None and built not in (None, ticks):
                reason = f"the learning rate's schedule was built for {built} steps, the plan ticks {ticks} times"
                raise CannotAttach({"clock": f"{reason}: prepare the model with scheduler_steps = {ticks}"})

    def _tick(self, *arguments: Any, **options: Any) -> Any:
        return self._native_tick(*arguments, **options) if self._ticks else None

    # ---- a rollout is laid out

    def _lay_out(self, strategy: Any) -> None:
        """In place of `NaiveReplayBuffer.setup_dynamic_batch`: the plan's steps over what ranks hold. Collective."""
        buffer, plan = self._buffer, self._plan
        assert plan is not None, "wrap refuses to enforce without a plan"
        held = self._gather([self._held(item, index) for index, item in enumerate(buffer.items)])
        rollout = self._one_rollout(held)
        where = self._expect(rollout, held)
        filler = self._filler(held)
        group, rank, gas = plan.completions_per_prompt, self._rank, self._accumulation
        for name in ("indices", "sample_loss_scale", "batch_num_tokens", "global_batch_size", "optimizer_step"):
            setattr(buffer, f"dynamic_{name}", [])
        micro, term = self._orders.spec.micro_batch, self._orders.spec.loss.policy
        for step in steps_of_rollout(plan, rollout):
            shares: list[list[_Held]] = [[] for _ in held]
            for position in step.positions:
                owner, row = where[divmod(position, group)]
                shares[owner].append(row)
            rows = [row for share in shares for row in share]
            normaliser = Normaliser.of(term, [Row(tokens=row.tokens, group=row.position) for row in rows])
            cuts = cut_shares(
                [[row.length for row in share] for share in shares],
                completions_per_device=None if micro.tokens_per_device else micro.completions_per_device,
                tokens_per_device=micro.tokens_per_device,
                padded=not self._trainer.args.ds.packing_samples,
            )
            mine = cuts[rank] if normaliser.tokens else []
            silent = () if mine else tuple(row.index for row in shares[rank])
            self._turns.append(_Turn(step, normaliser, len(mine), silent))
            for turn, members in enumerate(mine):
                indices = [filler if row is None else shares[rank][row].index for row in members]
                buffer.dynamic_indices.append(indices)
                buffer.dynamic_sample_loss_scale.append(gas * len(indices) / max(len(shares[rank]), 1))
                # DeepSpeed divides every loss by its accumulation steps, whatever a step really has.
                buffer.dynamic_batch_num_tokens.append(normaliser.tokens / gas)
                buffer.dynamic_global_batch_size.append(max(normaliser.completions, 1) / gas)
                buffer.dynamic_optimizer_step.append(int(turn == len(mine) - 1))

    def _held(self, item: Any, index: int) -> _Held:
        if IDENTITY not in item.info:
            reason = "an experience without BatchBridge's identity reached the replay buffer; see `identify`"
            raise CannotAttach({"unplanned_batch": reason})
        rollout, prompt, position, sample, prompt_tokens = (int(value) for value in item.info[IDENTITY])
        tokens = int(item.action_mask.sum())
        return _Held(rollout, prompt, position, sample, prompt_tokens, len(item.sequences), tokens, index)

    def _one_rollout(self, held: Sequence[Sequence[_Held]]) -> int:
        rollouts = {row.rollout for share in held for row in share}
        if len(rollouts) != 1:
            raise CannotAttach({"rollout": f"the replay buffers hold rollouts {sorted(rollouts)}; one at a time"})
        return rollouts.pop()

    def _expect(self, rollout: int, held: Sequence[Sequence[_Held]]) -> dict[tuple[int, int], tuple[int, _Held]]:
        """Row -> (rank, what it holds). Raises `BatchDrift` unless exactly the plan's completions are there."""
        plan = self._plan
        assert plan is not None, "wrap refuses to enforce without a plan"
        planned = plan.rollout(rollout)
        want = Counter(
            (position, prompt, sample)
            for position, prompt in enumerate(planned.prompts)
            for sample in range(planned.completions_per_prompt)
        )
        have = Counter((row.position, row.prompt, row.sample) for share in held for row in share)
        if want != have:
            missing, extra = sorted((want - have).elements()), sorted((have - want).elements())
            raise BatchDrift(
                planned.generated_at_step,
                "membership",
                f"rollout {rollout} came without (position, prompt, sample) {missing[:3] or 'none'} "
                f"and with {extra[:3] or 'none'} that it does not have",
            )
        return {row.row: (rank, row) for rank, share in enumerate(held) for row in share}

    def _filler(self, held: Sequence[Sequence[_Held]]) -> int:
        """The place of a row that weighs nothing: the shortest completion with an empty mask, at the buffer's end.
        Collective where a rank holds nothing."""
        import torch

        buffer = self._buffer
        mine = min(held[self._rank], key=lambda row: row.all_tokens, default=None)
        model: Any = None if mine is None else buffer.items[mine.index]
        if not all(held):
            parts: list[Any] = [None] * len(held)
            torch.distributed.all_gather_object(parts, model)
            model = next(part for part in parts if part is not None)
        filler = copy.copy(model)
        filler.action_mask = torch.zeros_like(filler.action_mask)
        filler.info = {**filler.info, IDENTITY: torch.tensor(_NOBODY)}
        buffer.items.append(filler)
        return len(buffer.items) - 1

    # ---- one micro-batch, one optimizer step

    def _train(self, kl_ctl: float) -> Any:
        self._seen.clear()
        self._turns.clear()
        status = self._native_train(self._orders.settings.get(KL_COEFFICIENT, kl_ctl))
        self._skip_empty()
        if self._turns:
            left = [turn.step.index for turn in self._turns]
            raise BatchDrift(left[0], "membership", f"upstream ended before the optimizer steps {left}")
        return status

    def _collate(self, batch: Any) -> Any:
        """The native batch without our columns in its info: upstream would log them."""
        items = batch[0] if self._buffer.dynamic_batch else batch
        experience = self._native_collate(batch)
        experience.info.pop(IDENTITY, None)
        experience.batchbridge = [tuple(int(value) for value in item.info.get(IDENTITY, _NOBODY)) for item in items]
        experience.batchbridge_items = _Opaque(items)
        return experience

    def _training_step(self, experience: Any, kl_ctl: float, step: int, loss_batch_info: Any = None) -> Any:
        if self._enforces:
            self._skip_empty()
            self._engine.set_gradient_accumulation_boundary(bool(self._buffer.dynamic_optimizer_step[step]))
        self._micro_batch, self._items = experience.batchbridge, experience.batchbridge_items.items
        status = self._native_training_step(experience, kl_ctl, step, loss_batch_info)
        real = sum(identity != _NOBODY for identity in self._micro_batch)
        self._micro_batch, self._items = (), ()
        return _finite(status, real) if self._enforces else status

    def _forward_loss(self, *arguments: Any, **options: Any) -> Any:
        """The native loss; the weights that it gives to this micro-batch's rows are written down."""
        for identity, item in zip(self._micro_batch, self._items, strict=True):
            if identity != _NOBODY:
                self._rows.append(self._row(item, identity, options))
        self._turn += 1
        return self._native_loss(*arguments, **options)

    def _row(self, item: Any, identity: Sequence[int], loss: Mapping[str, Any] | None) -> TrainedRow:
        """loss: what the native loss was called with; None: it was not, the row weighs nothing."""
        rollout, prompt, position, sample, prompt_tokens = identity
        tokens = int(item.action_mask.sum())
        seen = (rollout, position, sample)
        self._seen[seen] += 1
        return TrainedRow(
            rollout,
            self._seen[seen] - 1,
            prompt,
            position,
            sample,
            tokens,
            self._turn,
            0.0 if loss is None else self._applied_weight(tokens, loss),
            facts_of(item, prompt_tokens) if self._orders.ledger is not None else {},
        )

    def _applied_weight(self, tokens: int, options: Mapping[str, Any]) -> float:
        """What one token of a completion with `tokens` tokens weighs: the loss's own factor over DeepSpeed's two means,
        over its accumulation steps and over the ranks. Source: aggregate_loss; engine._scale_loss_by_gas."""
        if not tokens:
            return 0.0
        factor = float(options["dp_size"]) / self._accumulation / self._ranks
        if self._loss.token_level_loss:
            total = float(options["batch_num_tokens"])
            return factor / total if total else math.nan
        return factor / (float(options["global_batch_size"]) * tokens)

    def _engine_step(self, *arguments: Any, **options: Any) -> Any:
        engine = self._engine
        if not engine.is_gradient_accumulation_boundary():
            return self._native_engine_step(*arguments, **options)
        turn = self._turns.popleft() if self._enforces else None
        step = int(engine.global_steps) if turn is None else turn.step.index
        if turn is None:
            self._forget_lost_gradients()
        else:
            self._name_passes(turn.step)
        self._check(step)
        self._ticks = turn is None or turn.step.lr_tick
        rate = float(self._trainer.actor_scheduler.get_last_lr()[0])
        result = self._native_engine_step(*arguments, **options)
        norm = engine.get_global_grad_norm()
        self._write(step, turn, rate, None if norm is None else float(norm), skipped=not engine.was_step_applied())
        self._rows, self._turn = [], 0
        return result

    def _forget_lost_gradients(self) -> None:
        """Native dynamic batches under ZeRO-1 and 2: only the last micro-batch's gradient is applied."""
        if self._trainer.args.train.dynamic_batch_enable and self._trainer.args.ds.zero_stage in (1, 2):
            for row in self._rows:
                row.weight = row.weight if row.turn == self._turn - 1 else 0.0

    def _name_passes(self, step: StepPlan) -> None:
        """Which pass a row is in, as the plan counts: what one pass drops does not shift the next one's number."""
        group = self._orders.spec.rollout.completions_per_prompt
        passes: dict[int, deque[int]] = {}
        for member, place in zip(step.members, step.positions, strict=True):
            passes.setdefault(place, deque()).append(member.pass_index)
        for row in self._rows:
            if left := passes.get(row.position * group + row.sample):
                row.pass_index = left.popleft()

    def _skip_empty(self) -> None:
        """Steps without a token are no update; each gets its record when its turn comes."""
        while self._turns and not self._turns[0].micro_batches:
            turn = self._turns.popleft()
            items = [self._buffer.items[index] for index in turn.silent]
            self._rows = [self._row(item, [int(value) for value in item.info[IDENTITY]], None) for item in items]
            self._name_passes(turn.step)
            self._check(turn.step.index)
            rate = float(self._trainer.actor_scheduler.get_last_lr()[0])
            self._write(turn.step.index, turn, rate, None, skipped=True)
            self._rows = []

    def _check(self, step: int) -> None:
        """Raises `BatchDrift` on every rank if the ranks' rows together are not the plan's step. Collective."""
        if self._orders.mode == "observe" or self._plan is None:
            return
        mine = [(row.rollout, row.pass_index, row.prompt, row.sample, row.tokens, row.weight) for row in self._rows]
        compare_with_plan(self._plan, step, [row for share in self._gather(mine) for row in share])

    # ---- facts

    @property
    def _rank(self) -> int:
        import torch

        return int(torch.distributed.get_rank())

    @property
    def _ranks(self) -> int:
        import torch

        return int(torch.distributed.get_world_size())

    @property
    def _accumulation(self) -> int:
        return int(self._engine.gradient_accumulation_steps())

    def _gather(self, mine: Sequence[Any]) -> list[list[Any]]:
        """Every rank's list. Collective."""
        import torch

        parts: list[Any] = [None] * self._ranks
        torch.distributed.all_gather_object(parts, list(mine))
        return parts

    def _write(self, step: int, turn: _Turn | None, rate: float, norm: float | None, *, skipped: bool) -> None:
        rows = self._rows
        for rollout in {row.rollout for row in rows}:
            self._first_step_on.setdefault(rollout, step)
        generated = [self._generated_at(row.rollout, planned=turn is not None) for row in rows]
        planned = None if turn is None else turn.step
        columns: dict[str, list[Any]] = {name: [row.facts.get(name) for row in rows] for name in _FACTS}
        record = StepRecord(
            step=step,
            epoch=0 if planned is None else planned.epoch,
            normaliser=None if turn is None else turn.normaliser,
            learning_rate=rate,
            gradient_norm=norm,
            skipped=skipped,
            lr_tick=not skipped and (planned is None or planned.lr_tick),
            rollout=[row.rollout for row in rows],
            pass_index=[row.pass_index for row in rows],
            prompt=[row.prompt for row in rows],
            sample=[row.sample for row in rows],
            response_tokens=[row.tokens for row in rows],
            generated_at_step=generated,
            weights=[row.weight for row in rows],
            **columns,
        )
        if self._orders.ledger is not None:
            if self._writer is None:
                self._writer = Writer(self._orders.ledger, self._header(step))
            self._writer.append(record)
        for failure in plugins.call("batchbridge_optimizer_step", record=record.to_dict())[1]:
            warnings.warn(failure.message, RuntimeWarning, stacklevel=2)  # a watcher must not end a run

    def _generated_at(self, rollout: int, *, planned: bool) -> int:
        if planned and self._plan is not None:
            return self._plan.rollout(rollout).generated_at_step
        return self._first_step_on[rollout]

    def _header(self, step: int) -> Header:
        return Header(
            framework="openrlhf",
            framework_version=self._orders.framework_version,
            mode=self._orders.mode,
            spec=self._orders.spec,
            dataset_size=self._orders.dataset_size,
            world_size=self._ranks,
            rank=self._rank,
            started="resumed" if step else "fresh",
            at_step=step,
            start_id=self._orders.start_id,
            evidence=self._orders.evidence,
        )


_FACTS = ("prompt_fingerprint", "completion_fingerprint", "reward", "advantage", "old_logprobs")


class _Opaque:
    """Keeps what is in it from being moved to a device with the experience."""

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items


def facts_of(item: Any, prompt_tokens: int) -> dict[str, Any]:
    """What the ledger says of one completion's experience; see `batchbridge.workers.facts`."""
    ids, reward = item.sequences.tolist(), item.info.get("reward")
    # The mask and the log-probabilities are about the token after each position.
    return facts(
        prompt=ids[:prompt_tokens],
        completion=ids[prompt_tokens:],
        trained=item.advantages[item.action_mask.bool()].tolist(),
        old_logprobs=item.action_log_probs[prompt_tokens - 1 :].float().tolist(),
        reward=None if reward is None else float(reward),
    )


def _finite(status: dict[str, Any], real: int) -> dict[str, Any]:
    """The status of a micro-batch without tokens, or of fillers: upstream takes means over nothing for its metrics."""
    import torch

    if real and status["num_action_tokens"]:
        return status
    for name, value in status["metrics"].items():
        if isinstance(value, torch.Tensor):
            status["metrics"][name] = torch.nan_to_num(value.float())
    status["num_samples"] = float(real)
    status["num_action_tokens"] = max(status["num_action_tokens"], NO_TOKEN)
    return status
