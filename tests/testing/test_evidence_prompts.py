"""The prompts of a run that filters groups, or is ahead of its weights, are compared like any other's."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from toy_adapter import ToyAdapter

from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.testing import EvidenceContract, ValidCase

FILTERED = {"rollout.group_filter": "replace_zero_variance", "order.last_rollout": "wrap"}
AHEAD = {"staleness.mode": "bounded", "staleness.maximum": 2, "order.last_rollout": "wrap"}
CASE = ValidCase(
    name="one", source=Source(values={"prompts": 4, "devices": 2}), context=Context(framework_version="1.0")
)


def contract(fields: dict[str, Any], shuffles: bool = True) -> EvidenceContract:
    class Adapter(ToyAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            return dataclasses.replace(reading, spec=reading.spec.replace(**fields))

    class Evidence(EvidenceContract):
        adapter_class = Adapter
        valid = (CASE,)

        def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
            stream: list[int] = []
            while True:
                while len(stream) < 4:
                    epoch = list(range(dataset_size))
                    if shuffles:
                        random.Random(dataset_size).shuffle(epoch)
                    stream += epoch
                yield [stream.pop(0) for _ in range(4)]

    return Evidence()


@pytest.mark.parametrize("fields", [FILTERED, AHEAD], ids=["filtered", "ahead"])
def test_candidates_are_the_prompts_that_are_looked_at(fields: dict[str, Any]) -> None:
    contract(fields).test_rollouts_have_the_prompts_that_the_framework_takes(CASE)


@pytest.mark.parametrize("fields", [FILTERED, AHEAD], ids=["filtered", "ahead"])
def test_a_misread_order_or_remainder_is_told_there_too(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="permuted anew in each epoch"):
        contract(fields, shuffles=False).test_rollouts_have_the_prompts_that_the_framework_takes(CASE)
    with pytest.raises(AssertionError, match="are said"):
        contract({**fields, "order.last_rollout": "short"}).test_rollouts_have_the_prompts_that_the_framework_takes(
            CASE
        )
