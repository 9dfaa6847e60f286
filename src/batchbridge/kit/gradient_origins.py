"""The places where a module's gradients arrive in backward, and where the optimizer finds them: whole parameters, the
parts that FSDP shares out, and DeepSpeed's.

Source: torch 2.13.0 distributed/fsdp (FSDP1's flat parameters and their views, FSDP2's DTensors); deepspeed 0.15.4 to
0.19.8 utils/tensor_fragment.py, runtime/zero/stage3.py. Imports torch; knows no framework.
"""

from __future__ import annotations

import functools
import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

TURNS = 7
"""Steps in which each piece of a large parameter's rows is looked at once: to read all of every gradient in every
micro-batch takes more than a hundredth of a step. Odd, as every number of turns is: a row has `PIECES`, so that a step
sees all places in a row."""
PIECES = 8
"""Parts of a row that make one number of the sketch each. Where few tokens give a gradient, its rows are multiples of
one another; of a single number a row, all would be small together where that one vector happens to be across the signs,
and rounding would look like a change: in one of 4,000 parameters of a gradient that one token gave."""
_WHOLE = 4096
"""Values of a parameter that is looked at whole in every step."""
_FEWEST = 64
"""Pieces of a parameter that a step looks at, where it has them: of few, single roundings stand out."""


class Part(NamedTuple):
    """A part of a parameter's gradient at this rank. values: flattened, from the parameter's element `begin` on.
    copies: ranks that have the same part."""

    values: torch.Tensor
    begin: int = 0
    copies: int = 1


@dataclass(eq=False)
class Tracked:
    """One trained parameter. parameter: the object that the optimizer has. kind: the coarsest type that its gradient
    takes. start: of its sketch among all. seen: the tensor that is hooked, which a forward pass may make anew.
    hooks: of it, to be taken off. place: where its origin finds it. signs: what its rows are multiplied with, by
    device and type. plain: its gradients come whole, of float32; plain_signs: of these, None for a vector. arrived:
    in the pass that goes on. into: its sketch in that pass. turn: the first of the rows that this step looks at; each
    `every`-th from there is (window), and so many are (held)."""

    name: str
    parameter: Any
    shape: torch.Size
    kind: torch.dtype
    start: int = 0
    seen: Callable[[], Any] = field(default=lambda: None)
    hooks: list[Any] = field(default_factory=list)
    place: Any = None
    signs: dict[Any, torch.Tensor] = field(default_factory=dict)
    arrived: bool = False
    into: Any = None
    plain: bool = False
    plain_signs: torch.Tensor | None = None
    turn: int = 0
    held: int = 0
    window: slice = field(default_factory=lambda: slice(None))

    @functools.cached_property
    def columns(self) -> int:
        """Values that make one number of the sketch: a row, or a piece of one."""
        row = int(self.shape[-1]) if len(self.shape) > 1 and self.shape[-1] else 1
        return row // next(pieces for pieces in (PIECES, PIECES // 2, 2, 1) if row % pieces == 0)

    @functools.cached_property
    def every(self) -> int:
        """Pieces of which a step looks at one; odd, see `TURNS`."""
        turns = min(TURNS, max(self.all_rows // _FEWEST, 1)) if self.shape.numel() > _WHOLE else 1
        return turns - 1 + turns % 2

    @functools.cached_property
    def all_rows(self) -> int:
        """Pieces of all rows of the parameter; "rows" below."""
        return int(self.shape.numel()) // self.columns

    @functools.cached_property
    def rows(self) -> int:
        """Numbers of the sketch; the last one stays zero in a turn that has a piece less."""
        return -(-self.all_rows // self.every)


class Origin(ABC):
    """The place where gradients of one module arrive, and where the optimizer finds them."""

    shared: bool
    """Whether ranks hold parts of what the optimizer finds."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def parameters(self) -> list[Any]:
        """All parameters, trained or not."""
        return list(self._module.parameters())

    @abstractmethod
    def tracked(self) -> list[Tracked]:
        """The trained parameters."""

    @abstractmethod
    def hook(self, all_of: Sequence[Tracked], arrive: Callable[[Tracked, torch.Tensor], None]) -> list[Any]:
        """Has `arrive` called with each gradient; the handles of what was hooked."""

    @abstractmethod
    def found(self, one: Tracked) -> Part | None:
        """The gradient that the optimizer will use, as far as this rank has it; None: it has none."""


def origin_of(module: Any) -> Origin:
    """The origin of a module that torch trains, sharded by FSDP or not."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    if isinstance(module, FullyShardedDataParallel):
        return FlatOrigin(module)
    return DTensorOrigin(module) if hasattr(module, "set_requires_gradient_sync") else PlainOrigin(module)


class PlainOrigin(Origin):
    """Parameters that every rank has whole."""

    shared = False

    def tracked(self) -> list[Tracked]:
        """The trained parameters, each once, however many modules use it."""
        return [
            Tracked(name, one, one.shape, one.dtype)
            for name, one in self._module.named_parameters()
            if one.requires_grad and one.numel()
        ]

    def hook(self, all_of: Sequence[Tracked], arrive: Callable[[Tracked, torch.Tensor], None]) -> list[Any]:
        """Hooks each parameter."""
        for one in all_of:
            _hook_first(one, one.parameter, arrive)
        return []

    def found(self, one: Tracked) -> Part | None:
        """The parameter's gradient."""
        return None if one.parameter.grad is None else Part(one.parameter.grad.detach())


def _hook_first(one: Tracked, tensor: Any, arrive: Callable[[Tracked, torch.Tensor], None]) -> None:
    """Hooks a tensor before all hooks that it has: what they change is a change after backward. Once for each."""
    if one.seen() is tensor:
        return

    def arrived(gradient: torch.Tensor) -> None:
        arrive(one, gradient)

    # A tensor that was made for another forward pass may still wait for its gradient: it keeps its hook.
    if one.seen() is None:
        one.hooks.clear()
    one.seen = weakref.ref(tensor)
    one.hooks.append(tensor.register_hook(arrived))
    hooks = tensor._backward_hooks
    others = [item for item in hooks.items() if item[1] is not arrived]
    for key, _ in others:  # autograd goes by the order in which they are put in
        del hooks[key]
    hooks.update(others)


class DTensorOrigin(Origin):
    """Parameters of FSDP2: whole from the forward pass of the unit that they belong to."""

    shared = True

    def tracked(self) -> list[Tracked]:
        """The trained parameters."""
        return PlainOrigin(self._module).tracked()

    def hook(self, all_of: Sequence[Tracked], arrive: Callable[[Tracked, torch.Tensor], None]) -> list[Any]:
        """Hooks what each forward pass uses."""
        numbers = {id(one.parameter): one for one in all_of}
        units = [name for name, unit in self._module.named_modules() if hasattr(unit, "set_requires_gradient_sync")]
        uses: dict[str, list[tuple[Any, str, Tracked]]] = {name: [] for name in units}
        for name, owner in self._module.named_modules():
            unit = max((one for one in units if f"{name}.".startswith(f"{one}." if one else "")), key=len)
            for attribute, parameter in owner._parameters.items():
                if id(parameter) in numbers:
                    uses[unit].append((owner, attribute, numbers[id(parameter)]))
        everywhere = [use for each in uses.values() for use in each]

        def arm(owner: Any, attribute: str, one: Tracked) -> None:
            weight = getattr(owner, attribute)
            if weight.requires_grad and not hasattr(weight, "placements"):
                _hook_first(one, weight, arrive)

        def before(name: str) -> Callable[..., None]:
            def look(*_: Any) -> None:
                if torch.is_grad_enabled():
                    # A unit may make another one's weights whole, too: those of a head that is never called.
                    for use in (*uses[name], *(use for use in everywhere if use[2].seen() is None)):
                        arm(*use)

            return look

        return [self._module.get_submodule(name).register_forward_pre_hook(before(name)) for name in units]

    def found(self, one: Tracked) -> Part | None:
        """This rank's part of the gradient."""
        gradient = one.parameter.grad
        if gradient is None or not hasattr(gradient, "placements"):
            return None if gradient is None else Part(gradient.detach(), copies=_world())
        return part_of(gradient)


def part_of(gradient: Any) -> Part | None:
    """This rank's part of a DTensor. Collective where its columns are shared out."""
    mesh, placements = gradient.device_mesh, gradient.placements
    if any(placement.is_shard() and placement.dim for placement in placements):
        return Part(gradient.full_tensor().detach(), copies=_world())
    sizes = [mesh.size(place) for place, placement in enumerate(placements) if placement.is_replicate()]
    offset = _offset(gradient.shape, mesh, tuple(placements))
    local = gradient.to_local().detach()
    if not local.numel():
        return None
    row = gradient.shape[1:].numel()
    return Part(local.reshape(-1), begin=offset[0] * row if offset else 0, copies=math.prod(sizes))


@functools.lru_cache(maxsize=1024)
def _offset(shape: torch.Size, mesh: Any, placements: tuple[Any, ...]) -> Sequence[int]:
    """The place where this rank's part of a DTensor begins."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return tuple(compute_local_shape_and_global_offset(shape, mesh, placements)[1])


def _world(group: Any = None) -> int:
    many = torch.distributed.is_available() and torch.distributed.is_initialized()
    return int(torch.distributed.get_world_size(group)) if many else 1


class FlatOrigin(Origin):
    """Parameters of FSDP1: whole as views, which each forward pass makes anew, in pieces of flat parameters after."""

    shared = True

    def tracked(self) -> list[Tracked]:
        """The trained parameters, by the flat ones that they are parts of."""
        from torch.distributed.fsdp import FullyShardedDataParallel

        made = []
        for path, unit in self._module.named_modules():
            if not isinstance(unit, FullyShardedDataParallel) or (handle := unit._handle) is None:
                continue
            flat = handle.flat_param
            unit_name = [part for part in path.split(".") if part != "_fsdp_wrapped_module"]
            for place, (attribute, _, owner) in enumerate(flat._param_infos):
                held = flat._params[place] if handle._use_orig_params else flat
                if held.requires_grad and flat._shapes[place].numel():
                    name = ".".join(part for part in (*unit_name, owner, attribute) if part)
                    made.append(
                        Tracked(
                            name, held, flat._shapes[place], handle._reduce_dtype or flat.dtype, place=(handle, place)
                        )
                    )
        return made

    def hook(self, all_of: Sequence[Tracked], arrive: Callable[[Tracked, torch.Tensor], None]) -> list[Any]:
        """Hooks the views that each forward pass uses."""
        # By the module that uses them, for a forward pass that is run again in backward; and by the unit, for a head
        # whose weight is used and which is never called.
        own: dict[Any, list[tuple[Any, str, Tracked]]] = {}
        for one in all_of:
            handle, place = one.place
            attribute, module, _ = handle.flat_param._param_infos[place]
            for outer in {module, handle._fully_sharded_module}:
                own.setdefault(outer, []).append((module, attribute, one))

        def arm(outer: Any, _: Any) -> None:
            if torch.is_grad_enabled():
                for module, attribute, one in own[outer]:
                    weight = getattr(module, attribute)
                    if weight.requires_grad:
                        _hook_first(one, weight, arrive)

        return [outer.register_forward_pre_hook(arm) for outer in own]

    def found(self, one: Tracked) -> Part | None:
        """This rank's piece of the gradient."""
        handle, place = one.place
        flat = handle.flat_param
        held = flat._shard_param_infos[place]
        gradient = flat._params[place].grad if handle._use_orig_params else flat.grad
        if not held.in_shard or gradient is None:
            return None
        start = 0 if handle._use_orig_params else held.offset_in_shard
        piece = gradient.detach().flatten()[start : start + held.numel_in_shard]
        # Under NO_SHARD, which is DDP, every rank's piece is the whole.
        shards = handle.world_size if handle.uses_sharded_strategy else 1
        return Part(piece, held.intra_param_start_idx, _world() // shards)


class ZeroOrigin(PlainOrigin):
    """Parameters that DeepSpeed trains, at every stage of ZeRO: whole in backward; then a rank has the part of each
    that it updates. group: the ranks that share them out; None: all."""

    shared = True

    def __init__(self, module: Any, group: Any = None) -> None:
        super().__init__(module)
        self._group = group

    def tracked(self) -> list[Tracked]:
        """The trained parameters; under ZeRO-3 they are empty between passes."""
        named = self._module.named_parameters()
        shapes = [(name, one, getattr(one, "ds_shape", one.shape)) for name, one in named if one.requires_grad]
        return [Tracked(name, one, torch.Size(shape), one.dtype) for name, one, shape in shapes if math.prod(shape)]

    def found(self, one: Tracked) -> Part | None:
        """The part of the gradient that this rank's optimizer will use."""
        from deepspeed.utils import safe_get_local_grad

        parameter = one.parameter
        # ZeRO-1 with float32 sums of bf16 gradients leaves a micro-batch's own gradient at the parameter.
        whole = getattr(parameter, "_hp_grad", None)
        whole = parameter.grad if whole is None else whole
        if whole is not None:
            return Part(whole.detach(), copies=_world(self._group))
        if hasattr(parameter, "ds_id"):
            held = safe_get_local_grad(parameter).flatten()
            begin = held.numel() * (torch.distributed.get_rank(self._group) if _world(self._group) > 1 else 0)
            return Part(held[: max(one.shape.numel() - begin, 0)], begin) if begin < one.shape.numel() else None
        mapping = getattr(parameter, "_hp_mapping", None)
        if mapping is None:
            return None
        try:
            piece = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
        except ValueError:  # no gradient came in this step, not of any parameter: it had no token
            piece = None
        if piece is None:
            return None
        begin, many = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
        held = piece.detach().flatten()
        return Part(held[begin : begin + many] if held.numel() == one.shape.numel() else held, begin)
