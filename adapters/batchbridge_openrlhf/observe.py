"""Observing: the native run as it is, with every completion identified and every applied weight measured.

Order, membership, loss and clock stay OpenRLHF's; in mode "verify" each optimizer step is held against the plan before
it is applied. One thing that is patched is not an instance: the module of the sample generator sees another `ray`,
whose `get` says whose completions it returns. The process has one trainer.
Source: openrlhf 0.11.2 samples_generator.SamplesGenerator.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.rollout_observer import RolloutObserver
from batchbridge.kit.workers import Orders
from batchbridge_openrlhf.answers import prompt_tokens
from batchbridge_openrlhf.driver import install_in, trained
from batchbridge_openrlhf.inputs import hold_advantages, mark_sent, settings_read
from batchbridge_openrlhf.turns import IDENTITY, identify


class OpenRlhfObserver(RolloutObserver):
    """The patches of one `PPOTrainer`. orders, request: None of an actor that only generates."""

    _rollout = 0

    def __init__(self, trainer: Any, request: Request | None, orders: Orders, patches: Patches) -> None:
        from openrlhf.trainer.ppo_utils import samples_generator

        super().__init__(request, orders, lambda: settings_read(trainer))
        self._trainer = trainer
        self._sent = False
        self._drawn: deque[int] = deque()
        self._asked: dict[Any, tuple[int, ...]] = {}
        self._trains, self._position = False, 0
        generator, self._loader = trainer.samples_generator, trainer.prompts_dataloader
        observation = patches.observation
        if self._held is not None:
            what, why = "held; digests beside them", "inputs of the step"
            maker, name = trainer.experience_maker, "compute_advantages_and_returns"
            self._native_advantages = patches.set(maker, name, self._advantages, what=what, why=why)
        # torch forbids a loader another dataset, but its iterator reads this entry.
        entries, native = vars(self._loader), vars(self._loader)["dataset"]
        number = functools.partial(entries.__setitem__, "dataset", NumberedPrompts(native, observation))
        restore = functools.partial(entries.__setitem__, "dataset", native)
        number()
        patches.made("dataset", restore, what="prompts are numbered", why="ledger", again=number)
        told: dict[str, Any] = {"what": "completions are told apart", "why": "ledger"}
        read: Callable[..., Any] = functools.partial(patches.read, **told)
        self._native_start = read(trainer, "init_checkpoint_states", self._start)
        patches.set(generator, "prompts_dataloader", _Drawing(self._loader, self._drawn, observation), **told)
        self._native_samples = read(generator, "generate_samples", self._samples)
        self._native_generate = read(generator, "_generate_vllm", self._generate)
        self._native_dispatch = read(generator, "_dispatch_prompts_to_vllm", self._dispatch)
        self._native_process = read(generator, "_process_response_into_experience", self._process)
        patches.set(samples_generator, "ray", MarkedAnswers(samples_generator.ray, self._asked, observation), **told)

    def detach(self) -> None:
        """Undoes what is in the training processes, where they have orders."""
        if self._sent:
            install_in(trained(self._trainer, self._orders), undo=True)
            self._sent, self.receipts = False, []

    def _start(self) -> Any:
        self._sent = True  # also where one of them refuses
        self.receipts = install_in(trained(self._trainer, self._orders))
        states = self._native_start()
        self._rollout = int(states["global_step"])
        return states

    def _samples(self, **options: Any) -> Any:
        self._begin()
        self._position = 0
        found = self._native_samples(**options)
        self._rollout += bool(found[0])
        return found

    def _advantages(self, experiences: list[Any]) -> list[Any]:
        """Upstream's advantages, held against its own rule; and digests of what the rows carry."""
        assert self._held is not None, "patched where they are held"
        made: list[Any] = self._native_advantages(experiences)
        step = max(self._next_step - self._orders.steps_per_rollout, 0)
        hold_advantages(made, self._held, self._orders.trained, step)
        for experience in made:
            mark_sent(experience)
        return made

    def _generate(self, dataloader_iter: Any, *arguments: Any, **options: Any) -> Any:
        self._trains = dataloader_iter is getattr(self._trainer.samples_generator, "_dataloader_iter", None)
        return self._native_generate(dataloader_iter, *arguments, **options)

    def _dispatch(self, prompts: Sequence[str], *arguments: Any, **options: Any) -> Any:
        refs = self._native_dispatch(prompts, *arguments, **options)
        if self._trains:  # else for an evaluation
            for ref in refs:
                self._asked[ref] = (self._drawn.popleft(), self._position)
                self._position += 1
        return refs

    def _process(self, response: Any, **options: Any) -> Any:
        made = self._native_process(response, **options)
        if IDENTITY in response:
            prompt, position, sample = response[IDENTITY]
            tokens = prompt_tokens(response)
            identify(made, rollout=self._rollout, prompt=prompt, position=position, sample=sample, prompt_tokens=tokens)
        return made


class NumberedPrompts:
    """Prompts whose data source, which nobody reads in training, is their number."""

    def __init__(self, native: Any, observation: Observation) -> None:
        self._native, self._observation = native, observation

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, index: int) -> Any:
        item = self._native[index]
        return self._observation.read(lambda: (int(index), *item[1:]), default=item)

    def __getattr__(self, name: str) -> Any:
        if name in ("_native", "_observation") or name.startswith("__"):  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self._native, name)


class _Drawing:
    """A prompt loader that writes down the numbers of the prompts that are drawn from it."""

    def __init__(self, native: Any, drawn: deque[int], observation: Observation) -> None:
        self._native, self._drawn, self._observation = native, drawn, observation

    def __iter__(self) -> Iterator[Any]:
        for batch in self._native:
            self._observation.read(lambda drawn: self._drawn.extend(drawn[0]), batch)
            yield batch


class MarkedAnswers:
    """Ray, whose `get` marks an engine's answers with what was asked for."""

    def __init__(self, native: Any, asked: dict[Any, tuple[int, ...]], observation: Observation) -> None:
        self._native, self._asked, self._observation = native, asked, observation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def get(self, ref: Any, *arguments: Any, **options: Any) -> Any:
        """The answer of Ray's `get`, each response with its identity."""
        found = self._native.get(ref, *arguments, **options)
        self._observation.read(self._mark, ref, found)
        return found

    def _mark(self, ref: Any, found: Any) -> None:
        asked = None if isinstance(ref, list) else self._asked.pop(ref, None)
        if asked is not None:
            for sample, response in enumerate(found):
                response[IDENTITY] = (*asked, sample)
