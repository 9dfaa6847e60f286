"""What `test_corrected_openrlhf` runs beside `corrected.py`: `fits.py`'s run with a correction towards the sampler. A
scripted engine hands its log-probabilities over with each completion.

    python corrected_fits.py FOLDER

What was measured is left in FOLDER/measured.pt.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import fits
import torch
from corrections import VARIANTS, moved

from batchbridge.testing.oracle import Sample, ScriptedRun, logprobs, relative_error
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_on_cpu.openrlhf import engines
from batchbridge_on_cpu.openrlhf.workers import save_policy

CORRECTION, OPTIONS = VARIANTS["masked"]


def sampled(prompt: int, number: int) -> torch.Tensor:
    """The sampler's log-probabilities of a completion: around those of the policy that the run begins with."""
    script = ScriptedRollouts()
    completion = script.completion(prompt, number)
    made = Sample(
        prompt=tiny_tokenizer()(script.prompt(prompt), add_special_tokens=False)["input_ids"],
        completion=completion,
        loss_mask=[1] * len(completion),
        group=prompt,
        advantage=0.0,
    )
    with torch.no_grad():
        return moved(logprobs(tiny_policy().eval(), made), prompt, number)


class TellingExecutor(engines.WatchedExecutor):
    """With the log-probability of every token of a completion; zeros for the prompt's, as OpenRLHF's own has it."""

    async def execute(self, prompt: str, label: str, sampling_params: Any, hf_tokenizer: Any, sample: int) -> Any:
        answer = await super().execute(prompt, label, sampling_params, hf_tokenizer, sample)
        said = sampled(ScriptedRollouts().prompt_index(prompt), sample).tolist()
        before = len(answer["observation_tokens"]) - len(said)
        return {**answer, "rollout_log_probs": [0.0] * before + said}


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29516")
    script, tokenizer = ScriptedRollouts(), tiny_tokenizer()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(fits.PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    engines.WatchedExecutor = TellingExecutor  # type: ignore[misc]  # what a scripted engine answers with
    bench, ledger = fits.enforced(folder, "own", **OPTIONS)
    plan = fits.plan_of(ledger)

    def factor(prompt: int, number: int, old: torch.Tensor) -> torch.Tensor:
        return CORRECTION.factor(old, sampled(prompt, number), script.loss_mask(prompt, number))

    answers = []
    for rough, corrected in ((False, True), (True, True), (False, False)):
        scripted = ScriptedRun(
            spec=plan.spec,
            script=script,
            tokenize=lambda text: tokenizer(text, add_special_tokens=False)["input_ids"],
            policy_at=lambda step, rough=rough: (
                fits.policy_of(bench.weights[step]).float() if rough else fits.policy_of(bench.weights[step])
            ),
            multiplier=factor if corrected else None,
        )
        answers.append([scripted.gradient(scripted.planned(plan, step), step) for step in range(len(bench.gradients))])
    found: dict[str, list[float]] = {"with": [], "without": []}
    for exact, rough_one, without, gradient in zip(*answers, bench.gradients, strict=True):
        bar = max(1e-6, 3 * relative_error(rough_one, exact))
        found["with"].append(relative_error(gradient, exact) / bar)
        found["without"].append(relative_error(gradient, without) / bar)
    torch.save(found, folder / "measured.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
