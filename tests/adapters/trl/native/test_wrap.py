"""What `wrap` and `unwrap` promise about the trainer object, and what they refuse."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib.metadata import version as installed_version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch
from packaging.version import Version
from transformers import TrainerCallback
from trl import GRPOTrainer

import batchbridge
import batchbridge_trl.runtime as runtime
import batchbridge_trl.sharding as sharding
from batchbridge import BatchDrift, CannotAttach, Plan, unwrap, wrap
from batchbridge.kit.proven import records
from batchbridge.ledger import diff, read_headers
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer
from batchbridge_trl.releases import has, lacks
from batchbridge_trl.testing import flat_parameters

SCALES_BATCHES = ">=0.22.2"
MESHES = pytest.mark.skipif(not hasattr(accelerate, "ParallelismConfig"), reason="this Accelerate has no device mesh")


def test_wrap_returns_the_same_trainer_and_says_what_it_changed(trainer: Callable[..., Any]) -> None:
    built = trainer()
    assert wrap(built) is built
    changed = {change.attribute for change in built.batchbridge.changes}
    assert {"training_step", "compute_loss", "get_train_dataloader"} <= changed
    assert "training_step" in built.batchbridge.report()


def test_wrapping_twice_is_wrapping_once(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer())
    first, step, callbacks = built.batchbridge, built.training_step, len(built.callback_handler.callbacks)
    wrap(built)
    assert built.batchbridge is first
    assert built.training_step == step
    assert len(built.callback_handler.callbacks) == callbacks


def test_another_request_replaces_the_first(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer())
    wrap(built, mode="observe")
    assert built.batchbridge.mode == "observe"
    assert "set_initial_training_values" not in vars(built)


def test_unwrap_restores_the_native_run_bit_for_bit(trainer: Callable[..., Any]) -> None:
    plain, wrapped = trainer("plain", num_train_epochs=1), trainer("wrapped", num_train_epochs=1)
    before = set(vars(wrapped))
    unwrap(wrap(wrapped))
    assert set(vars(wrapped)) == before
    plain_random = torch.get_rng_state()
    plain.train()
    torch.set_rng_state(plain_random)
    wrapped.train()
    assert torch.equal(flat_parameters(plain.model), flat_parameters(wrapped.model))


def test_what_is_put_around_a_wrapped_trainers_step_stays_there(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(max_steps=1))
    step, calls = built.training_step, []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return step(*arguments)

    built.training_step = counted
    built.train()
    assert len(calls) == built.args.gradient_accumulation_steps


def test_unwrapping_a_plain_trainer_does_nothing(trainer: Callable[..., Any]) -> None:
    built = trainer()
    assert unwrap(built) is built


def test_an_unknown_mode_is_an_error(trainer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="observe, verify, enforce"):
        wrap(trainer(), mode="imitate")  # type: ignore[arg-type]  # that is the test


def test_a_stranger_is_refused_with_the_known_adapters() -> None:
    with pytest.raises(CannotAttach, match=r"no installed adapter takes a object; adapters: .*trl"):
        wrap(object())


@pytest.mark.parametrize("mode", ["enforce", "verify", "observe"])
def test_unsloths_class_over_trls_own_is_refused_in_every_mode(trainer: Callable[..., Any], mode: Any) -> None:
    """A stand-in of that name: Unsloth derives its class from TRL's where it cannot rewrite TRL's source."""
    built = trainer()
    built.__class__ = type("UnslothGRPOTrainer", (GRPOTrainer,), {"__module__": "unsloth_compiled_cache"})
    with pytest.raises(CannotAttach, match="grad_output") as refused:
        wrap(built, mode=mode)
    assert list(refused.value.reasons) == ["unsloth"]


def test_an_old_version_is_refused_by_its_number(trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    built = trainer()
    monkeypatch.setattr("batchbridge.kit.versions.installed", lambda name: "0.17.0")
    with pytest.raises(CannotAttach, match=r"trl 0\.17\.0 is older than 0\.18\.0"):
        wrap(built)


def test_a_new_number_with_known_code_is_wrapped(trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    built = trainer()
    monkeypatch.setattr("batchbridge.kit.versions.installed", lambda name: "1.99.0")
    monkeypatch.setattr(runtime, "installed_version", lambda name: "1.99.0")
    found = wrap(built).batchbridge
    assert (found.framework_version, found.evidence.grade) == ("1.99.0", "proven")
    assert "proven: the native tests ran on this code" in found.report()
    assert found.evidence.labels["trl"] in records("batchbridge_trl")["trl"].tested


def test_control_flow_that_is_not_known_is_refused_by_name_and_can_be_allowed(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built, native = trainer(num_train_epochs=1), GRPOTrainer.training_step

    def other(self: Any, *arguments: Any, **options: Any) -> Any:
        return native(self, *arguments, **options)

    monkeypatch.setattr(GRPOTrainer, "training_step", other)
    assert "GRPOTrainer.training_step" in refused(built)["unproven_code"]
    wrap(built, allow=["unproven_code"])
    assert built.batchbridge.evidence.grade == "measured"
    built.train()
    assert built.state.global_step == built.batchbridge.plan.total_optimizer_steps


def test_what_is_allowed_must_still_weigh_as_the_plan_does(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built, native, loss = trainer(), GRPOTrainer.training_step, GRPOTrainer._compute_loss
    monkeypatch.setattr(GRPOTrainer, "training_step", lambda self, *words: native(self, *words))
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model, inputs: 7 * loss(self, model, inputs))
    assert "weight_probe" in refused(built, allow=["unproven_code"])


def test_a_loss_that_is_not_known_is_measured_and_said_to_be(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built, native = trainer(num_train_epochs=1), GRPOTrainer._compute_loss
    monkeypatch.setattr(GRPOTrainer, "_compute_loss", lambda self, model, inputs: 1.0 * native(self, model, inputs))
    wrap(built, ledger=tmp_path / "ledger").train()
    assert built.batchbridge.evidence.grade == "measured"
    (header,) = read_headers(tmp_path / "ledger")
    assert header["evidence"]["grade"] == "measured"
    assert any("_compute_loss" in name for name in header["evidence"]["loss"])


def test_a_renamed_seam_is_refused_and_nothing_stays_patched(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    built = trainer()
    monkeypatch.delattr("transformers.Trainer.set_initial_training_values")
    before = set(vars(built))
    with pytest.raises(CannotAttach, match="set_initial_training_values"):
        wrap(built)
    assert set(vars(built)) == before


def refused(built: Any, **request: Any) -> dict[str, str]:
    before = set(vars(built))
    with pytest.raises(CannotAttach) as error:
        wrap(built, **request)
    assert set(vars(built)) == before, "a refused trainer is left as it was"
    return error.value.reasons


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_wrap_that_fails_at_its_end_leaves_no_callback(
    trainer: Callable[..., Any], mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = trainer()
    before = [*built.callback_handler.callbacks]
    place = "batchbridge_trl.notes.not_replayed" if mode == "enforce" else "batchbridge_trl.observe.TrlObserver.close"
    fails = property(lambda self: self.no_such_attribute) if mode == "observe" else lambda trainer: trainer.no_such
    monkeypatch.setattr(place, fails)
    with pytest.raises(CannotAttach, match="seam"):
        wrap(built, mode=mode)
    assert built.callback_handler.callbacks == before
    assert "compute_loss" not in vars(built)


def test_a_data_collator_of_ones_own_is_refused(trainer: Callable[..., Any]) -> None:
    """Natively it makes the rows that completions are generated for; only the modes that change nothing leave it."""
    built = trainer(num_train_epochs=1)
    built.data_collator = lambda rows: [{**row, "prompt": "w1 w0"} for row in rows]
    assert list(refused(built)) == ["data_collator"]
    assert wrap(built, mode="observe").batchbridge.mode == "observe"


@pytest.mark.skipif(not has(">=0.28"), reason="this TRL declares that null is taken")
def test_top_k_may_be_null_where_trl_takes_it(trainer: Callable[..., Any]) -> None:
    assert wrap(trainer(top_k=None)).batchbridge.mode == "enforce"


@pytest.mark.skipif(not has(">=0.26"), reason="this TRL has no sapo")
def test_sapo_with_a_ratio_per_sequence_is_refused_by_name(trainer: Callable[..., Any]) -> None:
    assert list(refused(trainer(loss_type="sapo", importance_sampling_level="sequence"))) == ["sapo_of_sequences"]


def test_an_optimizer_that_updates_inside_of_backward_is_refused(trainer: Callable[..., Any]) -> None:
    """Shows that the refusal looks at the name; none of these optimizers' packages is installed."""
    built = trainer()
    built.args.optim = "lomo"
    assert list(refused(built)) == ["updates_in_backward"]


@pytest.mark.skipif(lacks("top_entropy_quantile"), reason="this TRL trains every token")
def test_an_entropy_quantile_is_refused(trainer: Callable[..., Any]) -> None:
    assert "top_entropy_quantile" in refused(trainer(top_entropy_quantile=0.5))


@pytest.mark.skipif(not has(SCALES_BATCHES), reason="this TRL scales rewards by group only")
def test_batch_scaled_rewards_over_several_rollouts_are_refused(trainer: Callable[..., Any]) -> None:
    spans = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 2}
    assert "batch_scale_over_rollouts" in refused(trainer(scale_rewards="batch", **spans))


@pytest.mark.skipif(not has(SCALES_BATCHES), reason="this TRL scales rewards by group only")
def test_batch_scaled_rewards_inside_one_rollout_are_not(trainer: Callable[..., Any]) -> None:
    wrap(trainer(scale_rewards="batch", num_train_epochs=1)).train()


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_trainer_that_is_training_is_refused(trainer: Callable[..., Any], mode: str) -> None:
    built, reasons = trainer(num_train_epochs=1), {}

    class Wrapping(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, *_: Any, **__: Any) -> None:
            reasons.update(refused(built, mode=mode))

    built.add_callback(Wrapping())
    built.train()
    assert list(reasons) == ["in_training"]


def test_a_trainer_whose_training_was_interrupted_can_be_wrapped_again(trainer: Callable[..., Any]) -> None:
    """transformers leaves `is_in_train` set after any exception: a flag that nobody resets is not a proof."""
    built = wrap(trainer(num_train_epochs=1))
    interrupt = Interrupting()
    built.add_callback(interrupt)
    with pytest.raises(KeyboardInterrupt):
        built.train()
    assert built.is_in_train
    built.remove_callback(interrupt)
    wrap(built, mode="verify")
    assert built.batchbridge.mode == "verify"
    wrap(built).train()
    assert built.state.global_step == 3


def test_a_refused_request_leaves_the_attachment_that_stood(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(num_train_epochs=1))
    before = dict(vars(built))
    spec = built.batchbridge.request.spec
    with pytest.raises(CannotAttach, match="kl_without_reference"):
        wrap(built, like=spec.replace(**{"objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}))
    assert vars(built) == before
    built.train()
    assert built.state.global_step == 3


def test_an_attachment_whose_probe_fails_leaves_the_one_that_stood(trainer: Callable[..., Any]) -> None:
    """The probe runs after the earlier attachment was taken off: that one is put back."""
    built = wrap(trainer(num_train_epochs=1))
    stood = built.batchbridge
    native = built._compute_loss
    built._compute_loss = lambda model, inputs: 7 * native(model, inputs)
    with pytest.raises(CannotAttach, match="weight_probe"):
        wrap(built, tokens_per_device=30)
    assert built.batchbridge.request is stood.request
    with pytest.raises(BatchDrift):
        built.train()
    built._compute_loss = native
    built.train()
    assert built.state.global_step == 3


class Interrupting(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Ends training after its first optimizer step, as a user's Ctrl-C does."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt


def test_an_iterable_dataset_is_refused(trainer: Callable[..., Any]) -> None:
    built = trainer()
    built.train_dataset = built.train_dataset.to_iterable_dataset()
    for mode in ("enforce", "verify", "observe"):
        assert list(refused(built, mode=mode)) == ["iterable_dataset"]


@pytest.mark.skipif(lacks("top_entropy_quantile"), reason="this TRL trains every token")
@pytest.mark.parametrize(("missing", "like"), [("plan", {"staleness.mode": "bounded"}), ("iterable_dataset", {})])
def test_what_leaves_no_plan_hides_no_other_reason(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, missing: str, like: dict[str, Any]
) -> None:
    built = trainer(top_entropy_quantile=0.5)
    built.args.fsdp_config = {"xla": True}
    spec = batchbridge.read(built).spec.replace(**like)
    if missing == "iterable_dataset":
        built.train_dataset = built.train_dataset.to_iterable_dataset()
    assert list(refused(built, like=spec, allow=["images"])) == [missing, "allow", "top_entropy_quantile", "fsdp_xla"]
    monkeypatch.setattr(runtime, "is_inside", lambda trainer, *functions, of: True)
    assert list(refused(built, like=spec, mode="verify")) == [missing, "in_training"]


@pytest.mark.skipif(lacks("aux_loss_enabled"), reason="this TRL has no router loss")
def test_a_mixture_of_experts_router_loss_is_refused(trainer: Callable[..., Any]) -> None:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, moe_intermediate_size=16, num_hidden_layers=1,
        shared_expert_intermediate_size=16, num_attention_heads=2, num_key_value_heads=2, num_experts=2,
        num_experts_per_tok=1, pad_token_id=0, eos_token_id=1, output_router_logits=True,
    )  # fmt: skip
    assert "router_loss" in refused(trainer(policy=Qwen2MoeForCausalLM(config)))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}, "deepspeed_engine"),
        ({"compile": {"deepcompile": True}}, "deepspeed_engine"),
        ({"managed_gradient_accumulation": False}, "deepspeed_engine"),
        ({"tensor_parallel": {"autotp_size": 2}}, "deepspeed_engine"),
        ({"scheduler": {"type": "WarmupLR"}}, "deepspeed_schedule"),
        ({"optimizer": {"type": "AdamW"}}, "deepspeed_schedule"),
    ],
)
def test_ways_of_deepspeed_that_are_not_proven_are_refused(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], name: str
) -> None:
    """Shows that the refusal looks at DeepSpeed's configuration; the engines themselves do not run here."""
    built = trainer()
    spec = batchbridge.read(built).spec.replace(**{"horizon.lr_tick": "rollout"})
    monkeypatch.setattr(sharding, "deepspeed_configuration", lambda trainer: config)
    assert list(refused(built, like=spec)) == [name]
    monkeypatch.setattr(sharding, "deepspeed_configuration", lambda trainer: {"zero_optimization": {"stage": 3}})
    assert wrap(built, like=spec).batchbridge.mode == "enforce"


def test_learned_absolute_positions_are_refused(trainer: Callable[..., Any]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64, pad_token_id=0, eos_token_id=1)
    assert "absolute_positions" in refused(trainer(policy=GPT2LMHeadModel(config)))


def test_fsdp_of_torch_xla_is_refused(trainer: Callable[..., Any]) -> None:
    """Shows that the refusal looks at the settings; the machinery itself does not run here."""
    built = trainer()
    built.args.fsdp_config = {"xla": True}
    assert "fsdp_xla" in refused(built)


@pytest.mark.skipif(has(">=1.16"), reason="this TRL's images are followed")
def test_images_are_refused_where_they_are_not_followed(trainer: Callable[..., Any]) -> None:
    """Shows that the refusal looks at the trainer's own switch; the machinery itself does not run here."""
    built = trainer()
    built._is_vlm = True
    assert "images" in refused(built)


@pytest.mark.parametrize("asked", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_sharding_that_accelerate_did_not_set_up_is_said(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    built = trainer()
    monkeypatch.setenv(asked, "true")
    assert list(refused(built)) == ["not_sharded"]
    wrap(built, allow=["not_sharded"])


def test_experts_on_different_ranks_are_refused(trainer: Callable[..., Any]) -> None:
    built = trainer()
    built.model.config.distributed_config = SimpleNamespace(ep_size=2, pp_size=1)
    assert list(refused(built)) == ["expert_parallel"]


def test_what_cannot_be_allowed_is_said(trainer: Callable[..., Any]) -> None:
    known = (
        "advantages, data, gradient_transform, learning_rate, not_sharded, optimizer_settings, own_term, "
        "prepare_inputs, router_loss, train_dataloader, train_sampler, unproven_code, weight_decay"
    )
    assert refused(trainer(), allow=["images"]) == {"allow": f"images cannot be allowed; what can: {known}"}


@pytest.mark.parametrize(
    ("version", "replaces_the_loss"),
    [("0.18.0", True), ("0.24.0", False), ("0.25.0", True), ("1.9.1", True), ("1.13.0", True), ("1.14.0", False)],
)
def test_liger_is_refused_while_it_replaces_the_loss(version: str, replaces_the_loss: bool) -> None:
    """Up to 0.24 use_liger_loss is the loss, and use_liger_kernel layers. `wrap` asks the same row; whether TRL's own
    code is so, `test_liger_has_a_loss_of_its_own_before_1_14` looks."""
    key = "use_liger_loss" if version == "0.18.0" else "use_liger_kernel"
    settings = {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 3, key: True}
    told = batchbridge.check(settings, framework="trl", version=version, world_size=1, dataset_size=6).enforcement
    assert ("liger" in {one.name for one in told.obstacles}) is replaces_the_loss


def test_liger_has_a_loss_of_its_own_before_1_14() -> None:
    own = hasattr(GRPOTrainer, "compute_liger_loss")
    assert own is (Version(installed_version("trl")) < Version("1.14"))


def test_kernels_for_layers_are_not_refused_where_the_loss_is_trls(trainer: Callable[..., Any]) -> None:
    built = trainer()
    built.args.model_init_kwargs = {"use_kernels": True}  # some releases take it with a model's name only
    assert wrap(built).batchbridge.mode == "enforce"


@pytest.mark.skipif(lacks("_entropy_bonus_enabled"), reason="this TRL has no entropy bonus")
def test_an_entropy_bonus_is_refused_where_it_has_the_policys_denominators(trainer: Callable[..., Any]) -> None:
    old = Version(installed_version("trl")) < Version("1.10")
    built = trainer(entropy_coef=0.01)
    if old:
        assert refused(built)["entropy_bonus"].startswith("before TRL 1.10 the entropy bonus")
    else:
        wrap(built)
    # What the reason says of the installed version, in TRL's own words.
    code = inspect.getsource(GRPOTrainer._compute_loss)
    assert old is (re.search(r"\(entropies \* effective_mask\)\.sum\(\) / normalizer", code) is not None)


@MESHES
@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ({"tp_size": 2}, ["tensor_parallel"]),
        ({"cp_size": 2}, ["context_parallel"]),
        ({"dp_shard_size": 2}, ["not_sharded"]),
        ({"dp_shard_size": 2, "tp_size": 2}, ["not_sharded", "tensor_parallel"]),
    ],
)
def test_a_device_mesh_is_refused_by_the_dimension_that_it_has(
    trainer: Callable[..., Any], sizes: dict[str, int], names: list[str]
) -> None:
    built = trainer()
    built.accelerator.state.parallelism_config = accelerate.ParallelismConfig(**sizes)
    assert list(refused(built)) == names


@MESHES
def test_a_device_mesh_of_one_device_is_not_refused(trainer: Callable[..., Any]) -> None:
    built = trainer()
    built.accelerator.state.parallelism_config = accelerate.ParallelismConfig()
    wrap(built)


def test_a_run_without_a_single_step_is_refused(trainer: Callable[..., Any]) -> None:
    assert "no_step" in refused(trainer(prompts=1))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}, "kl_without_reference"),
        ({"objective.kl_coefficient": 0.1, "objective.kl_placement": "reward"}, "kl_in_reward"),
        ({"objective.kl_coefficient": 0.1, "objective.kl_estimator": "k1"}, "kl_estimator"),
        ({"loss.policy.aggregation": "prompt_mean"}, "aggregation"),
        ({"objective.surrogate": "gspo_token"}, "aggregation"),
        ({"loss.policy.denominator_scope": "rank"}, "denominator_scope"),
        ({"advantage.baseline": "value"}, "value_baseline"),
        ({"objective.old_logprobs": "sampler"}, "sampler_logprobs"),
        ({"staleness.mode": "bounded"}, "plan"),
        ({"rollout.group_filter": "drop_zero_variance"}, "plan"),
    ],
)  # fmt: skip
def test_what_a_requested_spec_cannot_have_is_refused_by_name(
    trainer: Callable[..., Any], changes: dict[str, Any], name: str
) -> None:
    built = trainer()
    spec = wrap(built, mode="observe").batchbridge.request.spec
    assert name in refused(unwrap(built), like=spec.replace(**changes))


def test_what_stays_different_is_named(trainer: Callable[..., Any]) -> None:
    built = trainer()
    spec = wrap(built, mode="observe").batchbridge.request.spec
    wrap(built, like=spec.replace(**{"carried.learning_rate": 1.0}))
    assert "carried.learning_rate" in built.batchbridge.left_different


@pytest.mark.skipif(has(">=0.22,<0.22.2"), reason="this TRL scales otherwise than its setting says")
def test_advantages_are_those_that_are_asked_for_where_the_trainers_own_are_others(
    trainer: Callable[..., Any], tmp_path: Path
) -> None:
    scaled = wrap(trainer("scaled", num_train_epochs=1), ledger=tmp_path / "scaled")
    scaled.train()
    own = trainer("own", num_train_epochs=1, scale_rewards="none" if has(SCALES_BATCHES) else False)
    assert batchbridge.read(own).spec.advantage.scale == "none"
    wrap(own, like=scaled.batchbridge.request.spec, ledger=tmp_path / "own").train()
    compared = diff(tmp_path / "scaled", tmp_path / "own", rtol=1e-4)
    assert compared.equal, compared.text()
    assert torch.allclose(flat_parameters(scaled.model), flat_parameters(own.model), rtol=0, atol=1e-6)


def test_the_plan_is_on_the_attachment(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(num_train_epochs=2))
    assert isinstance(built.batchbridge.plan, Plan)
    assert built.batchbridge.plan.dataset_size == 6


def test_the_tiny_vocabulary_fits_the_tiny_policy() -> None:
    assert len(tiny_tokenizer()) == tiny_policy().config.vocab_size
