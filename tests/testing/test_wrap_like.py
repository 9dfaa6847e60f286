"""What `wrap` asks an adapter for when it is told to behave like another run."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from toy_adapter import DEFAULTS, ToyAdapter, spec_of

from batchbridge import CannotAttach, unwrap, wrap
from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.attachment import Attachment, Request
from batchbridge.contract.reading import Context, Mode, Provenance, Reading, Source
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.spec import MicroBatch
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_open_instruct.config import OpenInstructAdapter
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_trl.config import TrlAdapter
from batchbridge_verl.config import VerlAdapter


class Trainer(SimpleNamespace):
    """Of the toy framework, with four devices, 16 prompts and seed 5."""


class WrappingAdapter(ToyAdapter):
    enforced_versions: ClassVar[str] = "==2.0"

    def owns(self, trainer: object) -> bool:
        return isinstance(trainer, Trainer)

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        return Source(values={"seed": 5}), Context(framework_version="2.0", world_size=4, dataset_size=16)

    def check_attach(self, trainer: object, request: Request) -> None:
        if request.mode in getattr(trainer, "refused_in", ()):
            assert request.plan is None, "asked where there is no plan"
            raise CannotAttach({"critic": "it has one", "fp16": "its scaler"})

    def attach(self, trainer: object, request: Request) -> Attachment:
        return Attachment(framework="toy", framework_version="2.0", request=request, changes=(), detach=lambda: None)


@pytest.fixture(autouse=True)
def only_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": WrappingAdapter()})
    monkeypatch.setattr(plugins, "tells", lambda: dict.fromkeys(plugins.adapters()))


def asked(like: Any) -> Request:
    return wrap(Trainer(), like).batchbridge.request


def test_its_devices_and_micro_batches_stay_the_trainers_own() -> None:
    like = spec_of({**DEFAULTS, "devices": 32, "prompts": 2, "step": 4})
    spec = asked(like).spec
    assert spec.topology.world_size == 4
    assert spec == like.replace(topology=spec.topology)


def test_an_order_that_nothing_fixes_there_is_keyed_by_the_trainers_own_seed() -> None:
    like = spec_of({**DEFAULTS, "devices": 4, "seed": 9})
    assert asked(like).spec.order.seed == 9
    assert asked(like.replace(**{"order.seed": None})).spec.order.seed == 5


@pytest.mark.parametrize(("mode", "others"), [("enforce", ["critic", "fp16"]), ("verify", [])])
def test_that_there_is_no_plan_hides_no_other_reason(mode: Mode, others: list[str]) -> None:
    like = spec_of({**DEFAULTS, "devices": 4}).replace(**{"staleness.mode": "bounded"})
    with pytest.raises(CannotAttach) as caught:
        wrap(Trainer(refused_in=("enforce",)), like, mode=mode)
    assert list(caught.value.reasons) == ["plan", *others]


# ---- the trainer's own loggers


def test_where_no_adapter_reaches_the_loggers_that_is_a_reason_by_name_beside_all_others() -> None:
    trainer = Trainer()
    with pytest.raises(CannotAttach) as caught:
        wrap(trainer, report_to="trainer")
    assert list(caught.value.reasons) == ["report_to"]
    assert "batchbridge ledger show" in caught.value.reasons["report_to"]
    assert not hasattr(trainer, "batchbridge")


def test_a_budget_that_an_adapter_does_not_find_is_refused_and_one_that_it_does_is_its_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CannotAttach, match=r"found_budget: .* give a number of tokens") as caught:
        wrap(Trainer(), tokens_per_device="auto")
    assert list(caught.value.reasons) == ["found_budget"]
    monkeypatch.setattr(WrappingAdapter, "finds_budgets", True)
    trainer = wrap(Trainer(), tokens_per_device="auto")
    request = trainer.batchbridge.request
    assert (request.finds_budget, request.budget) == (True, None)
    assert request.spec.micro_batch == request.reading.spec.micro_batch
    assert wrap(trainer, tokens_per_device="auto").batchbridge.request is request
    assert not wrap(trainer).batchbridge.request.finds_budget


@pytest.mark.parametrize("adapter", [EasyR1Adapter, OpenInstructAdapter])
def test_the_frameworks_whose_loggers_are_not_reached(adapter: type[Adapter]) -> None:
    assert adapter.reports == ""


def test_an_adapter_that_reaches_them_gives_the_attachment_and_a_changed_seam_is_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []

    def report(self: Any, trainer: Any, attachment: Attachment) -> Attachment:
        said.append(attachment.request.report_to or "")
        if getattr(trainer, "renamed", False):
            raise AttributeError("no attribute log")
        return dataclasses.replace(attachment, detach=lambda: said.append("ended"))

    monkeypatch.setattr(WrappingAdapter, "reports", "toy:report")
    monkeypatch.setattr(WrappingAdapter, "report", report)
    trainer = wrap(Trainer(), report_to="trainer")
    assert wrap(trainer, report_to="trainer").batchbridge is trainer.batchbridge
    assert said == ["trainer"]
    wrap(trainer)
    assert said == ["trainer", "ended"]
    with pytest.raises(CannotAttach, match="no attribute log") as caught:
        wrap(Trainer(renamed=True), report_to="trainer")
    assert list(caught.value.reasons) == ["report_to"]


TERM = "advantage: gdpo"


@pytest.mark.parametrize(("mode", "others"), [("enforce", ["critic", "fp16"]), ("verify", [])])
def test_a_term_without_a_word_is_refused_by_name_beside_every_other_reason(mode: Mode, others: list[str]) -> None:
    like = spec_of({**DEFAULTS, "devices": 4}).replace(open_terms=(TERM,))
    with pytest.raises(CannotAttach) as caught:
        wrap(Trainer(refused_in=("enforce",)), like, mode=mode)
    assert list(caught.value.reasons) == ["open_terms", *others]
    assert f"{TERM}: the schema has no such value" in caught.value.reasons["open_terms"]
    assert 'mode="observe"' in caught.value.reasons["open_terms"]


class WithATerm(WrappingAdapter):
    """Its own configuration has a term that the schema has no word for."""

    def read(self, source: Source, context: Context) -> Reading:
        reading = super().read(source, context)
        assert reading.spec is not None
        origin = Provenance(("estimator",), "gdpo", "object", "trainer.args")
        provenance = {**reading.provenance, "open_terms": origin}
        return dataclasses.replace(reading, spec=reading.spec.replace(open_terms=(TERM,)), provenance=provenance)


def test_a_trainer_with_a_term_without_a_word_is_refused_whatever_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": WithATerm()})
    plain = spec_of({**DEFAULTS, "devices": 4})
    for like in (None, plain):
        with pytest.raises(CannotAttach, match=r"advantage: gdpo \(here estimator = gdpo\)"):
            wrap(Trainer(), like)
    assert wrap(Trainer(), mode="observe").batchbridge.request.spec.open_terms == (TERM,)


class WithItsOwnAdvantages(WithATerm):
    def read(self, source: Source, context: Context) -> Reading:
        reading = super().read(source, context)
        assert reading.spec is not None
        return dataclasses.replace(reading, spec=reading.spec.replace(**{"advantage.baseline": "open"}))


def test_a_trainers_own_advantages_are_taken_where_nobody_asks_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": WithItsOwnAdvantages()})
    own = wrap(Trainer()).batchbridge.request.spec
    assert (own.open_terms, own.advantage.baseline) == ((TERM,), "open")
    like = spec_of({**DEFAULTS, "devices": 4})
    for other in (like, like.replace(open_terms=("advantage: maxrl",), **{"advantage.baseline": "open"})):
        with pytest.raises(CannotAttach, match="open_terms"):
            wrap(Trainer(), other)
    assert wrap(Trainer(), own).batchbridge.request.spec == own


class OnTwoRanks(WrappingAdapter):
    """This process is rank 0; what rank 1 says stands in the trainer, in the order of the questions."""

    def gather(self, trainer: object, value: object) -> list[Any]:
        return [value, trainer.answers.pop(0)(value)]  # type: ignore[attr-defined]  # the test's own


def test_what_another_rank_refuses_is_refused_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": OnTwoRanks()})
    with pytest.raises(CannotAttach) as caught:
        wrap(Trainer(answers=[lambda mine: {"critic": "it has one"}]))
    assert caught.value.reasons == {"critic": "on rank 1: it has one"}
    both = Trainer(answers=[lambda mine: mine], refused_in=("enforce",))
    with pytest.raises(CannotAttach) as caught:
        wrap(both, spec_of({**DEFAULTS, "devices": 4}).replace(**{"staleness.mode": "bounded"}))
    assert list(caught.value.reasons) == ["plan", "critic", "fp16"], "said once where every rank says it"


def test_ranks_that_ask_for_different_things_are_refused_by_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": OnTwoRanks()})

    def other(mine: Any) -> Any:
        same, asked = mine
        size = asked["dataset_size"] - 1
        return same, {**asked, "order.seed": 9, "dataset_size": size, "report_to": "trainer", "padding": "free"}

    with pytest.raises(CannotAttach) as caught:
        wrap(Trainer(answers=[lambda mine: mine, other]))
    (reason,) = caught.value.reasons.values()
    assert "dataset_size is 16 on rank 0, 15 on rank 1; order.seed is 5 on rank 0, 9 on rank 1" in reason
    assert "report_to is None on rank 0, trainer on rank 1" in reason, "ranks gather what they report"
    assert "padding is padded on rank 0, free on rank 1" in reason, "each would cut a step in its own way"


OURS = (EasyR1Adapter, OpenInstructAdapter, OpenRlhfAdapter, TrlAdapter, VerlAdapter)


@pytest.mark.parametrize("adapter", OURS, ids=lambda adapter: adapter.framework)
def test_each_of_our_adapters_says_beforehand_why_it_cannot_attach(adapter: type[Adapter]) -> None:
    module, _, name = adapter.runtime.partition(":")
    found = find_spec(module)  # importing it may need the framework
    assert found is not None
    assert found.origin is not None
    text = Path(found.origin).read_text(encoding="utf-8")
    # verl's is the one of `runtime`, which is told the parts of the code that a trainer depends on.
    assert f"\n{name} = Runtime(" in text or f"\n{name} = dataclasses.replace(runtime.RUNTIME, " in text


@pytest.mark.parametrize(("mode", "others"), [("enforce", ["critic", "fp16"]), ("observe", [])])
def test_a_dataset_without_a_length_hides_no_other_reason(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, others: list[str]
) -> None:
    unmeasured = (Source(values={"seed": 5}), Context(framework_version="2.0", world_size=4))
    monkeypatch.setattr(WrappingAdapter, "source_of", lambda self, trainer: unmeasured)
    with pytest.raises(CannotAttach) as caught:
        wrap(Trainer(refused_in=("enforce",)), mode=mode)
    assert list(caught.value.reasons) == ["iterable_dataset", *others]


def test_no_shuffle_needs_no_seed() -> None:
    like = spec_of({**DEFAULTS, "devices": 4}).replace(**{"order.seed": None, "order.prompt_shuffle": "none"})
    assert asked(like).spec.order.seed is None


def test_a_stranger_is_refused() -> None:
    with pytest.raises(CannotAttach, match="no installed adapter takes a SimpleNamespace"):
        wrap(SimpleNamespace())
    with pytest.raises(CannotAttach, match=r"takes the class SimpleNamespace; .*wrap the trainer that a framework"):
        wrap(SimpleNamespace)
    stranger = object()  # nothing to restore, and nowhere to look for it
    assert unwrap(stranger) is stranger


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotAttach, match=r"like: BB001: none\.yaml: there is no such file"):
        asked("none.yaml")


def test_allowed_names_are_no_letters() -> None:
    with pytest.raises(ValueError, match=r"allow=\['fp16'\]"):
        wrap(Trainer(), allow="fp16")


FILTERED = spec_of({**DEFAULTS, "devices": 4}).replace(**{"rollout.group_filter": "drop_zero_variance"})


class FillingAdapter(WrappingAdapter):
    fills_places: ClassVar[bool] = True


def test_filtered_groups_are_refused_where_the_adapter_fills_no_places() -> None:
    with pytest.raises(CannotAttach, match=r"plan: rollout\.group_filter = drop_zero_variance: rewards decide"):
        wrap(Trainer(), FILTERED)


def test_an_adapter_that_fills_places_gets_their_plan_and_the_report_says_what_the_run_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": FillingAdapter()})
    attached = wrap(Trainer(), FILTERED).batchbridge
    assert isinstance(attached.plan, CandidatePlan)
    assert "decided while it runs: rollout.group_filter = drop_zero_variance: rewards decide" in attached.report()
    with pytest.raises(CannotAttach, match="rewards decide"):
        wrap(Trainer(), FILTERED, mode="verify")


class SettlingAdapter(WrappingAdapter):
    """A wrapped run of its trainers is ordered by another seed."""

    def started(self, reading: Reading) -> Reading:
        assert reading.spec is not None
        return dataclasses.replace(reading, spec=reading.spec.replace(**{"order.seed": 99}))


def test_what_an_adapter_settles_is_asked_of_an_enforced_run_of_the_trainers_own_configuration_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": SettlingAdapter()})
    own = wrap(Trainer()).batchbridge.request
    assert own.spec.order.seed == own.plan.spec.order.seed == 99
    assert own.reading.spec.order.seed == 5, "the trainer's own meaning is told as it is"
    assert asked(LIKE.replace(**{"order.seed": 3})).spec.order.seed == 3
    for mode in ("verify", "observe"):
        assert wrap(Trainer(), mode=mode).batchbridge.request.spec.order.seed == 5


LIKE = spec_of({**DEFAULTS, "devices": 4})
BUDGET = LIKE.replace(**{"micro_batch.tokens_per_device": 64, "micro_batch.forward_tokens_per_device": 128})


def test_a_specs_own_token_budgets_are_asked_for_and_its_fixed_sizes_are_not() -> None:
    assert asked(BUDGET).spec.micro_batch == BUDGET.micro_batch == asked(BUDGET).budget
    fixed = asked(LIKE.replace(**{"micro_batch.completions_per_device": 3}))
    assert (fixed.spec.micro_batch, fixed.budget) == (asked(LIKE).spec.micro_batch, None)


def test_a_budget_of_forward_only_passes_alone_leaves_the_trainers_own_training_cut() -> None:
    wanted = LIKE.replace(**{"micro_batch.forward_tokens_per_device": 128, "micro_batch.completions_per_device": 3})
    micro = asked(wanted).spec.micro_batch
    assert (micro.completions_per_device, micro.forward_tokens_per_device) == (None, 128)


def test_a_configuration_that_is_read_hands_over_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = Reading(framework="toy", framework_version="2.0", spec=BUDGET)
    request = asked(reading)
    assert request.spec.micro_batch == asked(LIKE).spec.micro_batch
    assert request.budget is None


@pytest.mark.parametrize("mode", ["verify", "observe"])
def test_a_run_that_is_only_watched_gets_no_budget(mode: Mode) -> None:
    assert wrap(Trainer(), BUDGET, mode=mode).batchbridge.request.budget is None


def test_the_budget_of_the_call_stands_above_the_specs() -> None:
    request = wrap(Trainer(), BUDGET, tokens_per_device=32).batchbridge.request
    assert request.spec.micro_batch == MicroBatch(tokens_per_device=32, cap="soft")


def test_another_budget_is_another_request_and_unwraps_first() -> None:
    trainer = Trainer()
    first = wrap(trainer, BUDGET).batchbridge
    assert wrap(trainer, BUDGET).batchbridge is first
    assert wrap(trainer, LIKE).batchbridge is not first


@pytest.mark.parametrize("puts_back", [True, False])
def test_what_stood_is_put_back_without_being_asked_again_or_its_loss_is_told(
    monkeypatch: pytest.MonkeyPatch, puts_back: bool
) -> None:
    requests: list[Request] = []
    attached = WrappingAdapter.attach

    def attach(self: WrappingAdapter, trainer: object, request: Request) -> Attachment:
        requests.append(request)
        if len(requests) == 2 or (len(requests) == 3 and not puts_back):
            raise CannotAttach({"probe": "it weighs otherwise"})
        return attached(self, trainer, request)

    monkeypatch.setattr(WrappingAdapter, "attach", attach)
    trainer = wrap(Trainer())
    stood = trainer.batchbridge
    with pytest.raises(CannotAttach) as refused:
        wrap(trainer, spec_of({**DEFAULTS, "devices": 4, "seed": 9}))
    assert [request.again for request in requests] == [False, False, True]
    if puts_back:
        assert set(refused.value.reasons) == {"probe"}
        assert trainer.batchbridge.request is stood.request
    else:
        assert set(refused.value.reasons) == {"probe", "unwrapped"}
        assert "is not wrapped any more" in refused.value.reasons["unwrapped"]
        assert not hasattr(trainer, "batchbridge")


class Derived(Trainer):
    """Of a third party's framework, which is built on the toy's."""


class DerivedAdapter(WrappingAdapter):
    framework: ClassVar[str] = "derived"

    def owns(self, trainer: object) -> bool:
        return isinstance(trainer, Derived)


class NamingAdapter(WrappingAdapter):
    """Refuses one of its own trainers by name, whose configuration it cannot read."""

    def refuses(self, trainer: object) -> dict[str, str]:
        return {"fork": "its loss is another one"}

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        raise AssertionError("a trainer that is refused by name is not read")


def test_the_adapter_of_the_most_derived_class_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": WrappingAdapter(), "derived": DerivedAdapter()})
    monkeypatch.setattr(
        "batchbridge.running.wrap._request",
        lambda trainer, adapter, *more: (_ for _ in ()).throw(CannotAttach({"asked": adapter.framework})),
    )
    with pytest.raises(CannotAttach, match="asked: derived"):
        wrap(Derived())
    with pytest.raises(CannotAttach, match="asked: toy"):
        wrap(Trainer())


def test_two_adapters_of_one_class_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": WrappingAdapter(), "other": WrappingAdapter()})
    with pytest.raises(CannotAttach, match="claimed by the adapters toy, toy"):
        wrap(Trainer())


def test_a_trainer_that_its_owner_refuses_by_name_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "adapters", lambda: {"toy": NamingAdapter()})
    with pytest.raises(CannotAttach) as error:
        wrap(Trainer())
    assert error.value.reasons == {"fork": "its loss is another one"}
