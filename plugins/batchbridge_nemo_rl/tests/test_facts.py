"""NeMo-RL's own recipes and functions, as they were recorded.

`recipes.json`: for each GRPO recipe of v0.7.0 and main its digest, the settings with a row whose value in NeMo-RL's own
loader is not grpo_math_1B.yaml's or may follow another
(pairs of places in `keys` and `values`), and the codes that it breaks. All settings
with a row were compared when it was recorded. `vectors.json`: the results of NeMo-RL's functions on a CPU, with the
digests of their code.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Source
from batchbridge.kit import Context, Row, group_advantages, token_weights
from batchbridge_nemo_rl.config import NemoAdapter
from batchbridge_nemo_rl.outside import OUTSIDE
from batchbridge_nemo_rl.settings import DECLARED

RECIPES: dict[str, Any] = json.loads(Path(__file__).with_name("recipes.json").read_text(encoding="utf-8"))
VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))
CONTEXT = Context(framework_version="0.7.0")


@pytest.mark.parametrize("recipe", RECIPES["recipes"], ids=[f"{one[0]}:{one[1]}" for one in RECIPES["recipes"]])
def test_a_recipe_is_read_as_nemo_rls_loader_reads_it(recipe: list[Any]) -> None:
    pairs = zip(recipe[3][::2], recipe[3][1::2], strict=True)
    theirs = {RECIPES["keys"][key]: RECIPES["values"][value] for key, value in pairs}
    adapter = NemoAdapter()
    reading = adapter.read(Source(values={"grpo.seed": 42, **theirs}), CONTEXT)
    declared = theirs.keys() & {row.key for row in DECLARED}
    assert declared <= reading.given.keys()
    assert {key: reading.native[key] for key in theirs.keys() - declared} == {
        key: value for key, value in theirs.items() if key not in declared
    }
    found = [*reading.findings, *adapter.check(reading)]
    codes = sorted({one.code for one in found if one.severity == "error" or one.undecided})
    assert codes == (recipe[4] if len(recipe) > 4 else [])
    assert (reading.spec is None) == bool(codes)


def test_a_forward_pass_follows_the_micro_batch() -> None:
    """grpo_math_1B.yaml: logprob_batch_size is the micro-batch's, and budgets of tokens are products of both."""
    native = NemoAdapter().read(Source(values={"policy.train_micro_batch_size": 8}), CONTEXT).native
    assert native["policy.logprob_batch_size"] == 8
    for group in ("dynamic_batching", "sequence_packing"):
        assert native[f"policy.{group}.train_mb_tokens"] == native[f"policy.{group}.logprob_mb_tokens"] == 512 * 8
    values: dict[str, Any] = {"policy.train_micro_batch_size": 8, "grpo.seed": "${policy.logprob_batch_size}"}
    spec = NemoAdapter().read(Source(values=values), CONTEXT).spec
    assert spec is not None
    assert (spec.order.seed, spec.micro_batch.forward_tokens_per_device) == (8, None)
    given = NemoAdapter().read(Source(values={**values, "policy.logprob_batch_size": 2}), CONTEXT).native
    assert given["policy.sequence_packing.logprob_mb_tokens"] == 512 * 2


def test_every_recipe_was_compared() -> None:
    assert len(RECIPES["recipes"]) == RECIPES["compared"]["recipes"]
    assert RECIPES["compared"]["differences"] == 0


@pytest.mark.parametrize("vector", VECTORS["advantages"])
def test_advantages_are_what_nemo_rls_estimator_gives(vector: dict[str, Any]) -> None:
    values = {
        "grpo.normalize_rewards": vector["normalize_rewards"],
        "grpo.use_leave_one_out_baseline": vector["leave_one_out"],
        "grpo.advantage_clip_low": vector["low"],
        "grpo.advantage_clip_high": vector["high"],
    }
    spec = NemoAdapter().read(Source(values=values), CONTEXT).spec
    assert spec is not None
    ours = [value for group in group_advantages(vector["rewards"], spec.advantage) for value in group]
    assert ours == pytest.approx(vector["advantages"], abs=5e-6)
    nearest = spec.replace(**{"advantage.scale": "group"}).advantage
    if vector["normalize_rewards"] and vector["leave_one_out"] and vector["low"] is None:  # a control
        wrong = [value for group in group_advantages(vector["rewards"], nearest) for value in group]
        assert wrong != pytest.approx(vector["advantages"], abs=1e-2)


@pytest.mark.parametrize("vector", VECTORS["weights"])
def test_token_weights_are_the_gradients_of_nemo_rls_means(vector: dict[str, Any]) -> None:
    values = {"loss_fn.token_level_loss": vector["token_level_loss"]}
    spec = NemoAdapter().read(Source(values=values), CONTEXT).spec
    assert spec is not None
    rows = [Row(tokens=tokens, group=0, micro_batch=0) for tokens in vector["tokens"]]
    ours = [
        float(weight) if tokens else 0.0
        for weight, tokens in zip(token_weights(spec.loss.policy, rows), vector["tokens"], strict=True)
    ]
    assert ours == pytest.approx(vector["weights"], abs=1e-6)


@pytest.mark.parametrize("vector", VECTORS["kl"], ids=lambda vector: f"{vector[0]} {vector[1]}")
def test_gradients_of_kl_are_those_of_the_words(vector: list[Any]) -> None:
    kind, ratio, value, gradient = vector
    spec = NemoAdapter().read(Source(values={"loss_fn.reference_policy_kl_type": kind}), CONTEXT).spec
    assert spec is not None
    ours = spec.objective
    # With respect to log p, of a log ratio log reference - log p: the estimate's own, and the estimate (the score's).
    exact = {"k1_with_score": 1 - ratio, "k2_with_score": -ratio + ratio**2 / 2, "k3+": -ratio}[str(ours.kl_estimator)]
    assert ours.kl_clamp is not None
    assert ours.kl_log_ratio_clamp is not None
    bound = abs(ratio) > ours.kl_log_ratio_clamp or abs(value) >= ours.kl_clamp
    assert gradient == pytest.approx(0.0 if bound else exact, abs=1e-4)


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("data.train.env_name", "the rewards"),
        ("grpo.penalize_malformed_thinking", "the rewards"),
        ("grpo.stop_at_validation_threshold", "the length of the run"),
    ],
)
def test_what_no_field_says_and_yet_changes_what_is_trained_is_told(key: str, what: str) -> None:
    assert NemoAdapter().decides(key) == what


def test_every_pattern_of_what_lies_outside_the_schema_names_a_setting() -> None:
    known = NemoAdapter().read(Source(), Context(framework_version="0.7.0", world_size=1)).native
    assert [one for one in OUTSIDE if not any(fnmatch(key, one) for key in known)] == []
