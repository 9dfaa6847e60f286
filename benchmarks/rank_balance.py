"""The slowest rank of an optimizer step over the mean of all, where ranks get completions by what they cost.

    python benchmarks/rank_balance.py [--measured FILE] [--json FILE] [--write]

The cost of a micro-batch is measured: CPU seconds of forward and backward passes of two models of random weights, of
some numbers of rows and tokens, to which `a + b tokens + c rows width^2` is fitted; other sizes say what that misses.
Then steps of 2, 8 and 64 ranks with lognormal lengths are cut as trainers cut them, by the constants that a run has
(`StepCost.of_model`, of the model's configuration), and judged by the measured ones. A rank's sum is what it computes;
turn by turn, every micro-batch waits for the slowest rank, as TRL and sharded models do.

Controls: completions dealt out by their number must miss the bar, and by their tokens alone be less even than by what
they cost. No rank runs here: trl_balance.py times two of them. --measured takes the costs of an earlier result; --write
writes rank_balance.json and .md beside this file, and the tables of docs/trl.md. A report, never a gate. Needs torch
and transformers to measure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

if find_spec("batchbridge") is None:
    sys.path[:0] = [str(Path(__file__).parents[1] / "src")]

from batchbridge.kit import Length, StepCost, partition, partition_by_cost, partition_packed
from batchbridge.kit.ranks import deal, layout
from batchbridge_on_cpu.figures import measured_on

RESULTS = Path(__file__).with_suffix(".md")
PAGE = Path(__file__).parents[1] / "docs" / "trl.md"
BLOCK = re.compile(r"(?<=<!-- written by benchmarks/rank_balance.py --write -->\n).*?(?=<!-- end -->)", re.S)
BAR = 1.03
RANKS = (2, 8, 64)
PER_RANK = 32
"""Completions of a rank in a step."""
STEPS = 5
"""Steps with other lengths; the worst one counts."""
GROUP = 8
PROMPT = (64, 512)
"""Tokens of prompts, evenly between the two."""
SIGMA = 1.0
"""Deviation of the logarithm of completions' tokens, which are lognormal."""


class Lengths(NamedTuple):
    """Tokens of completions, and what a micro-batch holds."""

    median: int
    most: int
    budget: int


LENGTHS = {"short": Lengths(512, 4096, 16_384), "long": Lengths(4096, 32_768, 65_536)}
MODELS: dict[str, dict[str, Any]] = {
    "small": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    | {"num_attention_heads": 4, "num_key_value_heads": 4, "tie_word_embeddings": False},
    "middle": {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
    | {"num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False},
}
"""Sizes of Qwen2 models."""
FITTED = ((1, 64), (1, 256), (1, 1024), (1, 2048), (4, 256), (16, 64), (2, 1024))
LEFT_OUT = ((1, 512), (1, 1536), (8, 128), (4, 512))
"""Rows and tokens of each: sizes that constants are fitted to, and others that they are held against."""


def seconds_of(sizes: Sequence[tuple[int, int]], config: dict[str, Any], repetitions: int) -> list[float]:
    """CPU seconds of a forward and backward pass of each size, the least of some."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(Qwen2Config(**config, max_position_embeddings=8192)).train()
    found = []
    for rows, width in (sizes[0], *sizes):  # the first pass warms up
        ids = torch.randint(0, config["vocab_size"], (rows, width))
        times = []
        for _ in range(repetitions):
            began = time.thread_time()
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
            logits.log_softmax(-1).gather(-1, ids[..., None]).mean().backward()
            times.append(time.thread_time() - began)
            model.zero_grad()
        found.append(min(times))
    return found[1:]


def fitted(sizes: Sequence[tuple[int, int]], seconds: Sequence[float]) -> tuple[float, float, float]:
    """The a, b and c, none below 0, of `a + b tokens + c rows width^2` with the least squares of relative errors."""
    import torch

    terms = torch.tensor([[1.0, rows * width, rows * width * width] for rows, width in sizes], dtype=torch.float64)
    terms = terms / torch.tensor(seconds, dtype=torch.float64)[:, None]
    for held in ((0, 1, 2), (1, 2)):
        solved = torch.linalg.lstsq(terms[:, list(held)], torch.ones(len(sizes), 1, dtype=torch.float64)).solution
        if bool((solved >= 0).all()):
            break
    of = dict(zip(held, solved.flatten().tolist(), strict=True))
    return of.get(0, 0.0), of[1], of[2]


def measured(repetitions: int) -> dict[str, Any]:
    """The constants of each model, in tokens, and what they miss."""
    found = {}
    for name, config in MODELS.items():
        sizes = [*FITTED, *LEFT_OUT]
        seconds = seconds_of(sizes, config, repetitions)
        a, b, c = fitted(FITTED, seconds[: len(FITTED)])
        errors = [
            abs((a + b * rows * width + c * rows * width * width) / spent - 1)
            for (rows, width), spent in zip(LEFT_OUT, seconds[len(FITTED) :], strict=True)
        ]
        found[name] = {
            "seconds": {f"{rows} x {width}": spent for (rows, width), spent in zip(sizes, seconds, strict=True)},
            "token_seconds": b,
            "micro_batch": a / b,
            "pair": c / b,
            "left_out_error": max(errors),
        }
    return found


def drawn(count: int, seed: int, told: Lengths) -> list[Length]:
    """A step's completions, in groups of `GROUP`."""
    chance, lengths = random.Random(seed), list[Length]()
    for number in range(count):
        prompt = chance.randint(*PROMPT) if number % GROUP == 0 else lengths[-1].prompt
        lengths.append(Length(prompt, min(told.most, max(1, round(chance.lognormvariate(0, SIGMA) * told.median)))))
    return lengths


Cut = Callable[[list[Length], int, StepCost, int], list[list[list[int | None]]]]
"""Each rank's micro-batches of a step, by the constants that a run has, and its token budget."""


def end_to_end(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    prompts = [number // GROUP for number in range(len(lengths))]
    return partition_packed(lengths, prompts, ranks=ranks, tokens_per_device=budget, soft=True, cost=cost.of_sequence)


def padded(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    return partition_by_cost(lengths, ranks=ranks, tokens_per_device=budget, cost=cost, soft=True)


def padded_by_number(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    return partition([length.tokens for length in lengths], ranks=ranks, completions_per_device=GROUP)


def whole(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    return [[hand] for hand in deal([cost.of_sequence(length.tokens) for length in lengths], ranks)]


def fixed(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    dealt = layout([cost.of_sequence(length.tokens) for length in lengths], ranks=ranks, rows_per_micro_batch=4)
    share = len(dealt) // ranks
    return [[dealt[k : k + 4] for k in range(rank * share, (rank + 1) * share, 4)] for rank in range(ranks)]


def by_number(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    return [[list(range(rank, len(lengths), ranks))] for rank in range(ranks)]


def by_tokens(lengths: list[Length], ranks: int, cost: StepCost, budget: int) -> Any:
    return whole(lengths, ranks, StepCost(), budget)


WAYS: dict[str, tuple[str, Cut]] = {
    "TRL, end to end, token budget": ("shared", end_to_end),
    "the same, by the measured constants": ("shared", end_to_end),
    "TRL, padded, token budget": ("padded", padded),
    f"TRL, padded, {GROUP} completions": ("padded", padded_by_number),
    "verl, OpenRLHF, EasyR1: token budget": ("alone", whole),
    "verl, EasyR1: 4 rows, not padded": ("alone", fixed),
    "control: by number": ("alone", by_number),
    "control: by tokens alone": ("alone", by_tokens),
}
"""How rows lie in a micro-batch (with a prompt once, padded, or each for itself), and the cut."""


def spent(kind: str, batch: Sequence[int | None], lengths: list[Length], cost: StepCost) -> float:
    """What a micro-batch costs."""
    held = [item for item in batch if item is not None]
    if kind != "shared":
        return cost.of([lengths[item] for item in held], padded=kind == "padded")
    once = {item // GROUP: cost.of_sequence(lengths[item].prompt) for item in held}
    own = (cost.of_sequence(lengths[item].tokens) - cost.of_sequence(lengths[item].prompt) for item in held)
    return cost.micro_batch + sum(once.values()) + sum(own)


def simulated(name: str, constants: dict[str, Any], told: Lengths) -> dict[str, Any]:
    """By way and ranks: the worst step's slowest rank over the mean, by sums and turn by turn, and the CPU seconds of
    its cut."""
    true, known = StepCost(constants["micro_batch"], constants["pair"]), StepCost.of_model(MODELS[name])
    found: dict[str, Any] = {}
    for way, (kind, cut) in WAYS.items():
        found[way] = {}
        for ranks in RANKS:
            sums, turns, times = [], [], []
            for seed in range(STEPS):
                lengths = drawn(ranks * PER_RANK, seed, told)
                began = time.process_time()
                shares = cut(lengths, ranks, true if "measured" in way else known, told.budget)
                times.append(time.process_time() - began)
                costs = [[spent(kind, batch, lengths, true) for batch in share] for share in shares]
                loads = [sum(share) for share in costs]
                mean = sum(loads) / ranks
                sums.append(max(loads) / mean)
                turns.append(sum(map(max, zip(*costs, strict=True))) / mean)
            found[way][str(ranks)] = {"sums": max(sums), "turns": max(turns), "cpu_seconds": max(times)}
    return found


def missed(result: dict[str, Any]) -> list[str]:
    """The controls that do not fail, as they must."""
    failing = []
    for name, kinds in result["simulated"].items():
        for kind, ways in kinds.items():
            for ranks, found in ways["control: by number"].items():
                if found["sums"] <= BAR:
                    failing.append(f"{name}, {kind}: by number on {ranks} ranks is at {found['sums']:.3f}")
            for ranks, found in ways["control: by tokens alone"].items():
                if found["sums"] <= ways["verl, OpenRLHF, EasyR1: token budget"][ranks]["sums"]:
                    failing.append(f"{name}, {kind}: by tokens alone on {ranks} ranks is at {found['sums']:.3f}")
    return failing


_SUMS_ALONE = ("verl, OpenRLHF", "control")
"""Ways whose micro-batches the trainer makes itself."""


def table(result: dict[str, Any], kind: str) -> Iterator[str]:
    """The slowest rank over the mean, by way."""
    models = list(result["measured"])
    yield f"| {kind} | {' | '.join(f'{name}, {ranks} ranks' for name in models for ranks in RANKS)} |"
    yield f"|---|{'---|' * len(models) * len(RANKS)}"
    for way in result["simulated"][models[0]][kind]:
        cells = [result["simulated"][name][kind][way][str(ranks)] for name in models for ranks in RANKS]
        shown = ("sums",) if way.startswith(_SUMS_ALONE) else ("sums", "turns")
        yield f"| {way} | {' | '.join(', '.join(f'{each[one]:.3f}' for one in shown) for each in cells)} |"


def tables(result: dict[str, Any]) -> Iterator[str]:
    """The commit and the date of the costs, and a table for each kind of lengths."""
    on = result["measured_on"]
    yield f"On {on['commit']}, {on['date']}. The bar is {BAR}.\n"
    for kind, (median, most, budget) in result["lengths"].items():
        yield f"Completions of {median:,} tokens in the median, at most {most:,}; a budget of {budget:,}:\n"
        yield from table(result, kind)
        yield ""


def page(result: dict[str, Any]) -> Iterator[str]:
    """The page, a line at a time."""
    yield "# The slowest rank over the mean of all\n"
    yield f"Written by `{result['command']}`: {result['machine']}; torch {result['torch']}."
    yield f"Constants are measured, ranks are simulated. {PER_RANK} completions of a rank in a step, in groups of"
    yield f"{GROUP}: prompts of {PROMPT[0]} to {PROMPT[1]} tokens, completions lognormal (deviation {SIGMA})."
    yield f"The worst of {STEPS} steps: first the ranks' sums, then turn by turn.\n"
    yield from tables(result)
    yield "## Constants\n"
    yield "| model | a micro-batch, in tokens | one pair, in tokens | by the configuration | error where left out |"
    yield "|---|---|---|---|---|"
    for name, one in result["measured"].items():
        pairs = f"1/{1 / one['pair']:,.0f} | 1/{1 / one['told_pair']:,.0f}"
        yield f"| {name} | {one['micro_batch']:.0f} | {pairs} | {one['left_out_error']:.1%} |"
    yield "\n## CPU seconds of the cut of a step, on every rank\n"
    yield f"| | {' | '.join(f'{ranks} ranks' for ranks in RANKS)} |"
    yield f"|---|{'---|' * len(RANKS)}"
    simulated = result["simulated"]
    for way in simulated[next(iter(simulated))][next(iter(result["lengths"]))]:
        every = [ways[way] for kinds in simulated.values() for ways in kinds.values()]
        cells = (max(one[str(ranks)]["cpu_seconds"] for one in every) for ranks in RANKS)
        yield f"| {way} | {' | '.join(f'{cell:.3f}' for cell in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, help="take the costs of this result, and measure none")
    parser.add_argument("--repetitions", type=int, default=3, help="passes of each size, of which the fastest counts")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--write", action="store_true", help="also write the tables, here and in docs/trl.md")
    options = parser.parse_args()
    if options.measured:
        result = json.loads(options.measured.read_text(encoding="utf-8"))
    else:
        import platform

        import torch

        result = {
            "command": "python benchmarks/rank_balance.py --write",
            "measured_on": measured_on(Path(__file__)),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, one used",
            "torch": torch.__version__,
            "measured": measured(options.repetitions),
        }
    result["lengths"] = {kind: list(told) for kind, told in LENGTHS.items()}
    for name, one in result["measured"].items():
        one["told_pair"] = StepCost.of_model(MODELS[name]).pair
    result["simulated"] = {
        name: {kind: simulated(name, one, told) for kind, told in LENGTHS.items()}
        for name, one in result["measured"].items()
    }
    text = "\n".join(page(result)) + "\n"
    print(text)
    if passed := missed(result):
        raise SystemExit(f"controls that do not fail: {'; '.join(passed)}")
    if options.json:
        options.json.write_text(json.dumps(result), encoding="utf-8")
    if options.write:
        RESULTS.write_text(text, encoding="utf-8")
        RESULTS.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        written = "\n".join(["", *tables(result)]) + "\n"
        PAGE.write_text(BLOCK.sub(lambda _: written, PAGE.read_text(encoding="utf-8"), count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
