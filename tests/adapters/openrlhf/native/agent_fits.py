"""What `test_agents_openrlhf` runs beside `agent_masks.py`: `fits.py`'s run with an agent (`train.agent_func_path`).

    python agent_fits.py FOLDER

OpenRLHF's own: the loading of the agent's file, `RolloutRayActor`, `MultiTurnAgentExecutor` and its loop over turns,
and all of `fits.py`. Scripted: vLLM's engine behind them. What was measured is left in FOLDER/measured.pt.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import fits
import torch

from batchbridge import wrap
from batchbridge.errors import BatchDrift
from batchbridge.ledger import fingerprint, read_headers, read_steps
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import ScriptedRun, relative_error
from batchbridge.testing.tiny import tiny_tokenizer
from batchbridge_on_cpu.openrlhf import agent, conversations, engines
from batchbridge_on_cpu.openrlhf.workers import save_policy

AGENT = str(agent.__file__)
SETTINGS: dict[str, Any] = {"train.agent_func_path": AGENT, "reward.remote_url": None}
SCRIPT = conversations.Conversations(empty=frozenset())
FILTERED: dict[str, Any] = {
    "algo.dynamic_filtering_enable": True,
    "algo.dynamic_filtering_range": [3.0, 4.2],
    "rollout.vllm_generate_batch_size": None,
}
"""Bounds that some prompts' mean scores are out of."""
STEP = 2
"""The first optimizer step of the rollout that is tampered with."""


def train_the_environment(batch: Any) -> None:
    """Every token of a batch's first completion behind its first trained one is trained."""
    batch.action_mask[0] = (batch.action_mask[0].cumsum(0) > 0) & (batch.attention_mask[0, 1:] > 0)


def leave_a_token_out(batch: Any) -> None:
    """A token of each completion that an agent's mask trains is not."""
    for mask in batch.action_mask:
        mask[mask.nonzero()[:1]] = 0


def other_words(batch: Any) -> None:
    """The environment says something else."""
    batch.sequences[:, -1] += 1


WAYS: Mapping[str, Callable[[Any], None]] = {
    "the environment's tokens are trained": train_the_environment,
    "a token is left out": leave_a_token_out,
    "other words": other_words,
}


def tampered(folder: Path, change: Callable[[Any], None] | None) -> dict[str, Any]:
    """What a run says whose second rollout is changed on its way to the replay buffers, and the updates before."""
    bench = fits.Bench(folder, **SETTINGS)
    wrap(bench.trainer)
    group, sent = bench.trainer.actor_model_group, []
    native = group.async_run_method_batch

    def send(method_name: str, **columns: Any) -> Any:
        if method_name == "append":
            sent.append(method_name)
            if len(sent) == 2 and change is not None:
                for batch in columns["experience"]:
                    change(batch)
        return native(method_name, **columns)

    group.async_run_method_batch = send
    try:
        bench.fit()
    except BatchDrift as drift:
        return {"step": drift.step, "aspect": drift.aspect, "updates": len(bench.gradients), "said": drift.detail}
    return {"step": -1, "aspect": "trained to its end", "updates": len(bench.gradients), "said": ""}


def against_the_oracle(bench: Any, ledger: Path) -> dict[str, Any]:
    """Each step's error over the bar; the same against the oracle that trains the environment's tokens; what the ledger
    has of completions; seeds of the engine's requests and those of the plan."""
    tokenizer, plan = tiny_tokenizer(), fits.plan_of(ledger)
    whole = conversations.WholeConversations(empty=frozenset())
    answers = []
    for script, rough in ((SCRIPT, False), (SCRIPT, True), (whole, False)):
        run = ScriptedRun(
            spec=plan.spec,
            script=script,
            tokenize=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            policy_at=lambda step, rough=rough: (
                fits.policy_of(bench.weights[step]).float() if rough else fits.policy_of(bench.weights[step])
            ),
        )
        answers.append([run.gradient(run.planned(plan, step), step) for step in range(len(bench.gradients))])
    steps = []
    for record, exact, rough, trained, gradient in zip(read_steps(ledger), *answers, bench.gradients, strict=True):
        bar = max(1e-6, 3 * relative_error(rough, exact))
        rows = list(zip(record["prompt"], record["sample"], strict=True))
        planned = [tuple(member) for member in plan.step(record["step"]).members]
        steps.append(
            {
                "with": relative_error(gradient, exact) / bar,
                "whole": relative_error(gradient, trained) / bar,
                "planned": sorted(zip(record["rollout"], record["pass"], *zip(*rows, strict=True), strict=True))
                == sorted(planned),
                "tokens": record["response_tokens"] == [sum(SCRIPT.loss_mask(*row)) for row in rows],
                "completions": record["completion_fingerprint"]
                == [fingerprint(SCRIPT.completion(*row)) for row in rows],
                "turns": [len(SCRIPT.turns(*row)) for row in rows],
            }
        )
    want = {
        (prompt, sample, turn): seeds[sample]
        for rollout in range(plan.total_rollouts)
        for prompt, seeds in zip(plan.rollout(rollout).prompts, _seeds(plan, rollout), strict=True)
        for sample in range(fits.GROUP)
        for turn in range(len(SCRIPT.turns(prompt, sample)))
    }
    asked = bench.engine.llm.asked
    return {"steps": steps, "seeds": {tuple(one[:3]): one[3] for one in asked} == want and len(asked) == len(want)}


def filtered(folder: Path) -> dict[str, list[list[int]]]:
    """The prompts of each rollout of a run with dynamic filtering, and the first candidates whose mean scores lie
    within the bounds."""
    _, ledger = fits.enforced(folder, "filtered", **SETTINGS, **FILTERED)
    header = read_headers(ledger)[0]
    plan = plan_of(Spec.from_dict(header["spec"]), header["dataset_size"])
    assert isinstance(plan, CandidatePlan)
    low, high = FILTERED["algo.dynamic_filtering_range"]
    candidates = (plan.candidates(number, number + 1)[0] for number in itertools.count())
    kept = (
        prompt
        for prompt in candidates
        if low < sum(SCRIPT.reward(prompt, sample) for sample in range(fits.GROUP)) / fits.GROUP < high
    )
    rollouts: dict[int, set[int]] = {}
    for record in read_steps(ledger):
        for rollout, prompt in zip(record["rollout"], record["prompt"], strict=True):
            rollouts.setdefault(rollout, set()).add(prompt)
    return {
        "trained": [sorted(prompts) for prompts in rollouts.values()],
        "kept": [sorted(itertools.islice(kept, 4)) for _ in rollouts],
        "unfiltered": [sorted(plan.candidates(4 * rollout, 4 * rollout + 4)) for rollout in rollouts],
    }


def _seeds(plan: Any, rollout: int) -> list[list[int]]:
    """Of each prompt of a rollout the seeds of its samples."""
    return [[first + sample for sample in range(fits.GROUP)] for first in plan.sampling_seeds(rollout)]


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29517")
    save_policy(folder / "policy")
    lines = [f'{{"input": "{SCRIPT.prompt(index)}", "label": ""}}\n' for index in range(fits.PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    made: list[Any] = []

    def one() -> Any:
        made.append(conversations.engine_of(AGENT, fits.GROUP)())
        return made[-1]

    engines.LateEngine = one  # type: ignore[misc,assignment]  # what `fits` asks for an engine
    bench, ledger = fits.enforced(folder, "own", **SETTINGS)
    bench.engine = made[-1]
    found = against_the_oracle(bench, ledger)
    found["executor"] = [base.__module__ for base in type(bench.engine.executor).__mro__]
    found["filtered"] = filtered(folder)
    found["tampered"] = {name: tampered(folder, change) for name, change in {**WAYS, "nobody": None}.items()}
    torch.save(found, folder / "measured.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
