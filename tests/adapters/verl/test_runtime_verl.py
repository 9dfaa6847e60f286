"""verl's runtime as far as it can be said without verl: placement, steps, checkpoints' state, refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchbridge
from batchbridge.contract.attachment import Request
from batchbridge.contract.evidence import Evidence
from batchbridge.contract.reading import Mode, Padding, Reading
from batchbridge.errors import BatchDrift, CannotAttach, PlanError
from batchbridge.kit.checkpoints import STATE_FILE
from batchbridge.kit.identified_rows import PROMPT, SEED, STEP, PlannedLoader
from batchbridge.kit.patches import Patches
from batchbridge.kit.ranks import fillers, layout
from batchbridge.kit.refusals import reasons_against
from batchbridge.kit.step_driver import RolloutRows, merged
from batchbridge.kit.whole_state import WHOLE
from batchbridge.kit.workers import Orders, Receipt
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.spec import LossTerm, MicroBatch, Spec, Staleness
from batchbridge.reading.read import read
from batchbridge.reports import check
from batchbridge_verl import launched, runtime, sampling, sharing
from batchbridge_verl.candidates_v1 import VerlCandidatesV1
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.driver import VerlDriver, together
from batchbridge_verl.installed import CheckoutContents

COMMAND = [
    *("python", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.name=vllm"),
    *("data.train_batch_size=6", "actor_rollout_ref.rollout.n=4", "actor_rollout_ref.actor.ppo_mini_batch_size=3"),
    *("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2", "trainer.n_gpus_per_node=2"),
    *("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2", "trainer.total_training_steps=3"),
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 5)),
)
def test_every_rank_gets_equally_many_whole_micro_batches_and_no_row_is_lost(
    costs: list[int], ranks: int, micro: int | None
) -> None:
    order = layout(costs, ranks=ranks, rows_per_micro_batch=micro)
    assert sorted(row for row in order if row is not None) == list(range(len(costs)))
    assert len(order) % (ranks * (micro or 1)) == 0
    assert fillers(order) == len(order) - len(costs)
    assert fillers(order) < ranks * (micro or 1)


def spec_of(*more: str) -> Spec:
    reading = read([*COMMAND, *more], version="0.9.1", dataset_size=12)
    assert reading.spec is not None, reading.findings
    return reading.spec


def driver(spec: Spec, ranks: int = 2, prompts: int = 12) -> VerlDriver:
    actor = SimpleNamespace(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=2)
    rollout = SimpleNamespace(log_prob_micro_batch_size_per_gpu=2)
    trainer = SimpleNamespace(
        config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(actor=actor, rollout=rollout)),
        actor_rollout_wg=SimpleNamespace(_dispatch_info={"actor": list(range(ranks))}),
        use_reference_policy=False,
    )
    reading = read(COMMAND, version="0.9.1", dataset_size=prompts)
    request = Request(spec=spec, plan=plan_of(spec, prompts), reading=reading, mode="enforce")
    orders = Orders(
        spec=spec,
        dataset_size=prompts,
        planned=True,
        mode="enforce",
        ledger=None,
        framework_version="0.9.1",
        start_id="x",
    )
    return VerlDriver(trainer, request, orders)


def test_a_workers_ledger_has_the_weaker_of_the_drivers_evidence_and_its_own() -> None:
    orders = dataclasses.replace(driver(spec_of()).orders, evidence=evidence("proven").to_dict())
    assert orders.here(evidence("proven")) is orders
    assert orders.here(evidence("measured")).evidence == evidence("measured").to_dict()


def evidence(grade: Literal["proven", "measured"]) -> Evidence:
    return Evidence(grade=grade, labels={"verl": "0.9.1"})


def rows_of(made: VerlDriver, rollout: int) -> RolloutRows:
    places = [(position, sample) for position in range(len(made.plan.rollout(rollout).prompts)) for sample in range(4)]
    rows = RolloutRows(rollout, {row: 3 + 7 * row[0] + row[1] for row in places}, {row: row for row in places})
    rows.fillers = [f"filler {number}" for number in range(made.fillers_needed(rows))]
    return rows


@pytest.mark.parametrize("step", [12, 5, 7, 24])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("shuffle", ["none", "completions", "groups"])
def test_each_call_of_update_actor_is_one_planned_step(step: int, passes: int, shuffle: str) -> None:
    changes = {
        "optimizer_step.completions_per_step": step,
        "optimizer_step.passes_per_rollout": passes,
        "optimizer_step.rollout_shuffle": shuffle,
        "order.last_optimizer_step": "short",
    }
    made = driver(spec_of().replace(**changes))
    rows, calls = rows_of(made, 1), []

    def send(places: list[Any], values: dict[str, Any]) -> dict[str, Any]:
        calls.append((places, values))
        return {"lr": 0.1}

    assert made.train(1, rows, send) == {"lr": [0.1] * len(calls)}
    planned = [step for step in made.plan.steps() if step.rollouts == (1,)]
    assert [values[STEP] for _, values in calls] == [each.index for each in planned]
    for (places, values), each in zip(calls, planned, strict=True):
        want = Counter(divmod(position, 4) for position in each.positions)
        assert Counter(place for place in places if isinstance(place, tuple)) == want
        assert values["mini_batch_size"] == len(places)
        assert len(places) % 4 == 0, "two ranks, micro-batches of two"
        assert len(set(places)) == len(places), "TransferQueue refuses a key that stands twice"


@pytest.mark.parametrize(("last_rollout", "sizes"), [("wrap", [5, 5, 5]), ("short", [5, 5, 2]), ("pad", [5, 5, 2])])
@pytest.mark.parametrize("last_step", ["short", "pad"])
def test_an_epochs_remainder_of_prompts_and_a_rollouts_of_completions_are_the_plans(
    last_rollout: str, sizes: list[int], last_step: str
) -> None:
    changes = {
        "rollout.prompts_per_rollout": 5,
        "optimizer_step.completions_per_step": 8,
        "order.last_rollout": last_rollout,
        "order.last_optimizer_step": last_step,
    }
    made = driver(spec_of().replace(**changes))
    loader = PlannedLoader(
        made.plan, dataset=range(12), collate=lambda prompts: {"prompt": prompts}, rollouts_done=lambda: 0
    )
    seen = []
    for index, (batch, size) in enumerate(zip(loader, sizes, strict=True)):
        assert batch["prompt"] == list(batch[PROMPT]) == list(made.plan.rollout(index).prompts)
        assert len(batch["prompt"]) == size
        seen += batch["prompt"]
        rows, trained = rows_of(made, index), []

        def send(places: list[Any], values: dict[str, Any], trained: list[int] = trained) -> dict[str, Any]:
            assert len(places) % 4 == 0, "two ranks, micro-batches of two"
            trained.append(sum(isinstance(place, tuple) for place in places))
            return {}

        made.train(index, rows, send)
        assert trained == [8] * (4 * size // 8) + [4] * (4 * size % 8 // 4)
    assert sorted(seen[:12]) == list(range(12))


def test_the_forward_passes_see_every_row_and_every_filler_once() -> None:
    made = driver(spec_of().replace(**{"optimizer_step.completions_per_step": 5, "order.last_optimizer_step": "short"}))
    rows = rows_of(made, 0)
    order = made.rollout_order(rows, len(rows.fillers))
    assert Counter(row for row in order if row is not None) == Counter(list(rows.costs))
    assert order.count(None) == len(rows.fillers)
    assert len(order) % 4 == 0


def test_a_rollout_that_lacks_a_completion_drifts() -> None:
    made = driver(spec_of())
    arrived: dict[tuple[int, int], None] = {(position, sample): None for position in range(6) for sample in range(4)}
    with pytest.raises(CannotAttach, match="no training worker has its orders"):
        made.expect_rollout(0, arrived)
    made.receipts = [Receipt(0, 1, "digest")]
    made.expect_rollout(0, arrived)
    del arrived[2, 3]
    with pytest.raises(BatchDrift, match="without \\(prompt, sample\\)"):
        made.expect_rollout(0, arrived)


def test_a_checkpoint_is_held_against_plan_and_ranks(tmp_path: Path) -> None:
    made, trainer = driver(spec_of()), SimpleNamespace()
    with pytest.raises(CannotAttach, match="written without batchbridge"):
        made.begin(trainer, tmp_path, None)
    made.save(tmp_path, 2)
    assert json.loads((tmp_path / STATE_FILE).read_text())["optimizer_steps"] == 4
    assert made.begin(trainer, tmp_path, None)["rollouts"] == 2
    with pytest.raises(CannotAttach, match="written by 2 ranks, this run has 1: start as many; FSDP's checkpoint is"):
        driver(spec_of(), ranks=1).begin(trainer, tmp_path, None)
    with pytest.raises(CannotAttach, match="dataset_size: 12 prompts in the checkpoint, 18 now"):
        driver(spec_of(), prompts=18).begin(trainer, tmp_path, None)
    with pytest.raises(CannotAttach, match=r"order\.seed: "):
        driver(spec_of().replace(**{"order.seed": 99})).begin(trainer, tmp_path, None)
    budget = spec_of().replace(micro_batch=MicroBatch(tokens_per_device=512))
    with pytest.warns(UserWarning, match=r"micro_batch\.tokens_per_device: open in the checkpoint, 512 now"):
        driver(budget).begin(trainer, tmp_path, None)


def test_a_whole_state_goes_on_with_any_number_of_ranks_where_it_is_named_as_verl_counts(tmp_path: Path) -> None:
    folder, trainer = tmp_path / "global_step_2", SimpleNamespace()
    driver(spec_of()).save(folder, 2)
    refused = (
        "written by 2 ranks, this run has 1: start as many; .* batchbridge_verl.whole global_step_N` puts the shards"
    )
    with pytest.raises(CannotAttach, match=refused):
        driver(spec_of(), ranks=1).begin(trainer, folder, None)
    (folder / WHOLE).write_text("x", encoding="utf-8")
    with pytest.warns(UserWarning, match="resumed from the whole state .*: its random states are those of a new start"):
        assert driver(spec_of(), ranks=1).begin(trainer, folder, None)["rollouts"] == 2
    old = driver(spec_of(), ranks=1)
    old.legacy = True
    with pytest.raises(CannotAttach, match=f"legacy workers do not load {WHOLE}"):
        old.begin(trainer, folder, None)
    other = folder.rename(tmp_path / "global_step_4")
    with pytest.raises(CannotAttach, match="was written after 2 rollouts: name it global_step_2, as verl counts"):
        driver(spec_of(), ranks=1).begin(trainer, other, None)


def test_shards_of_the_runs_own_number_are_verls_to_load(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    folder = tmp_path / "global_step_2"
    driver(spec_of()).save(folder, 2)
    (folder / "actor").mkdir()
    (folder / WHOLE).write_text("x", encoding="utf-8")
    (folder / "actor" / "model_world_size_2_rank_0.pt").write_text("x")
    assert driver(spec_of()).begin(SimpleNamespace(), folder, None)["rollouts"] == 2
    assert not recwarn.list


@pytest.mark.parametrize(
    ("loaded", "lacking"),
    [
        (["model"], "leaves out optimizer and extra: .* with a beginning's optimizer and schedule and random states"),
        (["model", "extra", "hf_model"], "leaves out optimizer: .* with a beginning's optimizer; name all of"),
    ],
)
def test_a_resume_without_all_that_it_needs_is_refused_by_the_setting(
    tmp_path: Path, loaded: list[str], lacking: str
) -> None:
    """verl's own loads what it is told to, and says nothing of the rest."""
    made, trainer = driver(spec_of()), SimpleNamespace()
    made.save(tmp_path, 2)
    made.actor.checkpoint = SimpleNamespace(load_contents=loaded)
    with pytest.raises(CannotAttach, match=rf"actor_rollout_ref\.actor\.checkpoint\.load_contents {lacking}"):
        made.begin(trainer, tmp_path, None)
    made.actor.checkpoint.load_contents = ["extra", "optimizer", "model"]
    assert made.begin(trainer, tmp_path, None)["rollouts"] == 2


def test_training_begins_once_for_each_wrap(tmp_path: Path) -> None:
    """verl counts from the start again in a second `fit`; a refused checkpoint is not a beginning."""
    made, trainer = driver(spec_of()), SimpleNamespace()
    with pytest.raises(CannotAttach, match="written without batchbridge"):
        made.begin(trainer, tmp_path, None)
    assert made.begin(trainer, None, None) == {}
    with pytest.raises(CannotAttach, match=r"fit\(\) has begun since wrap, and counts from the start again: wrap once"):
        made.begin(trainer, None, None)


def test_metrics_of_several_calls_become_lists() -> None:
    assert merged([{"a": [1, 2], "b": 3}, {"a": [4], "b": 5}]) == {"a": [1, 2, 4], "b": [3, 5]}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "not a release of verl"),
        (CheckoutContents("easyr1", "0.3.2"), "not a release of verl"),
        (
            CheckoutContents("verl", "0.6.0"),
            "verl 0.6.0 is older than 0.6.1, the oldest version whose trainer is wrapped",
        ),
        (CheckoutContents("verl", "0.9.2"), "not one that it knows: verl trainer/ppo/v1/trainer_base.py: PPOTrainer"),
    ],
)
def test_another_project_an_old_release_and_unknown_code_are_refused(
    monkeypatch: pytest.MonkeyPatch, found: CheckoutContents | None, reason: str
) -> None:
    monkeypatch.setattr(runtime, "installed", lambda: found)
    monkeypatch.setattr("batchbridge.kit.versions.installed", lambda distribution: found and found.version)
    request = Request(spec=spec_of(), plan=None, reading=read(COMMAND, version="0.9.1"), mode="enforce")
    with pytest.raises(CannotAttach, match=reason):
        VerlAdapter().attach(trainer_of(request.reading, V1_TRAINER, {}), request)


def test_what_another_spec_asks_for_reaches_the_workers_or_is_named() -> None:
    own = read(COMMAND, version="0.9.1", dataset_size=12)
    assert own.spec is not None
    wanted = own.spec.replace(
        **{
            "loss.policy.aggregation": "sequence_sum_over_constant",
            "loss.policy.constant": 99,
            "objective.dual_clip": None,
            "objective.clip_high": 0.28,
            "carried.learning_rate": 0.5,
        }
    )
    request = Request(spec=wanted, plan=None, reading=own, mode="enforce")
    settings, left = runtime.settings_of(request)
    assert (settings["loss_agg_mode"], settings["loss_scale_factor"]) == ("seq-mean-token-sum-norm", 99)
    assert settings["clip_ratio_high"] == 0.28
    assert settings["clip_ratio_c"] == runtime.OFF
    assert left == {"carried.learning_rate": "0.5 in the requested spec, 1e-06 in the trainer"}


class Node(SimpleNamespace):
    """A group of a trainer's configuration, read as OmegaConf's are."""

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


V1_TRAINER = type("PPOTrainer", (SimpleNamespace,), {"__module__": "verl.trainer.ppo.v1.trainer_base"})
V0_TRAINER = type("RayPPOTrainer", (SimpleNamespace,), {"__module__": "verl.trainer.ppo.ray_trainer"})


def trainer_of(reading: Reading, trainer: type, settings: Mapping[str, Any], **attributes: Any) -> Any:
    """What a refusal looks at, of a trainer with this configuration and, beside it, these settings."""
    config = Node()
    for key, value in {**reading.run.native, **settings}.items():  # type: ignore[attr-defined]  # verl's reading has it
        node, (*groups, leaf) = config, key.split(".")
        for group in groups:
            if not hasattr(node, group):
                setattr(node, group, Node())
            node = getattr(node, group)
        setattr(node, leaf, value)
    usual = {"use_critic": False, "use_teacher_policy": False, "use_reference_policy": False, "trainer_mode": "sync"}
    return trainer(config=config, **{**usual, **attributes})


def refused(name: str, spec: Spec, version: str = "0.9.1") -> bool:
    (refusal,) = (one for one in runtime.REFUSALS if one.name == name)
    request = Request(
        spec=spec,
        plan=None,
        reading=read(COMMAND, version=version, dataset_size=12),
        mode="enforce",
    )
    return refusal.foreseen(request) is not False


@dataclass(frozen=True)
class Asked:
    """One run that is refused. words: of its command, a start of `program`. spec: what is asked for instead of the
    command's own. settings, attributes: of the trainer, beside the command's."""

    words: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    trainer: type = V1_TRAINER
    mode: Mode = "enforce"
    padding: Padding = "padded"
    program: str = COMMAND[2]
    version: str = "0.9.1"
    registered: Any = None
    """A function that is registered as grpo's estimator."""

    def names(self) -> set[str]:
        """The refusals that apply."""
        command = [*COMMAND[:2], self.program, *COMMAND[3:], *self.words]
        reading = read(command, version=self.version, dataset_size=12)
        assert reading.spec is not None, reading.findings
        spec = reading.spec.replace(**self.spec)
        trainer = trainer_of(reading, self.trainer, self.settings, **self.attributes)
        try:
            plan = plan_of(spec, 12)
        except PlanError:
            plan = None
        request = Request(spec=spec, plan=plan, reading=reading, mode=self.mode, padding=self.padding)
        module = SimpleNamespace(ADV_ESTIMATOR_REGISTRY={"grpo": self.registered})
        with mock.patch.dict(sys.modules, {"verl.trainer.ppo.core_algos": module}):
            return set(reasons_against(runtime.REFUSALS, trainer, request))


def doubled(*rewards: float) -> list[float]:
    """An estimator of a user's own."""
    return [2 * reward for reward in rewards]


ACTOR, CORRECTION = "actor_rollout_ref.actor.", "algorithm.rollout_correction."
SILENT = "actor_rollout_ref.rollout.calculate_log_probs=False"
"""The sampler's log-probabilities are not kept."""
KL = {"objective.kl_coefficient": 0.1, "objective.kl_placement": "loss", "objective.kl_estimator": "k3"}
GAE = ("algorithm.adv_estimator=gae", "critic.ppo_micro_batch_size_per_gpu=2")
ENGINE_WORKERS = "trainer.use_legacy_worker_impl=disable"
GROUPER = "actor_rollout_ref.actor.use_prefix_grouper=True"
PADDED = "actor_rollout_ref.model.use_remove_padding=False"
ASKED = {
    "legacy_workers": Asked((GROUPER,), version="0.7.1", trainer=V0_TRAINER),
    "padded_rows": Asked((ENGINE_WORKERS, PADDED), version="0.7.1", trainer=V0_TRAINER),
    "earlier_release": Asked((ENGINE_WORKERS, *GAE), version="0.7.1", trainer=V0_TRAINER),
    "one_step_off": Asked(program="verl.experimental.one_step_off_policy.main_ppo", trainer=V0_TRAINER),
    "fully_async": Asked(
        ("data.train_batch_size=0", "data.gen_batch_size=1", "actor_rollout_ref.hybrid_engine=False"),
        program="verl.experimental.fully_async_policy.fully_async_main",
        trainer=V0_TRAINER,
    ),
    "critic": Asked(("critic.enable=True", "critic.ppo_micro_batch_size_per_gpu=2")),
    "critic_settings": Asked((*GAE,), {"critic.gamma": 0.5}),
    "critic_engine": Asked((*GAE, "critic.strategy=megatron")),
    "critic_correction": Asked((*GAE, f"{CORRECTION}rollout_is=token")),
    "value_baseline": Asked(spec={"advantage.baseline": "value"}),
    "batch_scale": Asked(spec={"advantage.scale": "batch"}),
    "tokens_per_device": Asked(spec={"micro_batch.completions_per_device": 3}),
    "asynchronous": Asked(("trainer.v1.trainer_mode=colocate_async",), mode="observe"),
    "advantages": Asked(registered=doubled),
    "initialised": Asked(attributes={"actor_rollout_wg": None}),
    "distillation": Asked(("distillation.enabled=True",)),
    "group_filter": Asked(spec={"rollout.group_filter": "replace_zero_variance"}),
    "staleness": Asked(("trainer.v1.trainer_mode=colocate_async",), spec={"staleness": Staleness()}),
    "custom_sampler": Asked(
        (
            *("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward"),
            *("trainer.v1.sampler.custom_sampler.path=own.py", "trainer.v1.sampler.custom_sampler.name=Own"),
        ),
    ),
    "train_sampler": Asked(trainer=V0_TRAINER, attributes={"train_dataloader": SimpleNamespace(sampler=[3, 1, 2])}),
    "sync_refill_failed_groups": Asked(("trainer.v1.sampler.sync_refill_failed_groups=True",)),
    "critic_warmup": Asked(("trainer.critic_warmup=2",)),
    "surrogate": Asked((f"{ACTOR}policy_loss.loss_mode=geo_mean",)),
    "dro_beta": Asked((f"{ACTOR}policy_loss.loss_mode=dro",)),
    "aggregation": Asked(spec={"loss.policy.aggregation": "prompt_mean"}),
    "release": Asked(spec={"loss.policy.aggregation": "prompt_mean"}),
    "denominator_scope": Asked(spec={"loss.policy.denominator_scope": "micro_batch"}),
    "loss_per_term": Asked(spec={"loss.kl": LossTerm(aggregation="token_sum")}),
    "kl_without_reference": Asked(spec=KL),
    "kl_in_reward": Asked(spec={**KL, "objective.kl_placement": "reward"}),
    "truncated_completions": Asked(spec={"rollout.truncated_completions": "drop"}),
    "step_crosses_rollouts": Asked(
        spec={"optimizer_step.step_may_span": "run", "optimizer_step.completions_per_step": 5}
    ),
    "no_step": Asked(spec={"optimizer_step.passes_per_rollout": 0}),
    "sampler_logprobs": Asked(spec={"objective.old_logprobs": "sampler"}),
    "kl_estimator": Asked(spec={**KL, "objective.kl_estimator": "k9"}),
    "bypass_mode": Asked((f"{CORRECTION}bypass_mode=True", SILENT)),
    "rejection": Asked((f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.6_1.6", SILENT)),
    "sampler_correction": Asked((f"{CORRECTION}rollout_is=token", SILENT)),
    "group_size": Asked(("trainer.use_v1=False",), {"rollout.completions_per_prompt": 8}, trainer=V0_TRAINER),
    "unproven_engine": Asked(settings={f"{ACTOR}strategy": "veomni"}),
    "padding_free": Asked(padding="free"),  # verl's own attention is flash attention
    "fp16": Asked((f"+{ACTOR}fsdp_config.mixed_precision.param_dtype=fp16",)),
}
"""Refusal -> a run that it refuses."""


SCORED = "actor_rollout_ref.rollout.calculate_log_probs=True"


@pytest.mark.parametrize(
    "words",
    [
        (f"{CORRECTION}rollout_rs=token_k1", f"{CORRECTION}rollout_rs_threshold=0.6_1.6"),
        (f"{CORRECTION}rollout_is=token",),
        (f"{CORRECTION}rollout_is=sequence", f"{ACTOR}policy_loss.loss_mode=gspo"),
    ],
    ids=["rejection", "weights of tokens", "weights of sequences"],
)
def test_a_correction_towards_a_sampler_that_scores_is_followed(words: tuple[str, ...]) -> None:
    assert Asked((*words, SCORED)).names() == set()
    assert (
        batchbridge.check([*COMMAND, *words, SCORED], version="0.9.1", dataset_size=12).enforcement.verdict
        == "enforced"
    )
    assert Asked((*words, SILENT)).names() != set(), "the sampler's log-probabilities are not kept"


def test_a_critics_step_takes_so_many_whole_groups() -> None:
    spec = batchbridge.check(
        [*COMMAND, *GAE, "critic.ppo_mini_batch_size=3"], version="0.9.1", dataset_size=12
    ).reading.spec
    assert spec.rollout.completions_per_prompt > 1
    assert spec.critic.completions_per_step == 3 * spec.rollout.completions_per_prompt


def test_a_critics_warm_up_is_followed_where_something_is_left_for_the_policy() -> None:
    words = (*GAE, "trainer.critic_warmup=3")
    assert Asked(words).names() == set()
    told = batchbridge.check([*COMMAND, *words], version="0.9.1", dataset_size=12)
    assert told.enforcement.verdict == "enforced"
    assert told.reading.spec.critic.warmup_rollouts == 2
    assert Asked((*words, "trainer.total_training_steps=2")).names() == {"no_step"}


@pytest.mark.parametrize("loss", ["clip_cov", "kl_cov"])
@pytest.mark.parametrize("trainer", [V1_TRAINER, V0_TRAINER])
def test_a_loss_that_chooses_tokens_is_refused_by_name_and_read(loss: str, trainer: type) -> None:
    words = (f"{ACTOR}policy_loss.loss_mode={loss}",)
    for mode in ("enforce", "verify"):
        asked = Asked((*words, f"trainer.use_v1={trainer is V1_TRAINER}"), mode=mode, trainer=trainer)
        assert asked.names() == {"surrogate"}
    assert Asked(words, spec={"objective.surrogate": "ppo"}).names() == set()
    told = batchbridge.check([*COMMAND, *words], version="0.9.1", dataset_size=12)
    assert told.reading.spec.objective.surrogate == loss
    assert told.enforcement.verdict == "refused"
    assert [one.name for one in told.enforcement.obstacles] == ["surrogate"]
    assert "BB-VERL-029" in {one.code for one in told.reading.findings}


BYPASS = (f"{CORRECTION}bypass_mode=True", SCORED)


def bypassed(*words: str, **more: Any) -> Asked:
    return Asked((*BYPASS, *words), **more)


@pytest.mark.parametrize("trainer", [V1_TRAINER, V0_TRAINER])
def test_the_samplers_log_probabilities_are_followed_as_the_old_ones(trainer: type) -> None:
    asked = bypassed(f"trainer.use_v1={trainer is V1_TRAINER}", trainer=trainer)
    assert asked.names() == set()
    assert bypassed(spec={"objective.old_logprobs": "rollout_start"}).names() == {"sampler_logprobs"}
    assert bypassed("distillation.enabled=True").names() >= {"bypass_mode"}
    told = batchbridge.check([*COMMAND, *BYPASS], version="0.9.1", dataset_size=12)
    assert told.enforcement.verdict == "enforced"
    assert told.reading.spec.objective.old_logprobs == "sampler"


@pytest.mark.parametrize("word", ["rollout_is=token", "rollout_rs=token_k1", "loss_type=reinforce"])
def test_what_bypass_mode_does_not_read_is_told_and_refused(word: str) -> None:
    words = (f"{CORRECTION}{word}", *((f"{CORRECTION}rollout_rs_threshold=0.6_1.6",) if "rs" in word else ()))
    assert bypassed(*words).names() == {"bypass_mode"}
    told = batchbridge.check([*COMMAND, *BYPASS, *words], version="0.9.1", dataset_size=12)
    assert {one.name for one in told.enforcement.obstacles} == {"bypass_mode"}
    assert told.reading.spec.objective.sampler_correction is None
    assert "BB-VERL-095" in {one.code for one in told.reading.findings}


def test_the_release_decides_whether_a_sampler_scores_that_nobody_asked_to() -> None:
    words = [*COMMAND, f"{CORRECTION}rollout_is=token"]
    assert batchbridge.check(words, version="0.9.1", dataset_size=12).enforcement.verdict == "enforced"
    silent = [*words, SCORED.replace("True", "False")]
    told = batchbridge.check(silent, version="0.9.1", dataset_size=12)
    assert {one.name for one in told.enforcement.obstacles} == {"sampler_correction"}


def test_factors_of_tokens_beside_ratios_of_sequences_are_refused() -> None:
    words = (f"{CORRECTION}rollout_is=token", f"{ACTOR}policy_loss.loss_mode=gspo", SCORED)
    assert Asked(words).names() == {"sampler_correction"}


DISTILLATION = "distillation.distillation_loss."
TAUGHT = {
    "distillation.enabled": True,
    f"{DISTILLATION}loss_mode": "k1",
    f"{DISTILLATION}use_policy_gradient": True,
    f"{DISTILLATION}use_task_rewards": False,
}


@pytest.mark.parametrize(
    ("changed", "followed"),
    [
        ({}, True),
        ({f"{DISTILLATION}loss_mode": "k3"}, False),
        ({f"{DISTILLATION}use_policy_gradient": False}, False),
        ({f"{DISTILLATION}use_task_rewards": True}, False),
        ({f"{DISTILLATION}clip_ratio_high": 0.28}, False),
        ({f"{DISTILLATION}clip_ratio_high": 0.28, f"{ACTOR}clip_ratio_high": 0.28}, True),
        ({f"{ACTOR}clip_ratio_c": 5.0}, False),
        ({f"{ACTOR}entropy_coeff": 0.01}, False),
        ({"trainer.use_v1": False}, False),
    ],
)
def test_a_teacher_is_followed_where_its_distance_is_the_only_reward(changed: dict[str, Any], followed: bool) -> None:
    words = [f"{key}={value}" for key, value in {**TAUGHT, **changed}.items()]
    said = batchbridge.check([*COMMAND, *words], version="0.9.1", dataset_size=12)
    assert said.enforcement is not None
    assert (said.enforcement.verdict == "enforced") == followed, said.enforcement
    trainer = V0_TRAINER if "trainer.use_v1" in changed else V1_TRAINER
    names = Asked(tuple(words), trainer=trainer).names()
    assert ("distillation" in names) != followed


def test_a_trainer_with_a_teacher_is_not_given_the_advantages_of_rewards() -> None:
    words = tuple(f"{key}={value}" for key, value in TAUGHT.items())
    own = {"advantage": spec_of().advantage, "open_terms": ()}
    assert "distillation" in Asked(words, spec=own).names()


def test_a_teachers_advantages_are_named_as_what_the_schema_has_no_word_for() -> None:
    spec = spec_of(*(f"{key}={value}" for key, value in TAUGHT.items()))
    assert (spec.advantage.baseline, spec.advantage.scale) == ("open", "none")
    assert spec.open_terms == ("advantage: distillation_k1",)


def test_every_refusal_is_tried() -> None:
    settings_alone = {"main_ppo_sync", "own_program"}  # no trainer of theirs is wrapped
    assert sorted(ASKED) == sorted({refusal.name for refusal in runtime.REFUSALS} - settings_alone)


@pytest.mark.parametrize("name", ASKED)
def test_a_run_that_cannot_be_followed_is_refused_by_name(name: str) -> None:
    assert name in ASKED[name].names()


def test_an_estimator_whose_advantages_are_carried_anyway_needs_no_name() -> None:
    whole = "algorithm.adv_estimator=reinforce_plus_plus_baseline"
    assert "advantages" not in Asked((whole,), registered=doubled).names()


@pytest.mark.parametrize("trainer", [V0_TRAINER, V1_TRAINER], ids=["V0", "V1"])
def test_a_plain_run_is_not_refused(trainer: type) -> None:
    assert Asked(trainer=trainer).names() == set()


@pytest.mark.parametrize("more", [(), (PADDED,), (ENGINE_WORKERS,)], ids=["legacy", "legacy, padded", "engine"])
def test_both_kinds_of_workers_of_0_7_1_are_followed(more: tuple[str, ...]) -> None:
    assert Asked(more, version="0.7.1", trainer=V0_TRAINER).names() == set()
    told = batchbridge.check([*COMMAND, *more], version="0.7.1", dataset_size=12).enforcement
    assert (told.verdict, told.obstacles) == ("enforced", ()), told


@pytest.mark.parametrize("words", [("--config-name=ppo_megatron_trainer.yaml",), (GROUPER,)])
def test_legacy_workers_that_no_plan_is_proven_on_are_followed_in_no_mode(words: tuple[str, ...]) -> None:
    told = batchbridge.check([*COMMAND, *words], version="0.7.1", dataset_size=12).enforcement
    (obstacle,) = (one for one in told.obstacles if one.name == "legacy_workers")
    assert obstacle.certain
    assert ENGINE_WORKERS in obstacle.remedy
    assert "in no mode" in obstacle.remedy


@pytest.mark.parametrize("words", [GAE, ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",)])
def test_a_critic_and_shared_rows_are_refused_on_legacy_workers_as_on_engine_workers(words: tuple[str, ...]) -> None:
    assert "earlier_release" in Asked(words, version="0.7.1", trainer=V0_TRAINER).names()


def test_padded_rows_are_watched_on_0_7_1_and_followed_from_0_8_0_on() -> None:
    padded = Asked((ENGINE_WORKERS, PADDED), version="0.7.1", trainer=V0_TRAINER)
    assert padded.names() == {"padded_rows"}
    assert "padded_rows" not in runtime.ALWAYS
    assert Asked((PADDED,), version="0.8.0", trainer=V0_TRAINER).names() == set()


@pytest.mark.parametrize(("mode", "refused"), [("enforce", True), ("verify", False), ("observe", False)])
def test_an_engine_that_no_proof_ran_on_is_watched_without_a_word(mode: Mode, refused: bool) -> None:
    """What `attach` checks before it patches anything: without verl, of no code."""
    reading = read(COMMAND, version="0.9.1", dataset_size=12)
    assert reading.spec is not None
    trainer = trainer_of(reading, V1_TRAINER, {f"{ACTOR}strategy": "veomni"})
    request = Request(spec=reading.spec, plan=plan_of(reading.spec, 12), reading=reading, mode=mode)
    here = dataclasses.replace(runtime.RUNTIME, code=None, version=lambda trainer: "0.9.1")
    reasons: dict[str, str] = {}
    try:
        here.check(trainer, request)
    except CannotAttach as error:
        reasons = dict(error.reasons)
    assert ("unproven_engine" in reasons) is refused, reasons
    assert set(reasons) <= {"unproven_engine"}


def test_rows_that_ranks_share_are_refused_on_0_7_1() -> None:
    words = (ENGINE_WORKERS, "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2", "trainer.n_gpus_per_node=2")
    assert Asked(words, version="0.7.1", trainer=V0_TRAINER).names() == {"earlier_release"}


@pytest.mark.parametrize(
    ("loss_mode", "aggregation", "lacking"),
    [
        ("vanilla", "token_mean", set()),
        ("vanilla", "token_sum", {"0.8.0"}),
        ("cispo", "sequence_sum", set()),
        ("dro", "token_mean", {"0.8.0"}),
        ("gspo", "sequence_mean", set()),
        ("gspo", "token_mean", {"0.8.0", "0.9.0"}),
    ],
)
def test_what_a_release_lacks_is_refused_there_and_only_there(
    loss_mode: str, aggregation: str, lacking: set[str]
) -> None:
    spec = spec_of(f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}")
    spec = spec.replace(**{"loss.policy.aggregation": aggregation})
    found = {version for version in ("0.8.0", "0.9.0", "0.9.1") if refused("release", spec, version)}
    assert found == lacking


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.9.1"])
@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo", "cispo"])
def test_what_a_release_means_by_itself_is_not_refused_there(loss_mode: str, version: str) -> None:
    setting = f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}"
    own = read([*COMMAND, setting], version=version, dataset_size=12)
    assert own.spec is not None, own.findings
    assert not refused("release", own.spec, version)


def test_a_filtered_run_has_a_plan_of_places_and_a_spec_without_one_is_another() -> None:
    filtered = spec_of("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")
    assert isinstance(plan_of(filtered, 12), CandidatePlan)
    words = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")
    assert Asked(words).names() == set()
    assert Asked(words, spec={"rollout.group_filter": "none"}).names() == {"group_filter"}


@pytest.mark.parametrize(("version", "said"), [("0.9.0", True), ("0.9.1", False)])
def test_filtered_groups_are_followed_on_the_release_that_they_are_proven_on(version: str, said: bool) -> None:
    reading = read([*COMMAND, *FILTER], version=version, dataset_size=12)
    assert reading.spec is not None, reading.findings
    request = Request(spec=reading.spec, plan=plan_of(reading.spec, 12), reading=reading, mode="enforce")
    (refusal,) = (one for one in runtime.REFUSALS if one.name == "release")
    assert refusal.test(request) == said


@pytest.mark.parametrize(
    ("model", "assumed"), [("Qwen/Qwen2.5-VL-7B-Instruct", ("an image in every prompt",)), ("Qwen/Qwen2.5-7B", ())]
)
def test_of_a_model_that_reads_images_an_image_in_every_prompt_is_assumed(model: str, assumed: tuple[str, ...]) -> None:
    enforcement = check([*COMMAND, f"{runtime.MODEL}={model}"], version="0.9.1", dataset_size=12).enforcement
    assert enforcement is not None
    assert enforcement.assumes == assumed


@pytest.mark.parametrize(
    ("name", "words", "attributes"),
    [
        ("asynchronous", ("trainer.v1.trainer_mode=colocate_async",), {"trainer_mode": "colocate_async"}),
        ("initialised", (), {"actor_rollout_wg": None}),
        ("distillation", ("distillation.enabled=True",), {}),
        ("critic", GAE, {}),
    ],
)
def test_observing_what_cannot_be_told_is_refused_before_anything_is_patched(
    monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, ...], attributes: dict[str, Any]
) -> None:
    reading = read([*COMMAND, *words], version="0.9.1", dataset_size=12)
    assert reading.spec is not None, reading.findings
    trainer = trainer_of(reading, V1_TRAINER, {}, **attributes)
    before = dict(vars(trainer))
    monkeypatch.setattr(runtime, "installed", lambda: CheckoutContents("verl", "0.9.1"))
    monkeypatch.setattr("batchbridge.kit.lifecycle.require", lambda code, allow, *parts: None)
    request = Request(spec=reading.spec, plan=None, reading=reading, mode="observe")
    with pytest.raises(CannotAttach) as refused:
        VerlAdapter().check_attach(trainer, request)
    assert list(refused.value.reasons) == [name]
    assert vars(trainer) == before


def candidates_of(*words: str, mode: str = "sync") -> tuple[VerlCandidatesV1, Any]:
    """The patches of a trainer that knows its dataset and its buffer alone, and that buffer."""
    spec = spec_of("trainer.total_training_steps=3", *words)
    plan = plan_of(spec, 12)
    assert isinstance(plan, CandidatePlan)
    buffer = SimpleNamespace(_select_prompt_uids=lambda partition, keys, size: (sorted(keys)[:size], "rows", "steps"))
    names = ("fit", "_next_train_batch", "_step_once", "_balance_batch", "_compute_advantage", "_init_dataloader")
    trainer = SimpleNamespace(
        trainer_mode=mode,
        train_dataset=list(range(12)),
        global_steps=1,
        replay_buffer=buffer,
        train_dataloader=SimpleNamespace(state_dict=None, load_state_dict=None),
        config=SimpleNamespace(trainer=SimpleNamespace(total_epochs=30)),
        total_training_steps=3,
        steps_per_epoch=2,
        **dict.fromkeys((*names, "_save_checkpoint", "_load_checkpoint")),
    )
    candidates = VerlCandidatesV1(trainer, driver(spec), plan, Patches())
    trainer.train_dataset = None  # verl's own data loader would keep the one that it was built with, too
    candidates._batch_of = lambda prompts, uids, columns: (list(prompts), uids)  # type: ignore[method-assign]
    return candidates, buffer


FILTER = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")


def test_the_candidates_with_the_lowest_numbers_are_taken_and_the_next_rollout_begins_after_them() -> None:
    candidates, buffer = candidates_of(*FILTER)
    plan = plan_of(spec_of(*FILTER), 12)
    assert isinstance(plan, CandidatePlan)
    assert candidates._prompts() == (list(plan.candidates(0, 6)), [f"c{number}" for number in range(6)])
    assert candidates._prompts(5)[1] == ["c6", "c7", "c8", "c9", "c10"]
    kept = {"c10", "c9", "c0", "c1", "c4", "c5", "c7"}
    assert buffer._select_prompt_uids("train", kept, 6) == (["c0", "c1", "c4", "c5", "c7", "c9"], "rows", "steps")
    assert candidates._memory() == {"next_candidate": 10}
    assert candidates._prompts(3) == (list(plan.candidates(10, 13)), ["c10", "c11", "c12"])


def test_a_dataset_that_is_set_after_wrap_is_not_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """With stand-ins for the two functions of verl's that make a batch."""
    rows = ModuleType("verl.utils.dataset.rl_dataset")
    rows.collate_fn = lambda rows: {"rows": rows}  # type: ignore[attr-defined]
    batches = ModuleType("verl.utils.tensordict_utils")
    batches.get_tensordict, batches.assign_non_tensor_data = dict, lambda batch, name, value: None  # type: ignore[attr-defined]
    for name in ("verl", "verl.utils", "verl.utils.dataset"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "verl.utils.dataset.rl_dataset", rows)
    monkeypatch.setitem(sys.modules, "verl.utils.tensordict_utils", batches)
    monkeypatch.setattr(sys.modules["verl.utils"], "tensordict_utils", batches, raising=False)
    candidates, _ = candidates_of(*FILTER)
    del candidates._batch_of
    candidates._trainer.config.actor_rollout_ref = SimpleNamespace(rollout=SimpleNamespace(n=4))
    candidates._trainer.train_dataset = ["other"] * 40
    assert candidates._batch_of([7, 3], ["a", "b"], {})["rows"] == [7, 3]


def test_what_generates_ahead_goes_on_after_the_last_candidate_that_was_offered() -> None:
    candidates, buffer = candidates_of("trainer.v1.trainer_mode=colocate_async", mode="colocate_async")
    candidates._prompts(12)
    assert buffer._select_prompt_uids("train", {"c11", "c2", "c7"}, 2)[0] == ["c2", "c7"]
    assert candidates._prompts(1)[1] == ["c12"]


def test_validation_chooses_as_it_always_did() -> None:
    candidates, buffer = candidates_of(*FILTER)
    assert buffer._select_prompt_uids("val", {"b", "a"}, 1) == (["a"], "rows", "steps")
    assert candidates._memory() == {"next_candidate": 0}


def test_a_checkpoint_without_candidates_is_not_resumed_with_them() -> None:
    candidates, _ = candidates_of(*FILTER)
    candidates._remember({"next_candidate": 7})
    assert candidates._prompts(1)[1] == ["c7"]
    with pytest.raises(CannotAttach, match="its place among them is unknown"):
        candidates._remember({})


def test_the_forerunner_of_the_v1_trainer_is_refused_where_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("verl.trainer.ppo.padding_utils")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CannotAttach, match="main_ppo_sync is not followed"):
        launched.sync(module)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    launched.sync(module)


def test_ratios_of_whole_sequences_that_another_spec_asks_for_reach_the_workers() -> None:
    own = read(COMMAND, version="0.9.1", dataset_size=12)
    wanted = spec_of("actor_rollout_ref.actor.policy_loss.loss_mode=gspo")
    settings, left = runtime.settings_of(Request(spec=wanted, plan=None, reading=own, mode="enforce"))
    assert settings["policy_loss.loss_mode"] == "gspo"
    assert left == {}


def test_a_launched_trainer_runs_the_method_that_wrapping_it_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    class Trainer:
        def init_workers(self) -> None:
            ran.append("native")

    def follow(trainer: Any) -> None:
        native = trainer.init_workers
        trainer.batchbridge = SimpleNamespace(report=lambda changes=True: "attached")
        trainer.init_workers = lambda: (native(), ran.append("orders"))

    monkeypatch.setattr("batchbridge.running.follow.follow", follow)
    launched.v0(SimpleNamespace(RayPPOTrainer=Trainer))  # type: ignore[arg-type]  # stands for a module
    Trainer().init_workers()
    assert ran == ["native", "orders"]


# ---- sampling seeds


def asked(worker: Any, **columns: Any) -> dict[str, Any]:
    """What a worker's agent loop is run with."""
    trajectory = {"validate": columns.pop("validate", False)}
    found: dict[str, Any] = asyncio.run(worker._run_agent_loop({"top_p": 0.9}, trajectory, trace=False, **columns))
    return found


def agent_worker() -> Any:
    async def native(sampling_params: dict[str, Any], trajectory: dict[str, Any], **columns: Any) -> dict[str, Any]:
        return {"params": sampling_params, **columns}

    return SimpleNamespace(_run_agent_loop=native)


def test_every_request_has_its_prompts_seed_plus_its_samples_number() -> None:
    worker = agent_worker()
    assert sampling.in_worker(worker)
    assert asked(worker, session_id=2, **{SEED: 100}) == {
        "params": {"top_p": 0.9, "seed": 102},
        "trace": False,
        "session_id": 2,
    }


def test_a_worker_is_patched_once_and_restored() -> None:
    worker = agent_worker()
    native = worker._run_agent_loop
    assert sampling.in_worker(worker)
    patched = worker._run_agent_loop
    assert sampling.in_worker(worker)
    assert worker._run_agent_loop is patched
    for _ in range(2):  # as often as a trainer was fitted
        sampling.out_of_worker(worker)
        assert worker._run_agent_loop is native
    assert asked(worker, session_id=2, **{SEED: 100})["params"] == {"top_p": 0.9}


def test_validation_and_prompts_without_a_seed_are_drawn_as_ever() -> None:
    worker = agent_worker()
    sampling.in_worker(worker)
    assert asked(worker, session_id=2, validate=True, **{SEED: 100})["params"] == {"top_p": 0.9}
    assert asked(worker, session_id=2)["params"] == {"top_p": 0.9}


def test_a_backend_without_seeds_is_left_alone() -> None:
    patches = Patches()
    assert not sampling.hand_seeds(None, "sglang", patches)
    assert patches.changes == ()


def test_loaders_give_every_prompt_its_seed() -> None:
    plan = driver(spec_of()).plan
    loader = PlannedLoader(plan, dataset=range(12), collate=lambda prompts: {}, rollouts_done=lambda: 1)
    assert [list(batch[SEED]) for batch in loader] == [list(plan.sampling_seeds(rollout)) for rollout in (1, 2)]


# ---- token budgets

FIELDS = [f"{ACTOR}use_dynamic_bsz", f"{ACTOR}ppo_max_token_len_per_gpu"]
FIELDS += [
    f"actor_rollout_ref.{group}.log_prob_{name}"
    for group in ("rollout", "ref")
    for name in ("use_dynamic_bsz", "max_token_len_per_gpu")
]


def budget_request(*words: str, version: str = "0.9.1", **micro: Any) -> Request:
    reading = read([*COMMAND, *words], version=version, dataset_size=12)
    assert reading.spec is not None, reading.findings
    asked = MicroBatch(**micro)
    spec = reading.spec.replace(micro_batch=asked)
    return Request(spec=spec, plan=plan_of(spec, 12), reading=reading, mode="enforce", budget=asked)


def no_budget(request: Request, **attributes: Any) -> str | None:
    """What the refusal by that name says."""
    trainer = trainer_of(request.reading, V0_TRAINER, {}, **attributes)
    (refusal,) = (one for one in runtime.REFUSALS if one.name == "tokens_per_device")
    return refusal.against(trainer, request)


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0", "0.9.1"])
@pytest.mark.parametrize("micro", [{"cap": "soft"}, {}, {"forward_tokens_per_device": 4096}])
def test_a_budget_is_handed_to_a_run_of_fixed_micro_batches(version: str, micro: dict[str, Any]) -> None:
    assert no_budget(budget_request(version=version, tokens_per_device=2048, **micro)) is None


def test_resolved_settings_of_the_passes_that_score_do_not_stand_in_a_budgets_way() -> None:
    words = [
        f"actor_rollout_ref.rollout.log_prob_{name}" for name in ("use_dynamic_bsz=False", "max_token_len_per_gpu=9")
    ]
    assert no_budget(budget_request(*words, tokens_per_device=2048)) is None


@pytest.mark.parametrize(
    ("micro", "attributes", "reason"),
    [
        ({"tokens_per_device": 2048}, {"actor_rollout_wg": object()}, "wrap before init_workers(), or set actor."),
        ({"completions_per_device": 3}, {}, "give micro_batch.tokens_per_device"),
        ({"completions_per_device": 2, "forward_tokens_per_device": 64}, {}, "give micro_batch.tokens_per_device"),
    ],
)
def test_micro_batches_that_cannot_be_handed_over_are_refused_with_what_to_do(
    micro: dict[str, Any], attributes: dict[str, Any], reason: str
) -> None:
    assert reason in (no_budget(budget_request(**micro), **attributes) or "")


def test_the_trainers_own_budget_is_no_change_whatever_its_workers_have() -> None:
    words = (f"{ACTOR}use_dynamic_bsz=True", f"{ACTOR}ppo_max_token_len_per_gpu=2048")
    request = budget_request(*words, tokens_per_device=2048, cap="soft")
    assert no_budget(request, actor_rollout_wg=object()) is None
    assert runtime._budget(request) == {}


def test_every_setting_that_follows_the_actors_gets_the_budget_and_unwrapping_restores_them() -> None:
    omegaconf = pytest.importorskip("omegaconf", reason="comes with batchbridge[hydra]")
    native = dict.fromkeys(FIELDS, 16384) | {key: False for key in FIELDS if key.endswith("dynamic_bsz")}
    native[FIELDS[3]] = f"${{oc.select:{FIELDS[1]},16384}}"
    config = omegaconf.OmegaConf.create()
    for key, value in native.items():
        omegaconf.OmegaConf.update(config, key, value, force_add=True)
    omegaconf.OmegaConf.set_struct(config, True)
    before, patches = omegaconf.OmegaConf.to_container(config, resolve=False), Patches()
    request = budget_request(tokens_per_device=2048, forward_tokens_per_device=4096)
    runtime.configure(config, runtime._budget(request), patches)
    found = {key: omegaconf.OmegaConf.select(config, key) for key in FIELDS}
    assert found == dict(zip(FIELDS, (True, 2048, True, 4096, True, 4096), strict=True))
    assert {change.attribute for change in patches.changes} == set(FIELDS)
    patches.undo()
    assert omegaconf.OmegaConf.to_container(config, resolve=False) == before


def test_a_configuration_without_such_a_setting_is_a_lost_seam() -> None:
    omegaconf = pytest.importorskip("omegaconf", reason="comes with batchbridge[hydra]")
    config = omegaconf.OmegaConf.create({"actor_rollout_ref": {"actor": {"use_dynamic_bsz": False}}})
    omegaconf.OmegaConf.set_struct(config, True)
    with pytest.raises(AttributeError):
        runtime.configure(config, runtime._budget(budget_request(tokens_per_device=2048)), Patches())


@pytest.mark.parametrize(
    ("budget", "cap", "named"), [(1024, "soft", False), (1023, "soft", True), (1023, "hard", False)]
)
def test_a_soft_budget_below_the_longest_sequence_is_left_different_by_name(budget: int, cap: Any, named: bool) -> None:
    _, left = runtime.settings_of(budget_request(tokens_per_device=budget, cap=cap))
    assert ("micro_batch.cap" in left) is named


SHARED = {"actor_rollout_ref.model.override_config.attn_implementation": "sdpa"}
"""What verl's own defaults lack for prompts to be shared."""


def in_the_way(version: str = "0.9.1", **settings: Any) -> str | None:
    """The reasons against sharing prompts in a trainer of the usual command and these settings."""
    reading = read(COMMAND, version=version, dataset_size=12)
    assert reading.spec is not None
    told = {"actor_rollout_ref.model.use_remove_padding": True, **SHARED, **settings}
    trainer = trainer_of(reading, V1_TRAINER, told)
    request = Request(spec=reading.spec, plan=None, reading=reading, mode="enforce", padding="free")
    assert sharing.asked_in_vain(trainer, request) == sharing.in_the_way(trainer, request)
    return sharing.in_the_way(trainer, request)


def test_prompts_are_shared_under_sdpa_with_rows_end_to_end() -> None:
    assert in_the_way() is None


@pytest.mark.parametrize("key", [key for key, _, _ in sharing.UNPROVEN])
def test_every_setting_that_is_not_proven_with_shared_prompts_is_refused_by_its_name(key: str) -> None:
    value = False if key.endswith("use_remove_padding") else 2
    said = in_the_way(**{f"actor_rollout_ref.{key}": value})
    assert said is not None
    assert said.startswith(f"actor_rollout_ref.{key} = {value}: ")
    assert ";" in said.partition(": ")[2], "what to do about it"


def test_the_samplers_log_probabilities_as_the_old_ones_are_not_proven_with_shared_prompts() -> None:
    said = in_the_way(**{f"{CORRECTION}bypass_mode": True})
    assert (said or "").startswith(f"{CORRECTION}bypass_mode = True: ")


@pytest.mark.parametrize("attention", ["eager", "flash_attention_2", "flash_attention_3", "flex_attention", None])
def test_another_attention_than_sdpa_is_refused(attention: str | None) -> None:
    said = in_the_way(**{"actor_rollout_ref.model.override_config.attn_implementation": attention})
    assert said is not None
    assert said.startswith(f"attention is {attention or 'flash_attention_2'}, ")


@pytest.mark.parametrize("version", ["0.8.0", "0.9.0"])
def test_an_earlier_release_is_refused(version: str) -> None:
    assert (in_the_way(version) or "").endswith(f"proven on verl 0.9.1, and this is {version}")


def test_what_need_not_be_shared_is_not_refused() -> None:
    reading = read(COMMAND, version="0.9.1", dataset_size=12)
    assert reading.spec is not None
    trainer = trainer_of(reading, V1_TRAINER, {})
    for padding in ("padded", "auto"):
        request = Request(spec=reading.spec, plan=None, reading=reading, mode="enforce", padding=padding)
        assert sharing.asked_in_vain(trainer, request) is None


@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7)), min_size=1, max_size=40, unique=True),
    st.integers(1, 4),
    st.integers(1, 5),
)
def test_groups_lie_together_on_ranks_of_one_size_and_no_row_is_lost(
    members: list[tuple[int, int]], ranks: int, multiple: int
) -> None:
    order = together(members, ranks, multiple=multiple, costs=[1 + sample for _, sample in members])
    assert sorted(row for row in order if row is not None) == sorted(members)
    size, rest = divmod(len(order), ranks)
    assert (rest, size % multiple) == (0, 0)
    held = [order[rank * size : (rank + 1) * size] for rank in range(ranks)]
    counts = [sum(row is not None for row in block) for block in held]
    assert max(counts) - min(counts) <= 1
    assert size - max(counts) < multiple
    for block in held:
        prompts = [row[0] for row in block if row is not None]
        changes = sum(before != after for before, after in pairwise(prompts))
        assert changes == max(len(set(prompts)) - 1, 0)
