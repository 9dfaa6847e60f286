"""The state of a run that no number of ranks, no sharding and no framework has cut: weights and AdamW's moments by the
parameters' names, and the place in the learning rate's schedule, in one file beside the place in the plan.

Who has a checkpoint of its own framework makes one of it (`WholeState.write`); who trains with
torch.distributed's modules loads it on any number of ranks (`load`). Nothing is guessed: what cannot be named, or is
more than AdamW's state, is refused. Imports torch only inside functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbridge.errors import CannotAttach

SCHEMA = "batchbridge/whole/1"
WHOLE = "batchbridge_whole.pt"
"""The name of the file, in a checkpoint's folder."""
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The names of what AdamW keeps of each parameter."""
SETTINGS = ("lr", "initial_lr", "betas", "eps", "weight_decay")
"""The settings of the optimizer's groups that are carried over; how its kernels run is not."""


@dataclass(frozen=True, kw_only=True)
class WholeState:
    """weights: of the model, by name. moments: `MOMENTS` of each parameter of the optimizer, by name. settings: of all
    of them, see `SETTINGS`. ticks: of the learning rate's schedule that are done."""

    weights: Mapping[str, Any]
    moments: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Any]
    ticks: int

    def write(self, folder: Path) -> None:
        """Writes the file into `folder`, whole or not at all."""
        import torch

        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f"{WHOLE}.partial"
        torch.save({"schema": SCHEMA, **{name: _plain(value) for name, value in vars(self).items()}}, partial)
        partial.replace(folder / WHOLE)

    @classmethod
    def read(cls, folder: Path) -> WholeState:
        """The state that `write` wrote; its tensors lie in the file until they are used. Raises `CannotAttach`."""
        import torch

        file = folder / WHOLE
        try:
            found = torch.load(file, weights_only=True, map_location="cpu", mmap=True)
            if found.pop("schema") != SCHEMA:
                raise ValueError(f"no {SCHEMA}")
            return cls(**found)
        except Exception as error:  # torch's own are of many kinds
            raise refusal(f"{file} cannot be read ({type(error).__name__}: {error!s:.200}); make it anew") from error


def of_adamw(
    where: Path, names: Sequence[str], optimizer: Mapping[str, Any], schedule: Mapping[str, Any]
) -> dict[str, Any]:
    """`moments`, `settings` and `ticks` of a `WholeState`. Raises `CannotAttach` for another optimizer's state.

    names: of the optimizer's parameters, in the order of its groups. optimizer, schedule: their states as torch gives
    them, each tensor whole.
    """
    groups, state = optimizer["param_groups"], optimizer["state"]
    numbers = [number for group in groups for number in group["params"]]
    if len(numbers) != len(names):
        raise refusal(f"{where}: {len(numbers)} parameters in the optimizer, and {len(names)} names of them")
    settings = {name: groups[0].get(name) for name in SETTINGS}
    apart = sorted({name for name in SETTINGS for group in groups if group.get(name) != settings[name]})
    if apart:
        reason = (
            f"{where}: its optimizer's groups differ in {', '.join(apart)}, and one group is all that can be carried "
            "over; give all parameters the same (weight_decay = 0), or start a new run from the weights"
        )
        raise refusal(reason)
    for number, name in zip(numbers, names, strict=True):
        kept = sorted(state.get(number, ()))
        if kept != sorted(MOMENTS):
            reason = f"its optimizer keeps {', '.join(kept) or 'nothing'} of {name}, and AdamW {', '.join(MOMENTS)}"
            raise refusal(f"{where}: {reason}; start a new run from the weights")
    rates = set(schedule.get("base_lrs") or ())
    if len(rates) != 1 or "last_epoch" not in schedule:
        raise refusal(f"{where}: its schedule has not one place and one rate; start a new run from the weights")
    moments = {name: dict(state[number]) for number, name in zip(numbers, names, strict=True)}
    settings["initial_lr"] = rates.pop()
    return {"moments": moments, "settings": settings, "ticks": int(schedule["last_epoch"])}


def load(state: WholeState, module: Any, optimizer: Any, schedule: Any, *, where: str) -> None:
    """Puts a whole state into a module that FSDP may have sharded, its optimizer and its schedule. Collective. Raises
    `CannotAttach`, before a value is changed, unless it is of exactly these parameters."""
    from torch.distributed.checkpoint import state_dict as whole

    here = whole.get_model_state_dict(module)
    weights = {**state.weights, **_tied(module, state.weights, here)}
    sizes = {name: tuple(value.shape) for name, value in here.items()}
    _same_names(where, "weights", weights, here)
    trained = _trained(module, optimizer)
    _same_names(where, "the optimizer's parameters", state.moments, trained)
    if wrong := [name for name in here if tuple(weights[name].shape) != sizes[name]]:
        raise refusal(f"{where}: {wrong[0]} has other sizes there: it is of another model")
    if len(optimizer.param_groups) != 1:
        raise refusal(f"{where}: the optimizer has {len(optimizer.param_groups)} groups here, and one can be loaded")
    options = whole.StateDictOptions(full_state_dict=True)
    whole.set_model_state_dict(module, weights, options=options)
    own = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
    group = own | {name: value for name, value in state.settings.items() if value is not None} | {"params": trained}
    moments = {name: dict(values) for name, values in state.moments.items()}
    whole.set_optimizer_state_dict(module, optimizer, {"state": moments, "param_groups": [group]}, options=options)
    now = schedule.state_dict()
    rates = {"base_lrs": [state.settings["initial_lr"]], "_last_lr": [state.settings["lr"]]}
    schedule.load_state_dict(now | rates | {"last_epoch": state.ticks, "_step_count": state.ticks + 1})


def _trained(module: Any, optimizer: Any) -> list[str]:
    """The optimizer's parameters by name. An optimizer that has not begun is given a state: an update at a rate of
    zero."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    groups = get_optimizer_state_dict(module, optimizer)["param_groups"]
    return [name for group in groups for name in group["params"]]


def _tied(module: Any, weights: Mapping[str, Any], here: Iterable[str]) -> dict[str, Any]:
    """The weights that a file leaves out because they are another one's, of a transformers' model, by name."""
    if not getattr(getattr(module, "config", None), "tie_word_embeddings", False):
        return {}
    embedding = next((name for name in weights if name.endswith("embed_tokens.weight")), None)
    missing = [name for name in here if name not in weights and name.endswith("lm_head.weight")]
    return {} if embedding is None else dict.fromkeys(missing, weights[embedding])


def _same_names(where: str, what: str, there: Iterable[str], here: Iterable[str]) -> None:
    unlike = sorted(set(there) ^ set(here))
    if unlike:
        raise refusal(f"{where}: {what} there and here differ in {', '.join(unlike[:3])} ({len(unlike)} names)")


def _plain(value: Any) -> Any:
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def refusal(reason: str) -> CannotAttach:
    """The refusal of a resume, for this reason."""
    return CannotAttach({"resume": reason})
