"""Part of what `processes.py` runs: losses that weigh otherwise, and optimizer steps of verl's real engine that
something else than the plan has a hand in."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradients import CASES, PADDED_ALONE, PROMPTS, SPLITS, Bench, spec_of
from verl.trainer.ppo import core_algos
from verl.workers.engine.fsdp import transformer_impl

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.meaning.plan import Plan
from batchbridge_on_cpu.verl.workers import as_v0_sends
from batchbridge_verl.engine import probe, remove

TAMPERED = 3
"""The optimizer step that something else has a hand in."""
Tamper = Callable[[Bench], None]


def last_rank(bench: Bench) -> bool:
    return bench.process == bench.processes - 1


def values_of(column: torch.Tensor) -> torch.Tensor:
    """The numbers of a column, one after another."""
    return column.values() if column.is_nested else column.view(-1)


# ---- losses that do not weigh as the plan does


def altered(how: str, native: Any, *, config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    value, metrics = native(config=config, model_output=model_output, data=data, dp_group=dp_group)
    own_tokens = int(values_of(data["response_mask"]).sum())
    factor = {
        "itself": 1.0,
        "times seven": 7.0,
        "over its own tokens": data["batch_num_tokens"] / max(own_tokens, 1),
        "mean over rows": 1 / len(data),
    }[how]
    return value * factor, metrics


def with_own_term(module: Any, native: Any, **given: Any) -> Any:
    value, metrics = native(**given)
    return value + sum(one.square().sum() for one in module.parameters() if one.requires_grad), metrics


def lost_loss(*, config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    return torch.zeros((), requires_grad=True), {}


def broken_loss(*, config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    raise RuntimeError("this loss wants other columns")


def refused(bench: Bench, loss: Any) -> str:
    """The reason against a worker with this loss; empty where it is taken."""
    spec = spec_of(CASES[0], "token_mean")
    native = bench.worker.loss_fn
    bench.worker.set_loss_fn(functools.partial(loss, config=native.keywords["config"]))
    try:
        bench.install(bench.orders(spec, CASES[0]))
        probe(bench.worker)
    except CannotAttach as error:
        return " ".join(error.reasons) + ": " + error.reasons.get("weight_probe", "")
    finally:
        remove(bench.worker)
        bench.worker.set_loss_fn(native)
    return ""


@contextlib.contextmanager
def library_altered() -> Any:
    """verl's own aggregation, replaced in its module: no setting and no class says so."""
    native = core_algos.agg_loss
    core_algos.agg_loss = lambda **given: native(**given) * (2 if given["loss_agg_mode"] == "token-mean" else 1)
    try:
        yield
    finally:
        core_algos.agg_loss = native


def losses(bench: Bench) -> dict[str, str]:
    native = bench.worker.loss_fn.func
    ways = ("itself", "times seven", "over its own tokens", "mean over rows")
    found = {how: refused(bench, functools.partial(altered, how, native)) for how in ways}
    found["a term of its own"] = refused(bench, functools.partial(with_own_term, bench.worker.engine.module, native))
    found["no gradient"], found["does not run"] = refused(bench, lost_loss), refused(bench, broken_loss)
    with library_altered():
        found["library altered"] = refused(bench, native)
    return found


def side_effects(bench: Bench) -> bool:
    """Whether a probe leaves parameters, gradients, optimizer, configuration and random state alone."""
    spec, engine = spec_of(CASES[1], "token_mean"), bench.worker.engine

    def state() -> Any:
        config = bench.worker.loss_fn.keywords["config"]
        return (
            [parameter.grad is None for parameter in engine.module.parameters()],
            engine.optimizer.state_dict(),
            dict(config.global_batch_info),
            torch.get_rng_state().tolist(),
            sorted(vars(engine)),
        )

    bench.install(bench.orders(spec, CASES[1]))
    engine.optimizer.zero_grad(set_to_none=True)
    before = repr(state())
    probe(bench.worker)
    after = repr(state())
    remove(bench.worker)
    return before == after


# ---- tampering with a step


def forward(bench: Bench, change: Callable[[Callable[..., Any], Any, dict[str, Any]], Any]) -> None:
    """In the way of every forward and loss of a micro-batch."""
    native = bench.worker.engine.forward_step
    bench.worker.engine.forward_step = lambda micro_batch, **options: change(native, micro_batch, options)


def loss_times_seven(bench: Bench) -> None:
    native = bench.worker.loss_fn
    if last_rank(bench):
        bench.worker.loss_fn = functools.partial(altered, "times seven", native.func, **native.keywords)


def value_altered(how: str) -> Tamper:
    """A tampering: the loss has another value, and its own gradient, if it has one."""

    def another(native: Any, **given: Any) -> Any:
        value, metrics = native(**given)
        more = {"times 1.001": 0.001 * value.detach(), "a constant": 0.1, "not a number": value * math.nan}
        return value + more[how], metrics

    def tamper(bench: Bench) -> None:
        native = bench.worker.loss_fn
        if last_rank(bench):
            bench.worker.loss_fn = functools.partial(another, native.func, **native.keywords)

    return tamper


def mask_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        values_of(micro_batch["response_mask"])[0] = 0
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def advantages_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        values_of(micro_batch["advantages"]).mul_(1.01)
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def gradient_detached(bench: Bench) -> None:
    """Of the first micro-batch: its loss no longer hangs on the model. On every rank: FSDP adds up in backward."""
    seen = []

    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        loss, output = native(micro_batch, **options)
        seen.append(loss)
        return (loss.detach().requires_grad_() if len(seen) == 1 else loss), output

    forward(bench, change)


def micro_batch_left_out(bench: Bench) -> None:
    """The first one is trained twice, the second one never."""
    engine, first = bench.worker.engine, []
    native = engine.forward_step

    def forward_step(micro_batch: Any, **options: Any) -> Any:
        first.append(micro_batch)
        return native(first[0] if len(first) == 2 else micro_batch, **options)

    if last_rank(bench):
        engine.forward_step = forward_step


def gradient_dropped(bench: Bench) -> None:
    """Of the first micro-batch, after its backward pass, which the ranks then have averaged already."""
    engine, seen = bench.worker.engine, []
    engine._gradient_sync_context = lambda **options: contextlib.nullcontext()

    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        if len(seen) == 1:
            engine.optimizer.zero_grad()
        seen.append(micro_batch)
        return native(micro_batch, **options)

    forward(bench, change)


def scaled(bench: Bench, factor: float) -> None:
    for parameter in bench.worker.engine.module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)


def gradients_multiplied(bench: Bench) -> None:
    """After backward, before verl clips them."""
    engine = bench.worker.engine
    native = engine.optimizer_step

    def optimizer_step() -> Any:
        scaled(bench, 3)
        return native()

    engine.optimizer_step = optimizer_step


def gradients_shrunk(bench: Bench) -> None:
    """As late as can be: by someone else's hook of the optimizer."""
    bench.hooks.append(bench.worker.engine.optimizer.register_step_pre_hook(lambda *_: scaled(bench, 0.5)))


def of_one_matrix(bench: Bench, change: Callable[[torch.Tensor], None]) -> None:
    """Of one matrix, after backward."""
    named = bench.worker.engine.module.named_parameters()
    matrix = next(parameter for name, parameter in named if "down_proj.weight" in name)

    def before(*_: Any) -> None:
        change(getattr(matrix.grad, "_local_tensor", matrix.grad))

    bench.hooks.append(bench.worker.engine.optimizer.register_step_pre_hook(before))


def one_matrix(bench: Bench) -> None:
    """Times 1.05."""
    of_one_matrix(bench, lambda gradient: gradient.mul_(1.05))


def rows_of_matrix_exchanged(bench: Bench) -> None:
    """Two rows of it are exchanged, on every rank in its own part."""

    def change(gradient: torch.Tensor) -> None:
        gradient[[0, 1]] = gradient[[1, 0]]

    of_one_matrix(bench, change)


def hooked(bench: Bench) -> None:
    """A hook on every weight that a forward pass uses."""
    seen: set[int] = set()

    def hook_weights(module: Any, _: Any) -> None:
        for name in list(module._parameters):
            weight = getattr(module, name)
            if torch.is_grad_enabled() and weight is not None and weight.requires_grad and id(weight) not in seen:
                seen.add(id(weight))
                bench.hooks.append(weight.register_hook(lambda gradient: 0.1 * gradient))

    for module in bench.worker.engine.module.modules():
        if module._parameters:
            bench.hooks.append(module.register_forward_pre_hook(hook_weights))


RAISED = 0.015
"""What `rate_raised` adds to the rate, which is 0 in a warm-up's first step."""


def decay_changed(bench: Bench) -> None:
    """Another weight decay, as by a function that someone calls between steps."""
    for group in bench.worker.engine.optimizer.param_groups:
        bench.hooks.append(_Restored(group, "weight_decay"))
        group["weight_decay"] += 0.5


def betas_changed(bench: Bench) -> None:
    """Other betas, of one group."""
    group = bench.worker.engine.optimizer.param_groups[0]
    bench.hooks.append(_Restored(group, "betas"))
    group["betas"] = (0.5, 0.5)


def stranger_updated(bench: Bench) -> None:
    """The optimizer has a parameter that is not the model's."""
    optimizer = bench.worker.engine.optimizer
    bench.hooks.append(_Restored(vars(optimizer), "param_groups"))
    optimizer.param_groups = [*optimizer.param_groups]  # another list, for the time of the step
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})


class _Restored:
    """A value of a dictionary, which `remove` brings back."""

    def __init__(self, values: dict[str, Any], name: str) -> None:
        self._values, self._name, self._was = values, name, values[name]

    def remove(self) -> None:
        self._values[self._name] = self._was


def rate_raised(bench: Bench) -> None:
    """Another learning rate for one update, set when the step has begun; the gradient is the plan's."""
    optimizer = bench.worker.engine.optimizer
    native = [group["lr"] for group in optimizer.param_groups]

    def rates(more: float) -> None:
        for group, rate in zip(optimizer.param_groups, native, strict=True):
            group["lr"] = rate + more

    bench.hooks += [_Restored(group, "lr") for group in optimizer.param_groups]  # also where the update is stopped
    bench.hooks.append(optimizer.register_step_pre_hook(lambda *_: rates(RAISED)))
    bench.hooks.append(optimizer.register_step_post_hook(lambda *_: rates(0.0)))


def own_update(bench: Bench) -> None:
    """A step that calls the optimizer itself, with gradients of its own making."""
    engine = bench.worker.engine

    def optimizer_step() -> torch.Tensor:
        scaled(bench, 1.001)
        engine.optimizer.step()
        return torch.zeros(())

    engine.optimizer_step = optimizer_step


def sent(bench: Bench, change: Callable[[Any], None]) -> None:
    """In the way of a batch, between the trainer's process and the worker, on the last rank."""
    native = bench.worker.train_mini_batch

    def train_mini_batch(data: Any) -> Any:
        change(data)
        return native(data)

    if last_rank(bench):
        bench.worker.train_mini_batch = train_mini_batch


def column_sent(name: str, change: Callable[[torch.Tensor], None]) -> Tamper:
    """A tampering: a column of the batch on its way."""
    return lambda bench: sent(bench, lambda data: change(values_of(data[name])))


def rows_exchanged(bench: Bench) -> None:
    """The advantages of two rows, each with the length that the other one has."""

    def exchange(data: Any) -> None:
        first, second, *others = data["advantages"].unbind()
        made = [torch.full_like(first, float(second[0])), torch.full_like(second, float(first[0])), *others]
        nested = data["advantages"].is_nested
        data["advantages"] = torch.nested.as_nested_tensor(made, layout=torch.jagged) if nested else torch.stack(made)

    sent(bench, exchange)


def other_token(values: torch.Tensor) -> None:
    values[1] = values[1] % 50 + 3


def tokens_of_the_model(bench: Bench) -> None:
    """In the worker: what the policy is run on."""

    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        other_token(micro_batch["input_ids"].values())
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def hotter(bench: Bench) -> None:
    """In the worker: another temperature for the log-probabilities."""
    from verl.utils import tensordict_utils as tu

    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        tu.assign_non_tensor(micro_batch, temperature=1.05)
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


TAMPERS: dict[str, Tamper] = {
    "nothing": lambda bench: None,
    "the loss": loss_times_seven,
    "the value of the loss": value_altered("times 1.001"),
    "a constant in the loss": value_altered("a constant"),
    "the mask": mask_touched,
    "the advantages": advantages_touched,
    "a micro-batch that is detached": gradient_detached,
    "a micro-batch that is left out": micro_batch_left_out,
    "a micro-batch's gradient": gradient_dropped,
    "the gradient after backward": gradients_multiplied,
    "the gradient after clipping": gradients_shrunk,
    "one matrix after backward": one_matrix,
    "one matrix's rows": rows_of_matrix_exchanged,
    "a hook on all weights": hooked,
    "an optimizer of another model": stranger_updated,
    "the update": own_update,
    "advantages on their way": column_sent("advantages", lambda values: values.mul_(1.05)),
    "advantages that are exchanged": rows_exchanged,
    "old log-probabilities on their way": column_sent("old_log_probs", lambda values: values.add_(0.05)),
    "log-probabilities of the reference on their way": column_sent("ref_log_prob", lambda values: values.add_(0.05)),
    "tokens on their way": column_sent("input_ids", other_token),
    "the tokens that the policy is run on": tokens_of_the_model,
    "the temperature": hotter,
}


SHORT = ("the loss", "a micro-batch's gradient", "the gradient after backward")
"""Those of `TAMPERS` that are tried beside other models, too."""


@contextlib.contextmanager
def as_it_was(bench: Bench) -> Any:
    """Takes every tampering back."""
    targets = getattr(bench, "targets", None) or (bench.worker, bench.worker.engine)
    before = [(target, dict(vars(target))) for target in targets]
    bench.hooks = []
    try:
        yield
    finally:
        for hook in bench.hooks:
            hook.remove()
        for target, attributes in before:
            for name in set(vars(target)) - set(attributes):
                delattr(target, name)
            vars(target).update(attributes)


def tampered(
    bench: Bench, tamper: Tamper, *, mode: str = "enforce", ledger: Path | None = None, allow: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Step 2 as it is, then step 3 with a hand in it: what is said, on every rank, and how many updates there were."""
    case = CASES[0]
    spec = spec_of(case, "token_mean")
    plan, before, said, step = Plan(spec, PROMPTS), bench.updates, "", None
    bench.install(bench.orders(spec, case, ledger=ledger, mode=mode, allow=frozenset(allow)))
    probe(bench.worker)
    try:
        with as_it_was(bench):
            for index in (TAMPERED - 1, TAMPERED):
                if index == TAMPERED:
                    tamper(bench)
                samples, members = bench.step(plan, index)
                bench.send(samples, members, index, SPLITS["fixed 1"])
    except BatchDrift as drift:
        said, step = str(drift), drift.step
    finally:
        remove(bench.worker)
    everyone: list[Any] = [None] * bench.processes
    torch.distributed.all_gather_object(everyone, said)
    if set(everyone) != {said}:
        raise AssertionError(f"the ranks say {everyone}")
    return {"said": said, "step": step, "updates": bench.updates - before}


def unreadable(bench: Bench) -> None:
    """A field that our reading does not find, on one rank alone."""

    def lacking(data: Any, row: int) -> dict[str, Any]:
        raise KeyError("a field that is not there")

    if last_rank(bench):
        bench.worker.batchbridge._facts = lacking


@contextlib.contextmanager
def bound(bench: Bench, norm: float) -> Any:
    config = bench.worker.engine.optimizer_config
    native = config.clip_grad
    object.__setattr__(config, "clip_grad", norm)
    try:
        yield
    finally:
        object.__setattr__(config, "clip_grad", native)


def v0(bench: Bench) -> dict[str, Any]:
    """Steps with a KL term on rows as the V0 trainer sends them."""
    case = CASES[1]
    spec = spec_of(case, "sequence_mean")
    plan, before = Plan(spec, PROMPTS), bench.updates
    bench.install(bench.orders(spec, case))
    native = bench.worker.train_mini_batch
    if not PADDED_ALONE:
        bench.worker.train_mini_batch = lambda data: native(as_v0_sends(data))
    try:
        for index in (2, 3, 4):
            samples, members = bench.step(plan, index)
            bench.send(samples, members, index, SPLITS["fixed 2"])
    finally:
        remove(bench.worker)
    return {"updates": bench.updates - before, **bench.measure(case, spec, 4, samples, bench.gradient)}


def lora(folder: Path) -> dict[str, Any]:
    """A policy whose own weights are frozen."""
    words = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"}
    bench = Bench(folder, *(f"actor_rollout_ref.model.{name}={value}" for name, value in words.items()))
    bench.install(bench.orders(spec_of(CASES[0], "token_mean"), CASES[0]))
    compared = bench.worker.batchbridge._watch._sketches.names
    remove(bench.worker)
    return {
        "compared": len(compared),
        "not lora": [name for name in compared if "lora" not in name],
        **{name: tampered(bench, TAMPERS[name]) for name in ("nothing", *SHORT)},
    }


@contextlib.contextmanager
def fsdp1_on_the_cpu() -> Any:
    """torch's FSDP1 wants an accelerator, unless it is told its device, and refuses to broadcast parameters."""
    native = transformer_impl.FSDP.__init__

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        native(self, *arguments, **{**options, "sync_module_states": False, "device_id": torch.device("cpu")})

    transformer_impl.FSDP.__init__ = init
    try:
        yield
    finally:
        transformer_impl.FSDP.__init__ = native


def flat(folder: Path) -> dict[str, Any]:
    """FSDP1, verl's default: parameters are parts of flat ones."""
    with fsdp1_on_the_cpu():
        bench = Bench(folder, "actor_rollout_ref.actor.strategy=fsdp")
    found = {name: tampered(bench, TAMPERS[name]) for name in ("nothing", *SHORT)}
    with bound(bench, 1e-3):
        return {**found, "clipped": tampered(bench, TAMPERS["nothing"])}


def in_bfloat16(bench: Bench) -> dict[str, Any]:
    """0.7.1 as it is: its model runs in bfloat16, whatever the configuration says."""
    ours, transformer_impl.torch = transformer_impl.torch, torch
    try:
        return {name: tampered(bench, TAMPERS[name]) for name in ("nothing", *SHORT)}
    finally:
        transformer_impl.torch = ours


def tampering(bench: Bench, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "losses": losses(bench),
        "no side effects": side_effects(bench),
        "enforce": {name: tampered(bench, tamper) for name, tamper in TAMPERS.items()},
    }
    with bound(bench, 1e-3):
        found["clipped"] = {name: tampered(bench, TAMPERS[name]) for name in ("nothing", "the gradient after clipping")}
    found["verify"] = {name: tampered(bench, tamper, mode="verify") for name, tamper in TAMPERS.items()}
    found["observe"] = tampered(bench, loss_times_seven, mode="observe", ledger=folder / "observed")
    found["rate"] = tampered(bench, rate_raised)
    found["decay"] = tampered(bench, decay_changed)
    found["betas"] = tampered(bench, betas_changed)
    found["not a number"] = tampered(bench, value_altered("not a number"), ledger=folder / "not_a_number")
    found["unreadable"] = tampered(bench, unreadable, mode="observe", ledger=folder / "unreadable")
    found["v0"] = v0(bench)
    if PADDED_ALONE:
        found["bfloat16"] = in_bfloat16(bench)
    # Last, since the policy moves: any other update has the rate 0.
    found["rate, allowed"] = tampered(bench, rate_raised, ledger=folder / "rate", allow=("learning_rate",))
    found["lora"] = lora(folder)
    if bench.ranks == 1:  # on two, torch's FSDP1 gives other gradients from run to run without a GPU
        found["flat"] = flat(folder)
    return found


def tampering_packed(bench: Bench) -> dict[str, Any]:
    """On one rank alone of a sequence group, where no other rank waits for what it leaves out."""
    names = [
        name for name in TAMPERS if name not in ("a micro-batch that is detached", "a micro-batch that is left out")
    ]
    found = {"losses": losses(bench), **{name: tampered(bench, TAMPERS[name]) for name in names}}
    with bound(bench, 1e-3):
        found["clipped"] = tampered(bench, TAMPERS["nothing"])
    return found
