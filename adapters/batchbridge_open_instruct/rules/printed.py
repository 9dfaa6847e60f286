"""The words of `doctor` about a text that Open-Instruct prints and a rule is about, beyond the row; see `Rule.text`.

Its own file: only `doctor` shows these words; the table of rules stays readable.
"""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText
from batchbridge.kit.error_texts import setting

PACK_LENGTH = ErrorText(
    name="open-instruct-pack-length",
    versions="grpo_fast.py, all that are read",
    rule="pack_length (tokens) is at least max_prompt_token_length + response_length",
    meaning="the longest completion with its prompt would not fit into one packed row",
    neighbours=lambda n: setting("pack_length", n["prompt"] + n["response"]),
    asks=(
        Ask(name="prompt", question="max_prompt_token_length (tokens)"),
        Ask(name="response", question="response_length (tokens)"),
    ),
)

GROUP_OF_ONE = ErrorText(
    name="open-instruct-group-of-one",
    versions="grpo_fast.py, all that are read",
    rule="filter_zero_std_samples needs num_samples_per_prompt_rollout of at least 2",
    meaning="the scores of one completion do not vary, so everything would be filtered out; it is on by default",
    neighbours=lambda n: (
        *setting("num_samples_per_prompt_rollout", 2),
        Fix("filter_zero_std_samples = False", {"filter_zero_std_samples": False}),
    ),
)
