"""Small real runs of one TRL release, row by row: `python record_steps.py OUT.jsonl [CASE ...]`.

Run in an environment of that release, alone or under `torchrun --nproc_per_node 2`. Completions are scripted, the
learning rate is 0 and there is no KL term, so the ratio is 1 and the gradient of a micro-batch's loss with respect to a
token's log-probability is minus weight times advantage: from there the weight of every completion is read, after
whoever divides by accumulation has divided. Each line of OUT: the release, the settings, the processes, and per
optimizer step the rows [process, micro-batch, prompt, sample, weight of one token].
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import transformers
from tiny_trainer import FIELDS, VERSION, WORDS, config, trainer
from transformers import TrainerCallback

FIRST = WORDS.index("t0")
GROUP = 4
LENGTHS = (1, 2, 3, 5, 8, 12, 17, 23)
COMMON = {
    "num_generations": GROUP,
    "max_completion_length": 24,
    "learning_rate": 0.0,
    "beta": 0.0,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "logging_steps": 1000,
    "seed": 42,
}
CASES = {
    "window": ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 2}, 5),
    "short end": ({"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_train_epochs": 2}, 7),
    "passes": (
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "num_iterations": 2,
            "num_train_epochs": 2,
        },
        5,
    ),
    "max steps": ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 6}, 5),
    "half epochs": ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 1.5}, 7),
    "long rollouts": (
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
            "num_train_epochs": 2,
        },
        9,
    ),
    "short rollouts": (
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "steps_per_generation": 2,
            "num_train_epochs": 1,
        },
        9,
    ),
    "out of step": (
        {
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 3,
            "num_train_epochs": 2,
        },
        10,
    ),
    **{
        name: (
            {
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 4,
                "loss_type": name,
                "num_train_epochs": 1,
            },
            4,
        )
        for name in ("grpo", "bnpo", "dr_grpo", "dapo")
    },
}
"""Name -> (settings, prompts)."""


def length(prompt: int, sample: int) -> int:
    """Tokens of a scripted completion, its end of text included."""
    return LENGTHS[(prompt * 3 + sample) % len(LENGTHS)] + 1


def completion(prompt: int, sample: int) -> list[int]:
    """Its first token says which sample it is."""
    return [FIRST + sample, *([FIRST + 7] * (length(prompt, sample) - 2)), 1]


def script(model: torch.nn.Module) -> None:
    """`model.generate` answers with scripted completions, and draws no random number."""

    def generate(prompt_ids=None, **inputs):
        prompt_ids = inputs["input_ids"] if prompt_ids is None else prompt_ids
        seen: dict[int, int] = {}
        answers = []
        for row in prompt_ids.tolist():
            prompt = row[-1] - FIRST
            answers.append(completion(prompt, seen.get(prompt, 0) % GROUP))
            seen[prompt] = seen.get(prompt, 0) + 1
        longest = max(map(len, answers))
        padded = torch.tensor([answer + [0] * (longest - len(answer)) for answer in answers])
        return torch.cat([prompt_ids, padded], dim=1)

    model.generate = generate


def reward(completions: list[str], **columns: object) -> list[float]:
    """Squares of the sample's number: no completion has its group's mean."""
    return [float(text.split()[0].removeprefix("t")) ** 2 for text in completions]


class Recorder(TrainerCallback):
    """Collects rows until the optimizer steps."""

    def __init__(self) -> None:
        self.steps: list[list[list[float]]] = []
        self.rows: list[list[float]] = []
        self.micro_batch = 0

    def on_step_end(self, *arguments: object, **keywords: object) -> None:
        self.steps.append(self.rows)
        self.rows, self.micro_batch = [], 0


def watch(run, recorder: Recorder, rank: int, world: int) -> None:
    """Reads each micro-batch's weights from the gradient of its log-probabilities."""
    name = next(name for name in ("_get_per_token_logps_and_entropies", "_get_per_token_logps") if hasattr(run, name))
    score, step, loss = getattr(run, name), run.training_step, run.compute_loss
    last: dict[str, object] = {}

    def scored(*arguments, **keywords):
        found = score(*arguments, **keywords)
        logps = found[0] if isinstance(found, tuple) else found
        if logps.requires_grad:
            logps.retain_grad()
            last["logps"] = logps
        return found

    def computed(model, inputs, *arguments, **keywords):
        last["inputs"] = inputs
        return loss(model, inputs, *arguments, **keywords)

    def stepped(*arguments, **keywords):
        out = step(*arguments, **keywords)
        inputs, gradient = last["inputs"], last["logps"].grad
        for row, ids in enumerate(inputs["completion_ids"].tolist()):
            prompt = inputs["prompt_ids"][row, -1].item() - FIRST
            weight = -gradient[row, 0].item() / inputs["advantages"][row].item() / world
            recorder.rows.append([rank, recorder.micro_batch, prompt, ids[0] - FIRST, round(weight, 9)])
        recorder.micro_batch += 1
        return out

    setattr(run, name, scored)
    run.compute_loss, run.training_step = computed, stepped


def record(settings: dict[str, object], prompts: int) -> list[list[list[float]]]:
    """The rows of this process's optimizer steps."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    recorder = Recorder()
    run = trainer(
        config(**{key: value for key, value in {**COMMON, **settings}.items() if key in FIELDS}), prompts, reward
    )
    script(run.accelerator.unwrap_model(run.model))
    watch(run, recorder, rank, world)
    run.add_callback(recorder)
    run.train()
    if world == 1:
        return recorder.steps
    from accelerate.utils import gather_object

    gathered = gather_object([recorder.steps])
    return [[row for steps in gathered for row in steps[index]] for index in range(len(recorder.steps))]


def main(path: str, names: list[str]) -> None:
    world = int(os.environ.get("WORLD_SIZE", 1))
    for name, (settings, prompts) in CASES.items():
        known = all(key in FIELDS for key in settings)
        if (names and name not in names) or not known:
            continue
        try:
            steps = record(settings, prompts)
        except ValueError as error:
            print(VERSION, name, type(error).__name__, str(error)[:100], file=sys.stderr)
            continue
        line = {
            "trl": VERSION,
            "transformers": transformers.__version__,
            "case": name,
            "world": world,
            "settings": settings,
            "prompts": prompts,
            "steps": steps,
        }
        if int(os.environ.get("RANK", 0)) == 0:
            with Path(path).open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            print(VERSION, name, len(steps), "steps")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
