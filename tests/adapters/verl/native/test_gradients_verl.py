"""L2: gradients of verl's real `TrainingWorker` (FSDP2 engine, gloo) against the float64 oracle, on one and two ranks;
on 0.7.1 those of its legacy worker, too, and on 0.7.0 and 0.6.1 of that alone.

The processes run `processes.py`; this one compares. Ragged lengths, a step with a completion whose loss mask is all
zero, filler rows, a short last step, fixed and dynamic micro-batches.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.ledger import diff, read_steps
from batchbridge.testing.oracle import gradient_bar

VERSION = importlib.metadata.version("verl")
_OLD = {"vanilla": 4, "vanilla, k3": 4, "vanilla, k2": 2, "gspo": 1, "gspo, k3": 1, "cispo": 4, "gpg": 4, "sapo": 1}
CASES: dict[str, int] = {
    "0.6.1": {name: count for name, count in _OLD.items() if name not in ("cispo", "sapo")},
    "0.7.0": _OLD,
    "0.7.1": _OLD,
    "0.8.0": _OLD,
    "0.9.0": {
        "vanilla": 5,
        "vanilla, k3": 5,
        "vanilla, k2": 2,
        "gspo": 1,
        "gspo, k3": 1,
        "cispo": 5,
        "dro": 5,
        "gpg": 5,
        "sapo": 1,
    },
    "0.9.1": {
        "vanilla": 5,
        "vanilla, k3": 5,
        "vanilla, k2": 2,
        "gspo": 5,
        "gspo, k3": 1,
        "cispo": 5,
        "dro": 5,
        "gpg": 5,
        "sapo": 1,
    },
}[VERSION]
"""Objectives of the installed version, and how many aggregations each is measured with."""


LEGACY = "legacy workers"
WORKERS = {"0.6.1": [LEGACY], "0.7.0": [LEGACY], "0.7.1": ["engine workers", LEGACY]}.get(VERSION, ["engine workers"])


@pytest.fixture(scope="module", params=WORKERS)
def workers(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


@pytest.fixture(scope="module")
def folder(folder: Callable[..., Path], workers: str) -> Callable[[int], Path]:
    """Processes -> where `processes.py` left what it measured of these workers."""
    return lambda ranks: folder(ranks, *(("legacy",) if workers == LEGACY else ()))


@pytest.fixture
def engine_workers(workers: str) -> None:
    if workers == LEGACY:
        pytest.skip("of engine workers: the legacy ones have a loop of their own")


@pytest.fixture
def legacy_workers(workers: str) -> None:
    if workers != LEGACY:
        pytest.skip("of legacy workers")


of_engine_workers, of_legacy_workers = (pytest.mark.usefixtures(name) for name in ("engine_workers", "legacy_workers"))


@pytest.fixture(scope="module")
def measured(folder: Callable[[int], Path]) -> Callable[[int], dict[str, Any]]:
    """World size -> what `processes.py` found."""
    return lambda ranks: torch.load(folder(ranks) / "measured.pt", weights_only=True)


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.smoke), 2], ids=["one rank", "two ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


@pytest.mark.parametrize("case", CASES)
def test_every_step_has_the_oracles_gradient(
    measured: Callable[[int], dict[str, Any]], ranks: int, case: str, record: Callable[..., None], workers: str
) -> None:
    results = [result for result in measured(ranks)["wrapped"] if result["case"] == case]
    per_split: dict[str, int] = defaultdict(int)
    bar = gradient_bar(*(result["floor"] for result in results))
    for result in results:
        assert result["error"] <= bar, result
        assert result["norm"] > 0.1, result
        per_split[result["split"]] += 1
    assert set(per_split.values()) == {3 * CASES[case]}
    assert len(per_split) == (4 if ranks == 1 else 2)
    assert {(result["rows"], result["silent"]) for result in results} == {(2, 0), (5, 0), (5, 1)}
    worst = max(results, key=lambda result: result["error"])
    of = f"{workers}, " if workers == LEGACY else ""
    record("gradient", f"{of}{case}, ranks: {ranks}", error=worst["error"], float32=worst["floor"])


@pytest.mark.parametrize("case", [case for case in ("vanilla", "gspo", "cispo") if case in CASES])
def test_enough_tokens_are_clipped_for_clipping_to_be_tested(
    measured: Callable[[int], dict[str, Any]], case: str
) -> None:
    shares = [result["clipped"] for result in measured(1)["wrapped"] if result["case"] == case]
    assert max(shares) >= 0.05


@of_engine_workers
@pytest.mark.parametrize(
    "control", ["seq-mean-token-sum-norm, null factor", "geo_mean", "seq-mean-token-sum, filler rows in B"]
)
def test_negative_control_verl_alone_misses_the_bar_tenfold(
    measured: Callable[[int], dict[str, Any]], ranks: int, control: str, record: Callable[..., None]
) -> None:
    if VERSION == "0.7.1" and "null factor" in control:
        pytest.skip("rows of 0.7.1 have one width in all micro-batches, which the null factor divides by")
    assert measured(ranks)["natively"][control] > 10
    record("natively", f"{control}, ranks: {ranks}", bars=measured(ranks)["natively"][control])


@of_engine_workers
def test_positive_control_verl_alone_meets_the_bar_where_its_denominators_are_right(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert measured(ranks)["natively"]["positive control: token-mean"] <= 1


@of_legacy_workers
@pytest.mark.parametrize(
    "control", ["token-mean of each micro-batch", "seq-mean-token-sum, filler rows in a micro-batch"]
)
def test_negative_control_legacy_workers_alone_miss_the_bar_tenfold(
    measured: Callable[[int], dict[str, Any]], ranks: int, control: str, record: Callable[..., None]
) -> None:
    assert measured(ranks)["natively"][control] > 10
    record("natively", f"legacy workers, {control}, ranks: {ranks}", bars=measured(ranks)["natively"][control])


@of_legacy_workers
def test_positive_control_legacy_workers_alone_meet_the_bar_where_their_denominators_are_right(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert measured(ranks)["natively"]["positive control: seq-mean-token-sum"] <= 1


@of_legacy_workers
def test_a_loss_that_verls_aggregation_is_not_seen_in_is_refused_and_a_probe_leaves_no_trace(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    found = measured(ranks)["tampering"]
    assert found["another loss"] == "seam"
    assert found["no side effects"]


@of_engine_workers
def test_positive_control_verl_alone_weighs_kl_and_gspos_policy_term_as_the_reading_says(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert measured(ranks)["terms apart"] <= 1


def test_detached_ratios_ignore_the_old_logprobs_that_the_batch_carries(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    found = measured(ranks)["detached"]
    assert found["error"] <= gradient_bar(found["floor"])


def test_other_rows_than_planned_are_refused_before_the_update(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    members, weights, insisting, applied = measured(ranks)["drifts"]
    assert members.startswith("optimizer step 0 departs from the plan in its order")
    assert weights.startswith("optimizer step 0 departs from the plan in its weights")
    assert insisting.startswith("optimizer step 0 departs from the plan in its weights")
    assert applied == "nothing applied"


def test_a_step_without_a_token_updates_nothing_and_the_ledger_says_so(
    measured: Callable[[int], dict[str, Any]], folder: Callable[[int], Path], ranks: int
) -> None:
    assert measured(ranks)["empty"]["untouched"]
    first, second = read_steps(folder(ranks) / "empty_ledger")
    assert (first["skipped"], first["normaliser"]["tokens"]) == (True, 0)
    assert (second["skipped"], second["normaliser"]["completions"]) == (False, 5)


def test_one_and_two_ranks_write_the_same_ledger(folder: Callable[[int], Path]) -> None:
    compared = diff(folder(1) / "empty_ledger", folder(2) / "empty_ledger", rtol=1e-5)
    assert compared.equal, compared.text()


# ---- what something else than the plan has a hand in


@of_engine_workers
@pytest.mark.parametrize(
    ("loss", "why"),
    [
        ("times seven", "weight 0.411765 in its optimizer step, and the plan 0.0588235 (token_mean)"),
        ("over its own tokens", "the weight 0.25 in its optimizer step, and the plan 0.0588235"),
        ("mean over rows", "the weight 0.0196078 in its optimizer step, and the plan 0.0588235"),
        ("library altered", "the weight 0.117647 in its optimizer step, and the plan 0.0588235"),
        ("no gradient", "the trainer's loss gives no gradient: micro-batch 0 of 2 was computed"),
        ("does not run", "did not run on a made-up batch (RuntimeError: this loss wants other columns)"),
    ],
)
def test_a_loss_that_does_not_weigh_as_the_plan_does_is_refused_at_attach(
    measured: Callable[[int], dict[str, Any]], ranks: int, loss: str, why: str
) -> None:
    said = measured(ranks)["tampering"]["losses"][loss]
    assert said.startswith("weight_probe: ")
    assert why in said


@of_engine_workers
def test_a_loss_with_a_term_of_its_own_is_refused_by_that_name(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert measured(ranks)["tampering"]["losses"]["a term of its own"] == "own_term: "


@of_engine_workers
def test_another_loss_that_weighs_as_the_plan_does_is_taken_and_probing_it_leaves_no_trace(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    assert measured(ranks)["tampering"]["losses"]["itself"] == ""
    assert measured(ranks)["tampering"]["no side effects"]


TAMPERED = {
    "the loss": r"weights: a response token of .* weighs 0\.(1|09)\d*, 7 times what the plan says",
    "the value of the loss": r"loss: micro-batch . of the step on rank . has a loss of .* add up to .* by the plan's",
    "a constant in the loss": r"loss: micro-batch . of the step on rank . has a loss of .* an added term",
    "the mask": "weights: the gradient at the log-probabilities of .* is not the one",
    "the advantages": "weights: a response token of .*, 1.01 times what the plan says",
    "a micro-batch that is detached": "gradient: micro-batch 0 of . was computed, but no gradient came back to it",
    "a micro-batch that is left out": "gradient: of the step's . rows on this rank, . reached the loss",
    "a micro-batch's gradient": r"gradient: the gradients that the optimizer finds of .* \(another direction\)",
    "the gradient after backward": r"gradient: the gradients that the optimizer finds of .* \(3 times\)",
    "the gradient after clipping": r"gradient: the gradients that the optimizer finds of .* \(0.5 times\)",
    "one matrix after backward": r"gradient: .* finds of 1 of .*down_proj.weight \(1.05 times\): changed after",
    "one matrix's rows": r"gradient: .* finds of 1 of .*down_proj.weight \(another direction\): changed after",
    "a hook on all weights": r"gradient: .* \(0.1 times\)",
    "an optimizer of another model": r"gradient: 1 of the \d+ parameters that the optimizer updates are not the",
    "the update": r"gradient: the gradients that the optimizer finds of .* \(1.001 times\)",
    "advantages on their way": "inputs: advantages of prompt . sample . is not what the trainer's process sent",
    "advantages that are exchanged": "inputs: advantages of prompt . sample . is not what the trainer's process sent",
    "old log-probabilities on their way": "inputs: old_log_probs of prompt . sample . is not what",
    "log-probabilities of the reference on their way": "inputs: ref_log_prob of prompt . sample . is not what",
    "tokens on their way": "inputs: input_ids of prompt . sample . is not what the trainer's process sent",
    "the tokens that the policy is run on": "inputs: the model was run with another input_ids than prompt . sample .",
    "the temperature": "inputs: the model was run with another temperature than prompt . sample . has",
}


OF_LEGACY = {"a micro-batch that is left out": "inputs: the model was run with another input_ids than prompt . sample"}


@pytest.mark.parametrize("mode", ["enforce", "verify"])
@pytest.mark.parametrize("tampering", TAMPERED)
def test_a_step_that_something_else_has_a_hand_in_ends_before_its_update(
    measured: Callable[[int], dict[str, Any]], ranks: int, tampering: str, mode: str, workers: str
) -> None:
    if workers == LEGACY and mode == "verify":
        pytest.skip("verl's own denominators are those of a micro-batch there: the step before it departs")
    result = measured(ranks)["tampering"][mode][tampering]
    said = {**TAMPERED, **(OF_LEGACY if workers == LEGACY else {})}[tampering]
    assert (result["step"], result["updates"]) == (3, 1), result
    assert re.match(f"optimizer step 3 departs from the plan in its {said}", result["said"])


def test_a_step_that_nothing_else_has_a_hand_in_is_trained(
    measured: Callable[[int], dict[str, Any]], ranks: int, workers: str
) -> None:
    found = measured(ranks)["tampering"]
    for mode in ("enforce", "clipped", *(("verify", "lora") if workers != LEGACY else ())):
        assert found[mode]["nothing"] == {"said": "", "step": None, "updates": 2}, mode


def test_gradients_that_are_clipped_are_told_from_gradients_that_are_shrunk(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    result = measured(ranks)["tampering"]["clipped"]["the gradient after clipping"]
    assert (result["step"], result["updates"]) == (3, 1), result
    assert "(0.5 times)" in result["said"]
    assert "another direction" not in result["said"]


@of_engine_workers
def test_observing_writes_down_the_weights_of_a_loss_that_is_altered(
    measured: Callable[[int], dict[str, Any]], folder: Callable[[int], Path], ranks: int
) -> None:
    found = measured(ranks)["tampering"]
    assert (found["observe"]["said"], found["observe"]["updates"]) == ("", 2)
    before, after = read_steps(folder(ranks) / "observed")
    assert before["weights"] == pytest.approx([1 / 5] * 2)
    assert max(after["weights"]) == pytest.approx(7 / 70)


def test_a_value_of_a_group_that_someone_else_writes_departs_before_the_update(
    measured: Callable[[int], dict[str, Any]], ranks: int
) -> None:
    found = measured(ranks)["tampering"]
    for name, aspect in {"rate": "learning_rate", "decay": "weight_decay", "betas": "optimizer_settings"}.items():
        assert found[name]["said"].startswith(f"optimizer step 3 departs from the plan in its {aspect}: group 0")
        assert f'allow=("{aspect}",)' in found[name]["said"]
        assert (found[name]["step"], found[name]["updates"]) == (3, 1)


@of_engine_workers
def test_the_ledger_has_the_learning_rate_that_was_applied(
    measured: Callable[[int], dict[str, Any]], folder: Callable[[int], Path], ranks: int
) -> None:
    assert measured(ranks)["tampering"]["rate, allowed"] == {"said": "", "step": None, "updates": 2}
    (_, planned), (_, applied) = (read_steps(folder(ranks) / name) for name in ("observed", "rate"))
    assert applied["learning_rate"] == pytest.approx(planned["learning_rate"] + 0.015)


def test_a_step_of_a_loss_that_is_no_number_is_left_out_by_verl_and_the_ledger_says_so(
    measured: Callable[[int], dict[str, Any]], folder: Callable[[int], Path], ranks: int
) -> None:
    assert measured(ranks)["tampering"]["not a number"] == {"said": "", "step": None, "updates": 1}
    sound, lost = read_steps(folder(ranks) / "not_a_number")
    assert (sound["skipped"], lost["skipped"]) == (False, True)
    assert math.isfinite(sound["gradient_norm"])
    assert not math.isfinite(lost["gradient_norm"])


@of_engine_workers
def test_a_field_that_is_not_there_ends_the_observing_and_not_the_run(
    measured: Callable[[int], dict[str, Any]], folder: Callable[[int], Path], ranks: int
) -> None:
    """On one rank alone; the update is the native one."""
    found = measured(ranks)["tampering"]["unreadable"]
    assert (found["said"], found["updates"]) == ("", 2)
    steps = read_steps(folder(ranks) / "unreadable")
    assert [step["step"] for step in steps] == [2]
    assert "nothing was observed from optimizer step 3 on, the run went on: KeyError" in (steps.incomplete or "")


@of_engine_workers
@pytest.mark.parametrize("tampering", ["the loss", "a micro-batch's gradient", "the gradient after backward"])
def test_a_policy_of_lora_matrices_is_compared_in_them_alone(
    measured: Callable[[int], dict[str, Any]], ranks: int, tampering: str
) -> None:
    found = measured(ranks)["tampering"]["lora"]
    assert found["compared"] > 1
    assert found["not lora"] == []
    assert found["nothing"] == {"said": "", "step": None, "updates": 2}
    assert (found[tampering]["step"], found[tampering]["updates"]) == (3, 1), found[tampering]


@of_engine_workers
@pytest.mark.parametrize("tampering", ["the loss", "a micro-batch's gradient", "the gradient after backward"])
def test_a_policy_under_fsdp1_is_compared_by_its_parts_of_flat_parameters(
    measured: Callable[[int], dict[str, Any]], tampering: str
) -> None:
    found = measured(1)["tampering"]["flat"]
    for name in ("nothing", "clipped"):
        assert found[name] == {"said": "", "step": None, "updates": 2}
    assert (found[tampering]["step"], found[tampering]["updates"]) == (3, 1), found[tampering]


@pytest.mark.skipif(LEGACY not in WORKERS, reason="later releases run a model as mixed_precision says")
@pytest.mark.parametrize("tampering", ["the loss", "a micro-batch's gradient", "the gradient after backward"])
def test_a_policy_in_bfloat16_is_measured_as_closely(
    measured: Callable[[int], dict[str, Any]], ranks: int, tampering: str
) -> None:
    found = measured(ranks)["tampering"]["bfloat16"]
    assert found["nothing"] == {"said": "", "step": None, "updates": 2}
    assert (found[tampering]["step"], found[tampering]["updates"]) == (3, 1), found[tampering]


@of_engine_workers
@pytest.mark.skipif(VERSION != "0.7.1", reason="later releases attend to each row's own length")
def test_negative_control_padded_rows_which_are_refused_on_0_7_1_miss_the_bar_tenfold(
    measured: Callable[[int], dict[str, Any]], record: Callable[..., None]
) -> None:
    assert measured(1)["padded rows"] > 10
    record("natively", "padded rows", bars=measured(1)["padded rows"])


@of_engine_workers
def test_rows_as_the_v0_trainer_sends_them_are_measured(measured: Callable[[int], dict[str, Any]], ranks: int) -> None:
    found = measured(ranks)["tampering"]["v0"]
    assert found["updates"] == 3
    assert found["error"] <= gradient_bar(found["floor"]), found
