"""The parts of the running trainer that need no Open-Instruct: refusals, code that is proven, answers, resume."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge import wrap
from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Context, Mode, Source
from batchbridge.errors import CannotAttach
from batchbridge.kit.proven import records
from batchbridge.kit.refusals import reasons_against, split
from batchbridge.kit.workers import orders_of
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.prompt_digest import digest_of
from batchbridge.meaning.spec import Spec, Staleness
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read
from batchbridge_open_instruct import engine, feed, proven, runtime
from batchbridge_open_instruct.candidates import CandidateQueue
from batchbridge_open_instruct.config import OpenInstructAdapter
from batchbridge_open_instruct.learners import FastLearner

COMMAND = (
    *("python", "open_instruct/grpo_fast.py", "--num_unique_prompts_rollout", "6", "--async_steps", "1"),
    *("--num_samples_per_prompt_rollout", "4", "--num_learners_per_node", "2", "--total_episodes", "72"),
    *("--filter_zero_std_samples", "False", "--beta", "0.0", "--load_ref_policy", "False", "--num_epochs", "2"),
)
NEWEST = "2026.8.20"


SHARED = ("--sequence_parallel_size", "2", "--deepspeed_stage", "3")


def policy(attention: str = "flash_attention_2", **settings: Any) -> Any:
    """A model's configuration."""
    made = SimpleNamespace(_attn_implementation=attention, hidden_size=32, **settings)
    return SimpleNamespace(get_text_config=lambda: made)


POLICY = policy(layer_types=["full_attention", "sliding_attention"])


def view(policy: Any = POLICY, num_training_steps: int = 3, passes: int = 2) -> runtime.LearnerView:
    own = SimpleNamespace(num_training_steps=num_training_steps, num_epochs=passes)
    trainer = SimpleNamespace(args=own, policy=SimpleNamespace(config=policy), ref_policy=object())
    return runtime.LearnerView(own, SimpleNamespace(), FastLearner(trainer))


def request_of(*more: str, dataset_size: int = 12, **changes: Any) -> Request:
    found = read([*COMMAND, *more], version=NEWEST, dataset_size=dataset_size)
    assert found.spec is not None, found.findings
    wanted = found.spec.replace(staleness=Staleness()).replace(**changes)
    return Request(spec=wanted, plan=plan_of(wanted, dataset_size), reading=found, mode="enforce")


def refused(trainer: runtime.LearnerView, request: Request) -> set[str]:
    return set(reasons_against(runtime.REFUSALS, trainer, request))


def test_a_job_of_one_mini_batch_that_drops_nothing_is_not_refused() -> None:
    assert refused(view(), request_of()) == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_resampling", ("--no_resampling_pass_rate", "0.9")),  # the spec is synchronous, and filters nothing
        ("mask_truncated_completions", ("--mask_truncated_completions", "True")),
        ("rho_by_row", ("--rho_mask_sequence_level", "True")),
        ("rho_by_row", ("--rho_mask_tv_divergence", "True")),
    ],
)
def test_what_the_trainer_does_with_rows_or_prompts_is_refused_by_name(name: str, words: tuple[str, ...]) -> None:
    assert name in refused(view(), request_of(*words))


def test_a_schedule_of_another_number_of_rollouts_is_refused() -> None:
    assert refused(view(num_training_steps=4), request_of()) == {"clock"}


def test_rows_that_flash_attention_alone_mixes_may_be_shared_by_ranks() -> None:
    request = request_of(*SHARED, "--num_learners_per_node", "4")
    assert refused(view(), request) == set()
    assert refused(view(policy=policy("flash_attention_3", linear_attention_heads=0)), request) == set()


@pytest.mark.parametrize(
    ("mode", "changed"),
    [
        ("verify", {}),
        ("observe", {}),
        ("enforce", {"policy": policy("sdpa")}),
        ("enforce", {"policy": policy(layer_types=["full_attention", "linear_attention"])}),
        ("enforce", {"policy": policy(mamba_d_state=16)}),
    ],
)
def test_rows_that_are_shared_otherwise_are_refused(mode: Mode, changed: dict[str, Any]) -> None:
    request = dataclasses.replace(request_of(*SHARED, "--num_learners_per_node", "4"), mode=mode)
    assert "sequence_parallel" in refused(view(**changed), request)


def test_rows_of_several_in_a_micro_batch_are_not_shared() -> None:
    words = ("--num_learners_per_node", "4", "--per_device_train_batch_size", "2")
    assert "sequence_parallel" in refused(view(), request_of(*SHARED, *words))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), False),
        (("--attn_implementation", "flash_3"), False),
        (("--attn_implementation", "torch"), True),
        (("--model_name_or_path", "allenai/Olmo-Hybrid-Instruct-DPO-7B"), True),
        (("--model_name_or_path", "Qwen/Qwen3.5-4B-Base"), True),
        (("--model_name_or_path", "allenai/Olmo-3-7B-Instruct"), False),
    ],
)
def test_what_a_command_line_says_of_shared_rows_is_foretold(more: tuple[str, ...], told: bool) -> None:
    (refusal,) = [one for one in runtime.REFUSALS if one.name == "sequence_parallel"]
    request = request_of(*SHARED, "--num_learners_per_node", "4", *more)
    assert refusal.foreseen(request) == told
    assert refusal.foreseen(dataclasses.replace(request, mode="observe")) is True


@pytest.mark.parametrize("settings", [{"layer_types": ["full_attention", "linear_attention"]}, {"mamba_d_state": 16}])
def test_a_model_whose_layers_carry_a_state_along_packed_rows_is_refused(settings: dict[str, Any]) -> None:
    assert refused(view(policy=policy("sdpa", **settings)), request_of()) == {"recurrent_layers"}
    assert refused(view(policy=policy("sdpa")), request_of()) == set()


def test_another_number_of_passes_is_refused_with_the_clock_that_it_changes() -> None:
    assert refused(view(), request_of(**{"optimizer_step.passes_per_rollout": 1})) >= {"passes", "clock"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("mini_batches", {"optimizer_step.completions_per_step": 12, "horizon.optimizer_steps": 6}),
        ("aggregation", {"loss.policy.aggregation": "sequence_mean"}),
        ("aggregation", {"loss.policy.aggregation": "prompt_mean"}),
        ("denominator_scope", {"loss.policy.denominator_scope": "micro_batch"}),
        ("surrogate", {"objective.surrogate": "sapo"}),
        ("surrogate", {"objective.ratio_level": "sequence"}),
        ("surrogate", {"objective.dual_clip": 3.0}),
        ("value_baseline", {"advantage.baseline": "value"}),
        ("group_size", {"rollout.completions_per_prompt": 8, "optimizer_step.completions_per_step": 48}),
        ("prompts_per_rollout", {"rollout.prompts_per_rollout": 3, "optimizer_step.completions_per_step": 12}),
        ("group_filter", {"rollout.group_filter": "drop_zero_variance"}),
        ("staleness", {"staleness.mode": "lookahead"}),
        ("staleness", {"staleness.mode": "bounded", "staleness.maximum": None}),
        ("staleness", {"staleness.mode": "bounded", "staleness.unit": "optimizer_steps"}),
        ("old_logprobs", {"objective.old_logprobs": "detached"}),
        ("sampler_correction", {"objective.sampler_correction": None}),
        ("entropy", {"objective.entropy_coefficient": 0.01}),
        ("truncated_completions", {"rollout.truncated_completions": "drop"}),
        ("clock", {"horizon.lr_tick": "rollout"}),
        ("tokens_per_device", {"micro_batch.tokens_per_device": 64}),
    ],
)
def test_a_spec_that_cannot_be_brought_about_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    if "horizon.optimizer_steps" in changes:
        changes = {**changes, "horizon.rollouts": None}
    assert name in refused(view(), request_of(**changes))


def test_kl_needs_the_reference_that_was_loaded_and_an_estimator_that_is_proven() -> None:
    wanted = {"objective.kl_coefficient": 0.1, "objective.kl_placement": "loss"}
    loaded = ("--beta", "0.05", "--load_ref_policy", "True")
    good = request_of(*loaded, **wanted, **{"objective.kl_estimator": "k3"})
    assert refused(view(), good) == set()
    assert refused(view(), request_of(**wanted, **{"objective.kl_estimator": "k3"})) == {"kl_without_reference"}
    own = request_of(*loaded, **wanted, **{"objective.kl_estimator": "k1_times_ratio"})
    assert refused(view(), own) == set()
    other = request_of(*loaded, **wanted, **{"objective.kl_estimator": "abs"})
    assert refused(view(), other) == {"kl_estimator"}


def test_a_remainder_of_prompts_in_a_rollout_of_its_own_is_refused() -> None:
    request = request_of(dataset_size=15, **{"order.last_rollout": "short"})
    assert "short_rollout" in refused(view(), request)


BOUNDED = Staleness(mode="bounded", maximum=1)


@pytest.mark.parametrize("more", [(), ("--filter_zero_std_samples", "True")])
def test_what_the_command_line_itself_means_is_not_refused(more: tuple[str, ...]) -> None:
    request = request_of(*more, staleness=BOUNDED)
    assert request.spec == request.reading.spec
    assert refused(view(), request) == set()


def test_groups_may_be_replaced_where_more_than_one_rollout_is_asked_for() -> None:
    request = request_of("--filter_zero_std_samples", "True", "--active_sampling", "True", "--async_steps", "2")
    assert request.spec.rollout.group_filter == "replace_zero_variance"
    assert refused(view(), request) == set()


def test_a_constant_denominator_is_refused_where_dropped_groups_shrink_the_step() -> None:
    constant = ("--loss_denominator", "240")
    assert refused(view(), request_of(*constant)) == set()
    assert refused(view(), request_of(*constant, "--filter_zero_std_samples", "True")) == {"loss_denominator"}


class PolicyTrainerRayProcess(SimpleNamespace):
    """What Open-Instruct's adapter takes for a learner."""


PolicyTrainerRayProcess.__module__ = "open_instruct.grpo_fast"


@pytest.mark.parametrize(
    ("mode", "names"),
    [("enforce", ["plan", "mini_batches", "sequence_parallel"]), ("verify", ["plan", "sequence_parallel"])],
)
def test_every_reason_is_said_at_once(monkeypatch: pytest.MonkeyPatch, mode: Mode, names: list[str]) -> None:
    seen = view()
    model = SimpleNamespace(config=policy("sdpa"))
    learner = PolicyTrainerRayProcess(args=seen.args, streaming_config=seen.config, policy=model, ref_policy=None)
    own = load_source([*COMMAND, *SHARED, "--num_mini_batches", "2"])
    context = Context(framework_version=NEWEST, world_size=2, dataset_size=12)
    monkeypatch.setattr(runtime, "source_of", lambda trainer: (own, context))
    monkeypatch.setattr(runtime, "_checkout", lambda: NEWEST)
    monkeypatch.setattr(engine, "ask", lambda trainer, question: 12)
    with pytest.raises(CannotAttach) as caught:
        wrap(learner, mode=mode)
    # The script's code is not here to be looked at, and that is one reason more.
    assert set(caught.value.reasons) == {"unproven_code", *names}
    if mode == "verify":  # several steps of a rollout; which completions each has is not known
        assert "staleness" not in caught.value.reasons["plan"]
        assert "optimizer_step.completions_per_step" in caught.value.reasons["plan"]


def test_what_the_loss_reads_is_set_in_its_own_words() -> None:
    request = request_of(**{"objective.clip_low": None, "objective.clip_high": 0.3, "objective.surrogate": "cispo"})
    settings, left = split(request, runtime.SETTABLE)
    settings.pop("use_kl_loss", None)
    assert settings == {"clip_lower": runtime.OFF, "clip_higher": 0.3, "loss_fn": "cispo"}
    assert left == {}


# ---- code that is proven


def test_a_checkout_is_known_by_its_code_alone(tmp_path: Path) -> None:
    (tmp_path / "grpo_fast.py").write_text("class PolicyTrainerRayProcess:\n    def step(self):\n        return 1\n")
    assert proven.checkout_of(tmp_path) is None


def test_the_proven_checkout_is_the_newest() -> None:
    assert OpenInstructAdapter.enforced_versions == f">={NEWEST}"
    assert records("batchbridge_open_instruct")["open_instruct"].tested == (NEWEST,)


def test_a_learner_is_known_by_its_class_of_the_module_or_the_script() -> None:
    adapter = OpenInstructAdapter()
    for module, known in (("open_instruct.grpo_fast", True), ("__main__", True), ("elsewhere", False)):
        assert adapter.owns(type("PolicyTrainerRayProcess", (), {"__module__": module})()) is known


# ---- checkpoints


def place(
    *,
    consumed: int,
    ranks: int = 2,
    spec: Spec | None = None,
    notes: list[str] | None = None,
    share: float | None = None,
    prompts: Sequence[str] = (),
    allow: Sequence[str] = (),
) -> feed.PlanPositionLoader:
    wanted = request_of().plan if spec is None else plan_of(spec, 12)
    assert wanted is not None
    config = SimpleNamespace(no_resampling_pass_rate=share)
    actor = SimpleNamespace(_last_consumed_step=consumed, dp_world_size=ranks, config=config)
    candidates = CandidateQueue(wanted)
    candidates.start_at(consumed + 1, 6 * (consumed + 1))
    request = dataclasses.replace(request_of(), prompts=digest_of(prompts), allow=frozenset(allow))
    return feed.PlanPositionLoader(
        actor,
        wanted,
        candidates,
        ([] if notes is None else notes).extend,
        FastLearner.other_ranks,
        orders_of(request, "of a test"),
    )


def test_a_checkpoint_continues_the_plan_that_it_was_written_by() -> None:
    state = json.loads(json.dumps(place(consumed=1).state_dict()))
    place(consumed=-1).load_state_dict(state)
    assert (state["optimizer_steps"], state["ranks"]) == (4, 2)
    other = request_of(**{"carried.learning_rate": 0.5}).spec
    notes: list[str] = []
    place(consumed=-1, spec=other, notes=notes).load_state_dict(state)
    assert re.search(r"carried\.learning_rate: .* in the checkpoint, 0\.5 now", notes[0])


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_goes_on_at_the_candidate_that_no_rollout_took(saved: bool) -> None:
    spec = request_of("--filter_zero_std_samples", "True", staleness=BOUNDED).spec
    one = place(consumed=1, spec=spec)
    one._candidates.start_at(2, 18)  # a rollout took six more, since all of its own were dropped
    state = one.state_dict()
    if not saved:
        del state["next_candidate"]
    other = place(consumed=-1, spec=spec)
    other.load_state_dict(state)
    assert other._candidates.next_of(2) == (18 if saved else 12)


def test_a_checkpoint_of_other_ranks_another_plan_or_an_unwrapped_run_is_refused() -> None:
    state = place(consumed=1).state_dict()
    with pytest.raises(CannotAttach, match="written by 2 ranks, this run has 4: start as many; DeepSpeed's ZeRO"):
        place(consumed=-1, ranks=4).load_state_dict(state)
    with pytest.raises(CannotAttach, match="without batchbridge"):
        place(consumed=-1).load_state_dict({"epoch": 0, "batches_processed": 4})
    other = request_of(**{"order.seed": 9}).spec
    with pytest.raises(CannotAttach, match=r"order\.seed: .* in the checkpoint, 9 now"):
        place(consumed=-1, spec=other).load_state_dict(state)


def test_a_checkpoint_of_other_prompts_is_refused_unless_they_are_allowed() -> None:
    notes: list[str] = []
    state = json.loads(json.dumps(place(consumed=1, prompts=["a", "b"]).state_dict()))
    place(consumed=-1, prompts=["a", "b"]).load_state_dict(state)
    with pytest.raises(CannotAttach, match=r"was written with other prompts .*all 2 prompts: other texts, or the same"):
        place(consumed=-1, prompts=["b", "a"]).load_state_dict(state)
    place(consumed=-1, prompts=["b", "a"], allow=["data"], notes=notes).load_state_dict(state)
    assert "which allow=data accepts" in notes[0]
    del state["prompts"]  # of an earlier release
    place(consumed=-1, prompts=["b", "a"]).load_state_dict(state)


def test_the_prompts_of_an_actor_are_those_that_it_generates_from_and_are_read_once() -> None:
    rows = Rows(input_ids_prompt=[[1, 2], [3]], prompt=["one", "two"])
    actor = SimpleNamespace(dataset=rows)
    assert feed.digest_of_prompts(actor) == digest_of([[1, 2], [3]])
    rows.columns["input_ids_prompt"].reverse()
    assert feed.digest_of_prompts(actor) == digest_of([[1, 2], [3]]), "of the start"
    assert feed.digest_of_prompts(SimpleNamespace(dataset=rows)) == digest_of([[3], [1, 2]])
    assert feed.digest_of_prompts(SimpleNamespace(dataset=Rows(prompt=["one"]))) is None


class Rows:
    """A data set, as far as a column of it is read."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {name: column[place] for name, column in self.columns.items()}


def test_a_run_goes_on_without_the_prompts_that_were_solved_before_its_checkpoint() -> None:
    spec = request_of(staleness=BOUNDED).spec
    one = place(consumed=1, spec=spec, share=0.9)
    one._candidates._solved = {3: 2, 5: 11, 4: 14}  # the last one in a rollout that was prepared ahead
    state = json.loads(json.dumps(one.state_dict()))
    other = place(consumed=-1, spec=spec, share=0.9)
    other.load_state_dict(state)
    assert other._candidates.solved_at_start == {3, 5}
    with pytest.raises(CannotAttach, match=r"no_resampling_pass_rate was 0\.9 in the run .*, and is None: set it back"):
        place(consumed=-1, spec=spec).load_state_dict(state)


def test_prompts_that_were_solved_are_left_out_where_rollouts_are_filled_as_they_run() -> None:
    request = request_of("--no_resampling_pass_rate", "0.9", staleness=BOUNDED)
    assert refused(view(), request) == set()
    assert "no_resampling" in refused(view(), dataclasses.replace(request, mode="verify"))


def test_an_actor_that_prepares_already_is_not_patched() -> None:
    actor = SimpleNamespace(_prep_future=object(), dataset=[1, 2])
    with pytest.raises(CannotAttach, match="in_training"):
        feed.install(actor, SimpleNamespace(start_id="a"), "")  # type: ignore[arg-type]  # what install reads of orders


def test_a_learners_configurations_are_read_as_their_command_line_would_be() -> None:
    args = SimpleNamespace(beta=0.0, load_ref_policy=False, max_grad_norm=None, num_learners_per_node=[2], seed=7)
    config = SimpleNamespace(num_unique_prompts_rollout=6, num_samples_per_prompt_rollout=4, async_steps=1)
    values = runtime.values_of(NEWEST, args, config)
    found = OpenInstructAdapter().read(Source(values=values), Context(framework_version=NEWEST, world_size=2))
    assert found.spec is not None, found.findings
    assert found.spec.carried.max_gradient_norm == 0.0  # off, not the parser's default of 1.0
    assert found.spec.order.seed == 7
    assert (found.spec.topology.world_size, found.spec.rollout.prompts_per_rollout) == (2, 6)


def test_a_rollout_is_not_asked_of_an_actor_that_lost_its_orders() -> None:
    with pytest.raises(CannotAttach, match="arrival: the data preparation actor has no orders"):
        feed.begin(SimpleNamespace(), 3)
