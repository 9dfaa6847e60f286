"""The side of `PPOTrainer`'s process: which prompts a rollout has, in which order its completions stand, who trains
them.

Patches one instance and what it holds; the training processes get their orders through Ray. Generation, rewards,
scoring, the advantages of the trainer's own rule and the training loop stay OpenRLHF's.
Source: openrlhf 0.11.2 ppo_trainer.PPOTrainer, samples_generator.SamplesGenerator, launcher.RayActorGroup.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge import BatchDrift, CannotAttach, Plan
from batchbridge.kit import Length, Request, RolloutPlan, StepCost, checkpoints, partition_by_tokens
from batchbridge.kit.model_files import text_config
from batchbridge.kit.new_start import make_way
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages, ProducerSettings
from batchbridge.kit.ranks import deal, steps_of_rollout
from batchbridge.kit.token_budgets import cut_of
from batchbridge.kit.workers import Orders, Receipt
from batchbridge.kit.workers_ray import install_everywhere
from batchbridge_openrlhf.answers import mark, prompt_tokens
from batchbridge_openrlhf.critic import critics_orders, in_critic
from batchbridge_openrlhf.inputs import hold_advantages, mark_sent, settings_read
from batchbridge_openrlhf.sampling import SeededEngines, reach, release
from batchbridge_openrlhf.turns import IDENTITY, identify


class OpenRlhfDriver:
    """The patches of one `PPOTrainer`."""

    def __init__(self, trainer: Any, request: Request, orders: Orders, patches: Patches) -> None:
        assert request.plan is not None, "wrap refuses to enforce without a plan"
        assert request.reading.spec is not None, "wrap refuses a trainer whose own configuration is not read"
        self._trainer, self._orders, self._plan = trainer, orders, request.plan
        self._request, self._own = request, request.reading.spec
        self._held = HeldAdvantages.of(request)
        self._settings = ProducerSettings(lambda: settings_read(trainer))
        self._next, self._scored_tokens = 0, 0
        self._receipts: list[Receipt] = []
        self._sent = False
        self._reached = False
        self._generator, self._maker = trainer.samples_generator, trainer.experience_maker
        self._group, self._dataset = trainer.actor_model_group, trainer.prompts_dataloader.dataset
        self._native_start = trainer.init_checkpoint_states
        self._native_make = self._maker.make_experience
        self._native_advantages = self._maker.compute_advantages_and_returns
        order, resume = "order and membership of the plan", "exact resume"
        place = OpenRlhfPlanPositionLoader(self)
        rows: list[tuple[Any, str, Any, str, str]] = [
            (trainer, "max_steps", orders.ticks, f"{orders.ticks} ticks", "clock of the spec"),
            (trainer, "prompts_dataloader", place, "the place in the plan", resume),
            (trainer, "init_checkpoint_states", self._start, "the training processes get their orders", order),
            (
                self._generator,
                "generate_samples",
                self._generate,
                "the plan's prompts, in its order, with its seeds",
                order,
            ),
            (self._maker, "make_experience", self._make, "micro-batches split evenly over all models' ranks", order),
        ]
        critic = request.spec.critic
        self._warmup = 0 if critic is None else critic.warmup_rollouts
        if self._warmup:
            why = "the critic's warm-up"
            rows += [
                (trainer.args.critic, "freezing_steps", self._warmup - 1, "the plan's first rollouts", why),
                (trainer, "ppo_train", functools.partial(self._train, trainer.ppo_train), "counted by the plan", why),
            ]
        for group, told, _ in trained(trainer, orders):
            plan = told.plan()
            assert plan is not None, "wrap refuses to enforce without a plan"
            send = functools.partial(self._send, group, group.async_run_method_batch, plan)
            rows.append((group, "async_run_method_batch", send, "completions go where their step runs", order))
        forward, native = (cut_of(spec.micro_batch)[1] for spec in (request.spec, request.reading.spec))
        if forward != native and forward[0] == "tokens":
            self._scored_tokens = forward[1] or 0
            what = f"forward passes of at most {self._scored_tokens} tokens"
            rows.append((self._maker, "split_rollout_samples", self._split, what, "token budget of the requested spec"))
        what, why = "held, or by the spec's rule; digests beside them", "advantages"
        rows.append((self._maker, "compute_advantages_and_returns", self._advantages, what, why))
        for target, name, value, what, why in rows:
            patches.set(target, name, value, what=what, why=why)

    def detach(self) -> None:
        """Undoes what is in other processes: of those that train, where they have orders, and of the engines."""
        try:
            if self._sent:
                install_in(trained(self._trainer, self._orders), undo=True)
                self._sent, self._receipts = False, []
        finally:
            if self._reached:
                release(self._generator.vllm_engines)
                self._reached = False

    @functools.cached_property
    def _cost(self) -> StepCost:
        """The cost of the policy's completions, by which its ranks are balanced, and a critic's."""
        return StepCost.of_model(
            text_config(getattr(getattr(self._trainer.args, "actor", None), "model_name_or_path", None))
        )

    @property
    def ranks(self) -> int:
        """Training processes."""
        return len(self._group._actor_handlers)

    # ---- start and resume

    def _start(self) -> Any:
        self._sent = True  # also where one of them refuses
        self._receipts = install_in(trained(self._trainer, self._orders))
        states = self._native_start()
        saved = states.get("data_loader_state_dict") or {}
        if states["global_step"] and STATE not in saved:
            self.continue_from(saved)  # refused before anything else is made ready
        if not states["global_step"] and not self._next and self._orders.ledger is not None:  # it does not go on
            note = make_way(self._orders.ledger, finished_checkpoint(self._trainer))
            checkpoints.tell(self._trainer, [] if note is None else [note])
        return states

    def state(self) -> dict[str, Any]:
        """The state of a checkpoint after the rollouts so far."""
        steps = checkpoints.steps_before(self._plan, self._next)
        more = {"prompts": self._request.prompts, "rollouts": self._next, **self._memory()}
        return {STATE: checkpoints.state(self._plan, steps, ranks=self.ranks, **more)}

    def continue_from(self, state: Mapping[str, Any]) -> None:
        """The continuation of this plan from `state`; `CannotAttach` unless it continues it."""
        resumed = checkpoints.resume(
            state.get(STATE),
            self._plan,
            where="the checkpoint",
            ranks=self.ranks,
            other_ranks=PARTITIONED,
            request=self._request,
        )
        self._remember(resumed.saved)
        checkpoints.tell(self._trainer, resumed.notes)
        self._next = int(resumed.saved["rollouts"])

    def _memory(self) -> dict[str, int]:
        """Entries of a checkpoint beside the place in the plan."""
        return {}

    def _remember(self, saved: Mapping[str, Any]) -> None:
        """Takes `_memory` over from a checkpoint. Raises `CannotAttach`."""

    @property
    def prompts_per_epoch(self) -> int:
        """Prompts of the dataset."""
        return self._plan.dataset_size

    # ---- a rollout

    def _generate(self, **options: Any) -> tuple[list[Any], float | None, int, bool]:
        """A stand-in for `SamplesGenerator.generate_samples`: one planned rollout, whatever arrives first."""
        if not self._receipts:
            raise CannotAttach({"arrival": "no training process has its orders: the start was not followed"})
        if self._next >= self._plan.total_rollouts:
            return [], None, 0, True
        self._settings.require(self._plan.rollout(self._next).generated_at_step)
        from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

        engines, sleeps = self._generator.vllm_engines, self._trainer.args.vllm.enable_sleep
        if sleeps:
            batch_vllm_engine_call(engines, "wake_up")
        reach(engines)
        self._reached = True
        samples, pass_rate, prompts = self._fill(self._plan.rollout(self._next), options)
        if sleeps:
            batch_vllm_engine_call(engines, "sleep")
        self._next += 1
        # Before 0.11, what comes with the word that nothing is left is not trained.
        return samples, pass_rate, prompts, False

    def _fill(self, planned: RolloutPlan, options: Mapping[str, Any]) -> tuple[list[Any], float | None, int]:
        """The rollout's completions, prompt by prompt; what OpenRLHF logs as a filter's pass rate; prompts offered."""
        import ray

        _, prompts, labels, images = self._dataset.collate_fn([self._dataset[prompt] for prompt in planned.prompts])
        seeds = self._plan.sampling_seeds(planned.index)
        answers = ray.get(self._dispatch(seeds, prompts, labels, images=images, **options))
        samples = []
        for position, (prompt, group) in enumerate(zip(planned.prompts, answers, strict=True)):
            require_group(planned, prompt, len(group))
            for sample, answer in enumerate(group):
                made = mark(self._generator._process_response_into_experience(answer, **options), answer)
                samples.append(
                    identify(
                        made,
                        rollout=planned.index,
                        prompt=prompt,
                        position=position,
                        sample=sample,
                        prompt_tokens=prompt_tokens(answer),
                    )
                )
        return samples, None, len(prompts)

    def _dispatch(self, seeds: Sequence[int], *arguments: Any, **options: Any) -> list[Any]:
        """The native dispatch of prompts to the engines, with the seed of each one's first sample."""
        generator = self._generator
        engines = generator.vllm_engines
        generator.vllm_engines = SeededEngines(engines, seeds)
        try:
            return list(generator._dispatch_prompts_to_vllm(*arguments, **options))
        finally:
            generator.vllm_engines = engines

    def _split(self, samples: Sequence[Any]) -> list[Any]:
        """A stand-in for `split_rollout_samples`: the forward-only passes' micro-batches by the spec's budget; a
        completion above it is scored alone."""
        from openrlhf.trainer.ppo_utils.experience import Experience

        for place, sample in enumerate(samples):
            sample.index = [place]
        prompts = [int(sample.info[IDENTITY][0][-1]) for sample in samples]
        widths = [int(sample.sequences.shape[-1]) for sample in samples]
        parallel = self._trainer.args.ds
        together = int(parallel.ring_attn_size) * int(parallel.tensor_parallel_size)
        (cuts,) = partition_by_tokens(
            [Length(prompt, width - prompt) for prompt, width in zip(prompts, widths, strict=True)],
            ranks=1,
            tokens_per_device=self._scored_tokens * together,
            padded=not self._trainer.args.ds.packing_samples,
            soft=True,
        )
        padding = self._maker.tokenizer.pad_token_id
        whole = [[samples[place] for place in cut if place is not None] for cut in cuts]
        return [Experience.concat_experiences(part, padding) for part in whole]

    def _make(self, samples: list[Any]) -> list[Any]:
        """The native forward passes over as many micro-batches as all models' ranks share evenly: upstream gives the
        last rank fewer, or none, and ranks that communicate inside a forward pass would wait for each other."""
        maker = self._maker
        models = ("actor", "critic", "initial", "reward")
        groups = [getattr(maker, f"{name}_model_group") for name in models]
        sizes = [len(group._actor_handlers) // group.duplicate_actors for group in groups if group is not None]
        shortest = min(samples, key=lambda batch: batch.sequences.numel())
        fillers = []
        for _ in range(-len(samples) % math.lcm(*sizes)):
            filler = copy.copy(shortest)
            filler.info = dict(shortest.info)
            fillers.append(filler)
        return list(self._native_make([*samples, *fillers])[: len(samples)])

    def _advantages(self, experiences: list[Any]) -> list[Any]:
        """Upstream's advantages, held against the trainer's own rule where that says what the rewards give, or one
        number per completion by the spec's where that is another; and digests of what the rows carry."""
        import torch

        made: list[Any] = self._native_advantages(experiences)
        step = self._plan.rollout(max(self._next - 1, 0)).generated_at_step
        rewards = hold_advantages(made, self._held, self._own, step)
        asked = self._plan.spec.advantage
        if asked != self._own.advantage and (flat := self._held.replacing(rewards)) is not None:
            for experience in made:
                values = torch.tensor([flat[place] for place in experience.index])[:, None]
                experience.advantages = values * experience.action_mask
                experience.returns = experience.advantages.clone()
        for experience in made:
            mark_sent(experience)
        return made

    def _train(self, native: Callable[[int], Any], counted: int) -> Any:
        """`BasePPOTrainer.ppo_train`, which trains the policy from a number of rollouts on; a `fit` that goes on after
        an exception counts them from the start again."""
        return native(self._next - 1)

    def _send(self, group: Any, native: Callable[..., Any], plan: Plan, method_name: str, **columns: Any) -> list[Any]:
        """`RayActorGroup.async_run_method_batch`; what is appended to the replay buffers goes by the plan's steps. The
        policy gets nothing of a critic's warm-up: its replay buffer would keep it, and train it later."""
        if method_name != "append":
            return list(native(method_name, **columns))
        if group is self._group and self._next <= self._warmup:
            return []
        import ray
        from openrlhf.trainer.ppo_utils.experience import (
            make_experience_batch,
            remove_padding_in_sequences,
            split_experience_batch,
        )

        items = [item for batch in columns["experience"] for item in split_experience_batch(batch)]
        refs, handlers, together = [], group._actor_handlers, int(group.duplicate_actors)
        for number, share in enumerate(self._shares(items, plan, len(handlers) // together)):
            whole = [make_experience_batch(remove_padding_in_sequences(share))] if share else []
            data = ray.put({"experience": whole})
            for handler in handlers[number * together : (number + 1) * together]:
                refs.append(handler.execute_batch.remote(method_name, data, 0, len(whole)))
        return refs

    def _shares(self, items: Sequence[Any], plan: Plan, count: int) -> list[list[Any]]:
        """Each rank's, or ring's, completions: those of a step are dealt out evenly, by what they cost, in the first
        pass that trains them; what no step trains goes anywhere, so that the rollout can be seen to be whole."""
        rows, size = {}, plan.completions_per_prompt
        for item in items:
            rollout, _, position, sample, _ = (int(value) for value in item.info[IDENTITY])
            rows[position * size + sample] = item
        blocks = [step.positions for step in steps_of_rollout(plan, rollout)]
        left = list(rows)
        shares: list[list[Any]] = [[] for _ in range(count)]
        for block in [*blocks, tuple(left)]:
            new = [row for row in dict.fromkeys(block) if row in rows]
            hands = deal([self._cost.of_sequence(int(rows[row].attention_mask.sum())) for row in new], count)
            for share, hand in zip(shares, hands, strict=True):
                share += [rows.pop(row) for row in [new[place] for place in hand]]
        return shares


STATE = "batchbridge"
"""Key of what a checkpoint has in place of the prompt loader's state."""
PARTITIONED = (
    "DeepSpeed's ZeRO checkpoint holds one part of the optimizer's state for each rank, and DeepSpeed refuses to load "
    "it on another number of them; the weights without the optimizer go on in a new run"
)
"""The reason why a checkpoint needs as many ranks as wrote it. Source: deepspeed 0.19.6
engine._load_zero_checkpoint."""


def ranks_of(checkpoints: Path) -> int | None:
    """Training processes that wrote the newest checkpoint in a folder; None where there is none, or nothing says it.

    Source: deepspeed 0.19.6 engine._get_zero_ckpt_name: one file of optimizer states for each.
    """
    latest = checkpoints / "latest"
    if not latest.is_file():
        return None
    tag = latest.read_text(encoding="utf-8").strip()
    return len(list((checkpoints / tag).glob("*zero_pp_rank_*_optim_states.pt"))) or None


def finished_checkpoint(trainer: Any) -> Path | None:
    """The folder of the policy's checkpoints, where one is finished: DeepSpeed writes `latest` last."""
    folder = Path(trainer.args.ckpt.path) / "_actor"
    return folder if (folder / "latest").is_file() else None


def check_ranks(trainer: Any) -> None:
    """Refusal (`CannotAttach`) of a run that should continue what another number of training processes left: DeepSpeed
    would end it only after all models are there."""
    if not trainer.args.ckpt.load_enable:
        return
    for name, group in (("_actor", trainer.actor_model_group), ("_critic", trainer.critic_model_group)):
        wrote = ranks_of(Path(trainer.args.ckpt.path) / name)
        ranks = None if group is None else len(group._actor_handlers)
        if wrote is not None and ranks is not None and wrote != ranks:
            where = "the checkpoint" if name == "_actor" else "the critic's checkpoint"
            raise CannotAttach({"resume": checkpoints.ranks_differ(where, wrote, ranks, PARTITIONED)})


def require_group(planned: RolloutPlan, prompt: int, completions: int) -> None:
    """The check (`BatchDrift`) that a prompt has as many completions as planned."""
    if completions != planned.completions_per_prompt:
        raise BatchDrift(
            planned.generated_at_step,
            "membership",
            f"{completions} completions of prompt {prompt} arrived, not {planned.completions_per_prompt}",
        )


class OpenRlhfPlanPositionLoader:
    """A stand-in for the prompt loader: its length and, for checkpoints, the place in the plan."""

    def __init__(self, driver: OpenRlhfDriver) -> None:
        self._driver = driver

    def __len__(self) -> int:
        return self._driver.prompts_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """The place in the plan."""
        return self._driver.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues there. Raises `CannotAttach`."""
        self._driver.continue_from(state)


TrainedRollout = tuple[Any, Orders, Callable[[Any, Any], Receipt | None]]
"""A group of processes whose model is trained, their orders, and what gives them those."""


def trained(trainer: Any, orders: Orders) -> list[TrainedRollout]:
    """The policy's processes, and those of a critic."""
    groups: list[TrainedRollout] = [(trainer.actor_model_group, orders, in_worker)]
    if trainer.critic_model_group is not None:
        groups.append((trainer.critic_model_group, critics_orders(orders), in_critic))
    return groups


def install_in(groups: Sequence[TrainedRollout], *, undo: bool = False) -> list[Receipt]:
    """Orders for all processes of `groups`, or their end. The receipts of the first group."""
    made = [install_everywhere(group._actor_handlers, None if undo else told, take) for group, told, take in groups]
    return made[0]


def in_worker(worker: Any, orders: Orders | None) -> Receipt | None:
    """The installation of `orders`, or with None their removal, inside a `PolicyModelActor`."""
    from batchbridge_openrlhf.engine import install, remove

    if orders is None:
        remove(worker.trainer)
        return None
    return install(worker.trainer, orders)
