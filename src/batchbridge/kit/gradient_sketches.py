"""Every trained parameter's gradient, as its micro-batches give it, against what the optimizer finds at the update.

A gradient is kept as a sketch: pieces of a matrix's rows, eight of a row where it can be cut so, times one vector of
signs and sizes; a vector as it is. It shows a row that was scaled, zeroed or exchanged, and elements of a row that were
exchanged. A step looks at each seventh piece of a large matrix, at 64 at least, and the next step at those after these:
so all parameters are compared in every step, every piece in seven. Sketches add up as gradients do: over
micro-batches, over ranks, and over the parts of a gradient that ranks share. Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from batchbridge.kit.allowing import GRADIENT_TRANSFORM
from batchbridge.kit.ddp_exchange import Exchange
from batchbridge.kit.gradient_origins import Origin, Part, Tracked, origin_of
from batchbridge.kit.measuring import all_reduce_over

NOISE: Mapping[torch.dtype, float] = {
    # By the type in which gradients are summed up; measured by benchmarks/gradient_noise.py.
    torch.float64: 2.4e-7,  # sketches themselves are of float32
    torch.float32: 2.4e-7,
    torch.bfloat16: 3.4e-3,
    torch.float16: 4.4e-4,
}
"""The largest departure of 48 sound runs, over the root of the squared sizes of all partial sums: each addition rounds
by its share of the sum that it makes."""
TIMES = 10
"""The bar over the largest noise."""
_KNOWN = ("torch", "accelerate", "deepspeed", "transformers", "trl", "peft", "verl", "openrlhf", "open_instruct")
"""Packages whose hooks on a parameter are no user's."""
_SHOWN = 3
"""Parameters that a message names."""


class ChangedGradient(str):
    """An objection that gradients were changed after backward; `allow` may name it."""

    aspect = "gradient"
    allowed_by = GRADIENT_TRANSFORM


class Sketches:
    """The sketches of a module's gradients in one optimizer step. reduce: sums a tensor over the ranks whose gradients
    are averaged, in place; collective. exchange: tells how ranks exchange gradients in this step."""

    def __init__(
        self,
        origin: Origin,
        reduce: Callable[[torch.Tensor], object] | None = None,
        exchange: Callable[[], Exchange] | None = None,
    ) -> None:
        self._origin, self._reduce = origin, reduce or all_reduce_over()
        self._exchange = exchange or Exchange
        self._all: list[Tracked] = []
        self._handles: list[Any] = []
        self._signs: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._arrived = False
        self._turn = 0
        self.ratio: float | None = None
        """The norm of what the optimizer found at the last comparison over that of what arrived."""
        self.finite = True
        """Whether all of it was finite."""
        self.noise = 0.0
        """The largest departure of a parameter at the last comparison, as in `NOISE`."""
        self._track()

    @property
    def names(self) -> list[str]:
        """The parameters whose gradients are compared."""
        return [one.name for one in self._all]

    def _track(self) -> None:
        self._all = self._origin.tracked()
        end = 0
        for one in self._all:
            one.start = end
            end += one.rows
        device = _device(self._all)
        self._pass, self._sum, self._spread = torch.zeros(3, end, dtype=torch.float32, device=device)
        self._lengths = [one.rows for one in self._all]
        rows = torch.tensor(self._lengths, dtype=torch.long)
        self._owners = torch.arange(len(rows)).repeat_interleave(rows).to(device)  # which parameter a number is of
        self._trained = [(one, one.requires_grad) for one in self._origin.parameters()]
        self._known = {id(one) for one, _ in self._trained}
        self._most = max((one.columns for one in self._all), default=1)
        self._signs.clear()
        self._intos = self._pass.split(self._lengths)
        self._take_turn()
        self._handles = self._origin.hook(self._all, lambda one, gradient: self.arrive(one, gradient))

    def _take_turn(self) -> None:
        """Says which rows the coming step looks at: the same on all ranks."""
        for one, into in zip(self._all, self._intos, strict=True):
            one.turn = self._turn % one.every
            one.window = slice(one.turn, None, one.every)
            one.held = len(range(one.turn, one.all_rows, one.every))
            one.into = into[: one.held]

    def remove(self) -> None:
        """Takes the hooks off."""
        for handle in self._handles:
            handle.remove()
        for one in self._all:
            for hook in one.hooks:
                hook.remove()

    def drop(self) -> None:
        """Forgets the gradients since the last `compare`."""
        for buffer in (self._pass, self._sum, self._spread):
            buffer.zero_()
        self._forget_arrived()

    def _forget_arrived(self) -> None:
        self._arrived = False
        for one in self._all:
            one.arrived = False

    def _look_again(self, updated: Collection[int] | None) -> None:
        """Tracks what is trained by now, where a user has frozen something, or no longer does, or the optimizer has a
        parameter that was not there."""
        unknown = set(updated or ()) - self._known
        if not unknown and all(one.requires_grad == trained for one, trained in self._trained):
            return
        self._known |= unknown  # of another model, perhaps
        if [id(one.parameter) for one in self._origin.tracked()] != [id(one.parameter) for one in self._all]:
            self.remove()
            self._track()

    def arrive(self, one: Tracked, gradient: torch.Tensor) -> None:
        """This rank's own gradient of one parameter, of one backward pass or a part of it."""
        if one.arrived:
            self._add_pass()
        one.arrived = self._arrived = True
        # Called for each parameter in each pass, among products that empty every cache: the common case goes first.
        if one.plain and gradient.dtype is torch.float32:
            if gradient.requires_grad:  # backward was asked for a graph
                gradient = gradient.detach()
            _add_plain(one, gradient, one.into)
            return
        if one.kind is not gradient.dtype:
            one.kind = _coarser(one.kind, gradient.dtype)
        self._sketch(one, Part(gradient.detach()), one.into)
        alike = gradient.dtype == one.into.dtype and gradient.device == one.into.device and not gradient.is_sparse
        whole = gradient.shape == one.shape and 1 <= gradient.dim() <= 2
        one.plain = alike and whole
        one.plain_signs = one.signs.get((gradient.device, gradient.dtype))

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """The span of one backward pass; where it fails, nothing arrived."""
        if self._arrived:
            self._add_pass()
        try:
            yield
        except BaseException:
            self._pass.zero_()
            self._forget_arrived()
            raise

    def _add_pass(self) -> None:
        """Adds a pass to the step, and the size that the sums then have: each addition rounds by its share of it."""
        self._sum += self._pass
        self._pass.zero_()
        self._forget_arrived()
        self._spread.addcmul_(self._sum, self._sum)

    def _sketch(self, one: Tracked, part: Part, into: torch.Tensor) -> None:
        values = part.values.to_dense() if part.values.is_sparse else part.values
        if one.columns > 1 and values.shape != one.shape:
            self._sketch_pieces(one, part, into)
            return
        first, place = self._first(one, part.begin if one.columns == 1 else 0)
        rows = values.reshape(-1, one.columns)[first :: one.every]
        into = into[place : place + len(rows)]
        if one.columns == 1:
            into += rows.flatten().to(into.device)
        else:
            self._add(rows, self._signs_of(one, values), into)

    @staticmethod
    def _first(one: Tracked, row: int) -> tuple[int, int]:
        """The number of rows from this one on that come before the first that the step looks at; and the place of that
        one in the sketch."""
        first = (one.turn - row) % one.every
        return first, (row + first - one.turn) // one.every

    def _sketch_pieces(self, one: Tracked, part: Part, into: torch.Tensor) -> None:
        """A part that begins and ends anywhere: the rest of a row, whole rows, the beginning of one."""
        flat, begin, columns = part.values.reshape(-1), part.begin, one.columns
        signs = self._signs_of(one, flat)
        while flat.numel():
            row, column = divmod(begin, columns)
            whole = not column and flat.numel() >= columns
            piece = flat[: flat.numel() // columns * columns if whole else columns - column]
            first, place = self._first(one, row)
            rows = (piece.view(-1, columns) if whole else piece[None])[first :: one.every]
            if len(rows):
                self._add(rows, signs[column : column + rows.shape[1]], into[place : place + len(rows)])
            flat, begin = flat[piece.numel() :], begin + piece.numel()

    @staticmethod
    def _add(matrix: torch.Tensor, signs: torch.Tensor, into: torch.Tensor) -> None:
        if matrix.dtype == into.dtype and matrix.device == into.device:
            torch.addmv(into, matrix, signs, out=into)
        else:
            into += torch.mv(matrix, signs).to(into.device)

    def _signs_of(self, one: Tracked, values: torch.Tensor) -> torch.Tensor:
        """The vector that each row of a parameter is multiplied with: a window of one table, at a place that the name
        gives. Its numbers are exact in the half types, and two of them are alike one time in 128."""
        key = (values.device, values.dtype)
        if (own := one.signs.get(key)) is not None:
            return own
        table = self._signs.get(key)
        if table is None:
            drawn = torch.randint(64, 192, (self._most + _WINDOWS,), generator=torch.Generator().manual_seed(_SEED))
            sizes = torch.where(drawn < 128, drawn, 64 - drawn) / 64
            table = self._signs[key] = sizes.to(*key)
        first = zlib.crc32(one.name.encode()) % _WINDOWS
        one.signs[key] = table[first : first + one.columns]
        return one.signs[key]

    def _sums(self, *numbers: torch.Tensor) -> list[list[float]]:
        """Each parameter's sums of these numbers of its rows, in float64."""
        many = torch.stack(numbers, dim=1)
        sums: list[list[float]] = (
            many.new_zeros(len(self._all), len(numbers)).index_add_(0, self._owners, many).T.tolist()
        )
        return sums

    def compare(self, expected: float, updated: Collection[int] | None = None) -> list[ChangedGradient]:
        """The objection that the optimizer does not find `expected` times the sum of all ranks' gradients, if there is
        one. updated: the parameters (`id`) that the optimizer has; None: all. Collective."""
        if self._arrived:
            self._add_pass()
        found = torch.zeros_like(self._sum)
        for one, whole in zip(self._all, found.split(self._lengths), strict=True):
            into = whole if one.held == one.rows else whole[: one.held]
            part = self._origin.found(one)
            if part is not None:
                values = part.values
                if one.plain and values.dtype is torch.float32 and values.shape == one.shape and part.copies == 1:
                    _add_plain(one, values, into)
                    continue
                one.kind = _coarser(one.kind, values.dtype)
                if part.copies == 1:
                    self._sketch(one, part, into)
                else:
                    share = torch.zeros_like(into)
                    self._sketch(one, part, share)
                    into += share / part.copies
        exchange = self._exchange()
        told = [self._sum, self._spread, *([found] if self._origin.shared else [])]
        told += [] if exchange.kind is None else [self._sum.square()]
        together = torch.cat(told)
        self._reduce(together)
        arrived, spread, *others = together.split([len(each) for each in told])
        wanted = arrived * expected
        found = others[0] if self._origin.shared else found
        # Each rank's own gradient is rounded to the type that it is sent in, and so is each sum of ranks.
        sent = torch.zeros_like(arrived) if exchange.kind is None else others[-1] + 2 * arrived.square()
        found, wanted = found.double(), wanted.double()
        rest = found - wanted
        sums = self._sums(
            rest.square(),
            # The exchange with its division, and clipping, round once more each.
            spread.double() + 2 * arrived.double().square(),
            rest * wanted,
            wanted.square(),
            wanted.square().square(),
            found.square(),
            sent.double(),
        )
        departing = []
        self.noise = 0.0
        for one, apart, most, along, length, fourth, _, packed in zip(self._all, *sums, strict=True):
            kind = one.kind if exchange.kind is None else _coarser(one.kind, exchange.kind)
            apart, most, length = math.sqrt(apart), math.sqrt(most) * abs(expected), math.sqrt(length)
            packed = math.sqrt(packed) * abs(expected)
            # The size of the part of `rest` that is a multiple of what was wanted; and the share of independent
            # roundings that is one: the fewer rows carry a gradient, the larger.
            along, share = (abs(along) / length, math.sqrt(fourth) / length**2) if length else (0.0, 0.0)
            bar = TIMES * NOISE.get(one.kind, NOISE[torch.float32]) * most
            if exchange.kind is not None:
                bar += TIMES * (NOISE[exchange.kind] * packed + exchange.lost_of(one.shape) * abs(expected))
            # A factor that is itself rounded (of clipping, say) is no rounding of single rows.
            factor = max(along - torch.finfo(kind).eps / 2 * length, 0.0)
            counts = updated is None or id(one.parameter) in updated
            # One that is not finite is the loss's own, if it arrived so; sums of fp16 overflow.
            broken = math.isfinite(length) and not math.isfinite(apart) and kind != torch.float16
            if counts and (broken or apart > bar or factor > bar * share):
                departing.append(one)
            if most and share:
                self.noise = max(self.noise, apart / most, factor / most / share)
        want, have = (math.sqrt(math.fsum(sums[place])) for place in (3, 5))
        self.ratio, self.finite = (have / want if want else None), math.isfinite(have + want)
        objections = [self._said(departing, found, wanted, exchange)] if departing else []
        self.drop()
        self._turn += 1
        self._take_turn()
        self._look_again(updated)
        return objections

    def _said(
        self, departing: Sequence[Tracked], found: torch.Tensor, wanted: torch.Tensor, exchange: Exchange
    ) -> ChangedGradient:
        told = []
        for one in departing[:_SHOWN]:
            have, want = (each[one.start : one.start + one.rows].double() for each in (found, wanted))
            length = float(want.square().sum())
            factor = float((have * want).sum()) / length if length else math.nan
            if not math.isfinite(float(have.sum())):
                told.append(f"{one.name} (not finite)")
                continue
            rest = float((have - factor * want).norm()) / (float(have.norm()) or 1.0)
            kind = one.kind if exchange.kind is None else _coarser(one.kind, exchange.kind)
            alike = rest <= 3 * TIMES * NOISE.get(kind, NOISE[torch.float32])
            told.append(f"{one.name} {_of(factor, alike)}")
        more = f", and {len(departing) - _SHOWN} more" if len(departing) > _SHOWN else ""
        hooks = list(dict.fromkeys(hook for one in departing for hook in foreign_hooks(one.parameter)))
        by = f"; hooks on them that are not the framework's: {', '.join(hooks[:_SHOWN])}" if hooks else ""
        by += f"; DDP exchanges gradients by {', '.join(exchange.unknown)}" if exchange.unknown else ""
        return ChangedGradient(
            f"the gradients that the optimizer finds of {len(departing)} of {len(self._all)} parameters are not what "
            f"the micro-batches gave: {', '.join(told)}{more}: changed after backward, or of a micro-batch that was "
            f'lost{by}; allow=("{GRADIENT_TRANSFORM}",) admits a change of your own, and the ledger has its ratio'
        )


def _add_plain(one: Tracked, values: torch.Tensor, into: torch.Tensor) -> None:
    """Adds a whole gradient of float32."""
    rows = values.reshape(-1) if one.columns == 1 else values.reshape(-1, one.columns)
    rows = rows[one.window] if one.every > 1 else rows
    if one.plain_signs is None:
        into.add_(rows)
    else:
        into.addmv_(rows, one.plain_signs)


def _of(factor: float, alike: bool) -> str:
    """The words on one parameter."""
    if math.isnan(factor):
        return "(backward gave none)"
    return f"({factor:.6g} times)" if alike else "(another direction)"


_SEED, _WINDOWS = 41, 1021


def _device(tracked: Sequence[Tracked]) -> torch.device:
    return next((one.parameter.device for one in tracked), torch.device("cpu"))


def _coarser(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    return max(one, other, key=lambda kind: NOISE.get(kind, 0.0))


def foreign_hooks(parameter: Any) -> Iterator[str]:
    """The functions that someone other than torch, the frameworks and this package has hooked on a parameter."""
    for attribute in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        for hook in (getattr(parameter, attribute, None) or {}).values():
            module = getattr(hook, "__module__", None) or type(hook).__module__
            root = str(module).partition(".")[0]
            if root not in _KNOWN and not root.startswith("batchbridge"):
                yield f"{module}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"


def sketches_of(module: Any, exchange: Callable[[], Exchange] | None = None) -> Sketches | None:
    """The sketches of a module that torch trains, sharded by FSDP or not; None where nothing is trained."""
    made = Sketches(origin_of(module), exchange=exchange)
    return made if made.names else None


def updated_by(optimizer: Any) -> set[int] | None:
    """The parameters (`id`) that an optimizer of torch updates; None where it does not tell."""
    groups: Iterable[Mapping[str, Any]] | None = getattr(optimizer, "param_groups", None)
    return None if groups is None else {id(one) for group in groups for one in group["params"]}
