"""Off is off in every framework: a bound of 0 erases the gradient where nobody asks whether it is 0."""

from __future__ import annotations

import pytest

from batchbridge import convert, read
from batchbridge.contract import plugins
from batchbridge.kit.clipping import UNREACHED, canonical_bound, native_bound

TRL = {"num_generations": 4, "gradient_accumulation_steps": 8, "beta": 0.0, "lr_scheduler_type": "constant"}
BOUNDS = {
    "verl": "actor_rollout_ref.actor.optim.clip_grad",
    "easyr1": "worker.actor.max_grad_norm",
    "openrlhf": "actor.max_norm",
    "open_instruct": "max_grad_norm",
}
VERSIONS = {"verl": "0.9.1", "easyr1": "0.3.2", "open_instruct": "2026.8.20"}
ASKS_FIRST = ("openrlhf",)
"""DeepSpeed clips where the bound is above 0. Source: deepspeed 0.19.6 runtime/zero/stage_1_and_2.py."""


@pytest.mark.parametrize("bound", [0.0, 0.5])
@pytest.mark.parametrize("target", BOUNDS)
def test_a_bound_is_converted_in_the_targets_words_and_read_back(target: str, bound: float) -> None:
    source = read({**TRL, "max_grad_norm": bound}, framework="trl", version="1.16.0", world_size=1, dataset_size=8)
    written = convert(source, target).written
    off = bound if target in ASKS_FIRST else UNREACHED
    assert written.values[BOUNDS[target]] == (bound or off)
    back = read(dict(written.values), framework=target, version=written.framework_version, world_size=1, dataset_size=8)
    assert back.spec.carried.max_gradient_norm == bound


@pytest.mark.parametrize("target", sorted(BOUNDS.keys() - set(ASKS_FIRST)))
def test_what_erases_every_gradient_is_invalid(target: str) -> None:
    assert target in plugins.adapters()
    said = {BOUNDS[target]: 0.0, **({"script": "grpo.py"} if target == "open_instruct" else {})}
    found = read(said, framework=target, version=VERSIONS[target])
    assert any("multiplies every gradient by 0" in finding.message for finding in found.findings)


@pytest.mark.parametrize("canonical", [0.0, 0.2, 1.0, 1e6])
def test_the_two_spellings_are_inverse(canonical: float) -> None:
    assert canonical_bound(native_bound(canonical)) == canonical
