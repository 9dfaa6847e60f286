"""The enforcement in a trainer: once constructed, it follows the plan, with the step's own weights.

The training loop, the generation, the rewards and the loss stay TRL's. BatchBridge decides which prompts a rollout
generates, which completions an optimizer step trains on and what each weighs. Natively `training_step` runs once per
micro-batch; here the calls before the last one of an accumulation window do nothing, and the last one runs the whole
optimizer step, cut into the micro-batches that `batchbridge.meaning.micro_batches` chose. So fixed sizes and token
budgets are the same code, and nothing of the user's arguments is rewritten.

Weights: TRL's loss types differ in their aggregation only, and each is the canonical one at micro-batch scope. The
native loss of a micro-batch, times one number, is therefore its exact share of the step's loss, KL term included.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object

from batchbridge import BatchDrift, CannotAttach, Plan, read
from batchbridge.kit import Normaliser, Request, StepPlan, group_advantages, walk
from batchbridge.kit.patches import Patches, temporarily
from batchbridge.kit.probing import CUT, batches, normaliser, verdict
from batchbridge.kit.ranks import waited_too_long
from batchbridge.kit.ticked_schedule import TickedSchedule
from batchbridge.kit.worker_layer import Seam
from batchbridge_trl import releases, sharded_files
from batchbridge_trl import rows as rows_module
from batchbridge_trl.carriers import carrier
from batchbridge_trl.checkpoints import Checkpoints
from batchbridge_trl.exchange import CompletionPlaces
from batchbridge_trl.found_budget import BudgetFinder
from batchbridge_trl.images import RolloutImages, forms_of, logged_by_all, reads_images, require_images_of_all, taken
from batchbridge_trl.loss_terms import LossTerms, with_value
from batchbridge_trl.metrics import StepMetrics
from batchbridge_trl.own_methods import HeldMethods
from batchbridge_trl.padding_free import END_TO_END, PaddingFree, attending_to, objection
from batchbridge_trl.recording import StepRow, TrlLayer, facts_of
from batchbridge_trl.rows import TrlMicroBatch, TrlRolloutRows
from batchbridge_trl.sampling import seeded
from batchbridge_trl.scoring import Scorer, old_logprobs
from batchbridge_trl.sharding import exchanging
from batchbridge_trl.shares import StepShares
from batchbridge_trl.watching import alone, quiet, rows_of, window

DIVIDED_LATER = ("grpo", "sapo", "dr_grpo")
"""Loss types whose logged policy_loss is from before the division by the micro-batches."""

_REMEDY = (
    "a loss of your own cannot be enforced unless it weighs tokens as the plan does: wrap with "
    """mode="observe" to record what it does, or use one of TRL's loss types"""
)


class Enforcer(TrlLayer):
    """The patches of one trainer, and the state of the run: the rollouts that are still to be trained on."""

    _plan: Plan

    def __init__(self, trainer: Any, request: Request, patches: Patches, version: str) -> None:
        assert request.plan is not None, "wrap refuses to enforce without a plan"
        super().__init__(trainer, request, patches, version)
        self._request, self._accelerator = request, trainer.accelerator
        self._rollouts: dict[int, TrlRolloutRows] = {}
        self._free = PaddingFree.asked(trainer, request, releases.producer())
        self._shares = StepShares(trainer, self._plan, self._rollouts, packed=self._free is not None)
        self._holds_others = False
        """Whether some rollout still holds rows that other ranks will train."""
        self._carrier = carrier(request.spec, str(request.reading.framework_version))
        self._terms = LossTerms(trainer)
        self._own_methods = HeldMethods(trainer, request.allow, self._require, self.ranks.gather)
        self._finder: BudgetFinder | None = None
        """Finds the token budget; None where it is given."""
        self._divides = False
        """Whether the native step divides every loss by its window's micro-batches; the probe tells."""
        self._checkpoints = Checkpoints(trainer, request, self._plan, self._rollouts, self._shares, self._terms)
        self._dataset = trainer.train_dataset
        self._reads_images = reads_images(trainer)
        self._pad_token = getattr(trainer.processing_class, "tokenizer", trainer.processing_class).pad_token_id

    def prepare(self) -> None:
        """The measuring, of the loss's other terms, too; and below it what a class of the user's own does."""
        self._place(self._own_methods.seams(self.native))
        super().prepare()
        self._watch.terms = self._terms
        if self._request.finds_budget:
            self._finder = BudgetFinder(self._trainer, self._watch)
            self.halved = self._finder.taken
        self.native["_generate_and_score_completions"] = self._tap.generating(
            self._trainer._generate_and_score_completions
        )

    def seams(self) -> Iterator[Seam]:
        """The seams of a trainer that follows the plan."""
        trainer, spec, resume = self._trainer, self._request.spec, "exact resume"
        producer = self._watch.producer
        budget = spec.micro_batch.forward_tokens_per_device or spec.micro_batch.tokens_per_device
        packed = self._free is not None
        if self._free is not None:
            self._watch.made_by(self._free.in_place_of)
            self._patches.note(producer.name, what=END_TO_END, why='padding="free"')
        order = "the plan's prompt order replaces TRL's sampler and its in-buffer shuffle"
        cut, whole = "membership and micro-batches of the plan", "one call per window runs the whole optimizer step"
        factor, scope = f"native {self._carrier} loss times the step's factor", "at optimizer-step scope"
        weights = f"{spec.loss.policy.aggregation} {scope}"
        yield Seam(trainer, "get_train_dataloader", self._loader, "one ticket per micro-step", order)
        clock = "clock of the spec"
        yield Seam(trainer, "set_initial_training_values", self._clock, "the plan's step counts", clock)
        yield Seam(trainer, "training_step", self._training_step, whole, cut)
        through = "micro-batches pass through"
        yield Seam(trainer, "_prepare_inputs", self._prepare_inputs, through, "they are prepared already")
        yield Seam(trainer, "compute_loss", self._loss, factor, weights)
        yield Seam(trainer, "_save_checkpoint", self._save, "rollouts in use are saved with it", resume)
        yield Seam(trainer, "_load_optimizer_and_scheduler", self._load, "rollouts in use are loaded", resume)
        yield Seam(trainer, "_load_from_checkpoint", self._load_model, "held against the plan first", resume)
        found = None if self._finder is None else self._finder.scoring
        if budget is not None or self._reads_images or packed or found is not None:
            most = self._shares.most
            scorer = Scorer(getattr(trainer, producer.name), producer, budget, most, packed=packed, found=found)
            why = "TRL gives chunks without images empty ones" if self._reads_images else "tokens_per_device"
            yield Seam(trainer, producer.name, scorer, "forward-only passes cut", why)
        if spec.horizon.lr_tick == "rollout":
            once = "advances once per rollout"
            yield Seam(trainer, "create_scheduler", self._scheduler, once, "lr_tick of the spec")
        yield Seam(trainer, "num_examples", lambda loader: self._plan.dataset_size, "the plan's prompts", "logs")

    def measure(self) -> list[str]:
        """Reads off the step, and hears of a schedule of the user's own; see `WorkerLayer.measure`."""
        return [*super().measure(), *self._own_methods.objections()]

    def close(self) -> None:
        """Undoes what is not an attribute, and closes the ledger."""
        super().close()
        trainer = self._trainer
        trainer._buffered_inputs = None
        if isinstance(trainer.lr_scheduler, TickedSchedule):  # the user's own, handed in as `optimizers`
            trainer.lr_scheduler = trainer.lr_scheduler.native

    def notes(self) -> list[str]:
        """The outcome of padding="auto", in words; empty where nothing was left to it."""
        if self._request.padding != "auto":
            return []
        return [
            "completions lie end to end"
            if self._free is not None
            else f"completions are padded: {objection(self._trainer)}"
        ]

    def hold_loss(self) -> None:
        """Holds the loss that this trainer really has, with our factor, against the plan's weights. Collective where
        there are several ranks. Raises `CannotAttach`."""
        trainer, term = self._trainer, self._request.spec.loss.policy
        taps = []
        # With the current policy as the ratio's denominator every ratio is one.
        for off_policy in (False, True) if self._request.spec.objective.old_logprobs != "detached" else (False,):
            tap = self._watch.tap()
            with quiet(trainer), alone(trainer), window(trainer, len(CUT)):
                for made in batches(self._watch.objective, off_policy=off_policy, device=self._accelerator.device):
                    micro = rows_module.made_up(made, token=2 if self._pad_token == 1 else 1)
                    micro.most_rows = len(made.lengths)
                    self._finish(micro, len(CUT), normaliser(term))
                    with self._watch.leaf_in(tap, made, self._terms):
                        self._run_probe(micro)
            taps.append(tap)
        verdict(taps, term, scale=self._accelerator.num_processes, remedy=_REMEDY)
        if (why := self._terms.objection()) is not None:
            raise CannotAttach({"weight_probe": f"{why}; {_REMEDY}"})

    def _run_probe(self, micro: TrlMicroBatch) -> None:
        try:
            self.native["training_step"](self._trainer.model, micro, None)
        except CannotAttach:
            raise
        except Exception as error:
            reason = (
                f"the trainer's own loss did not run on a made-up micro-batch ({type(error).__name__}: {error}), so "
                f"its weights cannot be measured; {_REMEDY}"
            )
            raise CannotAttach({"weight_probe": reason}) from error

    # ---- clock

    def _loader(self) -> torch.utils.data.DataLoader[int]:
        """Replaces the prompts' loader: its length is the plan's, its items are only counted. Anyone may ask for it in
        a run, too: nothing is forgotten here."""
        trainer = self._trainer
        self._dataset = trainer.train_dataset
        if trainer.args.remove_unused_columns:
            self._dataset = trainer._remove_unused_columns(self._dataset, description="Training")
        tickets = range(self._steps_per_epoch * trainer.args.gradient_accumulation_steps)
        # A generator of its own: a loader without one draws its seed from the global random state.
        return torch.utils.data.DataLoader(tickets, batch_size=1, collate_fn=list, generator=torch.Generator())

    def _require_unchanged(self) -> None:
        """The plan is of the prompts and settings that the trainer had when it was wrapped."""
        have, planned = len(self._trainer.train_dataset), self._plan.dataset_size
        if have != planned:
            reason = f"the trainer has {have} prompts, and had {planned} when it was wrapped: call wrap again"
            raise CannotAttach({"dataset_changed": reason})
        with self._patches.suspended():
            now = read(self._trainer, framework="trl").spec
        was = self._request.reading.spec
        if now != was and now is not None and was is not None:
            before = {path: value for path, value, _ in walk(was)}
            after = [(path, value) for path, value, _ in walk(now) if before.get(path) != value]
            changed = ", ".join(f"{path} {before.get(path)} to {value}" for path, value in after)
            reason = f"settings were changed after the trainer was wrapped ({changed}): call wrap again"
            raise CannotAttach({"settings_changed": reason})

    @property
    def _steps_per_epoch(self) -> int:
        """Steps in the training loop's epoch; one epoch is the whole run where steps cross the plan's epochs."""
        return self._plan.optimizer_steps_per_epoch or self._plan.total_optimizer_steps

    def _clock(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """A run begins: before a checkpoint is loaded, and once in each `train()`."""
        self._require_unchanged()
        self._rollouts.clear()
        self._shares.clear()
        values = list(self.native["set_initial_training_values"](*args, **kwargs))
        values[0] = -(-self._plan.total_optimizer_steps // self._steps_per_epoch)  # num_train_epochs
        values[-1] = self._plan.total_optimizer_steps  # max_steps
        return tuple(values)

    def _scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self.native["create_scheduler"](self._plan.total_rollouts, optimizer)
        trainer = self._trainer
        if not isinstance(trainer.lr_scheduler, TickedSchedule):
            trainer.lr_scheduler = TickedSchedule(trainer.lr_scheduler, self._ticks)
        return trainer.lr_scheduler

    def _ticks(self) -> bool:
        """Whether the optimizer step that is just over moves the learning rate."""
        return self._plan.step(self._trainer.state.global_step).lr_tick

    # ---- the optimizer step

    def _training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        try:
            return self._one_call(model, inputs)
        except RuntimeError as error:
            if not waited_too_long(error):
                raise
            limit, step = self._trainer.args.ddp_timeout, self._trainer.state.global_step
            raise BatchDrift(
                step,
                "ranks",
                f"rank {self._accelerator.process_index} waited {limit} s (ddp_timeout) for another rank, which has "
                "ended, is still busy with its rewards or tools, or ran fewer forward passes; see that rank's output, "
                f"or set a longer ddp_timeout ({error})",
            ) from error

    def _one_call(self, model: Any, inputs: Any) -> torch.Tensor:
        trainer = self._trainer
        window = trainer.args.gradient_accumulation_steps
        zero = torch.zeros((), device=self._accelerator.device)
        step_count = trainer._step + 1  # one native call, however many micro-batches run in it
        if (int(inputs[0]) + 1) % window:
            trainer._step = step_count
            return zero
        started = time.perf_counter()
        step = self._plan.step(trainer.state.global_step)
        model.train()  # generation and scoring tell training from evaluation by this flag
        for index in step.rollouts:
            if index not in self._rollouts:
                self._rollouts[index] = self._generate(index)
                self._holds_others = True
        if self._holds_others:
            for rollout in self._rollouts.values():
                self._shares.keep_own(rollout)
            self._holds_others = False
        share = self._shares.own(step)
        self._normaliser = normaliser = Normaliser.of(self._request.spec.loss.policy, self._shares.weighed(step))
        if normaliser.tokens:
            if releases.has(releases.TIMES_STEPS):  # natively it generates in them
                trainer._current_train_step_time += time.perf_counter() - started
            loss = self._train(model, step, share, normaliser, zero)
        else:
            # Nothing to train: without a backward pass all gradients stay None, and the optimizer leaves every
            # parameter and moment as it is.
            self._watch.idle, loss = True, zero
            self._idle_engine()
            self.silent += [self._row(step, item) for batch in share for item in batch if item is not None]
        trainer._step = step_count
        self._shares.forget(step)
        self._compute_seconds = self._shares.time.of_the_step()
        return loss

    def _train(
        self, model: Any, step: StepPlan, share: list[list[int | None]], normaliser: Normaliser, loss: torch.Tensor
    ) -> torch.Tensor:
        trainer = self._trainer
        trainer._step = 0  # TRL logs a step's time when it has counted its micro-batches
        if self._finder is not None:
            own = [item for batch in share for item in batch if item is not None]
            tokens = [row.tokens for row in self._shares.weighed(step)]
            run = functools.partial(self._run_micro_batch, step, normaliser)
            return loss + self._finder.train(model, self._shares.passes(step), own, tokens, run)
        metrics = StepMetrics(trainer, self._shares.turn_sizes(step))
        # Divided or not, a step natively has the term of a user's own as often as it has calls.
        own_share = 1.0 if self._divides else trainer.args.gradient_accumulation_steps / len(share)
        with window(trainer, len(share)):
            for number, batch in enumerate(share):
                most, last = max(len(rank[number]) for rank in self._shares.of(step)), number == len(share) - 1
                loss = loss + self._run_micro_batch(
                    step, normaliser, model, batch, last, most=most, micro_batches=len(share), own_share=own_share
                )
        metrics.of_the_step()
        return loss

    def _run_micro_batch(
        self,
        step: StepPlan,
        normaliser: Normaliser,
        model: Any,
        batch: Sequence[int | None],
        last: bool,
        *,
        most: int | None = None,
        micro_batches: int = 1,
        own_share: float = 1.0,
    ) -> torch.Tensor:
        """The loss of a micro-batch, which this runs: of so many in an accumulation window, by default alone in it.
        last: gradients are exchanged. most: see `TrlMicroBatch.most_rows`, by default its own; own_share: likewise."""
        completions = self._shares.completions(step)
        picks = [None if item is None else completions[item] for item in batch]
        multiple = releases.value(self._trainer, "pad_to_multiple_of")
        micro = rows_module.assemble(picks, self._shares.filler(step), self._pad_token, multiple)
        micro.most_rows, micro.own_share = len(batch) if most is None else most, own_share
        self._finish(micro, micro_batches, normaliser)
        rows = [None if item is None else self._row(step, item) for item in batch]
        # Advantages are those that the ledger has of the rollout.
        known = [0.0 if row is None else row.facts["advantage"] for row in rows]
        micro.expected = rows_of(self._trainer, micro, micro["advantages"].new_tensor(known))
        exchange = exchanging(self._trainer, model, self._watch.engine, last=last)
        self.parts.append(rows)  # before: DeepSpeed's engine updates inside of the last backward pass
        try:
            with exchange, attending_to(self._free), self._shares.time.micro_batch():
                loss: torch.Tensor = self.native["training_step"](model, micro, None)
        except BaseException:
            # Memory ran out, say: the finder runs these rows again, in other micro-batches.
            self.parts = [part for part in self.parts if part is not rows]
            raise
        return loss

    def _idle_engine(self) -> None:
        """A step without an update advances the schedule anyway, and has a norm of its own; DeepSpeed's engine
        sees to both in its update alone."""
        engine = self._watch.engine
        if engine is None:
            return
        engine._global_grad_norm = 0.0
        if engine.lr_scheduler is not None:
            engine.lr_scheduler.step()

    def _finish(self, micro: TrlMicroBatch, micro_batches: int, normaliser: Normaliser) -> None:
        """Completes a micro-batch: the factor, and the old log-probabilities that the spec asks for."""
        trainer, ranks, size = self._trainer, self._accelerator.num_processes, len(micro["completion_ids"])
        # dapo, cispo and vespo divide by this over ranks: by one. Exact in float32: a small integer.
        micro["num_items_in_batch"] = torch.tensor(float(ranks), device=self._accelerator.device)
        divisor = 1  # of a micro-batch's sum, or of a sum of its rows' means, in the native loss
        if self._carrier in ("grpo", "sapo"):
            divisor = size * micro_batches
        elif self._carrier == "dr_grpo":
            divisor = size * micro_batches * trainer.max_completion_length
        # Data-parallel ranks average their gradients; canonical weights add up.
        micro.factor = divisor * normaliser.step_factor() * ranks
        micro.micro_batches, micro.per_token = micro_batches, ranks / normaliser.tokens
        if self._request.spec.objective.old_logprobs == "detached":
            micro.pop("old_per_token_logps", None)
        for name in ("old_per_token_logps", "ref_per_token_logps"):
            micro.setdefault(name, None)  # trl 0.18 and 0.19 look for None

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs if isinstance(inputs, TrlMicroBatch) else self.native["_prepare_inputs"](inputs)

    def _loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(inputs, TrlMicroBatch):
            return self.native["compute_loss"](model, inputs, *args, **kwargs)
        gather, turns = self._accelerator.gather, inputs.micro_batches if self._carrier in DIVIDED_LATER else 1

        def gathered(tensor: Any) -> Any:
            if tensor.dim() == 0 and self._terms.bonus:  # policy_loss, natively the micro-batch's own
                return gather(tensor * inputs.factor / turns)
            # Metrics by row: ranks differ in their rows.
            return gather(rows_module.with_rows(tensor, inputs))

        with (
            temporarily(self._trainer, loss_type=self._carrier),
            temporarily(self._accelerator, gather=gathered),
            contextlib.nullcontext() if inputs.expected is None else self._watch.expecting(inputs.expected),
            self._terms.shared(inputs) as missing,
        ):
            loss = self.native["compute_loss"](model, inputs, *args, **kwargs)
        if inputs.expected is None and loss.requires_grad:
            loss.register_hook(self._arrived_at_loss)
        # TRL logs the value alone; the factor stands at the gradient of the log-probabilities (`LossTerms.weigh`).
        return with_value(loss * inputs.own_share, sum(missing, loss.detach() * inputs.factor))

    def _arrived_at_loss(self, gradient: torch.Tensor) -> None:
        """A hook: whether TRL's own step divides a loss by the micro-batches of its window."""
        self._divides = float(gradient) * len(CUT) < 1.5

    def _row(self, step: StepPlan, item: int) -> StepRow:
        rollout, pass_index, prompt, sample = step.members[item]
        position, rows = step.positions[item], self._rollouts[rollout]
        facts = dict(rows.facts[position])
        return StepRow(
            rollout,
            prompt,
            position // self._plan.completions_per_prompt,
            sample,
            rows.response_tokens[position],
            position,
            pass_index=pass_index,
            generated_at_step=facts.pop("generated_at_step"),
            facts=facts,
        )

    # ---- rollouts

    def _generate(self, index: int) -> TrlRolloutRows:
        """Generates rollout `index`: each rank its contiguous part of the prompt-major completions. Collective."""
        trainer, plan, accelerator = self._trainer, self._plan, self._accelerator
        rollout, group, ranks = plan.rollout(index), plan.completions_per_prompt, accelerator.num_processes
        prompts, seeds = list(rollout.prompts), list(plan.sampling_seeds(index))
        while len(prompts) * group % ranks:
            prompts.append(prompts[-1])  # ranks generate equally many; what this adds is never trained
            seeds.append(seeds[-1])
        local = len(prompts) * group // ranks
        mine = range(accelerator.process_index * local, (accelerator.process_index + 1) * local)
        examples = {prompt: self._dataset[int(prompt)] for prompt in {prompts[i // group] for i in mine}}
        drawn_by = [seeds[i // group] + i % group for i in mine]
        given = [dict(examples[prompts[i // group]]) for i in mine]
        told = logged_by_all(trainer, given) if self._reads_images else contextlib.nullcontext()
        self.hold_settings()
        again = len(list(islice(plan.steps_using(index), 2))) == 2
        needed = again and self._request.spec.objective.old_logprobs != "detached"
        with old_logprobs(trainer, needed=needed), seeded(trainer, drawn_by), told:
            output = self._watch.in_completions(self.native["_generate_and_score_completions"](given))
        images = taken(output, local) if self._reads_images else []
        columns = rows_module.columns_of(output, local)
        self.hold_advantages(columns["advantages"], mine.start)
        rewards, asked = self._tap.rewards.float(), self._request.spec.advantage
        # TRL's own rule for several rewards has no word in the schema; it is refused where the spec asks for another.
        own_rule = releases.value(trainer, "multi_objective_aggregation") == "normalize_then_sum"
        infinite = asked == self._own.advantage and bool(torch.isinf(rewards).any())  # nothing is computed of them
        if not (self.advantages.allowed or own_rule or infinite):
            groups = rewards.view(-1, group)[: len(rollout.prompts)].tolist()
            everyone = [value for each in group_advantages(groups, asked) for value in each]
            everyone += [0.0] * (len(rewards) - len(everyone))
            columns["advantages"] = columns["advantages"].new_tensor(everyone[mine.start : mine.stop])
        facts = facts_of(columns, self._tap.completion_ids, rewards[mine.start : mine.stop].tolist())
        for fact in facts:
            fact["generated_at_step"] = trainer.state.global_step
        masks = (rows_module.loss_mask(columns), columns["prompt_mask"])
        counts = [[int(count) for count in mask.sum(1).tolist()] for mask in masks]
        lengths = list(zip(*counts, map(len, self._tap.completion_ids), strict=True))
        tensors, lengths = rows_module.made_alike(accelerator, columns, lengths)
        response, prompt, completion = (list(each) for each in zip(*lengths, strict=True))
        seen = [(number, forms_of(pieces, by_row)) for number, pieces, by_row in images]
        if images and ranks > 1:
            seen = gather_object(seen)
        require_images_of_all(trainer, [forms for _, forms in seen])
        held = {place: pieces for place, (_, pieces, _) in zip(mine, images, strict=False) if pieces}
        pictures = RolloutImages.of_rollout(seen, held) if images else None
        slots, places = {place: row for row, place in enumerate(mine)}, CompletionPlaces.generated(len(lengths), ranks)
        known = dict(zip(mine, facts, strict=True))
        return TrlRolloutRows(index, tensors, slots, response, prompt, completion, known, pictures, places)

    # ---- checkpoints

    def _save(self, model: Any, trial: Any) -> None:
        self._checkpoints.save(
            Path(self._trainer._get_output_dir(trial=trial)) / f"checkpoint-{self._trainer.state.global_step}"
        )
        self.native["_save_checkpoint"](model, trial)

    def _load_model(self, checkpoint: Any, *args: Any, **kwargs: Any) -> None:
        self._checkpoints.check(Path(checkpoint))
        self.native["_load_from_checkpoint"](checkpoint, *args, **kwargs)
        self._checkpoints.load_weights(Path(checkpoint))

    def _load(self, checkpoint: Any) -> None:
        if checkpoint is not None and self._trainer.is_deepspeed_enabled:
            self._checkpoints.check(Path(checkpoint))  # its engine has loaded the weights by itself
        if checkpoint is not None:
            sharded_files.prepare(self._trainer)
        self.native["_load_optimizer_and_scheduler"](checkpoint)
        if checkpoint is not None:
            sharded_files.check_loaded(self._trainer, Path(checkpoint))
            self._holds_others = self._checkpoints.load(Path(checkpoint))
