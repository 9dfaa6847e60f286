"""The parts of the running trainer that need no EasyR1: refusals, versions, settings, rows, schedules."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.attachment import Request
from batchbridge.errors import CannotAttach
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SEED, PlannedLoader
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import reasons_against
from batchbridge.kit.ticked_schedule import TickedSchedule
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.spec import MicroBatch, Spec
from batchbridge.reading.read import read
from batchbridge_easyr1 import refusals, runtime, sampling
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_easyr1.trainer import CANDIDATE, CandidateLoader, EasyR1Driver

COMMAND = [
    *("python3", "-m", "verl.trainer.main", "data.rollout_batch_size=6", "worker.rollout.n=4"),
    *("worker.actor.global_batch_size=3", "worker.actor.micro_batch_size_per_device_for_update=2"),
    *("worker.actor.dynamic_batching=false", "worker.actor.micro_batch_size_per_device_for_experience=2"),
    *("trainer.n_gpus_per_node=2", "trainer.max_steps=3", "worker.rollout.tensor_parallel_size=1"),
    "algorithm.disable_kl=true",
]
NEWEST = "0.3.3.dev0"


def reading_of(*more: str, version: str = NEWEST) -> Any:
    found = read([*COMMAND, *more], version=version, dataset_size=12)
    assert found.spec is not None, found.findings
    return found


def trainer_of(**changed: Any) -> Any:
    actor = SimpleNamespace(
        loss_type="default",
        ulysses_size=1,
        dynamic_batching=False,
        fsdp=SimpleNamespace(fsdp_size=-1),
        model=SimpleNamespace(lora=SimpleNamespace(rank=0), freeze_vision_tower=False),
    )
    made: dict[str, Any] = {
        "config": SimpleNamespace(
            worker=SimpleNamespace(actor=actor, rollout=SimpleNamespace(n=4)),
            algorithm=SimpleNamespace(online_filtering=False, kl_type="fixed"),
            trainer=SimpleNamespace(critic_warmup=0),
        ),
        "kl_ctrl": SimpleNamespace(kl_coef=0.0),
        "use_critic": False,
        "use_reference_policy": False,
        "processor": None,
        "train_dataloader": SimpleNamespace(dataset=SimpleNamespace()),
    }
    return SimpleNamespace(**{**made, **changed})


def request_of(spec: Spec | None = None, *more: str, allow: frozenset[str] = frozenset()) -> Request:
    reading = reading_of(*more)
    wanted = reading.spec if spec is None else spec
    return Request(spec=wanted, plan=plan_of(wanted, 12), reading=reading, mode="enforce", allow=allow)


def refused(trainer: Any, request: Request) -> set[str]:
    return set(reasons_against(refusals.REFUSALS, trainer, request))


def test_a_plain_grpo_run_is_not_refused() -> None:
    assert refused(trainer_of(), request_of()) == set()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("multi_modal", {"processor": object()}),
    ],
)
def test_what_the_trainer_has_is_refused_by_name(name: str, changed: dict[str, Any]) -> None:
    assert refused(trainer_of(**changed), request_of()) == {name}


def test_gae_is_refused_with_the_reason_that_it_cannot_run() -> None:
    reasons = reasons_against(refusals.REFUSALS, trainer_of(), request_of(None, "algorithm.adv_estimator=gae"))
    assert any("gae cannot run in any version of EasyR1" in reason for reason in reasons.values())


@pytest.mark.parametrize(
    ("name", "word"),
    [("critic_warmup", "trainer.critic_warmup=2"), ("hybrid_sharding", "worker.actor.fsdp.fsdp_size=1")],
)
def test_settings_that_are_not_proven_are_refused_by_name(name: str, word: str) -> None:
    assert refused(trainer_of(), request_of(None, word)) == {name}


ULYSSES = "worker.actor.ulysses_size=2"


def test_ranks_that_share_the_tokens_of_rows_are_refused_with_images() -> None:
    trainer = trainer_of()
    assert refused(trainer, request_of(None, ULYSSES)) == set()
    trainer.processor = type("Qwen2_5_VLProcessor", (), {})()
    assert refused(trainer, request_of(None, ULYSSES)) == {"sequence_parallel"}


def test_rows_are_whole_micro_batches_of_a_replica_and_whole_for_its_ranks() -> None:
    trainer = trainer_of(actor_rollout_ref_wg=SimpleNamespace(world_size=4))
    actor = trainer.config.worker.actor
    actor.ulysses_size, actor.dynamic_batching = 2, False
    actor.micro_batch_size_per_device_for_update, actor.micro_batch_size_per_device_for_experience = 3, 4
    driver = EasyR1Driver(trainer, request_of(), None)  # type: ignore[arg-type]  # no worker is asked
    assert (driver.shards, driver.ranks, driver.rows_per_micro_batch, driver.forward_rows) == (4, 2, 6, 4)
    actor.dynamic_batching = True
    assert (driver.rows_per_micro_batch, driver.forward_rows) == (2, 2)
    actor.ulysses_size = 1
    assert (driver.ranks, driver.rows_per_micro_batch, driver.forward_rows) == (4, None, None)


def test_an_adaptive_kl_coefficient_is_refused() -> None:
    assert refused(trainer_of(), request_of(None, "algorithm.kl_type=adaptive", "algorithm.disable_kl=false")) == {
        "adaptive_kl"
    }


LORA, FROZEN = "worker.actor.model.lora.rank=8", "worker.actor.model.freeze_vision_tower=true"


def test_lora_beside_a_frozen_tower_and_videos_alone_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "installed", lambda name: "0.20.0")
    trainer = trainer_of()
    assert refused(trainer, request_of(None, LORA)) == set()
    assert refused(trainer, request_of(None, LORA, FROZEN)) == set()  # without a tower
    trainer.processor = type("Qwen2_5_VLProcessor", (), {})()
    assert refused(trainer, request_of(None, LORA, FROZEN)) == {"lora"}
    assert refused(trainer, request_of(None, LORA, FROZEN, allow=frozenset({"lora"}))) == set()
    assert [refusal.name for refusal in refusals.REFUSALS if refusal.allowable] == [
        "videos",
        "lora",
        "lora_rollouts",
        "advantages",
    ]


def of_ones_own() -> None:
    """A user's own estimator."""


def test_an_estimator_of_ones_own_is_refused_by_its_name_and_can_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("verl.trainer.core_algos")
    vars(module)["ADV_ESTIMATOR_MAP"] = {"grpo": of_ones_own}
    monkeypatch.setitem(sys.modules, module.__name__, module)
    said = reasons_against(refusals.REFUSALS, trainer_of(), request_of())
    assert list(said) == ["advantages"]
    assert said["advantages"].endswith("test_runtime_easyr1.of_ones_own")
    assert refused(trainer_of(), request_of(allow=frozenset({"advantages"}))) == set()
    assert refused(trainer_of(), request_of(None, "algorithm.adv_estimator=reinforce_plus_plus")) <= {"batch_scale"}
    monkeypatch.setattr(of_ones_own, "__module__", "verl.trainer.core_algos")
    assert refused(trainer_of(), request_of()) == set()


def test_a_data_set_with_videos_is_refused_for_qwen3_vl_and_can_be_allowed() -> None:
    inner = SimpleNamespace(column_names=["prompt", "videos"])
    loader = SimpleNamespace(dataset=SimpleNamespace(dataset=inner, image_key="images", video_key="videos"))
    for name, wanted in (("Qwen2VLProcessor", set()), ("Qwen2_5_VLProcessor", set()), ("Qwen3VLProcessor", {"videos"})):
        trainer = trainer_of(processor=type(name, (), {})(), train_dataloader=loader)
        assert refused(trainer, request_of()) == wanted
        assert refused(trainer, request_of(allow=frozenset({"videos"}))) == set()


@pytest.mark.parametrize(
    ("peft", "rank", "names"),
    [("0.20.0", 8, set()), ("0.21.0", 8, {"lora_rollouts"}), ("0.21.2", 8, {"lora_rollouts"}), ("0.21.2", 0, set())],
)
def test_lora_is_refused_beside_a_peft_with_which_vllm_is_sent_no_adapter(
    monkeypatch: pytest.MonkeyPatch, peft: str, rank: int, names: set[str]
) -> None:
    monkeypatch.setattr(refusals, "installed", lambda name: peft)
    assert refused(trainer_of(), request_of(None, f"worker.actor.model.lora.rank={rank}")) == names


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("group_size", {"rollout.completions_per_prompt": 5, "optimizer_step.completions_per_step": 30}),
        ("aggregation", {"loss.policy.aggregation": "prompt_mean"}),
        ("surrogate", {"objective.surrogate": "gmpo"}),
        ("denominator_scope", {"loss.policy.denominator_scope": "rank"}),
        ("entropy", {"objective.entropy_coefficient": 0.1}),
        ("truncated_completions", {"rollout.truncated_completions": "mask"}),
        ("sampler_logprobs", {"objective.old_logprobs": "sampler"}),
        ("value_baseline", {"advantage.baseline": "value"}),
        ("group_filter", {"rollout.group_filter": "replace_zero_variance"}),
        ("batch_scale", {"advantage.scale": "batch"}),
        ("tokens_per_device", {"micro_batch.completions_per_device": 1}),
    ],
)
def test_a_spec_that_cannot_be_brought_about_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    assert refused(trainer_of(), request_of(reading_of().spec.replace(**changes))) == {name}


def test_a_filter_of_the_trainers_own_is_not_refused_and_leaves_the_candidates_to_the_plan() -> None:
    request = request_of(None, "algorithm.online_filtering=true")
    assert refused(trainer_of(), request) == set()
    assert isinstance(request.plan, CandidatePlan)


def test_candidates_come_in_the_plans_order_from_any_place_on_without_an_end() -> None:
    plan = request_of(None, "algorithm.online_filtering=true").plan
    assert isinstance(plan, CandidatePlan)
    dataset = [{"text": str(index)} for index in range(12)]
    loader = CandidateLoader(plan, dataset=dataset, collate=collate, prompts_at_once=5)
    batches = iter(loader)
    offered = [row for _ in range(4) for row in rows_of(next(batches))]
    assert [number for number, _, _ in offered] == list(range(20))
    assert tuple(prompt for _, prompt, _ in offered) == plan.candidates(0, 20)
    assert all(text == str(prompt) for _, prompt, text in offered)
    loader.next = 7  # the rollout was full with candidate 6
    assert [number for number, _, _ in rows_of(next(batches))] == [7, 8, 9, 10, 11]


def collate(items: list[Any]) -> dict[str, Any]:
    return {"text": [item["text"] for item in items]}


def rows_of(columns: dict[str, Any]) -> list[tuple[int, int, str]]:
    return list(zip(columns[CANDIDATE], columns[PROMPT], columns["text"], strict=True))


def test_the_older_version_has_one_loss() -> None:
    wanted, own = reading_of("worker.actor.loss_type=gspo").spec, reading_of(version="0.3.2")
    request = Request(spec=wanted, plan=plan_of(wanted, 12), reading=own, mode="enforce")
    assert "surrogate" in refused(trainer_of(), request)
    assert "surrogate" not in refused(trainer_of(), dataclasses.replace(request, spec=own.spec))


@pytest.mark.parametrize("name", ["default", "gspo", "gspo_token", "cispo", "sapo"])
def test_every_surrogate_has_the_native_name_that_was_read(name: str) -> None:
    assert refusals.loss_type(reading_of(f"worker.actor.loss_type={name}").spec) == name


def test_a_requested_objective_becomes_the_actors_settings() -> None:
    wanted = reading_of("worker.actor.loss_type=gspo", "worker.actor.clip_ratio_high=0.28").spec
    settings, left = runtime.settings_for(trainer_of(), request_of(wanted))
    assert settings == {"loss_type": "gspo", "clip_ratio_high": 0.28}
    assert left == {}


def test_what_no_setting_says_is_left_different_by_name() -> None:
    wanted = reading_of().spec.replace(**{"carried.learning_rate": 0.5})
    assert list(runtime.settings_for(trainer_of(), request_of(wanted))[1]) == ["carried.learning_rate"]


def test_the_bounds_of_a_filter_stay_the_trainers_and_are_named_where_another_run_is_asked_for() -> None:
    own = request_of(None, "algorithm.online_filtering=true")
    assert "rollout.group_filter" not in runtime.settings_for(trainer_of(), own)[1]
    other = request_of(own.spec.replace(**{"order.seed": 5}), "algorithm.online_filtering=true")
    assert "algorithm.filter_low" in runtime.settings_for(trainer_of(), other)[1]["rollout.group_filter"]


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "not EasyR1's"),
        *(
            (old, f"EasyR1 {old} is older than 0.3.2, the oldest version whose trainer is wrapped.*the wrong sign")
            for old in ("0.2.9", "0.3.0", "0.3.1")
        ),
        ("0.3.4", "not one that it knows: EasyR1 workers/actor/dp_actor.py"),
    ],
)
def test_an_unknown_version_is_refused(monkeypatch: pytest.MonkeyPatch, found: str | None, reason: str) -> None:
    monkeypatch.setattr(runtime, "installed_version", lambda: found)
    with pytest.raises(CannotAttach, match=reason):
        EasyR1Adapter().attach(trainer_of(), request_of())


def test_the_schedule_moves_only_when_the_plan_ticks() -> None:
    moves, due = [], [True, False, True]
    ticks = TickedSchedule(SimpleNamespace(step=lambda: moves.append(1), last_epoch=7), lambda: due.pop(0))
    for _ in range(3):
        ticks.step()
    assert (len(moves), ticks.last_epoch) == (2, 7)


def test_only_easyr1s_own_trainer_is_owned() -> None:
    easyr1 = type("RayPPOTrainer", (), {"__module__": "verl.trainer.ray_trainer"})
    verl = type("RayPPOTrainer", (), {"__module__": "verl.trainer.ppo.ray_trainer"})
    assert EasyR1Adapter().owns(type("Mine", (easyr1,), {})())
    assert not EasyR1Adapter().owns(verl())


# ---- token budgets

LONGEST = 1024
"""max_prompt_length + max_response_length of the command."""


def no_budget(asked: MicroBatch, *more: str, **attributes: Any) -> str | None:
    """What the refusal by that name says."""
    request, trainer = request_of(reading_of(*more).spec.replace(micro_batch=asked), *more), trainer_of(**attributes)
    (refusal,) = (one for one in refusals.REFUSALS if one.name == "tokens_per_device")
    return refusal.against(trainer, request)


@pytest.mark.parametrize("forward", [None, 3, 4])
def test_a_budget_of_whole_sequences_is_handed_to_a_run_of_fixed_micro_batches(forward: int | None) -> None:
    scored = None if forward is None else forward * LONGEST
    assert no_budget(MicroBatch(tokens_per_device=2 * LONGEST, forward_tokens_per_device=scored)) is None


@pytest.mark.parametrize(
    ("asked", "attributes", "reason"),
    [
        (MicroBatch(tokens_per_device=LONGEST + 1), {}, f"multiples of the longest sequence, {LONGEST} tokens"),
        (
            MicroBatch(tokens_per_device=LONGEST, forward_tokens_per_device=7),
            {},
            "micro_batch.forward_tokens_per_device = 7: easyr1's budgets are multiples",
        ),
        (MicroBatch(tokens_per_device=4 * LONGEST), {}, "BB-EZR1-"),  # six completions on each device
        (
            MicroBatch(tokens_per_device=LONGEST),
            {"actor_rollout_ref_wg": object()},
            "wrap before init_workers(), or set worker.actor.dynamic_batching",
        ),
        (MicroBatch(completions_per_device=3), {}, "give micro_batch.tokens_per_device"),
    ],
)
def test_micro_batches_that_cannot_be_handed_over_are_refused_with_what_to_do(
    asked: MicroBatch, attributes: dict[str, Any], reason: str
) -> None:
    assert reason in (no_budget(asked, **attributes) or "")


def test_the_trainers_own_budget_is_no_change_whatever_its_workers_have() -> None:
    asked = MicroBatch(tokens_per_device=2 * LONGEST, cap="soft")
    assert no_budget(asked, "worker.actor.dynamic_batching=true", actor_rollout_ref_wg=object()) is None


def test_actor_and_reference_get_the_budget_and_unwrapping_restores_them() -> None:
    sizes = {f"micro_batch_size_per_device_for_{name}": 2 for name in ("update", "experience")}
    scored = {"micro_batch_size_per_device_for_experience": 2, "dynamic_batching": False}
    worker = SimpleNamespace(actor=SimpleNamespace(**sizes, dynamic_batching=False), ref=SimpleNamespace(**scored))
    before = [dict(vars(config)) for config in (worker.actor, worker.ref)]
    asked = MicroBatch(tokens_per_device=3 * LONGEST, forward_tokens_per_device=6 * LONGEST)
    request, patches = request_of(reading_of().spec.replace(micro_batch=asked)), Patches()
    runtime.configure(worker, refusals.budget(request)[0], patches)
    assert list(vars(worker.actor).values()) == [3, 6, True]
    assert list(vars(worker.ref).values()) == [6, True]
    assert len(patches.changes) == 5
    patches.undo()
    assert [vars(config) for config in (worker.actor, worker.ref)] == before


# ---- sampling seeds


class Prompts(SimpleNamespace):
    """A `DataProto` of so many prompts, as far as seeds are concerned."""


class Engine:
    def __init__(self) -> None:
        self.asked: list[Any] = []

    def generate(self, *, prompts: list[str], sampling_params: Any, **options: Any) -> list[str]:
        self.asked.append((prompts, sampling_params, options))
        return prompts


class Rollout:
    def __init__(self) -> None:
        self.inference_engine = Engine()

    def generate_sequences(self, prompts: Any) -> list[str]:
        shared = SimpleNamespace(n=2, seed=None, top_p=0.9)
        more = {"lora_request": ["one", "two"], "use_tqdm": False}
        drawn: list[str] = self.inference_engine.generate(prompts=["a", "b"], sampling_params=shared, **more)
        return drawn


def test_each_sample_of_each_prompt_is_asked_for_with_its_own_seed_and_all_else_as_ever() -> None:
    rollout = Rollout()
    columns = {SEED: [100, 200], "raw_prompt_ids": [[1], [2]]}
    assert sampling.seeded(rollout)(prompts=Prompts(non_tensor_batch=columns)) == ["a", "a", "b", "b"]
    ((_, each, options),) = rollout.inference_engine.asked
    assert [(one.n, one.seed, one.top_p) for one in each] == [(1, seed, 0.9) for seed in (100, 101, 200, 201)]
    assert options == {"lora_request": ["one", "one", "two", "two"], "use_tqdm": False}
    assert SEED not in columns
    assert "generate" not in vars(rollout.inference_engine)


def test_prompts_without_seeds_are_drawn_as_ever() -> None:
    rollout = Rollout()
    sampling.seeded(rollout)(prompts=Prompts(non_tensor_batch={}))
    ((prompts, shared, _),) = rollout.inference_engine.asked
    assert (prompts, shared.n, shared.seed) == (["a", "b"], 2, None)


def test_a_batchs_seeds_are_handed_to_its_own_generation_once() -> None:
    plan = request_of().plan
    assert plan is not None
    native = PlannedLoader(
        plan, dataset=[{"text": ""}] * 12, collate=collate, rollouts_done=lambda: 0, prompts_at_once=4
    )
    loader = sampling.SeededLoader(native)
    assert loader.take(12) is None, "a validation before the first batch"
    batches = iter(loader)
    for part in (slice(0, 4), slice(4, 6)):
        size = len(next(batches)["text"])
        assert tuple(loader.take(size)) == plan.sampling_seeds(0)[part]
        assert loader.take(size) is None
    next(batches)
    with pytest.raises(CannotAttach, match="5 prompts are generated, not the 4 of the batch"):
        loader.take(5)


def test_a_rollouts_batches_know_their_prompts_places_in_it() -> None:
    plan = request_of().plan
    assert plan is not None
    loader = PlannedLoader(
        plan,
        dataset=[{"text": str(index)} for index in range(12)],
        collate=collate,
        rollouts_done=lambda: 1,
        prompts_at_once=4,
    )
    batches = [next(made) for made in [iter(loader)] for _ in range(2)]
    assert [[*batch[POSITION]] for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert [{*batch[ROLLOUT]} for batch in batches] == [{1}, {1}]
    assert [prompt for batch in batches for prompt in batch[PROMPT]] == list(plan.rollout(1).prompts)


def test_candidates_have_the_plans_seeds() -> None:
    plan = request_of(None, "algorithm.online_filtering=true").plan
    assert isinstance(plan, CandidatePlan)
    loader = CandidateLoader(plan, dataset=[{"text": ""}] * 12, collate=collate, prompts_at_once=5)
    batches = iter(loader)
    assert [*next(batches)[SEED], *next(batches)[SEED]] == list(plan.candidate_seeds(0, 10))
