"""The refusals of a trainer of TRL's that only its objects show (model, accelerator, optimizer), and what a
configuration says of them before."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.allowing import GRADIENT_TRANSFORM
from batchbridge.kit.proven import UNPROVEN
from batchbridge.kit.refusals import Answer, RefusalRow, Refusals, is_on, setting
from batchbridge.kit.versions import holds
from batchbridge_trl import releases, sharding
from batchbridge_trl.configured import KNOW_THE_MODEL, model_in, scales_gradients, sharded, start_in
from batchbridge_trl.forks import FORKS, UNSLOTH, TrainerFork, fork_of, is_unsloths
from batchbridge_trl.proven import MS_SWIFT


def release_of(request: Request) -> str:
    """The release of TRL that the trainer is of."""
    return str(request.reading.framework_version)


def _of_unsloth(request: Request) -> bool:
    start = start_in(request.reading)
    return start is not None and start.replaced


def _made_by(fork: TrainerFork) -> RefusalRow:
    # A configuration names no class; of a script that does, `trainer` speaks, but where Unsloth certainly replaces it:
    # which code it then generates shows where it runs.
    def foreseen(request: Request) -> bool | None:
        return None if fork == UNSLOTH and _of_unsloth(request) else False

    def live(trainer: Any, request: Request) -> Answer:
        if fork.name != MS_SWIFT.part or fork_of(trainer) != fork:
            return fork_of(trainer) == fork
        from batchbridge_trl import ms_swift

        return ms_swift.unknown(trainer) or ms_swift.objection(trainer, request) or False

    return RefusalRow(fork.name, fork.reason, foreseen, live)


LIVE = Refusals(map(_made_by, FORKS))


def _foreseen_of_unsloth(request: Request) -> bool | None:
    if not _of_unsloth(request):
        return False
    from batchbridge_trl.unsloth_settings import foreseen_objections

    return foreseen_objections(request)


@LIVE.live(
    "unsloth_settings",
    "this is not proven with Unsloth's trainer",
    foreseen=_foreseen_of_unsloth,
    remedy="one process, text, use_vllm=false, beta=0 and a loss_type of dapo, bnpo, grpo or dr_grpo",
)
def _unsloth_settings(trainer: Any, request: Request) -> Answer:
    if not is_unsloths(trainer):
        return False
    from batchbridge_trl.unsloth_settings import objections

    return "; ".join(objections(trainer, request))


@LIVE.live(
    "data_collator",
    "the trainer has a custom data collator, which a wrapped run would leave out; TRL's "
    "default passes each row on unchanged. Change the rows in the dataset instead (map, with_transform)",
)
def _data_collator(trainer: Any, request: Request) -> bool:
    from batchbridge_trl.ms_swift import is_swift

    if is_swift(trainer):  # whose own passes rows on as well
        return getattr(trainer.data_collator, "__name__", "") != "identity_data_collator"
    return not trainer.data_collator.__module__.startswith("trl.")


@LIVE.live(
    "advantages",
    "a method of the trainer's own stores advantages; "
    'allow=("advantages",) trains on them, carried and not recomputed from the rewards',
    allowable=True,
)
def _advantages(trainer: Any, request: Request) -> Answer:
    from batchbridge_trl.overrides import own_advantages

    return own_advantages(trainer) or False


def _left_out(method: str, name: str) -> None:
    @LIVE.live(name, f'its own {method} is not used; allow=("{name}",) goes on without it', allowable=True)
    def test(trainer: Any, request: Request) -> Answer:
        from batchbridge_trl.overrides import overrides_of

        return overrides_of(trainer).get(method, False)


@LIVE.live(
    "own_setup",
    "methods of the trainer's own make its accelerator or its schedule, and what they do to the rest of a run is not "
    f'held here; allow=("{UNPROVEN}",) goes on without that',
)
def _own_setup(trainer: Any, request: Request) -> Answer:
    from batchbridge_trl.own_methods import setup_objection

    return UNPROVEN not in request.allow and (setup_objection(trainer) or False)


_left_out("_get_train_sampler", "train_sampler")
_left_out("get_train_dataloader", "train_dataloader")
_left_out("_prepare_inputs", "prepare_inputs")


def _engine_of_its_own(config: Mapping[str, Any]) -> bool:
    """Source: deepspeed 0.19.6 runtime/config.py, zero/config.py, compile/config.py, tensor_parallel/config.py."""
    zero, compiled = config.get("zero_optimization") or {}, config.get("compile") or {}
    shards = (config.get("tensor_parallel") or {}).get("autotp_size", 0)
    unmanaged = config.get("managed_gradient_accumulation") is False
    return bool(zero.get("zenflow") or compiled.get("deepcompile") or unmanaged or shards > 1)


def _engine_in(request: Request) -> bool | None:
    start = start_in(request.reading)
    if start is None or start.sharding is None:
        return None
    if start.sharding != "deepspeed":
        return False
    return None if start.engine is None else _engine_of_its_own(start.engine)


@LIVE.live(
    "deepspeed_engine",
    "DeepSpeed's ZenFlow, DeepCompile, managed_gradient_accumulation=false and tensor parallelism (autotp_size) sum up "
    "and share gradients in ways of their own, which no gradient test shows: leave them out of its configuration",
    foreseen=_engine_in,
)
def _deepspeed_engine(trainer: Any, request: Request) -> bool:
    return _engine_of_its_own(sharding.deepspeed_configuration(trainer))


@LIVE.live(
    "deepspeed_schedule",
    "the spec's learning rate advances once per rollout (lr_tick), but DeepSpeed's engine advances it with every "
    "update; leave scheduler and optimizer out of DeepSpeed's configuration, so that the trainer makes them",
)
def _deepspeed_schedule(trainer: Any, request: Request) -> bool:
    own = not {"scheduler", "optimizer"}.isdisjoint(sharding.deepspeed_configuration(trainer))
    return own and request.spec.horizon.lr_tick == "rollout"


def _sharded_in_vain(request: Request) -> bool:
    fsdp = sharded(request.reading, "fsdp")
    on_a_cpu = bool(fsdp and is_on(setting(request.reading, "use_cpu")))
    return on_a_cpu or (fsdp is False and bool(sharded(request.reading, None, "dp_shard")))


@LIVE.live(
    "not_sharded",
    "the configuration asks for FSDP or DeepSpeed, and Accelerate has set up neither, as on a CPU, where it says "
    'nothing of it: every rank would hold the whole model; allow=("not_sharded",) trains it so',
    allowable=True,
    foreseen=_sharded_in_vain,
    remedy="start it where Accelerate finds a GPU, or without FSDP and DeepSpeed",
)
def _not_sharded(trainer: Any, request: Request) -> bool:
    return sharding.is_asked_for_in_vain(trainer)


@LIVE.live("lone_head", sharding.LONE_HEAD)
def _lone_head(trainer: Any, request: Request) -> bool:
    return sharding.has_lone_head(trainer.model)


@LIVE.live(
    "expert_parallel",
    "experts or layers on different ranks (ep_size, pp_size of a distributed_config) are not proven against the "
    "oracle; leave them at 1",
)
def _expert_parallel(trainer: Any, request: Request) -> bool:
    return sharding.has_experts_or_stages(trainer.model)


@LIVE.live(
    "images",
    "before TRL 1.16 image tensors were not read, and with tools an image that a tool shows can take those of all rows "
    "beside it away: use TRL 1.16 or later, and no tools beside images",
    foreseen=lambda request: model_in(request.reading).images if holds("<1.16", release_of(request)) else False,
    remedy=f"TRL 1.16 or later, or a model that reads text only{KNOW_THE_MODEL}",
)
def _images(trainer: Any, request: Request) -> bool:
    followed = holds(">=1.16", release_of(request)) and not releases.value(trainer, "tools")
    if followed or getattr(trainer, "_is_vlm", False):
        return not followed
    from batchbridge_trl.images import reads_images

    return reads_images(trainer)


def _router_loss_in(request: Request) -> bool | None:
    """Source: trl 1.16.0 GRPOTrainer.__init__: in models that have one, where router_aux_loss_coef is not 0; before 1.7
    never."""
    if holds("<1.7", release_of(request)) or request.reading.native["router_aux_loss_coef"] == 0:
        return False
    return False if model_in(request.reading).router is False else None


@LIVE.live(
    "router_loss",
    "the MoE router loss is a product of means over each micro-batch's tokens, so that its gradient depends on the "
    'split; allow=("router_loss",) trains it as TRL does, as the mean over micro-batches; or set '
    "router_aux_loss_coef=0",
    allowable=True,
    foreseen=_router_loss_in,
)
def _router_loss(trainer: Any, request: Request) -> bool:
    return bool(releases.value(trainer, "aux_loss_enabled"))


@LIVE.live(
    "fp16",
    "the fp16 gradient scaler cannot leave out an update without tokens, and rescales on its own; use bf16",
    foreseen=lambda request: scales_gradients(request.reading),
)
def _fp16(trainer: Any, request: Request) -> bool:
    return bool(trainer.accelerator.mixed_precision == "fp16")


@LIVE.live(
    "communication_hook",
    "DDP exchanges gradients by a communication hook that approximates them (PowerSGD), or by a wrapper around one: "
    'what the optimizer finds is not what the micro-batches gave; allow=("gradient_transform",) trains so, and the '
    "ledger has the ratio, or use comm_hook fp16 or bf16, whose rounding is allowed for",
)
def _communication_hook(trainer: Any, request: Request) -> bool:
    from accelerate.utils import DDPCommunicationHookType as Hook

    handler, several = trainer.accelerator.ddp_handler, trainer.accelerator.num_processes > 1
    if handler is None or not several or GRADIENT_TRANSFORM in request.allow:
        return False
    # Accelerate finds a hook by the member alone, and by no string, in whose place it registers nothing.
    made = isinstance(handler.comm_hook, Hook) and handler.comm_hook != Hook.NO
    wrapped = isinstance(handler.comm_wrapper, Hook) and handler.comm_wrapper != Hook.NO
    return made and (wrapped or handler.comm_hook not in (Hook.FP16, Hook.BF16))


@LIVE.live(
    "absolute_positions",
    "the model has learned absolute positions, and TRL pads prompts on the left without position ids: a completion's "
    "log-probabilities depend on the rows beside it",
    foreseen=lambda request: model_in(request.reading).positions,
    remedy=f"a model with rotary positions{KNOW_THE_MODEL}",
)
def _absolute_positions(trainer: Any, request: Request) -> bool:
    import torch

    embeddings = [name for name, module in trainer.model.named_modules() if isinstance(module, torch.nn.Embedding)]
    of_patches = re.compile(r"visi|visual|image")
    return any(re.search(r"wpe|position", name) and not of_patches.search(name) for name in embeddings)


@LIVE.live(
    "padding_free",
    'padding="free" is asked for, and this model is not one whose completions are known to lie end to end rightly '
    '(padding="auto" then pads)',
    remedy='wrap with padding="padded"',
)
def _padding_free(trainer: Any, request: Request) -> Answer:
    if request.padding != "free":
        return False
    from batchbridge_trl.padding_free import objection

    return objection(trainer) or False


@LIVE.live(
    "found_budget",
    'tokens_per_device="auto" is asked for, and no budget is found while this trainer runs',
    remedy="give a number of tokens, or leave it out",
)
def _found_budget(trainer: Any, request: Request) -> Answer:
    if not request.finds_budget:
        return False
    from batchbridge_trl.found_budget import objection

    why = objection(trainer, request)
    return False if why is None else f"{why}: give a number of tokens, or leave it out"


def _mesh(*dimensions: str) -> Callable[[Any, Request], bool]:
    """Whether one of these dimensions of Accelerate's device mesh has more than one device. Source: accelerate 1.15.0
    ParallelismConfig; a size that nobody gave is None or 1."""

    def test(trainer: Any, request: Request) -> bool:
        mesh = getattr(trainer.accelerator, "parallelism_config", None)
        return any(getattr(mesh, f"{name}_size", None) not in (None, 1) for name in dimensions)

    return test


LIVE.live(
    "tensor_parallel",
    "tensor parallelism (tp_size of a parallelism_config) lets several ranks train the same completions, but TRL, and "
    "so the plan, shares completions out to every rank",
    foreseen=lambda request: sharded(request.reading, None, "tp"),
    remedy="leave tp_size out",
)(_mesh("tp"))
LIVE.live(
    "context_parallel",
    "context and sequence parallelism (cp_size, sp_size of a parallelism_config) split completions over ranks; TRL "
    "refuses them itself while GRPOConfig is constructed",
    foreseen=lambda request: sharded(request.reading, None, "cp", "sp"),
    remedy="leave cp_size and sp_size out",
)(_mesh("cp", "sp"))
