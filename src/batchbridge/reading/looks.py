"""The looks of reinforcement learning: what a file that no adapter reads has in it where it trains by rewards."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from batchbridge.contract.detection import perhaps_programs
from batchbridge.reading.arguments import near_file

_METHODS = r"GRPO|GSPO|PPO|RLOO|DAPO|CISPO|Reinforce|REINFORCE|RLHF|RLVR|OnlineDPO|NashMD|XPO|RL(?=Trainer)"
_BUILT = re.compile(rf"(?<!class )\b\w*(?:{_METHODS})\w*(?:Trainer|Learner|Runner)\w*\(")
_NAMED = re.compile(r"grpo|ppo|rloo|policy_loss|advantage", re.IGNORECASE)
_TRAINED = re.compile(r"\.backward\(\s*\)[\s\S]*\.step\(|value_and_grad\(")
_POLICY_GRADIENT = (
    re.compile(r"reward", re.IGNORECASE),
    re.compile(
        r"(?:^|[\W_])adv(?:s|antages?)?(?=[\W_])|(?:^|\W)returns\s*=|reward\w*\s*\*\s*-?\s*log_?p", re.IGNORECASE
    ),
    re.compile(r"log_?prob|logp(?=[\W_s])|log_softmax", re.IGNORECASE),
    re.compile(r"\.generate\(|rollout|\.sample\(|generate_completions?\(", re.IGNORECASE),
)
"""The parts of a loop of its own that learns from rewards, whatever its method is called: what it samples, the reward,
what a reward is better by, and the log-probabilities that this weighs."""
_WORD = re.compile(r"(?:^|[^a-z])(?:grpo|gspo|rloo|dapo|rlhf|rlvr|ppo)(?:[^a-z]|$)", re.IGNORECASE)
_OPTIONS = (
    "num_generations",
    "n_samples_per_prompt",
    "rollout_batch_size",
    "group_size",
    "num_rollout",
    "reward_funcs",
)
_OTHER = re.compile(r"eval|merge|plot|convert|serve|test|infer|score|analy|prepare|generate|benchmark|sft|dpo")
_PROGRAMS = re.compile(r"(?:^|/)(?:python[\d.]*|torchrun|accelerate|deepspeed|ray|uv|swift)$|\.py$")


STARTS = re.compile(rf"{_PROGRAMS.pattern}|^(?:nohup|srun|env|time|timeout|sudo|nice|conda|poetry|pdm|apptainer)$")


def trains_by_rewards(program: str) -> bool:
    """Whether the text of a program builds a trainer that learns from rewards, or has a loop of its own that does."""
    if _BUILT.search(program):
        return True
    if not _TRAINED.search(program):
        return False
    named = len(_NAMED.findall(program)) > 2 and "advantage" in program.lower()
    return named or all(part.search(program) for part in _POLICY_GRADIENT)


def starts_training(words: Iterable[str]) -> bool:
    """Whether the words of a command start a program that learns from rewards, by its name or by its options."""
    listed = list(words)
    if not any(_PROGRAMS.search(word) for word in listed[:4]) or not STARTS.search(listed[0]):
        return False
    ahead = listed[: listed.index("-c")] if "-c" in listed[:4] else listed[:4]  # behind it a program's own text stands
    programs = [word for word in perhaps_programs(ahead) if not word.startswith("-")]
    options = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in listed if word.startswith("-")]
    if _OTHER.search(" ".join(programs)):
        return False
    # The folders of a path from the root are the machine's: /workspace/my-grpo says nothing about a program below it.
    named = any(_WORD.search(word.rpartition("/")[2] if word.startswith("/") else word) for word in programs)
    return named or any(option in _OPTIONS for option in options)


def program_trains(argv: Sequence[str], file: str) -> bool:
    """Whether a command's own Python program is here, and trains by rewards."""
    module = next((behind for word, behind in pairwise(argv[:4]) if word == "-m"), None)
    named = next((word for word in argv[:4] if word.endswith(".py")), module and f"{module.replace('.', '/')}.py")
    program = None if named is None else near_file(named, Path(file))
    try:
        return program is not None and trains_by_rewards(program.read_text(encoding="utf-8")[:1_000_000])
    except (OSError, ValueError):
        return False
