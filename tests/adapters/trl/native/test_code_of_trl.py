"""The code of an installed TRL and of a real trainer is graded: proven as it is, measured or refused when tampered."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl
from trl import GRPOTrainer

from batchbridge import CannotAttach, wrap
from batchbridge.kit.proven import evidence_here
from batchbridge.ledger import read_headers
from batchbridge_on_cpu.scripts import module_at
from batchbridge_trl.proven import CODE


@pytest.mark.parametrize("mode", ["enforce", "verify", "observe"])
def test_the_installed_code_is_proven_in_every_mode(trainer: Callable[..., Any], mode: Any) -> None:
    found = wrap(trainer(), mode=mode).batchbridge
    assert found.evidence.grade == "proven", found.evidence.text()
    assert found.framework_version == found.evidence.labels["trl"]
    assert "code: proven: the native tests ran on this code (trl " in found.report()


def test_the_installed_release_splits_rows_where_and_as_it_is_recorded() -> None:
    """A release that splits otherwise has other sizes that do not come out even: see tests/upstream/splits.py."""
    splits = module_at(Path(__file__).parents[3] / "upstream" / "splits.py", "splits")
    found = splits.splits_in(Path(str(trl.__path__[0])), "trl")
    assert found == splits.recorded_of("trl", importlib.metadata.version("trl"))


def test_the_ledgers_header_says_so(trainer: Callable[..., Any], tmp_path: Path) -> None:
    wrap(trainer(max_steps=1), ledger=tmp_path / "ledger").train()
    (header,) = read_headers(tmp_path / "ledger")
    assert (header["evidence"]["grade"], header["evidence"]["control"]) == ("proven", [])


def overridden(built: Any, cls: type) -> Any:
    built.__class__ = cls
    return built


class OwnLoop(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
    def training_step(self, *arguments: Any, **options: Any) -> Any:
        return super().training_step(*arguments, **options) * 1  # it does more than hand on


def test_control_flow_of_a_subclass_is_refused_by_name_and_can_be_allowed(trainer: Callable[..., Any]) -> None:
    built = overridden(trainer(), OwnLoop)
    with pytest.raises(CannotAttach, match=r"OwnLoop\.training_step \(overrides\)") as caught:
        wrap(built)
    assert set(caught.value.reasons) == {"unproven_code"}
    found = wrap(built, allow=("unproven_code",)).batchbridge.evidence
    assert (found.grade, len(found.control)) == ("measured", 1)


class OwnLoopAndLoss(OwnLoop):
    def _compute_loss(self, *arguments: Any, **options: Any) -> Any:
        return 7 * super()._compute_loss(*arguments, **options)


def test_control_flow_that_is_allowed_is_still_probed(trainer: Callable[..., Any]) -> None:
    built = overridden(trainer(), OwnLoopAndLoss)
    with pytest.raises(CannotAttach) as caught:
        wrap(built, allow=("unproven_code",))
    assert set(caught.value.reasons) == {"weight_probe"}


class WholeLoss(GRPOTrainer):  # type: ignore[misc]
    factor: float

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        return self.factor * super().compute_loss(*arguments, **options)


def test_a_subclass_whose_compute_loss_is_its_own_is_measured_through_it(trainer: Callable[..., Any]) -> None:
    built = overridden(trainer(), WholeLoss)
    built.factor = 7.0
    with pytest.raises(CannotAttach) as caught:
        wrap(built)
    assert set(caught.value.reasons) == {"weight_probe"}
    built.factor = 1.0
    assert wrap(built).batchbridge.evidence.grade == "measured"


def test_a_loss_of_a_subclass_has_to_be_measured(trainer: Callable[..., Any]) -> None:
    gmpo = pytest.importorskip("trl.experimental.gmpo", reason="this TRL has no GMPO trainer")
    found = evidence_here(CODE.used(), overridden(trainer(), gmpo.GMPOTrainer))
    assert found.grade == "measured"
    assert found.loss == ("trl.experimental.gmpo.gmpo_trainer.GMPOTrainer._compute_loss (overrides)",)


@pytest.mark.parametrize("name", ["training_step", "_prepare_inputs"])
def test_control_flow_that_was_replaced_on_the_trainer_is_refused(trainer: Callable[..., Any], name: str) -> None:
    built = trainer()
    native = getattr(built, name)
    setattr(built, name, functools.wraps(native)(lambda *arguments, **options: native(*arguments, **options)))
    with pytest.raises(CannotAttach, match=rf"GRPOTrainer\.{name} \(set on the object"):
        wrap(built)


def test_a_loop_that_was_replaced_in_transformers_is_refused(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    native = transformers.Trainer.train
    monkeypatch.setattr(transformers.Trainer, "train", lambda self, *a, **k: native(self, *a, **k))
    with pytest.raises(CannotAttach, match=r"transformers trainer\.py: Trainer\.train \(replaced by "):
        wrap(trainer())


def test_a_loss_that_was_replaced_in_its_class_has_to_be_measured(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    native = GRPOTrainer._compute_loss
    sevenfold = functools.wraps(native)(lambda self, *a, **k: 7 * native(self, *a, **k))
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", sevenfold)
    found = evidence_here(CODE.used(), trainer())
    assert (found.grade, len(found.loss)) == ("measured", 1)


def test_wrapping_again_looks_through_our_own_patches(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer())
    assert evidence_here(CODE.used(), built, built.accelerator).grade == "proven"
    assert wrap(built, mode="observe").batchbridge.evidence.grade == "proven"
