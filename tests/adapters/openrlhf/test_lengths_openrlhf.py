"""The longest prompt: said by itself before 0.9.8, and what `data.max_len` leaves of a sequence from then on."""

from __future__ import annotations

from typing import Any

import pytest

from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.reading.read import read_source
from batchbridge_openrlhf.config import OpenRlhfAdapter

RUN = {"train.batch_size": 128, "rollout.batch_size": 16, "rollout.n_samples_per_prompt": 8}
OLD = {"train_batch_size": 128, "rollout_batch_size": 16, "n_samples_per_prompt": 8}


def read(version: str, values: dict[str, Any]) -> Reading:
    return read_source(Source(values=values), OpenRlhfAdapter(), Context(framework_version=version))


@pytest.mark.parametrize(
    ("version", "values", "prompt", "completion"),
    [
        ("0.9.3", {**OLD, "prompt_max_len": 700, "generate_max_len": 300}, 700, 300),
        ("0.9.8", {**OLD, "max_len": 2048, "max_new_tokens": 1024}, 1024, 1024),
        ("0.11.2", {**RUN, "data.max_len": 2048, "rollout.max_new_tokens": 1024}, 1024, 1024),
        # Each completion gets what its prompt leaves, at least one token.
        ("0.9.8", {**OLD, "max_len": 2048}, 2047, None),
        ("0.11.2", {**RUN, "data.max_len": 2048}, 2047, None),
    ],
)
def test_the_longest_prompt_is_what_the_sequence_leaves(
    version: str, values: dict[str, Any], prompt: int, completion: int | None
) -> None:
    spec = read(version, values).spec
    assert spec is not None
    assert (spec.carried.max_prompt_tokens, spec.carried.max_completion_tokens) == (prompt, completion)


def test_a_prompt_alone_is_written_as_the_sequence_that_it_leaves_a_token_of() -> None:
    spec = read("0.11.2", RUN).spec
    assert spec is not None
    wanted = spec.replace(**{"carried.max_prompt_tokens": 511, "carried.max_completion_tokens": None})
    written = OpenRlhfAdapter().write(wanted, "0.11.2")
    assert written.values["data.max_len"] == 512
    back = read("0.11.2", dict(written.values)).spec
    assert back is not None
    assert back.carried == wanted.carried
