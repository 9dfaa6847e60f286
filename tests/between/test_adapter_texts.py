"""Error texts that our adapters add to doctor's own: recognised in a log, explained, with ways out."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

import batchbridge_easyr1.texts
import batchbridge_open_instruct.texts
import batchbridge_openrlhf.texts
import batchbridge_trl.texts
import batchbridge_verl.texts
from batchbridge.between.doctor import ErrorText, doctor, known_texts
from batchbridge.between.doctor_texts import TEXTS

OURS = (batchbridge_trl, batchbridge_verl, batchbridge_easyr1, batchbridge_openrlhf, batchbridge_open_instruct)
ADDED = [text for package in OURS for text in package.texts.TEXTS]
SAID = {
    "trl-evaluation-batch": "ValueError: The global eval batch size (8 * 7) must be divisible by the number of "
    "generations used for evaluation (6).",
    "trl-two-generations": "ValueError: GRPO requires at least 2 generations per prompt to calculate the advantages.",
    "trl-two-rollout-sizes": "ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both "
    "configured at the same time",
    "verl-step-of-replicas": "AssertionError: Got mini_batch_size=80 and self.engine.get_data_parallel_size()=32",
    "verl-micro-of-share": "AssertionError: data size must be divisible by micro_batch_size_per_gpu, got 10 and 4",
    "verl-no-micro-batch": "ValueError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or "
    "'actor.ppo_micro_batch_size_per_gpu' if use_dynamic_bsz is not enabled.",
    "verl-devices-of-parallel-sizes": "AssertionError: n_gpus (6) must be divisible by model_parallel_size (4) times "
    "context_parallel_size (1)",
    "easyr1-group-of-one": "ValueError: GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.",
    "easyr1-micro-of-share": "ValueError: actor global batch size per device must be divisible by the micro batch "
    "size.",
    "easyr1-nothing-per-device": "ValueError: actor global batch size * ulysses size must be larger than num gpus.",
    "openrlhf-sample-batches": "AssertionError: The number of sample batches must be greater than or equal to the "
    "effective number of actor processes.",
    "openrlhf-filter-needs-groups": "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic "
    "filtering",
    "openrlhf-filter-needs-scores": "AssertionError: remote_rm_url or agent_func_path must be specified when using "
    "dynamic filtering",
    "openrlhf-no-token": "merged_status[k] = value / denom ~~~~~~^~~~~~~ ZeroDivisionError: float division by zero",
    "openrlhf-two-boundaries": "for accumulated_grad, new_avg_grad in zip(self.all_grad_tensors[i], avg_new): "
    "TypeError: 'NoneType' object is not iterable",
    "open-instruct-pack-length": "AssertionError: The `pack_length` needs to be greater than the sum of the others",
    "open-instruct-group-of-one": "ValueError: `filter_zero_std_samples` cannot be True when the group has one sample",
}
"""One text for each row, by its name."""


def test_every_row_has_a_text_here_and_a_name_of_its_own() -> None:
    assert sorted(SAID) == sorted(text.name for text in ADDED)
    assert not {text.name for text in ADDED} & {text.name for text in TEXTS}


def test_the_adapters_add_their_rows() -> None:
    known = [text.name for text in known_texts()]
    assert set(SAID) <= set(known)
    assert len(known) == len(set(known))


@pytest.mark.parametrize("name", SAID)
def test_a_text_in_a_log_is_recognised_as_its_row_and_no_other(name: str) -> None:
    log = f"[rank0]: Traceback (most recent call last):\n[rank0]: {SAID[name]}\n8 x 7 things more"
    assert [found.text.name for found in doctor(log, texts=[*TEXTS, *ADDED])] == [name]


@pytest.mark.parametrize("name", SAID)
def test_there_is_a_way_out_once_what_is_asked_for_is_known(name: str) -> None:
    (found,) = doctor(SAID[name], texts=ADDED)
    assert found.fixes or found.asks
    numbers = {ask.name: 8 for ask in found.asks}
    (again,) = doctor(SAID[name], numbers, ADDED)
    assert again.fixes
    assert not again.asks


@pytest.mark.parametrize("text", ADDED, ids=lambda text: text.name)
def test_a_version_range_is_a_specifier_or_words(text: ErrorText) -> None:
    if text.versions[0] in "<>=~!":
        SpecifierSet(text.versions)
    assert text.versions.strip()


@pytest.mark.parametrize(
    ("name", "numbers", "expected"),
    [
        ("trl-evaluation-batch", {}, ["per_device_eval_batch_size = 6", "num_generations = 4", "num_generations = 7"]),
        ("verl-step-of-replicas", {"n": 5}, ["actor_rollout_ref.actor.ppo_mini_batch_size = 32"]),
        ("verl-devices-of-parallel-sizes", {}, ["4 devices", "8 devices"]),
        (
            "easyr1-micro-of-share",
            {"global": 128, "n": 5, "devices": 8, "micro": 3},
            [f"worker.actor.micro_batch_size_per_device_for_update = {size}" for size in (2, 4)],
        ),
        ("easyr1-nothing-per-device", {"devices": 16, "n": 5}, ["worker.actor.global_batch_size = 4"]),
        ("open-instruct-pack-length", {"prompt": 2048, "response": 8192}, ["pack_length = 10240"]),
    ],
)
def test_neighbours_are_legal_numbers(name: str, numbers: dict[str, int], expected: list[str]) -> None:
    (found,) = doctor(SAID[name], numbers, ADDED)
    assert [fix.text for fix in found.fixes] == expected
