"""The table of `batchbridge try`: what the ledgers of two runs say of the same settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import summarise

_WIDTH = 18
"""Characters of a column of values: two of them and the longest name fit into 80."""


def rows(ledger: Ledger, prompts: int) -> dict[str, str]:
    """The facts of a run, by name: its first optimizer step, and all of them. prompts: in the dataset. Raises
    `LedgerError`."""
    whole = summarise(ledger)
    trained: set[int] = set()
    first: Mapping[str, Any] | None = None
    for step in ledger.merged(ledger.first_step):
        first = step if first is None else first
        trained |= set(step["prompt"])
    found = {"optimizer steps": str(whole.steps)}
    if first is not None:
        found |= {
            "completions in step 0": str(len(first["prompt"])),
            "prompts in step 0": _listed([str(prompt) for prompt in sorted(set(first["prompt"]))]),
            "response tokens in step 0": str(sum(first["response_tokens"])),
            "weight of a token in step 0": _weights(first),
        }
    found["share of the prompts trained"] = f"{len(trained)} of {prompts}"
    if whole.drift is not None:
        found["steps of the planned completions"] = f"{whole.steps - whole.drift} of {whole.steps}"
    if whole.incomplete is not None:
        found["incomplete"] = "see `ledger show`"
    return found


def _weights(step: Mapping[str, Any]) -> str:
    """The measured weight of a response token: one, two, or a range."""
    pairs = zip(step["weights"] or (), step["response_tokens"], strict=False)
    seen = sorted({f"{weight:.5f}" for weight, tokens in pairs if tokens and weight is not None})
    if not seen:
        return "not measured"
    return " or ".join(seen) if len(seen) < 3 else f"{seen[0]} to {seen[-1]}"


def _listed(words: Sequence[str]) -> str:
    """The words, or as many as a column has room for, and how many there are."""
    text = ", ".join(words)
    return text if len(text) <= _WIDTH else f"{', '.join(words[:3])} .. ({len(words)})"


def table(columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The lines of the table, a column for each run; what one of them does not have is a dash."""
    names = list(dict.fromkeys(name for column in columns.values() for name in column))
    width = max(map(len, names))
    for name, values in (
        ("", list(columns)),
        *((name, [one.get(name, "-") for one in columns.values()]) for name in names),
    ):
        yield f"{name:{width}}" + "".join(f"  {value:>{_WIDTH}}" for value in values)
