"""What one of several processes cannot be made to do, none is: refusals of checks, patches and probes are shared."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.errors import CannotAttach
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import RefusalRow

REQUEST: Any = SimpleNamespace(mode="enforce", allow=frozenset(), again=False)
ELSEWHERE = {"weight_probe": "another rank's loss averages otherwise"}


class Shared:
    """Stands for the other processes: refuses at the given exchange (0: checks, 1: patches, 2: probe)."""

    def __init__(self, refuses_at: int | None = None) -> None:
        self.said: list[dict[str, str]] = []
        self._refuses_at = refuses_at

    def gather(self, trainer: Any, reasons: dict[str, str]) -> list[dict[str, str]]:
        self.said.append(dict(reasons))
        return [reasons, ELSEWHERE if len(self.said) - 1 == self._refuses_at else {}]


def runtime_of(shared: Shared, *, patch: Any = None, probe: Any = None) -> Runtime:
    def patched(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
        patches.set(trainer, "step", "ours", what="ours", why="test")
        if patch is not None:
            patch(trainer)
        return Patched(probe=probe or (lambda: None))

    version = lambda trainer: "1.0"  # noqa: E731 - one line
    return Runtime(framework="test", version=version, refusals=(), patch=patched, gather=shared.gather)


@pytest.mark.parametrize("refuses_at", [0, 1, 2])
def test_what_another_process_refuses_is_refused_here_and_undone(refuses_at: int) -> None:
    trainer, shared = SimpleNamespace(step="native"), Shared(refuses_at)
    with pytest.raises(CannotAttach) as refused:
        runtime_of(shared).attach(trainer, REQUEST)
    assert refused.value.reasons == {name: f"on rank 1: {reason}" for name, reason in ELSEWHERE.items()}
    assert shared.said == [{}] * (refuses_at + 1)
    assert trainer.step == "native"


def refuse(*_: Any) -> None:
    raise CannotAttach({"here": "a reason of this process"})


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"patch": refuse}, "here"),
        ({"probe": refuse}, "here"),
        ({"patch": lambda trainer: trainer.renamed_upstream}, "seam"),
    ],
)
def test_what_is_refused_here_is_said_to_the_others_before_it_is_raised(parts: dict[str, Any], reason: str) -> None:
    trainer, shared = SimpleNamespace(step="native"), Shared()
    with pytest.raises(CannotAttach) as refused:
        runtime_of(shared, **parts).attach(trainer, REQUEST)
    assert refused.value.reasons == {name: f"on rank 0: {said}" for name, said in shared.said[-1].items()}
    assert set(refused.value.reasons) == {reason}
    assert trainer.step == "native"


def test_an_attachment_stands_where_nobody_refuses() -> None:
    trainer, shared = SimpleNamespace(step="native"), Shared()
    made = runtime_of(shared).attach(trainer, REQUEST)
    assert (trainer.step, shared.said) == ("ours", [{}] * 3)
    made.detach()
    assert trainer.step == "native"


def test_a_refusal_that_fails_is_a_refusal_of_its_name() -> None:
    def fails(trainer: Any, request: Request) -> bool:
        return bool(trainer.multi_objective)

    rows = (
        RefusalRow("normalize_then_sum", "sums of normalised rewards", lambda request: None, fails),
        RefusalRow("critic", "it has one", lambda request: True),
    )
    runtime = Runtime(framework="test", version=lambda trainer: "1.0", refusals=rows, patch=lambda *given: Patched())
    with pytest.raises(CannotAttach) as error:
        runtime.check(SimpleNamespace(), REQUEST)
    assert error.value.reasons == {
        "normalize_then_sum": "it cannot be told whether this holds: sums of normalised rewards (AttributeError: "
        "'types.SimpleNamespace' object has no attribute 'multi_objective')",
        "critic": "it has one",
    }


class Training:
    """A trainer that asks in the middle of its training whether it trains."""

    def train(self, **named: Any) -> bool:
        return is_inside(self, "train", **named)


def test_a_method_of_any_package_counts_where_none_is_named() -> None:
    """As adapters of before the packages were named call it."""
    assert Training().train()
    assert Training().train(of=(__name__.partition(".")[0],))
    assert not Training().train(of=("some_framework",))
    assert not is_inside(Training(), "train")
