"""Completions with an environment's tokens between the policy's own: what an agent makes of the scripted rollouts, as
pure functions of (prompt, sample), and a vLLM engine that plays the policy's turns in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

from batchbridge.testing.tiny import ScriptedRollouts, tiny_tokenizer
from batchbridge_on_cpu.openrlhf.agent import CONTINUED, ENDED, FAREWELL, FEEDBACK


class Conversations(ScriptedRollouts):
    """Every second completion has two turns: behind the first two tokens of its own stand the environment's words. Each
    ends with a word of the environment's."""

    def turns(self, prompt: int, sample: int) -> list[list[int]]:
        """The tokens of the policy's own, turn by turn."""
        own = super().completion(prompt, sample)
        return [own[:2], own[2:]] if (prompt + sample) % 2 == 0 and len(own) > 2 else [own]

    def completion(self, prompt: int, sample: int) -> list[int]:
        """With the environment's words."""
        return [token for token, _ in self._tokens(prompt, sample)]

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        """1 where the policy wrote a token."""
        empty = (prompt, sample) in self.empty
        return [0 if empty else trained for _, trained in self._tokens(prompt, sample)]

    def reward(self, prompt: int, sample: int) -> float:
        """The agent's: of what the policy wrote, added up over the turns."""
        turns = self.turns(prompt, sample)
        return sum(map(len, turns)) % ENDED + CONTINUED * (len(turns) - 1)

    def _tokens(self, prompt: int, sample: int) -> list[tuple[int, int]]:
        *before, last = self.turns(prompt, sample)
        words, ends = (tiny_tokenizer()(text)["input_ids"] for text in (FEEDBACK, FAREWELL))
        made: list[tuple[int, int]] = []
        for own, said in (*((turn, words) for turn in before), (last, ends)):
            made += [(token, 1) for token in own] + [(token, 0) for token in said]
        return made


class WholeConversations(Conversations):
    """The control: as if the environment's tokens were trained, too."""

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        """1 everywhere, but for completions without a token to train."""
        return [int((prompt, sample) not in self.empty)] * len(self.completion(prompt, sample))


class ScriptedLLM:
    """Answers as vLLM's asynchronous engine does; the policy's turn is found by the tokens that stand before it. Takes
    no weights.

    asked: of every request, (prompt, sample, turn, the seed that it came with).
    """

    def __init__(self, group: int) -> None:
        self._script, self._tokenizer, self._group = Conversations(), tiny_tokenizer(), group
        self._begun: Counter[int] = Counter()
        self.asked: list[tuple[int, int, int, int | None]] = []
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: 0)

    async def generate(self, prompt: Mapping[str, Any], sampling: Any, request_id: Any) -> AsyncIterator[Any]:
        context = list(prompt["prompt_token_ids"])
        index = self._script.prompt_index(self._tokenizer.decode(context[:2]))
        start = len(self._tokenizer(self._script.prompt(index))["input_ids"])
        sample, turn = self._turn(index, context[start:])
        self.asked.append((index, sample, turn, getattr(sampling, "seed", None)))
        tokens = self._script.turns(index, sample)[turn]
        text = self._tokenizer.decode(tokens)
        one = SimpleNamespace(token_ids=tokens, text=text, finish_reason="stop", logprobs=None)
        yield SimpleNamespace(outputs=[one])

    def _turn(self, index: int, said: list[int]) -> tuple[int, int]:
        if not said:  # samples of a prompt begin in their order
            self._begun[index] += 1
            return (self._begun[index] - 1) % self._group, 0
        words = self._tokenizer(FEEDBACK)["input_ids"]
        (sample,) = (number for number in range(self._group) if said == [*self._script.turns(index, number)[0], *words])
        return sample, 1

    async def collective_rpc(self, *arguments: Any, **options: Any) -> None: ...

    async def wake_up(self, *arguments: Any, **options: Any) -> None: ...

    async def sleep(self, *arguments: Any, **options: Any) -> None: ...

    async def reset_prefix_cache(self) -> None: ...


def engine_of(agent: str, group: int) -> type:
    """OpenRLHF's own `RolloutRayActor`, outside of Ray, with the agent of a file; a scripted engine behind it."""
    from openrlhf.trainer.ray import vllm_engine

    vllm_engine.TokensPrompt = dict  # vLLM's is a TypedDict
    native: Any = vllm_engine.RolloutRayActor.__ray_metadata__.modified_class

    class Engine(native):  # type: ignore[misc]  # made by Ray
        def __init__(self) -> None:
            self.executor, self.llm = vllm_engine._load_agent_executor(agent), ScriptedLLM(group)
            self._mm_pad_token_ids = None

    return Engine
