"""Part of what `processes.py` runs: losses that weigh otherwise, and optimizer steps of verl's real engine that
something else than the plan has a hand in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gradients import CASES, PROMPTS, SPLITS, Bench, spec_of
from verl.trainer.ppo import core_algos
from verl.workers.engine.fsdp import transformer_impl

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE
from batchbridge.meaning.plan import Plan
from batchbridge_verl.engine import install, probe, remove

TAMPERED = 3
"""The optimizer step that something else has a hand in."""
Tamper = Callable[[Bench], None]


def last_rank(bench: Bench) -> bool:
    return bench.process == bench.processes - 1


# ---- losses that do not weigh as the plan does


def altered(how: str, native: Any, *, config: Any, model_output: Any, data: Any, dp_group: Any = None) -> Any:
    value, metrics = native(config=config, model_output=model_output, data=data, dp_group=dp_group)
    own_tokens = int(data["response_mask"].values().sum())
    factor = {
        "itself": 1.0,
        "times seven": 7.0,
        "over its own tokens": data["batch_num_tokens"] / max(own_tokens, 1),
        "mean over rows": 1 / len(data),
    }[how]
    return value * factor, metrics


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
        install(bench.worker, bench.orders(spec, CASES[0]))
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

    install(bench.worker, bench.orders(spec, CASES[1]))
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


def mask_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        micro_batch["response_mask"].values()[0] = 0
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def advantages_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        micro_batch["advantages"].values().mul_(1.01)
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


def rate_raised(bench: Bench) -> None:
    """Another learning rate for one update, set when the step has begun; the gradient is the plan's."""
    optimizer, native = (
        bench.worker.engine.optimizer,
        [group["lr"] for group in bench.worker.engine.optimizer.param_groups],
    )

    def rates(factor: float) -> None:
        for group, rate in zip(optimizer.param_groups, native, strict=True):
            group["lr"] = factor * rate

    bench.hooks.append(optimizer.register_step_pre_hook(lambda *_: rates(1.5)))
    bench.hooks.append(optimizer.register_step_post_hook(lambda *_: rates(1.0)))


def own_update(bench: Bench) -> None:
    """A step that calls the optimizer itself, with gradients of its own making."""
    engine = bench.worker.engine

    def optimizer_step() -> float:
        scaled(bench, 1.001)
        engine.optimizer.step()
        return 0.0

    engine.optimizer_step = optimizer_step


TAMPERS: dict[str, Tamper] = {
    "nothing": lambda bench: None,
    "the loss": loss_times_seven,
    "the mask": mask_touched,
    "the advantages": advantages_touched,
    "a micro-batch that is detached": gradient_detached,
    "a micro-batch that is left out": micro_batch_left_out,
    "a micro-batch's gradient": gradient_dropped,
    "the gradient after backward": gradients_multiplied,
    "the gradient after clipping": gradients_shrunk,
    "the update": own_update,
}


@contextlib.contextmanager
def as_it_was(bench: Bench) -> Any:
    """Takes every tampering back."""
    worker, engine = bench.worker, bench.worker.engine
    before = [(target, dict(vars(target))) for target in (worker, engine)]
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


def tampered(bench: Bench, tamper: Tamper, *, mode: str = "enforce", ledger: Path | None = None) -> dict[str, Any]:
    """Step 2 as it is, then step 3 with a hand in it: what is said, on every rank, and how many updates there were."""
    case = CASES[0]
    spec = spec_of(case, "token_mean")
    plan, before, said, step = Plan(spec, PROMPTS), bench.updates, "", None
    install(bench.worker, bench.orders(spec, case, ledger=ledger, mode=mode))
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


def padded(data: Any) -> Any:
    """The batch as the V0 trainer sends it: prompts padded on the left, responses on the right."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import left_right_2_no_padding

    def left(rows: Any) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([row.flip(0) for row in rows.unbind()], batch_first=True).flip(1)

    names = ("responses", "response_mask", "old_log_probs", "advantages", "ref_log_prob")
    columns = {name: data[name].to_padded_tensor(0) for name in names}
    columns["prompts"] = left(data["prompts"])
    ones = torch.nested.nested_tensor([torch.ones_like(row) for row in data["responses"].unbind()], layout=torch.jagged)
    prompt_ones = torch.nested.nested_tensor(
        [torch.ones_like(row) for row in data["prompts"].unbind()], layout=torch.jagged
    )
    columns["attention_mask"] = torch.cat([left(prompt_ones), ones.to_padded_tensor(0)], 1)
    columns["position_ids"] = (columns["attention_mask"].cumsum(1) - 1).clamp(min=0)
    columns["input_ids"] = torch.cat([columns["prompts"], columns["responses"]], 1)
    made = TensorDict({**columns, **{name: data[name] for name in (ROLLOUT, PROMPT, POSITION, SAMPLE)}}, len(data))
    settings = {name: tu.get(data, name) for name in data.keys() if not isinstance(data.get(name), torch.Tensor)}  # noqa: SIM118
    tu.assign_non_tensor(made, **settings)
    return left_right_2_no_padding(made)


def v0(bench: Bench) -> dict[str, Any]:
    """Steps with a KL term on rows as the V0 trainer sends them."""
    case = CASES[1]
    spec = spec_of(case, "sequence_mean")
    plan, before = Plan(spec, PROMPTS), bench.updates
    install(bench.worker, bench.orders(spec, case))
    native = bench.worker.train_mini_batch
    bench.worker.train_mini_batch = lambda data: native(padded(data))
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
    install(bench.worker, bench.orders(spec_of(CASES[0], "token_mean"), CASES[0]))
    changed = [change.attribute for change in bench.worker.batchbridge._patches.changes]
    remove(bench.worker)
    names = ("nothing", "the loss", "a micro-batch's gradient", "the gradient after backward")
    return {
        "witness": next(name for name in changed if "lora" in name),
        **{name: tampered(bench, TAMPERS[name]) for name in names},
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
    names = ("nothing", "the loss", "a micro-batch's gradient", "the gradient after backward")
    found = {name: tampered(bench, TAMPERS[name]) for name in names}
    with bound(bench, 1e-3):
        return {**found, "clipped": tampered(bench, TAMPERS["nothing"])}


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
    found["rate"] = tampered(bench, rate_raised, ledger=folder / "rate")
    found["unreadable"] = tampered(bench, unreadable, mode="observe", ledger=folder / "unreadable")
    found["v0"] = v0(bench)
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
