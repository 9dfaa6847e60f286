"""verl's own loss on made-up log-probabilities: what it gives a token, measured before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from batchbridge import Spec
from batchbridge.kit.measuring import Rows, Tap
from batchbridge.kit.probing import CUT, WIDTH, ProbeBatch, batches, made_up_run, normaliser, remedy_with, verdict
from batchbridge_verl.distillation import bound_of, settings_of
from batchbridge_verl.other_engines import is_proven, run_probe
from batchbridge_verl.watching import VerlStepProbe, responses_of

REMEDY = remedy_with("verl's own loss and aggregations")
PROMPT_TOKENS = 2


def hold_loss_against(spec: Spec, worker: Any, watch: VerlStepProbe, *, padded: bool = False) -> None:
    """The check (`CannotAttach`) that the worker's loss, run on leaves in the engine's own loop (denominators,
    micro-batches, factor for the ranks, backward), has the weights of `spec`. Collective; no model runs.

    padded: the loss takes responses of one width alone, as the V0 trainer sends them.
    """
    taps = []
    config = worker.loss_fn.keywords["config"]
    # With the current policy as the ratio's denominator every ratio is one.
    for off_policy in (False,) if spec.objective.old_logprobs == "detached" else (False, True):
        tap, made = watch.tap(), list(batches(watch.objective, off_policy=off_policy))
        if (taught := settings_of(worker.loss_fn)) is not None:
            bound = bound_of(taught)
            made = [replace(part, advantages=part.advantages.clamp(-bound, bound)) for part in made]
        data = _data(made, spec, first=worker.engine.get_data_parallel_rank() == 0)
        if taught is not None:
            _teach(data, made)
        if padded:
            data = _padded(data)
        with _unchanged(config, *([] if taught is None else [taught.distillation_loss])):
            if _run(worker, data, tap, made, watch.output):
                taps.append(tap)
    if taps:  # else another process of this replica has the loss
        verdict(taps, spec.loss.policy, scale=watch.ranks, remedy=REMEDY)


def _run(worker: Any, data: Any, tap: Tap, made: list[ProbeBatch], output: str) -> bool:
    """Whether this process is to have seen the loss."""
    with made_up_run("the worker's loss did not run on a made-up batch", REMEDY):
        if not is_proven(worker.engine):
            return run_probe(worker, data, tap, made, _leaf)
        with _leaves_in(worker.engine, tap, made, output):
            worker.engine.forward_backward_batch(data, loss_function=worker.loss_fn)
    return True


@contextlib.contextmanager
def _leaves_in(engine: Any, tap: Tap, made: list[ProbeBatch], name: str) -> Iterator[None]:
    """The span of a probed loss: no forward pass, its output `name` (log-probabilities, values) is the probe's."""
    remaining, native = iter(made), vars(engine).get("forward_step")

    def forward_step(micro_batch: Any, loss_function: Callable[..., Any], forward_only: bool) -> Any:
        from verl.utils.device import get_device_id

        micro_batch = micro_batch.to(get_device_id())
        leaf, offsets = _leaf(tap, next(remaining), micro_batch), micro_batch["input_ids"].offsets()
        output = {name: torch.nested.nested_tensor_from_jagged(leaf, offsets)}
        loss, metrics = loss_function(model_output=output, data=micro_batch, dp_group=engine.get_data_parallel_group())
        return loss, {"model_output": {}, "loss": loss.detach().item(), "metrics": metrics}

    engine.forward_step = forward_step
    try:
        yield
    finally:
        if native is None:
            del engine.forward_step
        else:
            engine.forward_step = native


def _leaf(tap: Tap, probed: ProbeBatch, micro_batch: Any) -> torch.Tensor:
    """The stand-in of a probe for a micro-batch's output, packed as an engine has it."""
    view, device = responses_of(micro_batch), micro_batch["input_ids"].device
    packed = torch.cat([_packed(row[:length]) for row, length in zip(probed.logprobs, _lengths(probed), strict=True)])
    return tap.leaf(packed.to(device), _rows(probed, view.width, device), view=view)


@contextlib.contextmanager
def _unchanged(*configs: Any) -> Iterator[None]:
    """The span after which what verl's loss leaves in its configurations is that of the last real batch again."""
    of_batches = [getattr(config, "global_batch_info", {}) for config in configs]  # a critic's loss leaves nothing
    kept = [dict(of_batch) for of_batch in of_batches]
    try:
        yield
    finally:
        for of_batch, before in zip(of_batches, kept, strict=True):
            of_batch.clear()
            of_batch.update(before)


def _lengths(made: ProbeBatch) -> list[int]:
    """Response tokens of each row; a filler has one, outside of its mask."""
    return [max(length, 1) for length in made.lengths]


def _packed(logprobs: torch.Tensor) -> torch.Tensor:
    """One row as the engine has it: prompt and response, a value standing one place before its token."""
    return torch.cat([logprobs.new_zeros(PROMPT_TOKENS - 1), logprobs, logprobs.new_zeros(1)])


def _rows(made: ProbeBatch, width: int, device: torch.device) -> Rows:
    def here(values: torch.Tensor) -> torch.Tensor:
        return values[:, :width].to(device)

    return Rows(
        mask=here(made.mask),
        advantages=here(made.advantages[:, None]),
        old=None if made.old is None else here(made.old),
        reference=None if made.reference is None else here(made.reference),
    )


def _data(made: list[ProbeBatch], spec: Spec, *, first: bool) -> Any:
    """The probe's rows as the trainer would send them. first: whether this rank's tokens count; every rank has the same
    rows, and the engine adds up tokens over the ranks."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    lengths = [length for part in made for length in _lengths(part)]

    def nested(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    def column(name: str) -> torch.Tensor:
        return nested([row[:length] for row, length in zip(_all(made, name), lengths, strict=True)])

    masks = column("mask")
    columns = {
        "input_ids": nested([torch.zeros(PROMPT_TOKENS + length, dtype=torch.long) for length in lengths]),
        "position_ids": nested([torch.arange(PROMPT_TOKENS + length) for length in lengths]),
        "prompts": nested([torch.zeros(PROMPT_TOKENS, dtype=torch.long) for _ in lengths]),
        "responses": nested([torch.zeros(length, dtype=torch.long) for length in lengths]),
        "response_mask": masks,
        "loss_mask": masks if first else masks * 0,
        "old_log_probs": column("logprobs" if made[0].old is None else "old"),
        "advantages": nested(
            [value.expand(length) for value, length in zip(_all(made, "advantages"), lengths, strict=True)]
        ),
    }
    # A critic's, whose old values stand where old log-probabilities do, and returns where advantages do.
    columns |= {"values": columns["old_log_probs"], "returns": columns["advantages"]}
    if made[0].reference is not None:
        columns["ref_log_prob"] = column("reference")
    data = TensorDict(columns, batch_size=len(lengths))
    settings = {
        "use_dynamic_bsz": False,
        "micro_batch_size_per_gpu": len(CUT[0]),
        "global_batch_size": normaliser(spec.loss.policy).completions,
        "temperature": 1.0,
        "calculate_entropy": False,
    }
    tu.assign_non_tensor(data, **settings)
    return data


def _padded(data: Any) -> Any:
    """The probe's rows with responses of one width."""
    rows = len(data)
    of_responses = ("responses", "response_mask", "loss_mask", "old_log_probs", "advantages", "values", "returns")
    lengths = [len(response) for response in data["responses"].unbind()]
    for name in (*of_responses, "ref_log_prob"):
        if name in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            data[name] = data[name].to_padded_tensor(0, output_size=(rows, WIDTH))
    data["prompts"] = data["prompts"].to_padded_tensor(0)
    attended = [[1] * (PROMPT_TOKENS + length) + [0] * (WIDTH - length) for length in lengths]
    data["attention_mask"] = torch.tensor(attended)
    return data


def _teach(data: Any, made: list[ProbeBatch]) -> None:
    """A teacher's log-probabilities, whose distances are the negative of the probe's advantages."""
    lengths = [length for part in made for length in _lengths(part)]
    rows = [
        _packed(logprobs[:length] + advantage)[:, None]
        for logprobs, advantage, length in zip(_all(made, "logprobs"), _all(made, "advantages"), lengths, strict=True)
    ]
    data["teacher_logprobs"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _all(made: list[ProbeBatch], name: str) -> list[torch.Tensor]:
    return [row for part in made for row in getattr(part, name)]
