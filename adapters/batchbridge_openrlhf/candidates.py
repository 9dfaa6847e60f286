"""The driver of a run with dynamic filtering: rewards decide which prompts fill a rollout.

Candidates are offered in the plan's order to OpenRLHF's own generation, whose filter drops groups and asks for others
in their place. A rollout takes those that it kept, lowest number first, whatever arrived first: OpenRLHF stops at the
first number of candidates that fills the rollout, so that none is generated in vain, and the next rollout's candidates
begin there. What the filter kept is held against its rule and the scores that arrived.

Source: openrlhf 0.10.4 to 0.11.2 samples_generator.SamplesGenerator._generate_vllm.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchbridge import BatchDrift, CannotAttach, Plan
from batchbridge.kit import CandidatePlan, Request, RolloutPlan
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches, rebound
from batchbridge.kit.workers import Orders
from batchbridge_openrlhf.answers import mark, prompt_tokens
from batchbridge_openrlhf.driver import OpenRlhfDriver, require_group
from batchbridge_openrlhf.observe import MarkedAnswers
from batchbridge_openrlhf.turns import IDENTITY, identify


class CandidateDriver(OpenRlhfDriver):
    """The patches of one `PPOTrainer`; the number of the next candidate."""

    def __init__(self, trainer: Any, request: Request, orders: Orders, patches: Patches) -> None:
        super().__init__(trainer, request, orders, patches)
        assert isinstance(request.plan, CandidatePlan), "without a filter the plan says which prompts there are"
        self._candidates, self._next_candidate = request.plan, 0
        self._kept: list[int] = []
        low, high = trainer.args.algo.dynamic_filtering_range
        self._bounds = (float(low), float(high))

    def _fill(self, planned: RolloutPlan, options: Mapping[str, Any]) -> tuple[list[Any], float | None, int]:
        filling = _Filling(self, planned)
        kept = self._kept = filling.run(options)
        self._next_candidate = kept[-1] + 1
        samples = [
            identify(made, rollout=planned.index, prompt=number, position=place, sample=sample, prompt_tokens=tokens)
            for place, number in enumerate(kept)
            for sample, (made, tokens) in enumerate(filling.arrived[number])
        ]
        return samples, len(samples) / len(filling.arrived) * 100, len(filling.arrived)

    def _shares(self, items: Sequence[Any], plan: Plan, ranks: int) -> list[list[Any]]:
        for item in items:
            rollout, number, place, sample, _ = (int(value) for value in item.info[IDENTITY])
            if not 0 <= place < len(self._kept) or self._kept[place] != number:
                said = f"sample {sample} of candidate {number} is to be trained in place {place}, which is not its own"
                step = self._plan.rollout(rollout).generated_at_step
                raise BatchDrift(step, "membership", f"{said}: the filter kept {self._kept}")
        return super()._shares(items, plan, ranks)

    def _memory(self) -> dict[str, int]:
        return {"next_candidate": self._next_candidate}

    def _remember(self, saved: Mapping[str, Any]) -> None:
        if "next_candidate" not in saved:
            raise CannotAttach(
                {"resume": "the checkpoint is of a run without candidates: its place among them is unknown"}
            )
        self._next_candidate = int(saved["next_candidate"])


class _Filling:
    """One rollout while it is filled: what OpenRLHF's generation sees in place of its generator.

    arrived: candidate number to its completions, each with the number of its prompt's tokens.
    """

    def __init__(self, driver: CandidateDriver, planned: RolloutPlan) -> None:
        self._driver, self._planned = driver, planned
        self._generator, self._plan = driver._generator, driver._candidates
        self._start = driver._next_candidate
        self._drawn: deque[tuple[int, str]] = deque()
        self._asked: dict[Any, tuple[int, ...]] = {}
        self.arrived: dict[int, list[tuple[Any, int]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def run(self, options: Mapping[str, Any]) -> list[int]:
        """The numbers of the candidates that fill the rollout. Raises `BatchDrift` where OpenRLHF took others than its
        filter keeps."""
        import ray

        native = rebound(type(self._generator)._generate_vllm, ray=MarkedAnswers(ray, self._asked, Observation()))
        places = len(self._planned.prompts)
        accepted = native(self, self._offered(), places, dynamic_filtering=True, **options)[0]
        for number, group in self.arrived.items():
            require_group(self._planned, self._prompt(number), len(group))
        kept = [number for number in sorted(self.arrived) if self._keeps(number)]
        want = Counter({id(made): 1 for number in kept for made, _ in self.arrived[number]})
        have = Counter(map(id, accepted))
        if have != want or len(kept) != places:
            names = {
                id(made): (self._prompt(number), sample)
                for number, group in self.arrived.items()
                for sample, (made, _) in enumerate(group)
            }
            missing, extra = ([names.get(one) for one in found] for found in (want - have, have - want))
            raise self._drift(
                f"rollout {self._planned.index} came without (prompt, sample) {missing[:3] or 'none'} and with "
                f"{extra[:3] or 'none'}: of {len(self.arrived)} groups {len(kept)} have a mean score "
                f"{self._said}, for {places} places"
            )
        return kept

    def _offered(self) -> Iterator[tuple[Any, ...]]:
        """A stand-in for the prompt loader: candidates one by one, in the plan's order, without an end."""
        dataset, number = self._driver._dataset, self._start
        patience = self._plan.dataset_size + len(self._planned.prompts)
        while True:
            if number - self._start >= patience:
                newest = max(filter(self._keeps, self.arrived), default=self._start - 1)
                if number - newest > patience:
                    raise self._drift(
                        f"rollout {self._planned.index} cannot be filled: of candidates {newest + 1} to {number - 1}, "
                        f"among them every prompt of the dataset, none has a mean score {self._said}"
                    )
            batch = dataset.collate_fn([dataset[self._prompt(number)]])
            self._drawn.append((number, batch[1][0]))
            yield batch
            number += 1

    def _dispatch_prompts_to_vllm(self, prompts: Sequence[str], *arguments: Any, **options: Any) -> list[Any]:
        drawn = [self._drawn.popleft() for _ in range(min(len(prompts), len(self._drawn)))]
        if [text for _, text in drawn] != list(prompts):
            raise self._drift(f"rollout {self._planned.index} asks for other prompts than the candidates that it drew")
        numbers = [number for number, _ in drawn]
        seeds = [self._plan.candidate_seeds(number, number + 1)[0] for number in numbers]
        refs = self._driver._dispatch(seeds, prompts, *arguments, **options)
        self._asked.update({ref: (number,) for ref, number in zip(refs, numbers, strict=True)})
        return refs

    def _process_response_into_experience(self, response: Any, **options: Any) -> Any:
        made = mark(self._generator._process_response_into_experience(response, **options), response)
        number, _ = response[IDENTITY]
        self.arrived.setdefault(number, []).append((made, prompt_tokens(response)))
        return made

    def _keeps(self, number: int) -> bool:
        """The filter's rule: the mean score lies between the bounds, or some completion has no score."""
        scores = [None if made.scores is None else made.scores[0].item() for made, _ in self.arrived[number]]
        known = [score for score in scores if score is not None]
        low, high = self._driver._bounds
        return len(known) < len(scores) or low < sum(known) / len(known) < high

    @property
    def _said(self) -> str:
        low, high = self._driver._bounds
        return f"between {low:g} and {high:g} (algo.dynamic_filtering_range)"

    def _prompt(self, number: int) -> int:
        return self._plan.candidates(number, number + 1)[0]

    def _drift(self, detail: str) -> BatchDrift:
        return BatchDrift(self._planned.generated_at_step, "membership", detail)
