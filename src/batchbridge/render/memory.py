"""The memory that a configuration's sizes say, for a person: one line, and a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from batchbridge.kit import memory
from batchbridge.meaning.spec import Spec
from batchbridge.render.findings import count

_Draw = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
"""The function that draws (headers, rows)."""
UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def line(spec: Spec) -> Iterator[str]:
    """The largest micro-batch, in a sentence; nothing where it is open."""
    micro = memory.micro_batch(spec)
    if micro is None:
        return
    if micro.completions is None:
        longest = (micro.prompt or 0) + micro.completion
        yield f"A micro-batch has up to {micro.tokens:,} tokens per device; a completion with its prompt {longest:,}."
        return
    unlimited = "" if micro.prompt is not None else ", and their prompts, which have no limit"
    yield f"A micro-batch has {_product(spec, micro)} tokens per device{unlimited}."


def _product(spec: Spec, micro: memory.MicroBatch) -> str:
    assert micro.completions is not None
    each = spec.carried.longest_tokens
    shared = f" / {spec.topology.context_parallel}" if spec.topology.context_parallel > 1 else ""
    size = f"{micro.completions:,} x {each:,}{shared} = {micro.tokens:,}"
    return f"{count(micro.completions, 'completion')}: up to {size}"


def rows(spec: Spec, parameters: int | None, vocabulary: int | None) -> list[dict[str, Any]]:
    """The estimate: JSON types. bytes or tokens: the number. formula: how it is counted."""
    found: list[dict[str, Any]] = []
    micro = memory.micro_batch(spec)
    if micro is not None:
        formula = "the token budget" if micro.completions is None else _product(spec, micro)
        found.append({"what": "tokens of a micro-batch, at most", "tokens": micro.tokens, "formula": formula})
        if vocabulary is not None and micro.completion_tokens:
            formula = (
                f"{micro.completion_tokens:,} completion tokens x {vocabulary:,} words x {memory.LOGIT_BYTES} bytes"
            )
            if spec.topology.tensor_parallel > 1:
                formula += f" / {spec.topology.tensor_parallel}"
            size = memory.logit_bytes(micro, vocabulary, spec.topology.tensor_parallel)
            found.append({"what": "logits of a full micro-batch, at least", "bytes": size, "formula": formula})
    if parameters is not None:
        parts = spec.topology.tensor_parallel * spec.topology.pipeline_parallel
        replicas = max(spec.topology.world_size // parts, 1)
        for (sharded, sizes), shared in zip(
            memory.parameter_bytes(parameters, spec.topology), memory.SHARDINGS.values(), strict=True
        ):
            for precision, size in zip(memory.PRECISIONS, sizes, strict=True):
                terms = (precision.weights, precision.gradients, precision.optimizer)
                said = " + ".join(
                    f"{term}/{replicas}" if split and replicas > 1 else str(term)
                    for term, split in zip(terms, shared, strict=True)
                )
                formula = f"{parameters:,} x ({said}) bytes" + (f" / {parts}" if parts > 1 else "")
                found.append({"what": f"{sharded}; {precision.name}", "bytes": size, "formula": formula})
    return found


def section(spec: Spec, parameters: int | None, vocabulary: int | None, table: _Draw) -> str:
    """The estimate as a section of `explain`, with what it leaves out."""
    cells = [
        (one["what"], f"{one['tokens']:,} tokens" if "tokens" in one else _size(one["bytes"]), one["formula"])
        for one in rows(spec, parameters, vocabulary)
    ]
    head = ["Memory per device, an estimate from below"]
    if not cells:
        return "\n".join([*head, "  nothing is known: the configuration leaves the size of a micro-batch open"])
    drawn = table(("what", "at least", "how it is counted"), cells)
    if parameters is None:
        head.append("  With --parameters 1.5B or --model-config config.json also what the parameters and logits take.")
    return "\n".join([*head, *(f"  {row}" for row in drawn.split("\n")), f"  Left out: {memory.LEFT_OUT}."])


def _size(count: int) -> str:
    for unit, size in UNITS:
        if count >= size:
            return f"{count / size:,.2f} {unit}"
    return f"{count:,} bytes"
