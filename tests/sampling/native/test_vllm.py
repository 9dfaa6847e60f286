"""Rollout identity, with a real engine: vLLM's CPU build draws a completion by its seed alone, so every adapter's way
of asking for a rollout gets the same tokens. The frameworks themselves are not here; their own runs show that each asks
so (tests/adapters)."""

from __future__ import annotations

import asyncio
import os
import random
import warnings
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch's own deprecated parts, which vLLM imports
    from vllm import LLM, SamplingParams

from batchbridge.kit.identified_rows import SEED
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_easyr1.sampling import seeded as easyr1_seeded
from batchbridge_openrlhf.sampling import SeededEngines, in_engine
from batchbridge_trl.sampling import seeded
from batchbridge_verl.sampling import in_worker

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPTS, PLACES, GROUP = 6, 4, 3
Drawn = dict[tuple[int, int], tuple[int, ...]]
"""(prompt, sample) -> tokens."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("policy")
    tiny_policy(width=256).save_pretrained(folder)  # heads of 64: what vLLM's attention takes on a CPU
    tiny_tokenizer().save_pretrained(folder)
    return LLM(str(folder), enforce_eager=True, max_model_len=64, dtype="float32", max_num_seqs=16)


@pytest.fixture(scope="module")
def plan() -> Plan:
    spec = Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=PLACES, completions_per_prompt=GROUP),
        optimizer_step=OptimizerStep(completions_per_step=6),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
        order=Order(seed=7),
    )
    return Plan(spec, PROMPTS)


def ids_of(prompt: int) -> list[int]:
    return list(tiny_tokenizer()(ScriptedRollouts().prompt(prompt))["input_ids"])


def params(**more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=12, temperature=1.0, ignore_eos=True, **more)


def draw(engine: Any, prompts: Sequence[int], asked: Any) -> list[list[tuple[int, ...]]]:
    """Every request's completions, in one call of the engine."""
    made = [{"prompt_token_ids": ids_of(prompt)} for prompt in prompts]
    answers = engine.generate(made, sampling_params=asked, use_tqdm=False)
    return [[tuple(output.token_ids) for output in answer.outputs] for answer in answers]


@pytest.fixture(scope="module")
def rollout(engine: Any, plan: Plan) -> Drawn:
    """The plan's first rollout, one request at a time, in no order."""
    first = dict(zip(plan.rollout(0).prompts, plan.sampling_seeds(0), strict=True))
    pairs = [(prompt, sample) for prompt in first for sample in range(GROUP)]
    random.Random(1).shuffle(pairs)
    return {
        (prompt, sample): draw(engine, [prompt], params(seed=first[prompt] + sample))[0][0] for prompt, sample in pairs
    }


def test_completions_of_a_group_are_drawn_apart(rollout: Drawn) -> None:
    assert len(set(rollout.values())) == PLACES * GROUP


def test_one_request_for_a_group_draws_what_a_request_per_sample_draws(engine: Any, plan: Plan, rollout: Drawn) -> None:
    prompts = plan.rollout(0).prompts
    groups = draw(engine, prompts, [params(seed=seed, n=GROUP) for seed in plan.sampling_seeds(0)])
    assert {(p, s): group[s] for p, group in zip(prompts, groups, strict=True) for s in range(GROUP)} == rollout


def test_trl_s_colocated_engine_draws_the_rollout(engine: Any, plan: Plan, rollout: Drawn) -> None:
    generation = SimpleNamespace(mode="colocate", llm=engine, tensor_parallel_size=1)
    rows = [(prompt, sample) for prompt in plan.rollout(0).prompts for sample in range(GROUP)]
    seeds = [first + sample for first in plan.sampling_seeds(0) for sample in range(GROUP)]
    with seeded(SimpleNamespace(use_vllm=True, vllm_generation=generation), seeds):
        answers = draw(engine, [prompt for prompt, _ in rows], params())
    assert {row: answer[0] for row, answer in zip(rows, answers, strict=True)} == rollout


def test_openrlhf_s_engines_draw_the_rollout(engine: Any, plan: Plan, rollout: Drawn) -> None:
    def execute(*, sampling_params: Any, prompt: int) -> tuple[int, ...]:
        return draw(engine, [prompt], sampling_params)[0][0]

    actor = SimpleNamespace(executor=SimpleNamespace(execute=execute))
    assert in_engine(actor)
    found: Drawn = {}

    def remote(*, sampling_params: Any, prompt: int) -> None:
        own = sampling_params.clone()  # as Ray sends it
        for sample in range(GROUP):
            found[prompt, sample] = actor.executor.execute(sampling_params=own, prompt=prompt)

    engines = SeededEngines(
        [SimpleNamespace(generate_responses=SimpleNamespace(remote=remote))], plan.sampling_seeds(0)
    )
    shared = params()
    for prompt in plan.rollout(0).prompts:
        engines[0].generate_responses.remote(sampling_params=shared, prompt=prompt)
    assert found == rollout


def test_verl_s_agent_loops_draw_the_rollout(engine: Any, plan: Plan, rollout: Drawn) -> None:
    async def native(sampling_params: dict[str, Any], trajectory: dict[str, Any], **columns: Any) -> tuple[int, ...]:
        return draw(engine, [columns["prompt"]], params(**sampling_params))[0][0]

    worker: Any = SimpleNamespace(_run_agent_loop=native)
    assert in_worker(worker)
    found: Drawn = {}
    for prompt, seed in zip(plan.rollout(0).prompts, plan.sampling_seeds(0), strict=True):
        for sample in range(GROUP):
            columns = {"prompt": prompt, "session_id": sample, SEED: seed}
            found[prompt, sample] = asyncio.run(worker._run_agent_loop({}, {"validate": False}, **columns))
    assert found == rollout


def test_easyr1_s_rollout_workers_draw_the_rollout(engine: Any, plan: Plan, rollout: Drawn) -> None:
    class Rollout:
        """As EasyR1's vLLMRollout asks its engine: one call for all prompts, with the group's size."""

        inference_engine = engine

        def generate_sequences(self, prompts: Any) -> list[tuple[int, ...]]:
            made = [{"prompt_token_ids": ids_of(prompt)} for prompt in prompts.non_tensor_batch["prompt"]]
            answers = engine.generate(prompts=made, sampling_params=params(n=GROUP), use_tqdm=False)
            return [tuple(output.token_ids) for answer in answers for output in answer.outputs]

    prompts, seeds = plan.rollout(0).prompts, plan.sampling_seeds(0)
    made = Rollout()
    generate = easyr1_seeded(made)
    drawn = generate(prompts=SimpleNamespace(non_tensor_batch={"prompt": prompts, SEED: seeds}))
    rows = [(prompt, sample) for prompt in prompts for sample in range(GROUP)]
    assert dict(zip(rows, drawn, strict=True)) == rollout
    assert "generate" not in vars(engine)
    alone = generate(prompts=SimpleNamespace(non_tensor_batch={"prompt": prompts}))
    assert dict(zip(rows, alone, strict=True)) != rollout, "validation is drawn as ever"


def test_negative_control_without_seeds_a_rollout_is_drawn_anew(engine: Any, plan: Plan, rollout: Drawn) -> None:
    prompts = plan.rollout(0).prompts
    groups = draw(engine, prompts, params(n=GROUP))
    drawn = {(p, s): group[s] for p, group in zip(prompts, groups, strict=True) for s in range(GROUP)}
    assert drawn != rollout
