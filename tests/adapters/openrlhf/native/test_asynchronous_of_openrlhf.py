"""The code of the asynchronous trainer that is observed is the installed one's; its runs are made by hand, see
`by_hand/native/test_asynchronous_runs_openrlhf.py`."""

from __future__ import annotations

from types import SimpleNamespace

from real_openrlhf import ABSENT
from torch.utils.data import DataLoader

from batchbridge.kit.proven import evidence_here
from batchbridge_openrlhf import ahead
from batchbridge_openrlhf.asynchronous import RUNTIME
from batchbridge_openrlhf.proven import CODE
from batchbridge_openrlhf.turns import IDENTITY


def test_the_functions_that_an_observed_run_relies_on_are_those_of_the_release_that_was_run() -> None:
    """They are the same in all releases that are tested; it ran on 0.11.2."""
    found = evidence_here(CODE.used(RUNTIME.uses(object())))
    assert found.labels["openrlhf:asynchronous"] == "0.11.2"
    assert found.grade == "proven"


def test_the_generating_process_numbers_rollouts_from_the_one_that_comes_next() -> None:
    """A mock of the actor and of vLLM; the prompts' loader is torch's, and the module that is patched OpenRLHF's."""
    assert "vllm" in ABSENT, "or installed"
    from openrlhf.trainer.ppo_utils import samples_generator

    native_ray = samples_generator.ray
    made = SimpleNamespace(info={IDENTITY: [[0, 5, 0, 0]]})
    generator = SimpleNamespace(
        prompts_dataloader=None,
        generate_samples=lambda **options: ([made], None),
        _generate_vllm=None,
        _dispatch_prompts_to_vllm=None,
        _process_response_into_experience=None,
    )
    actor = SimpleNamespace(samples_generator=generator, prompts_dataloader=DataLoader([("", "prompt", "")]))
    ahead.in_generator(actor, 3)
    numbers = []
    for _ in range(2):
        generator.generate_samples()
        numbers.append(made.info[IDENTITY][0][0])
    assert numbers == [3, 4]
    ahead.out(actor)
    assert samples_generator.ray is native_ray
