"""The data preparation actor's side: rollouts of the plan, packed so that no row is dropped, every completion told
apart.

The actor's own loop runs as it is written, with the functions that gather results, pack them and hand rows to ranks
bound to ours. Ours ask for prompts in the plan's order, as many rollouts ahead of the training step that begins as the
spec's staleness allows (none where it is synchronous), and take them in that order, whatever arrives first. Processing
of groups, packing and collating stay Open-Instruct's.

Imports the framework only inside functions that the actor runs. Source: open-instruct e6c3044 data_loader.py,
rl_utils.pack_sequences.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from queue import Empty
from typing import Any

from batchbridge import CannotAttach, Plan
from batchbridge.kit import checkpoints, group_advantages
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches, rebound
from batchbridge.kit.producers import HeldAdvantages, ProducerSettings
from batchbridge.kit.ranks import deal
from batchbridge.kit.workers import Orders
from batchbridge_open_instruct.candidates import CandidateQueue, PassRate, TakenPrompt, solved_of
from batchbridge_open_instruct.completions import PackedBatch, PackedCompletion
from batchbridge_open_instruct.inputs import advantages_of, settings_read, told_of

ATTRIBUTE = "batchbridge"
"""The name of the attribute of an actor that was given orders, and of a batch: its `PackedBatch`."""
DIGEST = "batchbridge_prompts"
"""The name of the attribute of an actor that has the digest of its prompts."""
PROMPT_TOKENS = "input_ids_prompt"
"""The column that is generated from: with another tokenizer or template the prompts are others, too. Source:
open-instruct e6c3044 dataset_transformation.INPUT_IDS_PROMPT_KEY."""
_POLL_SECONDS = 0.2
_KEPT = ("query_responses", "attention_masks", "response_masks", "position_ids", "vllm_logprobs", "num_actions")
"""Lists of `PackedSequences`, one entry per row, that the loop reads after packing."""


def install(actor: Any, orders: Orders, other_ranks: str, advantages: HeldAdvantages | None = None) -> None:
    """Patches a `DataPreparationActor` that was not started, once per start of the run. Raises `CannotAttach`.

    other_ranks: why a checkpoint does not go on with another number of learners. advantages: of a run whose inputs are
    held."""
    have = vars(actor).get(ATTRIBUTE)
    if have is not None and have.start_id == orders.start_id:
        return
    if actor._prep_future is not None:
        raise CannotAttach({"in_training": "data preparation has started; wrap the learners before it starts"})
    remove(actor)
    setattr(actor, ATTRIBUTE, ActorFeed(actor, orders, other_ranks, advantages))


def remove(actor: Any) -> None:
    """Undoes `install`; raises `CannotAttach` once data preparation runs: what it prepares is patched."""
    feed = vars(actor).get(ATTRIBUTE)
    if feed is None:
        return
    if actor._prep_future is not None and not actor._prep_future.done():
        raise CannotAttach({"in_training": "data preparation runs; a wrapped job can be unwrapped when it has ended"})
    feed.remove()
    delattr(actor, ATTRIBUTE)


def begin(actor: Any, rollout: int) -> tuple[str, ...]:
    """A learner is about to train on `rollout`: the engines have the weights that should generate it. Returns the notes
    of the checkpoint that the run goes on from."""
    feed = vars(actor).get(ATTRIBUTE)
    if feed is None:
        raise CannotAttach({"arrival": "the data preparation actor has no orders: it was restarted, or unwrapped"})
    feed.begin(rollout)
    return notes_of(actor)


def notes_of(actor: Any) -> tuple[str, ...]:
    """Differences from the run that wrote the checkpoint that were let through; see `checkpoints.ResumePoint`."""
    feed = vars(actor).get(ATTRIBUTE)
    return () if feed is None else tuple(feed.notes)


def solved_at_start(actor: Any) -> frozenset[int]:
    """The prompts that were solved before the run began, in the run that it goes on from."""
    feed = vars(actor).get(ATTRIBUTE)
    return frozenset() if feed is None or feed._candidates is None else feed._candidates.solved_at_start


def prompts_of(actor: Any) -> int:
    """The number of the actor's prompts."""
    return len(actor.dataset)


def digest_of_prompts(actor: Any) -> Mapping[str, Any] | None:
    """The digest of the actor's prompts, made once; see `batchbridge.meaning.prompt_digest`. None of a data set without
    their tokens."""
    from batchbridge.kit import PromptColumn  # `check` imports this module, and reads no prompts

    if PROMPT_TOKENS not in actor.dataset.column_names:
        return None
    if DIGEST not in vars(actor):
        setattr(actor, DIGEST, checkpoints.digest_of_prompts(PromptColumn(actor.dataset, PROMPT_TOKENS)))
    found: Mapping[str, Any] | None = vars(actor)[DIGEST]
    return found


def own_preparation(actor: Any) -> str:
    """The name of the loop that prepares data, where it is a user's own; else empty."""
    loop = inspect.unwrap(type(actor)._data_preparation_loop)
    known = loop.__module__.partition(".")[0] == "open_instruct"
    return "" if known else f"{loop.__module__}.{loop.__qualname__}"


class ActorFeed:
    """The patches of one actor, and the rollout that is being prepared."""

    def __init__(self, actor: Any, orders: Orders, other_ranks: str, advantages: HeldAdvantages | None = None) -> None:
        self.start_id = orders.start_id
        self._held = advantages
        self._settings = ProducerSettings(lambda: settings_read(actor))
        self.notes: tuple[str, ...] = ()
        observation = Observation(orders.mode)
        self._actor, self._orders, self._patches = actor, orders, Patches(observation)
        self._plan = orders.plan() if orders.mode == "enforce" else None
        self._candidates = None if self._plan is None else CandidateQueue(self._plan, PassRate.of(actor.config))
        self._pieces: list[PackedCompletion] = []
        self._taken: tuple[TakenPrompt, ...] = ()
        self._rows: list[tuple[PackedCompletion, ...]] = []
        self._numbers: list[Any] = []
        self._permutations: list[list[int]] = []
        loop = inspect.unwrap(type(actor)._data_preparation_loop)  # Ray's tracing wraps it
        scope = loop.__globals__
        accumulate, pack = "accumulate_inference_batches", "pack_sequences"
        collate = "prepare_collated_data_for_workers"
        self._module = scope[accumulate].__globals__
        native_collate, names = rebound(scope[collate], np=KnownPermutations(self._permutation)), {}
        ours = self._observe if self._plan is None else self._accumulate
        names[accumulate], self._native_accumulate = observation.guarded(scope[accumulate], ours)
        names[pack], self._native_pack = observation.guarded(scope[pack], self._pack)
        names[collate], self._native_collate = observation.guarded(native_collate, self._collate)
        what, why = "the plan's rollouts, whole", "membership of the plan"
        if self._plan is None:
            what, why = "completions are told apart", "ledger"
        else:
            names["add_prompt_to_generator"] = self._nothing
            assert self._candidates is not None, "made with the plan"
            place = PlanPositionLoader(actor, self._plan, self._candidates, self._resumed, other_ranks, orders)
            self._patches.set(actor, "iter_dataloader", place, what="the place in the plan", why="exact resume")
        patched = types.MethodType(rebound(loop, **names), actor)
        self._patches.set(actor, "_data_preparation_loop", patched, what=what, why=why)

    def remove(self) -> None:
        """Restores the actor."""
        self._patches.undo()

    def _resumed(self, notes: tuple[str, ...]) -> None:
        self.notes = notes

    def begin(self, rollout: int) -> None:
        """The beginning of a rollout in the actor, as in `begin`."""
        if self._candidates is not None:
            self._candidates.begun = max(self._candidates.begun, rollout)

    # ---- results

    @staticmethod
    def _nothing(*arguments: Any, **options: Any) -> None:
        """A stand-in for `add_prompt_to_generator` in the loop, which asks for async_steps rollouts ahead."""

    def _accumulate(self, results: Any, generation_config: Any, *, training_step: int, **given: Any) -> Any:
        """A stand-in for `accumulate_inference_batches`: exactly what the plan's rollout takes, in its order, whatever
        arrives first."""
        self._hold_settings(training_step)
        plan, candidates = self._plan, self._candidates
        assert plan is not None, "bound where the plan is enforced"
        assert candidates is not None, "made with the plan"
        sentinel = self._module["data_types"].ShutdownSentinel
        rollout = candidates.rollout(training_step)
        groups = []
        while not rollout.complete:
            candidates.leave_out(rollout)
            while (result := candidates.arrived(rollout)) is None:
                for number, prompt, seed in candidates.due(rollout):
                    self._ask(candidates.request_name(number), prompt, seed, generation_config, given)
                try:
                    result = results.get(timeout=_POLL_SECONDS)
                except Empty:
                    continue
                if isinstance(result, sentinel):
                    return result, None, None, None
                candidates.put(result, rollout)
            if candidates.take(result, rollout):
                groups.append(self._group(result, generation_config, given))
        candidates.end(rollout)
        kept = [one for one in rollout.taken if one.position is not None]
        dropped = [one.rewards[0] for one in rollout.taken if one.position is None and not one.left_out]
        solved = sum(reward == given["max_possible_score"] for reward in dropped)
        made = self._module["make_batch_from_groups"](
            groups,
            generation_config,
            training_step,
            given["actor_manager"],
            filtered_prompts=len(dropped),
            filtered_prompts_zero=dropped.count(0.0),
            filtered_prompts_solved=solved,
            filtered_prompts_nonzero=len(dropped) - dropped.count(0.0) - solved,
            no_resampled_prompts=len(solved_of(kept, PassRate.of(self._actor.config))),
        )
        self._taken = tuple(rollout.taken)
        self._identify(training_step, [(one.prompt, one.rewards, one.weights_of) for one in kept])
        return made

    def _group(self, result: Any, generation_config: Any, given: Mapping[str, Any]) -> Any:
        return self._module["process_group"](
            result=result,
            generation_config=generation_config,
            tokenizer=given["tokenizer"],
            dataset=given["dataset"],
            max_possible_score=given["max_possible_score"],
            no_resampling_pass_rate=None,
            iter_dataloader=None,
            filter_zero_std_samples=False,
            replenish_prompts=False,
            param_prompt_Q=None,
            base_env_config=given["base_env_config"],
            ground_truth_overrides=given["ground_truth_overrides"],
        )

    def _ask(self, name: str, prompt: int, seed: int, generation_config: Any, given: Mapping[str, Any]) -> None:
        """The request for a candidate's answers. seed: of sample 0; the engine's actor gives sample i the i-th next."""
        self._module["add_prompt_to_generator"](
            {**given["dataset"][prompt], "index": prompt},
            name,  # in place of the epoch: the request's name is unique, and comes back
            given["param_prompt_Q"],
            dataclasses.replace(generation_config, seed=seed),
            is_eval=False,
            base_env_config=given["base_env_config"],
            ground_truth_overrides=given["ground_truth_overrides"],
        )

    def _observe(self, *arguments: Any, training_step: int, **given: Any) -> Any:
        self._hold_settings(training_step)
        made = self._native_accumulate(*arguments, training_step=training_step, **given)
        batch, group = made[1], self._actor.config.num_samples_per_prompt_rollout
        if batch is not None:
            scores = list(batch.scores)
            rewards = [scores[start : start + group] for start in range(0, len(scores), group)]
            every = zip(batch.indices[::group], rewards, batch.model_steps[::group], strict=True)
            self._identify(training_step, list(every))
        return made

    def _hold_settings(self, rollout: int) -> None:
        """The check (`BatchDrift`), before a rollout is taken, that what makes its advantages reads what it did when
        the learners were wrapped."""
        if self._held is not None:
            self._settings.require(self._step_of(rollout))

    def _step_of(self, rollout: int) -> int:
        """The first optimizer step of a rollout."""
        steps = rollout * self._orders.steps_per_rollout
        return steps if self._plan is None else self._plan.rollout(rollout).generated_at_step

    def _identify(self, rollout: int, groups: Sequence[tuple[int, Sequence[float], int | None]]) -> None:
        """The pieces of a rollout. groups: prompt, rewards and the training steps before its weights of each that is
        trained."""
        self._pieces = [
            PackedCompletion(rollout, int(prompt), position, sample, 0, 0, 0, float(reward), weights_of)
            for position, (prompt, rewards, weights_of) in enumerate(groups)
            for sample, reward in enumerate(rewards)
        ]

    # ---- packed rows

    def _pack(self, **given: Any) -> Any:
        """A stand-in for `pack_sequences`; see `_packed`."""
        if self._plan is None:
            packed = self._native_pack(**given)
            self._rows = self._located(packed, range(len(self._pieces)))
            return packed
        ranks = self._actor.dp_world_size
        costs = [len(query) + len(answer) for query, answer in zip(given["queries"], given["responses"], strict=True)]
        blocks: list[tuple[Any, list[tuple[PackedCompletion, ...]]]] = []
        for hand in deal(costs, ranks):
            if not hand:  # fewer completions than ranks
                blocks.append((None, []))
                continue
            part = self._native_pack(**_chosen(given, hand))
            blocks.append((part, self._located(part, hand)))
            part.response_masks = [_renumbered(mask, hand) for mask in part.response_masks]
        most = max(len(rows) for _, rows in blocks)
        short = min(range(len(costs)), key=costs.__getitem__)
        filler = {**_chosen(given, [short]), "masks": [[0] * len(given["masks"][short])], "mask_tool_use": True}
        self._rows, parts = [], []
        for part, rows in blocks:
            spare = most - len(rows)
            self._rows += [*rows, *[()] * spare]
            own = [] if part is None else [part]
            parts += [*own, *[self._native_pack(**filler) for _ in range(spare)]]
        packed = dataclasses.replace(
            parts[0], **{name: [row for part in parts for row in getattr(part, name)] for name in _KEPT}
        )
        self._numbers = list(packed.response_masks)  # the loop makes flags of them
        return packed

    def _located(self, packed: Any, places: Sequence[int]) -> list[tuple[PackedCompletion, ...]]:
        """The pieces of each row; `places` are the completions that were packed, in order."""
        rows, coming = [], iter(places)
        for lengths, answers in zip(packed.packed_seq_lens, packed.num_actions, strict=True):
            row, start = [], 0
            for length, answer in zip(lengths.tolist(), answers.tolist(), strict=True):
                piece = self._pieces[next(coming)]
                row.append(
                    dataclasses.replace(piece, start=start, prompt_tokens=length - answer, completion_tokens=answer)
                )
                start += length
            rows.append(tuple(row))
        return rows

    def _collate(self, packed: Any, ranks: int, rows_per_micro_batch: int, pad_token: int, **more: Any) -> Any:
        """`prepare_collated_data_for_workers`, whose permutations are known: none where the plan is enforced."""
        if self._held is not None:
            self._hold_advantages(self._held, packed)
        if self._plan is not None and (self._held is None or not self._held.allowed):
            packed.advantages = self._advantages()
        told = {} if self._held is None else told_of(packed, self._rows)
        self._permutations.clear()
        made = self._native_collate(packed, ranks, rows_per_micro_batch, pad_token, **more)
        block, size = len(self._rows) // ranks, rows_per_micro_batch
        for rank, (batch, order) in enumerate(zip(made, self._permutations, strict=True)):
            rows = [self._rows[rank * block + place] for place in order]
            cut = tuple(tuple(rows[start : start + size]) for start in range(0, len(rows), size))
            setattr(batch, ATTRIBUTE, PackedBatch(self._orders.spec.digest(), cut, self._taken, told))
        return made

    def _hold_advantages(self, held: HeldAdvantages, packed: Any) -> None:
        """The check (`BatchDrift`) that the loop's own advantages are what its own rule makes of the rewards."""
        if not self._pieces:
            return
        group = 1 + max(piece.sample for piece in self._pieces)
        found = advantages_of(packed, self._rows, group)
        held.hold([piece.reward for piece in self._pieces], found, self._step_of(self._pieces[0].rollout))

    def _permutation(self, count: int) -> Any:
        """numpy's permutation, or none where the plan is enforced; remembered."""
        import numpy as np

        order = np.arange(count) if self._plan is not None else np.random.permutation(count)
        if not self._patches.observation.over:
            self._permutations.append(order.tolist())
        return order

    def _advantages(self) -> list[Any]:
        """The advantages of each sequence's tokens by the spec's rule, instead of the loop's own.

        `self._numbers` says for each token which completion it is of, counted from 1; 0 is no completion, and weighs 0.
        """
        import torch

        assert self._plan is not None, "asked for where the plan is enforced"
        size, rewards = self._plan.completions_per_prompt, [piece.reward for piece in self._pieces]
        groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
        values = [value for group in group_advantages(groups, self._plan.spec.advantage) for value in group]
        return [torch.tensor([0.0, *values], dtype=torch.float32)[numbers] for numbers in self._numbers]


class KnownPermutations:
    """numpy, for a function that shuffles with `numpy.random.permutation`: that one is `permutation`."""

    def __init__(self, permutation: Callable[[int], Any], of: str = "") -> None:
        self._permutation, self._of = permutation, of

    def __getattr__(self, name: str) -> Any:
        import numpy as np

        if self._of:
            return self._permutation if name == "permutation" else getattr(np.random, name)
        return KnownPermutations(self._permutation, "random") if name == "random" else getattr(np, name)


class PlanPositionLoader:
    """A stand-in for the prompts' data loader, which nobody draws from: for checkpoints, the place in the plan."""

    _epoch = 0

    def __init__(
        self,
        actor: Any,
        plan: Plan,
        candidates: CandidateQueue,
        resumed: Callable[[tuple[str, ...]], None],
        other_ranks: str,
        orders: Orders,
    ) -> None:
        self._actor, self._plan, self._candidates, self._resumed = actor, plan, candidates, resumed
        self._other_ranks, self._orders = other_ranks, orders

    def __next__(self) -> None:
        """The loop draws what it would ask for ahead."""

    def state_dict(self) -> dict[str, Any]:
        """The place after the rollouts that were handed out."""
        following = self._actor._last_consumed_step + 1
        steps = checkpoints.steps_before(self._plan, following)
        return checkpoints.state(
            self._plan,
            steps,
            ranks=self._actor.dp_world_size,
            next_candidate=self._candidates.next_of(following),
            no_resampling_pass_rate=self._actor.config.no_resampling_pass_rate,
            solved=self._candidates.solved_before(following),
            prompts=self._orders.prompts,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The place that `state` has; `CannotAttach` unless it continues this plan."""
        ranks = self._actor.dp_world_size
        resumed = checkpoints.resume(
            state,
            self._plan,
            where="the checkpoint",
            ranks=ranks,
            other_ranks=self._other_ranks,
            request=self._orders,
        )
        was, here = resumed.saved.get("no_resampling_pass_rate"), self._actor.config.no_resampling_pass_rate
        if was != here:
            reason = (
                f"no_resampling_pass_rate was {was} in the run that wrote the checkpoint, and is {here}: set it back"
            )
            raise CannotAttach({"resume": reason})
        rollout = resumed.position.next_rollout
        # A checkpoint of the first versions is of a run whose rollouts all took the planned number.
        number = resumed.saved.get("next_candidate", rollout * self._plan.prompts_per_rollout)
        self._candidates.start_at(rollout, int(number), resumed.saved.get("solved", ()))
        self._resumed(resumed.notes)


def _chosen(given: Mapping[str, Any], hand: Sequence[int]) -> dict[str, Any]:
    """The arguments of `pack_sequences` for some completions, on one rank."""
    lists = ("queries", "responses", "masks", "vllm_logprobs")
    return {**given, **{name: [given[name][place] for place in hand] for name in lists}, "min_num_batches": 1}


def _renumbered(mask: Any, hand: Sequence[int]) -> Any:
    """A row's completion numbers (from 1; 0 elsewhere) in the whole rollout, from those in `hand`."""
    import torch

    return torch.tensor([0, *(place + 1 for place in hand)])[mask]
