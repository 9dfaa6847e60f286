"""OpenRLHF's runtime as far as it can be said without OpenRLHF: refusals, settings, which rank gets what."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge import wrap
from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Context, Mode, Source
from batchbridge.errors import BatchDrift, CannotAttach, LedgerError
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import reasons_against
from batchbridge.kit.workers import Orders, Receipt, orders_of
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.spec import Loss, LossTerm
from batchbridge.reading.read import read_source
from batchbridge_openrlhf import refusals, runtime
from batchbridge_openrlhf.answers import prompt_tokens
from batchbridge_openrlhf.candidates import CandidateDriver
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_openrlhf.critic import critics_orders, critics_spec
from batchbridge_openrlhf.driver import STATE, OpenRlhfDriver, check_ranks
from batchbridge_openrlhf.meaning import CORRECTION_WORDS
from batchbridge_openrlhf.sampling import SeededEngines, in_engine, out_of_engine
from batchbridge_openrlhf.user_options import RunningArguments

GIVEN: dict[str, Any] = {
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0.0,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 3,
    "train.batch_size": 6,
    "train.micro_batch_size": 1,
    "train.seed": 7,
    "actor.num_gpus_per_node": 2,
    "ref.num_gpus_per_node": 2,
}
PROMPTS = 8


def options(**changes: Any) -> dict[str, Any]:
    """Options of the trainer's own; double underscores stand for dots."""
    return {name.replace("__", "."): value for name, value in changes.items()}


def request_of(given: dict[str, Any] | None = None, prompts: int = PROMPTS, **changes: Any) -> Request:
    """The trainer's own configuration, and a spec with `changes` (double underscores stand for dots)."""
    source = Source(values={**GIVEN, **(given or {})}, native=RunningArguments())
    reading = read_source(
        source, OpenRlhfAdapter(), Context(framework_version="0.11.2", dataset_size=prompts, world_size=2)
    )
    assert reading.spec is not None, reading.findings
    spec = reading.spec.replace(**{name.replace("__", "."): value for name, value in changes.items()})
    return Request(spec=spec, plan=plan_of(spec, prompts), reading=reading, mode="enforce")


def refused(request: Request) -> set[str]:
    return set(reasons_against(refusals.REFUSALS, None, request))


GAE = {"algo.advantage.estimator": "gae"}


def test_a_run_with_a_critic_is_refused_nothing() -> None:
    request = request_of(GAE)
    assert request.spec.critic is not None
    assert refused(request) == set()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("critic", {"critic.": None}),
        ("critic_advantages", {"critic.gamma": 0.9}),
        ("critic_advantages", {"critic.gae_lambda": 0.9}),
        ("critic_steps", {"critic.completions_per_step": 3}),
        ("critic_steps", {"critic.passes_per_rollout": 2}),
        ("critic_aggregation", {"critic.aggregation": "token_sum"}),
        ("critic_aggregation", {"critic.denominator_scope": "rank"}),
    ],
)
def test_what_a_spec_asks_of_a_critic_and_openrlhf_cannot_do_is_refused_by_name(
    name: str, changes: dict[str, Any]
) -> None:
    assert refused(request_of(GAE, **changes)) == {name}


def test_a_trainer_without_a_critic_is_no_run_with_one() -> None:
    request = request_of()
    asked = request_of(GAE).spec
    assert "critic" in refused(dataclasses.replace(request, spec=asked))


def test_the_critics_processes_are_told_the_critics_steps_and_loss() -> None:
    asked = request_of(GAE, **{"critic.value_clip": 0.3, "critic.tokens_per_device": 50})
    request = dataclasses.replace(asked, ledger=Path("runs/a"))
    told = critics_orders(orders_of(request, "0.11.2", settings={"actor.entropy_coef": 0.1}))
    assert told.settings == {"loss.clip_eps": 0.3, "loss.token_level_loss": True}
    assert told.spec.loss == Loss(policy=LossTerm(aggregation="token_mean"))
    assert told.spec.micro_batch.tokens_per_device == 50
    assert told.ledger == Path("runs/a/critic").absolute()
    plan = told.plan()
    assert plan is not None
    assert request.plan is not None
    assert plan.total_optimizer_steps == request.plan.total_optimizer_steps
    assert [plan.step(step).members for step in range(plan.total_optimizer_steps)] == [
        request.plan.step(step).members for step in range(plan.total_optimizer_steps)
    ]


def test_a_training_process_of_the_policy_alone_does_not_train_a_critic() -> None:
    with pytest.raises(CannotAttach, match="wrap the PPOTrainer"):
        runtime._patch_worker(SimpleNamespace(), request_of(GAE), Patches(), SimpleNamespace())  # type: ignore[arg-type]


def test_a_running_trainers_prompts_are_ordered_by_its_seed() -> None:
    request = request_of()
    assert request.spec.order.seed == 7
    assert request.reading.provenance["order.seed"].key == "train.seed"
    plain = read_source(Source(values=GIVEN), OpenRlhfAdapter(), Context(framework_version="0.11.2"))
    assert plain.spec is not None
    assert plain.spec.order.seed is None


def test_a_plain_group_normalised_run_is_refused_nothing() -> None:
    assert refused(request_of()) == set()
    assert refused(request_of(options(algo__kl__target=0.0))) == set()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("asynchronous", {"train__async_enable": True}),
        ("agent", {"train__agent_func_path": "agent.py", "data__max_images_per_prompt": 1}),
        ("critic_warmup", {"critic__freezing_steps": 0}),
        ("ema", {"train__enable_ema": True}),
        ("adaptive_kl", {"algo__kl__target": 6.0}),
        ("tensor_parallel", {"ds__tensor_parallel_size": 2, "ds__zero_stage": 3}),
        ("tensor_parallel", {"ds__tensor_parallel_size": 2, "ds__ring_attn_size": 2}),
        ("tensor_parallel", {"ds__tensor_parallel_size": 2, "data__max_images_per_prompt": 1}),
        ("fp16", {"ds__param_dtype": "fp16"}),
        ("router_loss", {"actor__aux_loss_coef": 0.01}),
    ],
)
def test_what_the_trainer_is_configured_for_and_cannot_follow_is_refused_by_name(
    name: str, changes: dict[str, Any]
) -> None:
    assert refused(request_of(options(**changes))) == {name}


def test_a_ring_is_refused_with_a_critic_alone() -> None:
    ring = {"ds__ring_attn_size": 2}
    assert refused(request_of(options(**ring))) == set()
    assert "sequence_parallel" in refused(request_of({**GAE, **options(**ring)}))


def test_tensor_parallelism_up_to_zero_2_is_refused_nothing_and_with_a_critic_it_is() -> None:
    parallel = {"ds__tensor_parallel_size": 2}
    assert refused(request_of(options(**parallel))) == set()
    assert "tensor_parallel" in refused(request_of({**GAE, **options(**parallel)}))


def test_a_critics_warm_up_is_refused_nothing_and_the_policy_has_no_step_in_it() -> None:
    request = request_of({**GAE, "critic.freezing_steps": 0}, **{"critic.warmup_rollouts": 1})
    assert refused(request) == set()
    told = critics_orders(orders_of(request, "0.11.2", ticks=runtime.ticks_of(request))).plan()
    assert request.plan is not None
    assert told is not None
    assert told.total_optimizer_steps == runtime.ticks_of(request) > request.plan.total_optimizer_steps
    assert {step.rollouts for step in request.plan.steps()}.isdisjoint({(0,)})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("batch_scale", {"advantage__scale": "batch"}),
        ("surrogate", {"objective__surrogate": "cispo"}),
        ("sequence_ratio", {"objective__ratio_level": "sequence"}),
        ("aggregation", {"loss__policy__aggregation": "sequence_sum"}),
        ("denominator_scope", {"loss__policy__denominator_scope": "rank"}),
        ("kl_placement", {"objective__kl_placement": "loss", "objective__kl_coefficient": 0.1}),
        ("old_logprobs", {"objective__old_logprobs": "detached"}),
        ("truncated_completions", {"rollout__truncated_completions": "mask"}),
        ("other_correction", {"objective__sampler_correction": "token_truncate [0.5, 5.0]"}),
        ("group_size", {"rollout__completions_per_prompt": 6, "optimizer_step__completions_per_step": 6}),
        ("group_filter", {"rollout__group_filter": "drop_zero_variance"}),
        ("staleness", {"staleness__mode": "bounded", "staleness__maximum": 1, "staleness__unit": "rollouts"}),
    ],
)
def test_what_a_spec_asks_for_and_openrlhf_cannot_do_is_refused_by_name(name: str, changes: dict[str, Any]) -> None:
    assert name in refused(request_of(**changes))


def test_kl_and_entropy_terms_with_other_weights_than_token_means_are_refused() -> None:
    sequences = LossTerm(aggregation="sequence_mean")
    asked = request_of(objective__entropy_coefficient=0.1, loss__policy__aggregation="sequence_mean")
    assert "loss_per_term" in refused(asked)
    own = request_of({"actor.loss_agg_mode": "seq-mean-token-mean", "actor.entropy_coef": 0.1})
    assert own.spec.loss.entropy == LossTerm(aggregation="token_mean")
    assert refused(own) == set()
    spec = own.spec.replace(**{"loss.entropy.aggregation": "sequence_mean"})
    assert spec.loss.entropy == dataclasses.replace(sequences, count_empty=spec.loss.entropy.count_empty)
    assert refused(dataclasses.replace(own, spec=spec)) == {"loss_per_term"}


def test_a_spec_whose_steps_draw_from_two_rollouts_is_refused() -> None:
    leaking = request_of({"train.batch_size": 8})
    assert leaking.spec.optimizer_step.step_may_span == "run"
    assert refused(leaking) == {"step_crosses_rollouts"}
    told = request_of({"train.batch_size": 8}, optimizer_step__step_may_span="none")
    assert refused(told) == set()


@pytest.mark.parametrize(("level", "mode", "gating"), CORRECTION_WORDS)
def test_corrections_towards_the_sampler_are_followed_but_for_the_one_that_rounding_decides(
    level: str, mode: str, gating: str
) -> None:
    asked = {"level": level, "mode": mode, "gating": gating, "threshold": [0.5, 5.0] if gating == "ratio" else [0.01]}
    request = request_of({f"algo.advantage.is_correction_{name}": value for name, value in asked.items()})
    assert request.spec.objective.sampler_correction is not None
    left = {"sampler_correction"} if (level, gating) == ("token", "binary_kl") else set()
    assert refused(request) == left


def test_settings_say_what_the_loss_shall_read_and_what_stays_different() -> None:
    request = request_of(
        objective__clip_high=0.3,
        objective__clip_low=None,
        objective__entropy_coefficient=0.01,
        carried__temperature=0.7,
    )
    settings, left = runtime.settings_of(request)
    assert settings == {
        "loss.token_level_loss": True,
        "loss.policy_loss_type": "ppo",
        "loss.clip_eps_low": 1.0,
        "loss.clip_eps_high": 0.3,
        "loss.dual_clip": None,
        "actor.entropy_coef": 0.01,
    }
    assert list(left) == ["carried.temperature"]


def test_the_kl_coefficient_of_the_loss_is_the_specs() -> None:
    own = {"algo.kl.init_coef": 0.01, "algo.kl.use_loss": True, "algo.kl.estimator": "k2"}
    settings, _ = runtime.settings_of(request_of(own, objective__kl_coefficient=0.2, objective__kl_estimator="k3"))
    assert (settings["algo.kl.init_coef"], settings["algo.kl.estimator"]) == (0.2, "k3")


def test_learning_rate_ticks_count_steps_or_rollouts() -> None:
    assert runtime.ticks_of(request_of()) == 4
    assert runtime.ticks_of(request_of(horizon__lr_tick="rollout")) == 2


def pretend_installed(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Makes OpenRLHF's adapter believe that a release of it is installed, beside a DeepSpeed."""
    versions = {"openrlhf": version, "deepspeed": "0.19.6"}
    monkeypatch.setattr("importlib.metadata.version", versions.__getitem__)
    monkeypatch.setattr("batchbridge.kit.versions.installed", versions.get)


@pytest.mark.parametrize(
    ("version", "name", "reason"),
    [("0.10.3", "version", "openrlhf 0.10.3 is older than 0.10.4"), ("0.11.2", "unproven_code", "openrlhf trainer/")],
)
def test_an_old_release_and_unknown_code_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, version: str, name: str, reason: str
) -> None:
    pretend_installed(monkeypatch, version)
    with pytest.raises(CannotAttach, match=reason) as caught:  # neither package is installed: every function is missing
        runtime.RUNTIME.attach(SimpleNamespace(), request_of())
    assert set(caught.value.reasons) == {name}


def test_what_cannot_be_allowed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, "0.11.2")
    request = dataclasses.replace(request_of(), allow=frozenset({"critic"}))
    with pytest.raises(
        CannotAttach, match=r"critic cannot be allowed; what can: advantages, data, .*kl_estimator, .*unproven_code"
    ):
        runtime.RUNTIME.attach(SimpleNamespace(), request)


class BasePPOTrainer:
    """What OpenRLHF's adapter takes for a driver."""


BasePPOTrainer.__module__ = "openrlhf.trainer.ppo_trainer"


@pytest.mark.parametrize(
    ("mode", "names"),
    [
        ("enforce", ["allow", "unproven_code", "asynchronous", "agent", "ema", "fp16"]),
        # Without a plan of candidates, which only an enforced run follows.
        ("verify", ["plan", "allow", "unproven_code", "asynchronous"]),
    ],
)
def test_that_generation_runs_ahead_hides_no_other_reason(
    monkeypatch: pytest.MonkeyPatch, mode: Mode, names: list[str]
) -> None:
    pretend_installed(monkeypatch, "0.11.2")
    changed = {"train.agent_func_path": "agent.py", "train.enable_ema": True, "ds.param_dtype": "fp16"}
    changed |= {"train.async_enable": True, "data.max_images_per_prompt": 1, "vllm.num_engines": 1}
    given = {**GIVEN, **changed}
    context = Context(framework_version="0.11.2", dataset_size=PROMPTS, world_size=2)
    monkeypatch.setattr(
        runtime, "source_of", lambda trainer: (Source(values=given, native=RunningArguments()), context)
    )
    with pytest.raises(CannotAttach) as caught:
        wrap(BasePPOTrainer(), mode=mode, allow=["critic"])
    # The code of OpenRLHF is not here to be looked at, and that is one reason more.
    assert list(caught.value.reasons) == names
    assert mode == "enforce" or "staleness.mode = bounded" in caught.value.reasons["plan"]


def test_the_prompts_end_is_where_the_response_begins_even_where_nothing_is_trained() -> None:
    assert prompt_tokens({"action_ranges": [(3, 3)], "observation_tokens": [1] * 9}) == 3
    assert prompt_tokens({"action_ranges": [], "observation_tokens": [1] * 9}) == 9


# ---- the driver


class Ranks:
    """A group of actors that nobody asks."""

    def __init__(self, count: int) -> None:
        self._actor_handlers = [object()] * count
        self.duplicate_actors = 1

    def async_run_method_batch(self, method_name: str, **columns: Any) -> list[Any]:
        return []


def driver(
    request: Request,
    ranks: int = 2,
    reference: int | None = None,
    patches: Patches | None = None,
    critic: int | None = None,
) -> tuple[Any, Any]:
    """A `PPOTrainer` as far as the driver looks at it, and the driver."""
    maker = SimpleNamespace(
        make_experience=lambda samples: samples,
        compute_advantages_and_returns=lambda experiences: experiences,
        actor_model_group=(group := Ranks(ranks)),
        critic_model_group=(values := None if critic is None else Ranks(critic)),
        initial_model_group=None if reference is None else Ranks(reference),
        reward_model_group=None,
    )
    trainer = SimpleNamespace(
        args=SimpleNamespace(algo=SimpleNamespace(dynamic_filtering_range=[2.0, 4.0])),
        max_steps=0,
        prompts_dataloader=SimpleNamespace(dataset=[]),
        init_checkpoint_states=lambda: {"global_step": 0, "data_loader_state_dict": {}},
        samples_generator=SimpleNamespace(generate_samples=None),
        experience_maker=maker,
        actor_model_group=group,
        critic_model_group=values,
    )
    orders = Orders(
        spec=request.spec,
        dataset_size=PROMPTS,
        planned=True,
        mode="enforce",
        ledger=None,
        framework_version="0.11.2",
        start_id="x",
        ticks=4,
    )
    kind = CandidateDriver if isinstance(request.plan, CandidatePlan) else OpenRlhfDriver
    return trainer, kind(trainer, request, orders, patches or Patches())


def test_without_receipts_no_rollout_is_generated() -> None:
    trainer, _ = driver(request_of())
    with pytest.raises(CannotAttach, match="no training process has its orders"):
        trainer.samples_generator.generate_samples()


def test_every_step_is_dealt_out_evenly_and_what_no_step_trains_goes_along() -> None:
    request = request_of({"train.batch_size": 5}, optimizer_step__step_may_span="none")
    _, made = driver(request)
    assert request.plan is not None
    planned = request.plan.rollout(0)
    items = [
        SimpleNamespace(
            info={"batchbridge": [0, prompt, position, sample, 2]},
            attention_mask=SimpleNamespace(sum=lambda tokens=position + sample: tokens),
        )
        for position, prompt in enumerate(planned.prompts)
        for sample in range(3)
    ]
    shares = made._shares(items, made._plan, 2)
    held = [{item.info["batchbridge"][2] * 3 + item.info["batchbridge"][3] for item in share} for share in shares]
    assert sorted(row for share in held for row in share) == list(range(12))
    for index in range(2):
        step = set(request.plan.step(index).positions)
        assert sorted(len(share & step) for share in held) == [2, 3]


def test_a_rollout_is_dealt_out_to_rings_and_all_ranks_of_one_get_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    _, made = driver(request_of(), ranks=4)
    got: list[tuple[int, Any]] = []

    def handler(rank: int) -> Any:
        def remote(method: str, data: Any, start: int, end: int) -> int:
            got.append((rank, data["experience"]))
            return rank

        return SimpleNamespace(execute_batch=SimpleNamespace(remote=remote))

    group = SimpleNamespace(_actor_handlers=[handler(rank) for rank in range(4)], duplicate_actors=2)
    made._shares = lambda items, plan, count: [items[:1], items[1:]] if count == 2 else []
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(put=lambda data: data))
    same = {"make_experience_batch": list, "remove_padding_in_sequences": list, "split_experience_batch": list}
    for name in ("openrlhf", "openrlhf.trainer", "openrlhf.trainer.ppo_utils"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "openrlhf.trainer.ppo_utils.experience", SimpleNamespace(**same))
    assert made._send(group, None, made._plan, "append", experience=[["a"], ["b", "c"]]) == [0, 1, 2, 3]
    assert got == [(0, [["a"]]), (1, [["a"]]), (2, [["b", "c"]]), (3, [["b", "c"]])]


def test_forward_micro_batches_are_filled_up_to_what_all_models_ranks_share_evenly() -> None:
    sent: list[int] = []
    _, made = driver(request_of(), ranks=2, reference=3)
    made._native_make = lambda samples: sent.append(len(samples)) or samples
    samples = [
        SimpleNamespace(sequences=SimpleNamespace(numel=lambda size=size: size), info={"own": size})
        for size in (5, 3, 9, 4)
    ]
    assert made._make(samples) == samples
    assert sent == [6]


def test_forward_micro_batches_are_shared_evenly_by_the_critics_ranks_too() -> None:
    sent: list[int] = []
    _, made = driver(request_of(GAE), ranks=2, critic=5)
    made._native_make = lambda samples: sent.append(len(samples)) or samples
    samples = [SimpleNamespace(sequences=SimpleNamespace(numel=lambda: 3), info={}) for _ in range(4)]
    assert made._make(samples) == samples
    assert sent == [10]


def test_a_critics_processes_get_orders_of_their_own_and_are_left_with_the_policys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from batchbridge_openrlhf import driver as module

    asked: list[tuple[int, str | None]] = []

    def install(workers: Any, orders: Orders | None, take: Any) -> list[Receipt]:
        asked.append((len(workers), None if orders is None else orders.spec.digest()))
        return [Receipt(0, 2, "x")]

    monkeypatch.setattr(module, "install_everywhere", install)
    request = request_of(GAE)
    trainer, made = driver(request, ranks=2, critic=3)
    trainer.init_checkpoint_states()
    of_critic = critics_spec(request.spec).digest()
    assert asked == [(2, request.spec.digest()), (3, of_critic)]
    made.detach()
    assert asked[2:] == [(2, None), (3, None)]
    assert [
        name for name, group in (("critic", trainer.critic_model_group),) if "async_run_method_batch" in vars(group)
    ]


def test_a_checkpoint_remembers_the_place_and_refuses_another_plan_or_number_of_ranks() -> None:
    trainer, made = driver(request_of())
    made._next = 1
    state = trainer.prompts_dataloader.state_dict()
    assert state[STATE]["optimizer_steps"] == 2
    resumed, other = driver(request_of())
    resumed.prompts_dataloader.load_state_dict(state)
    assert other._next == 1
    with pytest.warns(UserWarning, match=r"carried\.max_gradient_norm: .* in the checkpoint, 0\.25 now"):
        driver(request_of(carried__max_gradient_norm=0.25))[0].prompts_dataloader.load_state_dict(state)
    for request, ranks, reason in (
        (request_of(), 1, "was written by 2 ranks, this run has 1"),
        (request_of(order__seed=8), 2, r"order\.seed: .* in the checkpoint, 8 now"),
    ):
        with pytest.raises(CannotAttach, match=reason):
            driver(request, ranks)[0].prompts_dataloader.load_state_dict(state)


def test_another_number_of_ranks_is_refused_before_any_training_process_has_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "_actor"
    (folder / "global_step2").mkdir(parents=True)
    for rank in range(2):
        (folder / "global_step2" / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").touch()
    checkpoint = SimpleNamespace(path=str(tmp_path), load_enable=True)

    def run(ranks: int, critic: Ranks | None = None) -> Any:
        return SimpleNamespace(
            args=SimpleNamespace(ckpt=checkpoint), actor_model_group=Ranks(ranks), critic_model_group=critic
        )

    check_ranks(run(3))  # nothing is there yet
    (folder / "latest").write_text("global_step2", encoding="utf-8")
    check_ranks(run(2))
    with pytest.raises(CannotAttach, match="was written by 2 ranks, this run has 3: start as many"):
        check_ranks(run(3))
    check_ranks(run(2, Ranks(5)))  # a critic that was not there begins anew
    (tmp_path / "_critic").symlink_to(folder)
    with pytest.raises(CannotAttach, match="the critic's checkpoint was written by 2 ranks, this run has 5"):
        check_ranks(run(2, Ranks(5)))
    checkpoint.load_enable = False
    check_ranks(run(3))


def test_a_checkpoint_of_an_unwrapped_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from batchbridge_openrlhf import driver as module

    receipt = Receipt(0, 2, "x")
    monkeypatch.setattr(module, "install_everywhere", lambda workers, orders, install: [receipt])
    trainer, made = driver(request_of())
    made._native_start = lambda: {"global_step": 3, "data_loader_state_dict": {"_sampler_iter": 1}}
    with pytest.raises(CannotAttach, match="was written without batchbridge"):
        trainer.init_checkpoint_states()


def test_a_fresh_start_sets_aside_what_a_run_without_a_checkpoint_has_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from batchbridge_openrlhf import driver as module

    monkeypatch.setattr(module, "install_everywhere", lambda workers, orders, install: [Receipt(0, 2, "x")])
    ledger, latest = tmp_path / "ledger", tmp_path / "ckpt" / "_actor" / "latest"
    trainer, made = driver(request_of())
    made._orders = dataclasses.replace(made._orders, ledger=ledger)
    trainer.args.ckpt = SimpleNamespace(path=str(tmp_path / "ckpt"))
    made._native_start = lambda: {"global_step": 0, "data_loader_state_dict": {}}
    ledger.mkdir()
    (ledger / "rank-00000.jsonl").write_text("{}\n", encoding="utf-8")
    latest.parent.mkdir(parents=True)
    latest.write_text("global_step2", encoding="utf-8")
    with pytest.raises(LedgerError, match=r"can go on from .*_actor: resume from there"):
        trainer.init_checkpoint_states()
    latest.unlink()
    with pytest.warns(UserWarning, match=r"it is now .*ledger\.1"):
        trainer.init_checkpoint_states()
    assert [file.name for file in (tmp_path / "ledger.1").iterdir()] == ["rank-00000.jsonl"]


def test_unwrapping_restores_every_attribute() -> None:
    patches = Patches()
    trainer, made = driver(request_of(), patches=patches)
    patches.undo()
    made.detach()
    assert trainer.max_steps == 0
    assert trainer.samples_generator.generate_samples is None


class RayActorError(Exception):
    """As Ray's."""


def test_unwrapping_reaches_every_process_that_lives_and_does_not_stumble_over_dead_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undone: list[str] = []

    class Process:
        def __init__(self, name: str, dead: bool) -> None:
            self.name, self.dead = name, dead
            self.__ray_call__ = self

        def remote(self, function: Any, *given: Any) -> Any:
            if self.dead:
                return RayActorError()
            return lambda: undone.append(f"{self.name}: {function.__name__}{given}")

    def get(ref: Any) -> Any:
        for one in ref if isinstance(ref, list) else [ref]:
            if isinstance(one, Exception):
                raise one
            one()

    exceptions, handles = SimpleNamespace(RayActorError=RayActorError), SimpleNamespace(ActorHandle=tuple)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=get, exceptions=exceptions, actor=handles))
    trainer, made = driver(request_of())
    trainer.actor_model_group._actor_handlers = [Process("rank 0", True), Process("rank 1", False)]
    trainer.samples_generator.vllm_engines = [Process("engine 0", False), Process("engine 1", True)]
    made._sent = made._reached = True
    with pytest.warns(UserWarning, match="1 of 2 training workers are gone"):
        made.detach()
    assert undone == ["rank 1: in_worker(None,)", "engine 0: out_of_engine()"]
    made.detach()
    assert len(undone) == 2, "once"


def test_both_trainers_are_owned_and_nothing_else() -> None:
    adapter = OpenRlhfAdapter()
    for module, name in (
        ("openrlhf.trainer.ppo_trainer", "BasePPOTrainer"),
        ("openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer"),
    ):
        base = type(name, (), {"__module__": module})
        assert adapter.owns(type("Mine", (base,), {})())
    assert not adapter.owns(type("ActorPPOTrainer", (), {})())


def test_the_launch_hooks_ray_and_the_whole_trainers() -> None:
    """Of an asynchronous trainer, which is an actor that has two others, the whole one."""
    from batchbridge_openrlhf import launched

    modules = {"openrlhf.trainer.ppo_trainer", "openrlhf.trainer.ppo_trainer_async"}
    assert set(OpenRlhfAdapter().hooks()) == {"ray", *modules}
    followed: list[Any] = []

    class Base:
        def __init__(self, size: int, ahead: bool = False) -> None:
            self.size, self.args = size, SimpleNamespace(train=SimpleNamespace(async_enable=ahead))

    class Whole:
        def __init__(self, size: int) -> None:
            self.size = size

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launched, "follow", followed.append)
        launched.driver(SimpleNamespace(BasePPOTrainer=Base))  # type: ignore[arg-type]  # as far as it looks
        made = Base(3)
        Base(4, ahead=True)
        of_ray = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=Whole))
        launched.asynchronous(SimpleNamespace(PPOTrainerAsync=of_ray))  # type: ignore[arg-type]  # likewise
        whole = Whole(5)
    assert followed == [made, whole]
    assert (made.size, whole.size) == (3, 5)


def test_a_missing_completion_ends_the_run_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of()
    trainer, made = driver(request)
    made._receipts = [Receipt(0, 2, "x")]
    collate = lambda rows: ([], ["p"] * len(rows), [""] * len(rows), [None] * len(rows))  # noqa: E731 - one line
    made._dataset = type(
        "Prompts", (), {"__getitem__": lambda self, index: index, "collate_fn": staticmethod(collate)}
    )()
    made._generator._dispatch_prompts_to_vllm = lambda prompts, labels, images: [[{}] * 3, [{}] * 2, [{}] * 3, [{}] * 3]
    made._generator._process_response_into_experience = lambda answer: SimpleNamespace(info={})
    made._generator.vllm_engines = engines = [object()]
    monkeypatch.setattr("batchbridge_openrlhf.driver.reach", lambda reached: None)
    trainer.args = SimpleNamespace(vllm=SimpleNamespace(enable_sleep=False))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda refs: refs))
    engine = SimpleNamespace(batch_vllm_engine_call=None)
    for name in ("openrlhf", "openrlhf.trainer", "openrlhf.trainer.ray"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "openrlhf.trainer.ray.vllm_engine", engine)
    monkeypatch.setattr("batchbridge_openrlhf.driver.identify", lambda made, **identity: made)
    monkeypatch.setattr("batchbridge_openrlhf.driver.prompt_tokens", lambda answer: 1)
    monkeypatch.setattr("batchbridge_openrlhf.driver.mark", lambda made, answer: made)
    assert request.plan is not None
    prompt = request.plan.rollout(0).prompts[1]
    with pytest.raises(BatchDrift, match=f"2 completions of prompt {prompt} arrived, not 3"):
        trainer.samples_generator.generate_samples()
    assert made._generator.vllm_engines is engines


# ---- dynamic filtering

FILTERED = {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": [2.0, 4.0], "vllm.num_engines": 1}
BOUNDS = "the bounds of algo.dynamic_filtering_range in the trainer"


def test_a_filter_is_the_trainers_own_and_leaves_the_plan_of_candidates() -> None:
    own = request_of(FILTERED)
    assert own.spec.rollout.group_filter == "custom"
    assert isinstance(own.plan, CandidatePlan)
    assert refused(own) == set()
    assert runtime.settings_of(own)[1] == {}
    other = request_of(FILTERED, objective__clip_high=0.3)
    assert runtime.settings_of(other)[1] == {"rollout.group_filter": f"custom in the requested spec, {BOUNDS}"}
    assert refused(request_of(FILTERED, rollout__group_filter="none")) == {"group_filter"}


def test_a_single_training_process_cannot_know_what_a_filter_dropped() -> None:
    with pytest.raises(CannotAttach, match=r"rewards decide which prompts fill a rollout, .*: wrap the PPOTrainer"):
        runtime._patch_worker(SimpleNamespace(), request_of(FILTERED), Patches(), SimpleNamespace())  # type: ignore[arg-type]


def test_a_checkpoint_remembers_the_next_candidate_and_one_without_is_refused() -> None:
    trainer, made = driver(request_of(FILTERED))
    made._next, made._next_candidate = 1, 7
    state = trainer.prompts_dataloader.state_dict()
    assert state[STATE]["next_candidate"] == 7
    resumed, other = driver(request_of(FILTERED))
    resumed.prompts_dataloader.load_state_dict(state)
    assert (other._next, other._next_candidate) == (1, 7)
    del state[STATE]["next_candidate"]
    with pytest.raises(CannotAttach, match="its place among them is unknown"):
        driver(request_of(FILTERED))[0].prompts_dataloader.load_state_dict(state)


def test_a_group_that_is_sent_in_the_place_of_another_is_not_trained() -> None:
    _, made = driver(request_of(FILTERED))
    made._kept = [0, 2, 3, 5]
    item = SimpleNamespace(info={"batchbridge": [0, 3, 1, 2, 4]})
    with pytest.raises(BatchDrift, match=r"sample 2 of candidate 3 .* in place 1, .*: the filter kept \[0, 2, 3, 5\]"):
        made._shares([item], made._plan, 2)


# ---- sampling seeds


class Remote:
    """An engine as the driver sees it: every call is kept as it was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, int]] = []
        self.generate_responses = SimpleNamespace(remote=self._remote)

    def _remote(self, *, prompt: str, sampling_params: Any) -> None:
        self.sent.append((prompt, sampling_params.seed))


def test_requests_take_their_prompts_seeds_in_the_order_of_the_dispatch_whichever_engine_they_go_to() -> None:
    first, second = Remote(), Remote()
    engines, params = SeededEngines([first, second], [7, 50, 90]), SimpleNamespace(seed=None)
    for prompt, engine in (("a", 1), ("b", 0), ("c", 1)):
        engines[engine].generate_responses.remote(prompt=prompt, sampling_params=params)
    assert len(engines) == 2
    assert [engine.sent for engine in engines] == [[("b", 50)], [("a", 7), ("c", 90)]]


def executing() -> tuple[Any, list[int | None]]:
    """An engine with an executor, and the seeds that it was asked for."""
    seen: list[int | None] = []
    executor = SimpleNamespace(execute=lambda *, sampling_params, prompt: seen.append(sampling_params.seed))
    return SimpleNamespace(executor=executor), seen


def test_every_sample_of_a_request_takes_the_next_seed() -> None:
    engine, seen = executing()
    assert in_engine(engine)
    assert in_engine(engine), "reached again before every rollout"
    for first in (50, 7):
        params = SimpleNamespace(seed=first)
        for _ in range(3):
            engine.executor.execute(sampling_params=params, prompt="a")
    assert seen == [50, 51, 52, 7, 8, 9]


def test_an_engine_is_what_it_was_once_its_patch_is_undone() -> None:
    engine, _ = executing()
    native = engine.executor.execute
    for _ in range(2):
        in_engine(engine)
    assert engine.executor.execute is not native
    for _ in range(2):
        out_of_engine(engine)
    assert engine.executor.execute is native
    assert set(vars(engine)) == {"executor"}


def test_a_request_without_a_seed_is_drawn_as_ever() -> None:
    engine, seen = executing()
    in_engine(engine)
    params = SimpleNamespace(seed=None)
    for _ in range(2):
        engine.executor.execute(sampling_params=params, prompt="a")
    assert seen == [None, None]


def test_an_engine_that_asks_in_another_way_is_not_taken_for_one_that_takes_seeds() -> None:
    assert not in_engine(SimpleNamespace())
