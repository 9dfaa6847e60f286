"""Error texts of Open-Instruct; see `Adapter.error_texts`."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText
from batchbridge.kit.error_texts import setting

TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="open-instruct-pack-length",
        framework="open_instruct",
        versions="grpo_fast.py, all that are read",
        pattern=r"`?pack_length`? needs to be greater",
        rule="pack_length (tokens) is at least max_prompt_token_length + response_length",
        meaning="the longest completion with its prompt would not fit into one packed row",
        phase="construction",
        source="open-instruct grpo_fast.py, data_loader.py",
        neighbours=lambda n: setting("pack_length", n["prompt"] + n["response"]),
        asks=(
            Ask(name="prompt", question="max_prompt_token_length (tokens)"),
            Ask(name="response", question="response_length (tokens)"),
        ),
    ),
    ErrorText(
        name="open-instruct-group-of-one",
        framework="open_instruct",
        versions="grpo_fast.py, all that are read",
        pattern=r"`filter_zero_std_samples` cannot",
        rule="filter_zero_std_samples needs num_samples_per_prompt_rollout of at least 2",
        meaning="the scores of one completion do not vary, so everything would be filtered out; it is on by default",
        phase="construction",
        source="open-instruct grpo_fast.py, data_loader.py",
        neighbours=lambda n: (
            *setting("num_samples_per_prompt_rollout", 2),
            Fix("filter_zero_std_samples = False", {"filter_zero_std_samples": False}),
        ),
    ),
)
