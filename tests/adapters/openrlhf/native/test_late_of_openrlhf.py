"""What OpenRLHF's own functions say after its parser, against our rules for it: bounds, schedules, penalties, and
rollouts that nothing serves or that are too short to share out."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import openrlhf
import pytest
import ray
import torch
from real_openrlhf import launcher, prepare, run, strategy_of, world_of
from transformers import get_scheduler
from transformers.trainer_utils import SchedulerType

from batchbridge.contract.reading import Context, Source
from batchbridge_on_cpu.scripts import module_at
from batchbridge_openrlhf.config import OpenRlhfAdapter

VERSION = "0.11.2"
WORDS = ["--reward.remote_url", "math.py", "--algo.advantage.estimator", "reinforce", "--vllm.num_engines", "1"]
ARGUMENTS = run(WORDS)


def ours(code: str, *words: object, prompts: int | None = None) -> bool:
    """Whether we name `code` of a command, or of its rollouts that end the run."""
    adapter, argv = OpenRlhfAdapter(), ("openrlhf.cli.train_ppo_ray", *WORDS, *map(str, words))
    reading = adapter.read(Source(argv=argv), Context(framework_version=VERSION, dataset_size=prompts))
    found = [finding for finding in adapter.check(reading) if finding.code == code]
    return any(code != "BB-ORL-041" or "ends there" in finding.message for finding in found)


def raises(call: Callable[[], object]) -> bool:
    """Whether OpenRLHF stops there."""
    try:
        call()
    except (AssertionError, ValueError, TypeError, IndexError):
        return True
    return False


@pytest.mark.parametrize(
    ("name", "values"),
    [("ds.zero_stage", (-1, 0, 1, 2, 3, 4)), ("train.seed", (-1, 0, 4294967295))],
)
def test_the_bounds_of_numbers_are_those_of_transformers_and_deepspeed(name, values):
    for value in values:
        with world_of(8):
            native = prepare(strategy_of(ARGUMENTS, {name: value}), True)
        assert isinstance(native, str) is ours("BB-ORL-029", f"--{name}", value)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("prompts", [0, 1])
def test_a_loader_without_prompts_is_refused(prompts):
    strategy = strategy_of(ARGUMENTS, {})
    native = raises(lambda: strategy.setup_dataloader([0] * prompts, 1, False, True))
    assert native is ours("BB-ORL-029", "--data.max_samples", prompts)


@pytest.mark.parametrize("name", [*[member.value for member in SchedulerType], "cosinus"])
def test_a_schedule_is_made_from_what_openrlhf_gives_it(name):
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    floor = {"min_lr_rate": 0.1} if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") else {}
    native = raises(
        lambda: get_scheduler(
            name, optimizer, num_warmup_steps=1, num_training_steps=10, scheduler_specific_kwargs=floor
        )
    )
    words = ("--actor.lr_scheduler", name)
    assert native is (ours("BB-ORL-036", *words) or ours("BB-ORL-028", *words))


@pytest.mark.parametrize("longest", [None, 0, 100])
@pytest.mark.parametrize(("overlong", "stop"), [(None, 0.5), (2048.0, None), (2049.0, None), (100.5, -3.0), (50, 1.5)])
def test_penalties_are_asserted_at_the_first_rollout(longest, overlong, stop):
    from openrlhf.trainer.ppo_utils.length_penalty import apply_length_penalties

    said = {"rollout.max_new_tokens": longest, "reward.overlong_buffer_len": overlong}
    said["reward.stop_properly_penalty_coef"] = stop
    words = [word for name, value in said.items() if value is not None for word in (f"--{name}", str(value))]
    arguments = run([*WORDS, *words])
    assert raises(lambda: apply_length_penalties([], arguments)) is ours("BB-ORL-054", *words)


@pytest.mark.parametrize("engines", [0, 1])
def test_without_engines_nothing_is_dispatched(engines):
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    generator = SamplesGenerator(types.SimpleNamespace(args=ARGUMENTS), [], None, None, [mock.Mock()] * engines)
    with mock.patch.object(ray, "get", lambda refs: [0] * len(refs)):
        native = raises(lambda: generator._dispatch_prompts_to_vllm(["a"], ["b"]))
    assert native is ours("BB-ORL-055", "--vllm.num_engines", engines, "--actor.model_name_or_path", "policy")


def test_a_negative_generation_takes_no_prompts():
    from openrlhf.trainer.ppo_utils.samples_generator import _collect_prompt_batch

    assert _collect_prompt_batch(iter([(0, ["a"], ["b"], [None])]), -1)[0] == []
    assert ours("BB-ORL-010", "--rollout.vllm_generate_batch_size", -1)


@pytest.mark.parametrize("train", [4, 7, 8, 9])
def test_dynamic_batches_divide_by_a_replicas_share_of_the_train_batch(train):
    from openrlhf.trainer.ppo_utils.replay_buffer import NaiveReplayBuffer

    words = ["--train.dynamic_batch_enable", "--train.batch_size", str(train), "--actor.num_gpus_per_node", "8"]
    buffer = object.__new__(NaiveReplayBuffer)
    buffer.items = [types.SimpleNamespace(total_length=torch.tensor(5.0)) for _ in range(128)]
    with world_of(8):
        strategy = strategy_of(run([*WORDS, *words]), {})
        strategy.setup_distributed()
        stop = mock.patch.object(torch.cuda, "current_device", side_effect=StopIteration)  # the division is done
        with stop, pytest.raises((ZeroDivisionError, StopIteration)) as raised:
            buffer.setup_dynamic_batch(strategy)
    reading = OpenRlhfAdapter().read(
        Source(argv=("openrlhf.cli.train_ppo_ray", *WORDS, *words)), Context(framework_version=VERSION)
    )
    found = [each.message for each in OpenRlhfAdapter().check(reading) if each.code == "BB-ORL-050"]
    assert raised.errisinstance(ZeroDivisionError) is any(message.endswith("the run ends") for message in found)


@pytest.mark.parametrize("completions", range(1, 17))
def test_a_last_rollout_is_shared_out_where_it_has_a_batch_for_each_replica(completions):
    for dynamic in (False, True):
        for micro in (1, 2, 3):
            words = ["--actor.num_gpus_per_node", "4", "--rollout.batch_size", "96", "--train.batch_size", "12"]
            words += ["--rollout.micro_batch_size", str(micro), *["--train.dynamic_batch_enable"] * dynamic]
            group = object.__new__(launcher.RayActorGroup)
            group.duplicate_actors, group._actor_handlers = 1, [mock.MagicMock()] * 4
            with mock.patch.object(ray, "put"):
                native = raises(lambda: group.async_run_method_batch("f", x=_split(run([*WORDS, *words]), completions)))  # noqa: B023  # at once
            assert native is ours("BB-ORL-041", *words, prompts=96 + completions), (dynamic, micro)


def _split(arguments: types.SimpleNamespace, completions: int) -> list[object]:
    """A rollout's batches as OpenRLHF makes them, of completions of one length."""
    from openrlhf.trainer.ppo_utils import experience_maker

    samples = [types.SimpleNamespace(total_length=torch.tensor(10.0), index=None) for _ in range(completions)]
    maker = object.__new__(experience_maker.RemoteExperienceMaker)
    maker.args, maker.tokenizer = arguments, mock.Mock()
    with mock.patch.object(experience_maker.Experience, "concat_experiences", lambda part, padding: part):
        batches: list[object] = maker.split_rollout_samples(samples)
    return batches


def test_the_release_splits_rows_where_and_as_it_is_recorded() -> None:
    splits = module_at(Path(__file__).parents[3] / "upstream" / "splits.py", "splits")
    found = splits.splits_in(Path(str(openrlhf.__path__[0])), "openrlhf")
    assert found == splits.recorded_of("openrlhf", VERSION)
