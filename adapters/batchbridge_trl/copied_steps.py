"""Observing and verifying a copy of `GRPOTrainer` (see `copied`): its rows are taken from its loss.

Natively one call of `compute_loss` generates, scores and weighs a micro-batch. Here that call is listened to: the rows
of the loader that it is given, what `generate` of the model returns, what the reward functions say, and the
log-probabilities whose gradient is measured. Nothing is changed and no formula of the copy's is known: what it trains
is held against the canonical loss of its settings by the gradient at its log-probabilities.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from batchbridge.kit import Request, digest_floats, fingerprint
from batchbridge.kit.measuring import Rows
from batchbridge.kit.step_probe import MEASURED
from batchbridge.kit.worker_layer import Seam
from batchbridge_trl.copied import GENERATES, producers
from batchbridge_trl.observe import TrlObserver
from batchbridge_trl.recording import StepRow
from batchbridge_trl.watching import TrlStepProbe

_EPSILON = 1e-4
"""Added to the deviation of a group's rewards, as in TRL."""


@dataclass
class _Generated:
    """The completions of one micro-batch, and what a later pass over them needs. result: of a method that generates and
    scores."""

    prompt_width: int = -1
    ids: torch.Tensor | None = None
    prompts: list[list[int]] = field(default_factory=list)
    rewards: dict[int, list[float]] = field(default_factory=dict)
    result: Any = None
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    """(prompt, sample, place in the rollout) of each."""
    at_step: int = 0


class CopyProbe(TrlStepProbe):
    """The measuring of a copy's steps. made: log-probabilities of the micro-batch in hand that have a gradient;
    references: those that have none."""

    def hook_logprobs(self) -> None:
        """Listens to every method of the copy's own that makes log-probabilities; its loss is the observer's seam."""
        self.clear()
        for name in producers(self._trainer):
            native = self._patches.read(
                self._trainer,
                name,
                functools.partial(self._listen, name),
                what="log-probabilities hooked",
                why=MEASURED,
            )
            self._natives[name] = native

    @property
    def _natives(self) -> dict[str, Any]:
        found: dict[str, Any] = self.__dict__.setdefault("_native_producers", {})
        return found

    def clear(self) -> None:
        """Forgets the micro-batch before."""
        self.made: list[torch.Tensor] = []
        self.references: list[torch.Tensor] = []

    def _listen(self, name: str, *arguments: Any, **options: Any) -> Any:
        result = self._natives[name](*arguments, **options)
        if torch.is_grad_enabled() and result.requires_grad:
            self.made.append(result)
        else:
            self.references.append(result)
        return result

    def measure(self, rows: Rows, start: int) -> None:
        """Hooks the log-probabilities of the micro-batch in hand, of whose columns those from `start` on are its
        completions'."""
        self._tap.watch(self.made[0], rows, view=lambda tensor: tensor[:, start:])

    def returned(self, loss: Any) -> None:
        """Takes down the loss that the micro-batch has; see `Tap.returned`."""
        if not self._observation.observes:
            self._tap.returned(loss)


class CopyObserver(TrlObserver):
    """The patches of a copy that runs natively: recorded, and in mode "verify" held against its own settings."""

    _watch: CopyProbe

    def order_of(self, request: Request) -> Callable[[], Iterator[Sequence[int]]] | None:
        """None: a copy's order of prompts is its own."""
        return None

    def prepare(self) -> None:
        """The measuring, and the rewards."""
        trainer = self._trainer
        self._watch = CopyProbe(trainer, self._orders.trained.objective, self._patches)
        self._now: _Generated | None = None
        self._window: dict[int, _Generated] = {}
        """The micro-batches of the rollout, by their place in it; as many passes train them."""
        scored = [self._scoring(number, reward) for number, reward in enumerate(trainer.reward_funcs)]
        self._patches.set(trainer, "reward_funcs", scored, what="listened to", why="ledger and advantages")

    def _scoring(self, number: int, reward: Any) -> Any:
        """A reward function, or model, whose rewards are heard."""
        if isinstance(reward, torch.nn.Module):
            hook = reward.register_forward_hook(
                self._observation.hook(lambda module, inputs, output: self._scored(number, output.logits[:, 0]))
            )
            self._patches.made(f"reward_funcs[{number}]", hook.remove, what="listened to", why="ledger")
            return reward

        @functools.wraps(reward)
        def heard(*arguments: Any, **options: Any) -> Any:
            found = reward(*arguments, **options)
            self._observation.read(self._scored, number, found)
            return found

        if not hasattr(heard, "__name__"):  # an object that is called
            heard.__name__ = type(reward).__name__
        return heard

    def _scored(self, number: int, rewards: Any) -> None:
        if self._now is not None:
            values = rewards.tolist() if isinstance(rewards, torch.Tensor) else rewards
            self._now.rewards[number] = [float("nan") if one is None else float(one) for one in values]

    def seams(self) -> Iterator[Seam]:
        """The seams of a copy that is recorded."""
        trainer = self._trainer
        for attribute, ours in (
            ("get_train_dataloader", self._loader),
            ("training_step", self._training_step),
            ("compute_loss", self._loss),
        ):
            yield Seam(trainer, attribute, ours, "recorded", reads=True)
        if hasattr(type(trainer), GENERATES):
            yield Seam(trainer, GENERATES, self._generate, "recorded", reads=True)
        yield Seam(trainer.accelerator.unwrap_model(trainer.model), "generate", self._completed, "recorded", reads=True)

    # ---- transformers before 4.50 tells callbacks neither the optimizer nor the loader of the loop

    @property
    def loops_loader(self) -> Any:
        """The loader of the training loop that goes on."""
        told = self._trainer.callback_handler.train_dataloader
        return self._trainer.state.train_dataloader if told is None else told

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A run begins, or goes on. Collective."""
        super().on_train_begin(args, state, control, **{**kwargs, "optimizer": self._trainer.optimizer})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step has ended."""
        super().on_step_end(args, state, control, **{**kwargs, "optimizer": self._trainer.optimizer})

    # ---- what a loss does

    def _training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self._take_batch()
        return self.native["training_step"](model, inputs, num_items_in_batch)

    def _completed(self, *arguments: Any, **options: Any) -> Any:
        result = self.native["generate"](*arguments, **options)
        if self._now is not None:
            self._observation.read(self._keep_completions, result, options.get("input_ids", (*arguments, None)[0]))
        return result

    def _keep_completions(self, result: Any, given: torch.Tensor) -> None:
        now = self._now
        assert now is not None, "asked only while a loss is computed"
        whole = getattr(result, "sequences", result)
        now.prompt_width = given.shape[1]
        begins = torch.equal(whole[:: max(len(whole) // len(given), 1), : given.shape[1]], given)
        now.ids = whole[:, given.shape[1] :] if begins else whole  # of embeddings, completions alone are returned
        now.prompts = given.tolist()

    def _generate(self, *arguments: Any, **options: Any) -> Any:
        result = self.native[GENERATES](*arguments, **options)
        if self._now is not None:
            self._now.result = dict(result)
        return result

    def _loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        if not self._trainer.model.training:
            return self.native["compute_loss"](model, inputs, *arguments, **options)
        self._now = _Generated(at_step=self._trainer.state.global_step)
        self._watch.clear()
        try:
            loss = self.native["compute_loss"](model, inputs, *arguments, **options)
            self._observation.read(self._take_rows, loss)
        finally:
            self._now = None
            self._watch.clear()
        return loss

    # ---- what one loss trained

    def _take_rows(self, loss: Any) -> None:
        """The rows of the micro-batch whose loss was computed, and what they are meant to train."""
        trainer, passes = self._trainer, self._passes
        place, step = len(self.parts), trainer.state.global_step
        now = self._now
        if now is not None and now.ids is not None:
            self._name_rows(now, place)
            self._window[place] = now
        now = self._window.get(place)
        if now is None or now.ids is None:
            raise ValueError("a loss was computed, and no generate of the model gave its completions")
        if len(self._watch.made) != 1:
            raise ValueError(f"{len(self._watch.made)} log-probabilities with a gradient were made for one loss")
        made, width = self._watch.made[0], now.ids.shape[1]
        start = made.shape[1] - width
        if len(made) != len(now.ids) or start not in (0, now.prompt_width - 1):
            raise ValueError(f"log-probabilities of the shape {tuple(made.shape)} are not those of its completions")
        mask = _up_to_end(now.ids, trainer.processing_class.eos_token_id)
        advantages = self._advantages(now).to(made.device)
        old = self._of_result(now, "old_per_token_logps") if passes > 1 else None
        rows = Rows(
            mask=mask.to(made.dtype),
            advantages=advantages.clone()[:, None],
            old=old,
            reference=self._reference(now, width),
        )
        self._watch.measure(rows, start)
        self._watch.returned(loss)
        self._write_down(now, mask, advantages, old, step % passes)

    @property
    def _passes(self) -> int:
        return int(getattr(self._trainer, "num_iterations", 1))

    def _name_rows(self, now: _Generated, place: int) -> None:
        """Says which prompt and sample each completion is of."""
        trainer, rows, prompts = self._trainer, len(now.ids if now.ids is not None else ()), self._prompts
        group, accelerator = int(trainer.num_generations), trainer.accelerator
        each = rows // len(prompts) if prompts else 0
        if each not in (1, group) or rows != each * len(prompts):
            raise ValueError(f"{rows} completions of {len(prompts)} rows of the loader are no groups of {group}")
        first = (place * accelerator.num_processes + accelerator.process_index) * rows
        now.rows = [(prompts[row // each], (first + row) % group, first + row) for row in range(rows)]

    def _advantages(self, now: _Generated) -> torch.Tensor:
        """The advantages that the copy was given, or those that its rewards give in whole groups."""
        if now.result is not None:
            found: torch.Tensor = now.result["advantages"]
            return found
        group, rewards = int(self._trainer.num_generations), self._rewards(now)
        grouped = rewards.view(-1, group)
        deviation = grouped.std(dim=1, keepdim=True)
        return ((grouped - grouped.mean(dim=1, keepdim=True)) / (deviation + _EPSILON)).flatten()

    def _rewards(self, now: _Generated) -> torch.Tensor:
        functions = len(self._trainer.reward_funcs)
        if sorted(now.rewards) != list(range(functions)) or any(
            len(one) != len(now.rows) for one in now.rewards.values()
        ):
            raise ValueError(f"not each of the {functions} reward functions scored each completion of a loss once")
        columns = torch.tensor([now.rewards[number] for number in range(functions)], dtype=torch.float32)
        weights = getattr(self._trainer, "reward_weights", None)
        weighed = columns if weights is None else columns * weights.detach().cpu().float()[:, None]
        return weighed.T.contiguous().nansum(dim=1)

    def _reference(self, now: _Generated, width: int) -> torch.Tensor | None:
        """The reference policy's log-probabilities, where the loss has a KL term."""
        if self._watch.objective.kl_placement != "loss":
            return None
        if now.result is not None:
            return self._of_result(now, "ref_per_token_logps")
        if len(self._watch.references) != 1:
            raise ValueError(f"{len(self._watch.references)} log-probabilities without a gradient, and one reference")
        return self._watch.references[0][:, -width:].clone()

    def _of_result(self, now: _Generated, name: str) -> torch.Tensor | None:
        found = None if now.result is None else now.result.get(name)
        return None if found is None else found.detach().clone()

    def _write_down(
        self, now: _Generated, mask: torch.Tensor, advantages: torch.Tensor, old: torch.Tensor | None, pass_index: int
    ) -> None:
        assert now.ids is not None, "its rows were named"
        rewards: list[float | None] = [None] * len(now.rows)
        if now.rewards:
            rewards = list(self._rewards(now).tolist())
        counts, ids, group = mask.sum(1).tolist(), now.ids.tolist(), int(self._trainer.num_generations)
        each, padding = len(now.rows) // len(now.prompts), self._trainer.processing_class.pad_token_id
        part: list[StepRow | None] = []
        for row, (prompt, sample, index) in enumerate(now.rows):
            shown, count = [token for token in now.prompts[row // each] if token != padding], int(counts[row])
            facts = {
                "prompt_fingerprint": fingerprint(shown),
                "completion_fingerprint": fingerprint(ids[row][:count]),
                "reward": rewards[row],
                "advantage": float(advantages[row]),
                "old_logprobs": None if old is None else digest_floats(old[row, :count].tolist()),
            }
            part.append(
                StepRow(
                    rollout=now.at_step // self._passes,
                    prompt=prompt,
                    position=index // group,
                    sample=sample,
                    tokens=count,
                    index=index,
                    pass_index=pass_index,
                    generated_at_step=now.at_step,
                    facts=facts,
                )
            )
        self.parts.append(part)


def _up_to_end(ids: torch.Tensor, eos: int) -> torch.Tensor:
    """1 for each token up to the first end of sequence, itself included."""
    ended = ids == eos
    return ((ended.cumsum(1) - ended.int()) == 0).int()
