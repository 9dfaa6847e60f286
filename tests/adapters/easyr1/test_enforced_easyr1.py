"""What a conversion to EasyR1 may call patched: what `run` and `wrap` really bring about, and no more."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from batchbridge import check
from batchbridge.comparing.differences import UNIT_OF
from batchbridge.kit.proven import records
from batchbridge.kit.refusals import PLANNED
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_easyr1.enforced import ENFORCED
from batchbridge_easyr1.runtime import SETTABLE


@pytest.mark.parametrize("path", ENFORCED)
def test_every_field_is_one_that_the_runtime_plans_or_sets(path: str) -> None:
    assert path in UNIT_OF
    assert path in SETTABLE or path.startswith(PLANNED)


def test_the_adapter_enforces_the_versions_that_have_proofs() -> None:
    tested = records("batchbridge_easyr1")["verl"].tested
    versions = SpecifierSet(EasyR1Adapter.enforced_versions)
    assert tested == ("0.3.2", "0.3.3.dev0")
    assert all(versions.contains(version, prereleases=True) for version in tested)
    assert not any(versions.contains(version, prereleases=True) for version in ("0.3.0", "0.3.1"))


@pytest.mark.parametrize("version", ["0.3.0", "0.3.1"])
def test_check_reads_the_releases_of_wrong_signs_and_says_that_wrap_refuses_them(version: str) -> None:
    found = check(["worker.rollout.n=4"], framework="easyr1", version=version, world_size=2)
    assert found.reading.spec is not None
    (said,) = [one for one in found.enforcement.obstacles if one.name == "version"]
    assert said.certain
    assert f"easyr1 {version} is not a version whose trainer BatchBridge wraps: >=0.3.2" in said.reason


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("order.seed", 7, True),
        ("order.last_rollout", "wrap", True),
        ("order.last_rollout", "error", False),
        ("horizon.lr_tick", "optimizer_step", True),
        ("horizon.epochs", None, True),  # the length is given in another unit
        ("loss.policy.aggregation", "sequence_sum_over_constant", True),
        ("loss.policy.aggregation", "prompt_mean", False),  # refusal "aggregation"
        ("loss.policy.count_empty", False, True),
        ("loss.kl.aggregation", "token_mean", False),  # one aggregation for all terms: refusal "loss_per_term"
        ("objective.clip_low", None, True),  # off, which EasyR1's configuration has no word for
        ("objective.old_logprobs", "detached", True),
        ("objective.old_logprobs", "sampler", False),  # refusal "sampler_logprobs"
        ("objective.kl_clamp", None, False),  # EasyR1 clamps k3 at 10
        ("advantage.baseline", "leave_one_out", True),
        ("advantage.scale", "batch", False),  # refusal "batch_scale"
        ("rollout.completions_per_prompt", 8, False),  # refusal "group_size"
        ("rollout.truncated_completions", "mask", False),  # refusal "truncated_completions"
        ("objective.entropy_coefficient", 0.1, False),  # refusal "entropy"
        ("objective.kl_placement", "reward", False),  # refusal "kl_in_reward"
        ("carried.learning_rate", 1e-6, False),
    ],
)
def test_a_value_is_promised_only_where_it_is_not_refused(path: str, value: object, expected: bool) -> None:
    assert EasyR1Adapter().enforces(path, value) is expected
