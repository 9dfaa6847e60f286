"""Padding-free forward passes of a transformers model: completions end to end behind their prompt, which is read once.

No model code is touched. While `attending`, the model's attention sees, in place of a mask, which tokens belong
together: a completion's see their prompt's and their own, a prompt's their own. Exact: a prompt's keys and values get
their gradient from all of its completions.

Under sdpa each prompt and each completion is a call of torch's own; under flash attention all of them are one call with
lengths of its own (`cu_seq_lens_q`, `cu_seq_lens_k`), whose causal mask ends at the last key, as it does since
flash-attn 2.1. Under sdpa on a GPU in half precision they are one call, too: torch has the same kernel since 2.11
(`varlen_attn`).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None
if varlen_attn is not None and "window_size" not in inspect.signature(varlen_attn).parameters:
    varlen_attn = None  # 2.10, which says otherwise what is causal

FLASH = ("flash_attention_2", "flash_attention_3")
"""Implementations of transformers whose varlen kernels take lengths of queries and of keys."""
ATTENTION = ("sdpa", *FLASH)
"""The implementations under which a pass can be packed."""


class Segment(NamedTuple):
    """Tokens that lie together: a prompt's, or a completion's. first, end: where. prompt_first, prompt_end: the prompt
    that a completion goes on from; equal ones for a prompt itself."""

    first: int
    end: int
    prompt_first: int
    prompt_end: int


@dataclass(frozen=True)
class PackedRows:
    """Padded rows as one row without padding.

    token_ids, position_ids: (1, tokens). segments: that it is made of, in order. predictors: (targets,), where the
    token before each completion token lies, whose output predicts it. targets: (1, targets), the completion tokens.
    rows, columns: (targets,), where each lies among the padded completions.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor
    segments: tuple[Segment, ...]
    predictors: torch.Tensor
    targets: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    _lengths: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, input_ids: torch.Tensor, attention_mask: torch.Tensor, completion_width: int) -> PackedRows:
        """The packing of rows of (prompt + completion width), prompts padded on the left and completions on the right.

        A row of which nothing is attended keeps a token of each, so that every pass has a gradient, of zeros. Raises
        `ValueError` where a mask has a hole: a token that others go past.
        """
        width, device = input_ids.shape[1] - completion_width, input_ids.device
        ids, attended = input_ids.tolist(), attention_mask.bool()
        counts = [attended[:, :width].sum(1).tolist(), attended[:, width:].sum(1).tolist()]
        order = torch.arange(1, max(width, completion_width) + 1, device=device)
        reach = [
            (attended[:, :width] * order[:width].flip(0)).amax(1).tolist(),
            (attended[:, width:] * order[:completion_width]).amax(1).tolist(),
        ]
        if counts != reach:
            raise ValueError("an attention mask has a hole: padding stands between tokens that are read")
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for row, count in enumerate(counts[0]):
            by_prompt.setdefault(tuple(ids[row][width - max(count, 1) : width]), []).append(row)
        tokens: list[int] = []
        positions: list[int] = []
        segments: list[Segment] = []
        predictors: list[int] = []
        at_row: list[int] = []
        at_column: list[int] = []
        for prompt, rows in by_prompt.items():
            first, end = len(tokens), len(tokens) + len(prompt)
            tokens += prompt
            positions += range(len(prompt))
            segments.append(Segment(first, end, end, end))
            for row in rows:
                count = max(counts[1][row], 1)
                start = len(tokens)
                tokens += ids[row][width : width + count]
                positions += range(len(prompt), len(prompt) + count)
                segments.append(Segment(start, start + count, first, end))
                predictors += [end - 1, *range(start, start + count - 1)]
                at_row += [row] * count
                at_column += range(count)

        def made(values: Sequence[int]) -> torch.Tensor:
            return torch.tensor(values, device=device)

        rows_, columns = made(at_row), made(at_column)
        targets = input_ids[rows_, columns + width][None]
        return cls(
            made(tokens)[None], made(positions)[None], tuple(segments), made(predictors), targets, rows_, columns
        )

    def padded(self, values: torch.Tensor, rows: int, width: int) -> torch.Tensor:
        """One value per target, (1, targets), at its place among (rows, width) padded completions; 0 elsewhere."""
        return values.new_zeros((rows, width)).index_put((self.rows, self.columns), values[0])

    def flash(self) -> dict[str, Any]:
        """The arguments of varlen kernels; `keys`: (gathered tokens,), of each segment its prompt's and its own."""
        if not self._lengths:
            device = self.token_ids.device
            own = [segment.end - segment.first for segment in self.segments]
            seen = [size + one.prompt_end - one.prompt_first for size, one in zip(own, self.segments, strict=True)]
            keys = [
                place
                for one in self.segments
                for place in (*range(one.prompt_first, one.prompt_end), *range(one.first, one.end))
            ]

            def ends(sizes: Sequence[int]) -> torch.Tensor:
                summed = torch.tensor([0, *sizes], device=device).cumsum(0)
                return summed.to(torch.int32)

            self._lengths.update(
                keys=torch.tensor(keys, device=device),
                cu_seq_lens_q=ends(own),
                cu_seq_lens_k=ends(seen),
                max_length_q=max(own),
                max_length_k=max(seen),
            )
        return self._lengths


class _Now:
    """The rows that the attention of an `attending` model reads: in backward passes too, by threads of torch's."""

    rows: PackedRows | None = None
    attends = False


@contextlib.contextmanager
def attending(implementation: str) -> Iterator[None]:
    """The span in which packed passes run, and what is differentiated through them: transformers' attention
    `implementation` reads the rows of the last `packed` pass, and is itself where there is none. implementation: of
    `ATTENTION`."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    native, native_mask, before = FUNCTIONS[implementation], MASKS[implementation], _Now.rows
    if getattr(native, "packs", False):  # inside of another
        try:
            yield
        finally:
            _Now.rows = before
        return

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        if (rows := _Now.rows) is None:
            return native(module, query, key, value, attention_mask, **options)
        for name in ("sliding_window", "softcap", "s_aux"):
            if options.get(name) is not None:
                raise ValueError(f"this model's attention has {name}, for which no packed pass is proven")
        if implementation in FLASH:
            told = dict(rows.flash())
            keys = told.pop("keys")
            return native(module, query, key[:, :, keys], value[:, :, keys], None, **options, **told)
        scale, dropout = options.get("scaling"), options.get("dropout", 0.0)
        if dropout == 0.0 and (kind := _half(query)) is not None:
            return _at_once(rows, query.to(kind), key.to(kind), value.to(kind), scale), None
        return _by_segment(rows, query, key, value, scale, dropout), None

    def mask(*arguments: Any, **options: Any) -> Any:
        return native_mask(*arguments, **options) if _Now.rows is None else None

    attention.packs = True  # type: ignore[attr-defined]
    FUNCTIONS[implementation], MASKS[implementation] = attention, mask
    _Now.attends = True
    try:
        yield
    finally:
        _Now.rows, _Now.attends = before, False
        FUNCTIONS[implementation], MASKS[implementation] = native, native_mask


def _half(query: torch.Tensor) -> torch.dtype | None:
    """The type in which sdpa computes, where torch has a kernel of it for rows of many lengths; None elsewhere."""
    if varlen_attn is None or not query.is_cuda or torch.version.cuda is None:
        return None
    if torch.cuda.get_device_capability(query.device) < (8, 0) or query.shape[-1] % 8 or query.shape[-1] > 256:
        return None
    kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    return kind if kind in (torch.bfloat16, torch.float16) else None


def _at_once(
    rows: PackedRows, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None
) -> torch.Tensor:
    """`_by_segment` in one call of a kernel."""
    told = rows.flash()

    def of_segments(each: torch.Tensor) -> torch.Tensor:
        return each[0].transpose(0, 1)[told["keys"]].repeat_interleave(query.shape[1] // each.shape[1], 1)

    assert varlen_attn is not None
    made: torch.Tensor = varlen_attn(
        query[0].transpose(0, 1),
        of_segments(key),
        of_segments(value),
        told["cu_seq_lens_q"],
        told["cu_seq_lens_k"],
        told["max_length_q"],
        told["max_length_k"],
        scale=scale,
        window_size=(-1, 0),  # causal
    )
    return made[None]


def _by_segment(
    rows: PackedRows, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, dropout: float
) -> torch.Tensor:
    """Attention over (1, heads, tokens, size), as (1, tokens, heads, size)."""
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
    made = []
    for first, end, prompt_first, prompt_end in rows.segments:
        prompt = prompt_end - prompt_first
        q, k, v = query[:, :, first:end], key[:, :, first:end], value[:, :, first:end]
        if prompt:
            k, v = (
                torch.cat([key[:, :, prompt_first:prompt_end], k], 2),
                torch.cat([value[:, :, prompt_first:prompt_end], v], 2),
            )
        seen = None
        again = 0 < prompt < end - first
        if again:  # a prompt's queries again: less than what a mask would have computed and thrown away
            q = torch.cat([query[:, :, prompt_first:prompt_end], q], 2)
        elif prompt:
            seen = torch.ones(end - first, prompt + end - first, dtype=torch.bool, device=q.device).tril(prompt)
        out = scaled_dot_product_attention(
            q, k, v, attn_mask=seen, is_causal=seen is None, scale=scale, dropout_p=dropout
        )
        made.append(out[:, :, prompt:] if again else out)
    return torch.cat(made, 2).transpose(1, 2).contiguous()


class PackedModel:
    """A model that reads `rows`, seen from code that hands it a row of its own: a token, and the rows' targets.

    That row's shape and the places of its outputs are those of a model that had read it alone, so that the code goes on
    as it is: its logits, log-probabilities and entropies are those of the targets, in order.
    """

    def __init__(self, model: Any, rows: PackedRows) -> None:
        self._model, self._rows = model, rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    @property
    def token_ids(self) -> torch.Tensor:
        """The row to hand in, (1, 1 + targets). Its first token is not a target."""
        targets = self._rows.targets
        return torch.cat([targets[:, :1], targets], 1)

    def __call__(self, **inputs: Any) -> Any:
        given = inputs.pop("input_ids")
        if not _Now.attends:
            raise RuntimeError("a packed pass ran while no attention reads its rows: see `attending`")
        if given.shape != (1, self._rows.targets.shape[1] + 1):
            raise ValueError(f"the row of a packed pass came back with another shape, {tuple(given.shape)}")
        inputs.pop("attention_mask", None)
        # The last place's output predicts nothing: any place does.
        places = torch.cat([self._rows.predictors, self._rows.predictors[-1:]])

        def select(module: Any, arguments: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state[:, places]
            return output

        handle = language_model(self._model).base_model.register_forward_hook(select)
        _Now.rows = self._rows
        try:
            return self._model(input_ids=self._rows.token_ids, position_ids=self._rows.position_ids, **inputs)
        finally:
            handle.remove()


def language_model(model: Any) -> Any:
    """The model of transformers that has the language model head, inside of what wraps it (DDP, FSDP, PEFT, ...)."""
    from transformers import PreTrainedModel

    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.get_output_embeddings() is not None:
            return module
    raise ValueError(f"{type(model).__qualname__} holds no model of transformers with a language model head")
