"""What a run of thousands of ranks costs each of them outside of the model, by simulation.

    python benchmarks/scale.py [--ranks 4096] [--completions 1024 32768] [--samples 3] [--json FILE] [--write]

One process plays single ranks of a large run: it calls the functions that a rank of a wrapped TRL run calls (plan,
shares, exchange after generation, check of the step, ledger; and the receipts of training workers, which verl, OpenRLHF
and EasyR1 send) with the lengths of all ranks' completions, and answers for the other ranks what they would have said.
Times are CPU seconds of this process, medians over the sampled ranks; memory is what Python and torch hold; bytes are
counted where torch would send them. Nothing is sent: the network's own time and the library's buffers are not in it.

"Before" is what the first versions did: every rank gathered every column of the whole rollout, padded to its longest
completion, and a pickled record of every completion.

Control (`--control`, and in every `--write`): two real processes on gloo exchange the same made-up rollout through the
same functions; the bytes that they received must be those that the simulation says, and their rows the right ones.
A report, never a gate. Needs torch, transformers, accelerate and trl.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import platform
import random
import re
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

if find_spec("batchbridge") is None:
    sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "adapters")]

from batchbridge.kit import Normaliser, workers_ray
from batchbridge.kit.workers import Orders, Receipt, Recorder, TrainedRow
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, MicroBatch, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.meaning.weights import Row, token_weights
from batchbridge_trl.exchange import CompletionPlaces
from batchbridge_trl.rows import COLUMNS, TrlRolloutRows, made_alike
from batchbridge_trl.shares import StepShares

RESULTS = Path(__file__).with_suffix(".md")
PAGE = Path(__file__).parents[1] / "docs" / "trl.md"
BLOCK = re.compile(r"(?<=<!-- written by benchmarks/scale.py --write -->\n).*?(?=<!-- end -->)", re.S)
GROUP = 8
"""Completions of a prompt."""
STEPS = 8
"""Optimizer steps of a rollout."""
PROMPT, MEDIAN, SIGMA, CAP = (64, 512), 512, 1.0, 4096
"""Tokens: prompts evenly between two lengths; completions lognormal (median, deviation of the logarithm, most)."""
MODEL = {"hidden_size": 896, "intermediate_size": 896, "num_hidden_layers": 24}
"""Sizes by which attention is weighed against dense layers: a pair of tokens costs 1/5,376 of a token."""
NAMES = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "old_per_token_logps",
    "ref_per_token_logps",
)
"""Columns of the rollout: several steps train a rollout, with a KL term."""


def spec(ranks: int, completions: int, tokens_per_device: int | None) -> Spec:
    """Steps of `completions`, `STEPS` of them from a rollout."""
    cap = MicroBatch(tokens_per_device=tokens_per_device) if tokens_per_device else MicroBatch(completions_per_device=8)
    return Spec(
        topology=Topology(world_size=ranks),
        rollout=Rollout(prompts_per_rollout=completions * STEPS // GROUP, completions_per_prompt=GROUP),
        optimizer_step=OptimizerStep(completions_per_step=completions),
        micro_batch=cap,
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=2),
        order=Order(seed=1),
    )


def made_up_lengths(completions: int) -> list[tuple[int, int, int]]:
    """Response, prompt and completion tokens of a rollout's completions: the same for every call."""
    drawn = random.Random(completions)
    lengths = []
    for number in range(completions):
        prompt = drawn.randint(*PROMPT) if number % GROUP == 0 else lengths[-1][1]
        response = min(CAP, max(1, round(drawn.lognormvariate(0, SIGMA) * MEDIAN)))
        lengths.append((response, prompt, response))
    return lengths


def made_up_columns(lengths: Sequence[tuple[int, int, int]], first: int) -> dict[str, torch.Tensor]:
    """What a rank generated, padded to its own longest: each token id says whose it is. first: position of row 0."""
    widths = {"prompt": max(each[1] for each in lengths), "completion": max(each[2] for each in lengths)}
    columns = {}
    for name in NAMES:
        kind, padding = COLUMNS[name]
        dtype = torch.float32 if "logps" in name or kind == "row" else torch.int64
        shape = (len(lengths), widths[kind]) if kind != "row" else (len(lengths),)
        columns[name] = torch.full(shape, padding, dtype=dtype)
        for row, (_, prompt, completion) in enumerate(lengths):
            value = 1 if "mask" in name else first + row
            if kind == "row":
                columns[name][row] = value
            elif kind == "prompt":
                columns[name][row, widths[kind] - prompt :] = value
            else:
                columns[name][row, :completion] = value
    return columns


def made_up_facts(position: int) -> dict[str, Any]:
    digest = f"{position:016x}"
    return {
        "prompt_fingerprint": digest,
        "completion_fingerprint": digest,
        "reward": float(position),
        "advantage": float(position),
        "old_logprobs": digest,
        "generated_at_step": 0,
    }


@dataclass
class Traffic:
    """What torch was asked to exchange for one rank: bytes that it receives and sends, itself left out."""

    received: int = 0
    sent: int = 0
    largest: int = 0
    """Bytes of the largest single exchange, both ways: what lies in buffers at once."""
    peers: set[int] = field(default_factory=set)

    def exchange(self, native: Callable[..., Any] | None) -> Callable[..., Any]:
        """Stands in for `torch.distributed.all_to_all_single`; native None: nothing comes but zeros."""

        def counted(output: torch.Tensor, given: torch.Tensor, inward: list[int], outward: list[int]) -> Any:
            self.received, self.sent = self.received + output.numel(), self.sent + given.numel()
            self.largest = max(self.largest, output.numel() + given.numel())
            self.peers |= {other for other, size in enumerate(map(sum, zip(inward, outward, strict=True))) if size}
            if native is not None:
                return native(output, given, inward, outward)
            output.zero_()
            return None

        return counted


@dataclass
class Rank:
    """One rank of a run, with stand-ins for its trainer and for what other ranks tell it.

    gather: of `accelerate`, None: the other ranks have columns of the same kinds.
    """

    plan: Plan
    lengths: Sequence[tuple[int, int, int]]
    ranks: int
    rank: int
    gather: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __post_init__(self) -> None:
        self.traffic, self.lengths_bytes, self.generated_bytes = Traffic(), 0, 0
        self.seconds: dict[str, float] = {}
        local = len(self.lengths) // self.ranks
        self.mine = range(self.rank * local, (self.rank + 1) * local)
        told = self.gather or self._tiled
        self.accelerator = SimpleNamespace(
            num_processes=self.ranks, process_index=self.rank, device=torch.device("cpu"), gather=told
        )
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(to_dict=MODEL.copy))
        self.trainer = SimpleNamespace(
            accelerator=self.accelerator,
            model=SimpleNamespace(config=config),
            args=SimpleNamespace(per_device_train_batch_size=8),
            state=SimpleNamespace(global_step=0),
            is_deepspeed_enabled=False,
            is_fsdp_enabled=False,
        )
        self.rollouts: dict[int, TrlRolloutRows] = {}
        self.shares = StepShares(self.trainer, self.plan, self.rollouts)

    def _tiled(self, own: torch.Tensor) -> torch.Tensor:
        """Every rank's vector: the lengths of its rows, and the kinds of its columns, which are this rank's."""
        local, kinds = len(self.mine), own[3 * len(self.mine) :].tolist()
        vectors = [
            [number for each in self.lengths[first : first + local] for number in each] + kinds
            for first in range(0, len(self.lengths), local)
        ]
        return torch.tensor(vectors, dtype=own.dtype).view(-1)

    def generate(self) -> TrlRolloutRows:
        """This rank's rows as `Enforcer._generate` leaves them."""
        own = [self.lengths[position] for position in self.mine]
        columns = made_up_columns(own, self.mine.start)
        started = time.process_time()
        columns, known = made_alike(self.accelerator, columns, own)
        self.seconds["lengths"] = time.process_time() - started
        self.lengths_bytes = 4 * (3 * len(own) + len(COLUMNS)) * (self.ranks - 1)
        response, prompt, completion = (list(each) for each in zip(*known, strict=True))
        rows = TrlRolloutRows(
            0,
            columns,
            {place: row for row, place in enumerate(self.mine)},
            response,
            prompt,
            completion,
            {place: made_up_facts(place) for place in self.mine},
            None,
            CompletionPlaces.generated(len(known), self.ranks),
        )
        self.rollouts[0] = rows
        return rows

    def share_out(self, native: Callable[..., Any] | None = None) -> TrlRolloutRows:
        """The rows that this rank trains, after the exchange."""
        rows, spent = self.generate(), {"plan": 0.0, "shares": 0.0}
        self.generated_bytes = held_bytes(rows)

        def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any) -> Any:
                started, inside = time.process_time(), sum(spent.values())
                try:
                    return function(*arguments)
                finally:
                    spent[name] += time.process_time() - started - (sum(spent.values()) - inside)

            return called

        gc.collect()
        started = time.process_time()
        with (
            mock.patch("torch.distributed.all_to_all_single", self.traffic.exchange(native)),
            mock.patch.object(self.plan, "step", timed("plan", self.plan.step)),
            mock.patch.object(self.shares, "of", timed("shares", self.shares.of)),
        ):
            self.shares.keep_own(rows)
        whole = time.process_time() - started
        self.seconds |= {**spent, "exchange": whole - sum(spent.values())}
        return rows


def played(one: Rank) -> Rank:
    """A rank after the exchange: what it knows of every completion and of every rank's shares."""
    one.share_out()
    return one


def held_bytes(rows: TrlRolloutRows) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in rows.tensors.values())


def bytes_before(lengths: Sequence[tuple[int, int, int]], ranks: int) -> dict[str, int]:
    """What gathering the whole rollout took each rank: bytes received, and the rows that it then held."""
    row = 0
    for name in NAMES:
        kind, _ = COLUMNS[name]
        widest = {"prompt": max(each[1] for each in lengths), "completion": max(each[2] for each in lengths), "row": 1}
        row += widest[kind] * (4 if "logps" in name or kind == "row" else 8)
    local = len(lengths) // ranks
    facts = len(pickle.dumps([(*each, made_up_facts(place)) for place, each in enumerate(lengths[:local])]))
    return {
        "received": (len(lengths) - local) * row,
        "held": len(lengths) * row,
        "facts": facts * (ranks - 1),
    }


def median_seconds(repetitions: int, action: Callable[[], Any]) -> float:
    times = []
    for _ in range(repetitions):
        gc.collect()
        started = time.process_time()
        action()
        times.append(time.process_time() - started)
    return statistics.median(times)


def python_bytes(action: Callable[[], Any]) -> int:
    """What the result of `action` keeps of Python's memory."""
    tracemalloc.start()
    kept = action()
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return held


def of_the_plan(plan: Plan, steps: int = 50) -> dict[str, Any]:
    """A step looked up at a place drawn at random, and what it keeps."""
    places = random.Random(1).sample(range(plan.total_optimizer_steps - 1), steps)
    started = time.process_time()
    for place in places:
        plan.step(place)
    seconds = (time.process_time() - started) / steps
    return {"seconds": seconds, "bytes": python_bytes(lambda: Plan(plan.spec, plan.dataset_size).step(places[0]))}


def of_the_exchange(plan: Plan, ranks: int, samples: int) -> dict[str, Any]:
    """The exchange after generation, before and now, on ranks evenly apart."""
    lengths = made_up_lengths(plan.prompts_per_rollout * GROUP)
    seen, rollouts = [], []
    for rank in sorted({number * ranks // samples for number in range(samples)}):
        one = Rank(plan, lengths, ranks, rank)
        rows = one.share_out()
        seen.append(one)
        rollouts.append(rows)
    last = seen[-1]
    first = next(iter(plan.steps_using(0)))
    last.shares.clear()
    before = bytes_before(lengths, ranks)
    pickled = [
        pickle.dumps([(*each, made_up_facts(place))]) for place, each in enumerate(lengths[: len(lengths) // ranks])
    ]
    return {
        "before": before,
        "received": max(one.traffic.received for one in seen),
        "sent": max(one.traffic.sent for one in seen),
        "buffers": max(one.traffic.largest for one in seen),
        "peers": max(len(one.traffic.peers) for one in seen),
        "generated": max(one.generated_bytes for one in seen),
        "held": max(held_bytes(rows) for rows in rollouts),
        "lengths": seen[0].lengths_bytes,
        "seconds": {
            name: statistics.median(one.seconds[name] for one in seen)
            for name in ("lengths", "plan", "shares", "exchange")
        },
        "seconds_unpickling": median_seconds(3, lambda: [pickle.loads(each) for each in pickled for _ in range(ranks)]),
        "share_bytes": python_bytes(lambda: last.shares.of(first)),
        "python_bytes": python_bytes(lambda: played(Rank(plan, lengths, ranks, ranks // 2))),
    }


def orders_of(plan: Plan, ledger: Path | None) -> Orders:
    return Orders(
        spec=plan.spec,
        dataset_size=plan.dataset_size,
        planned=True,
        mode="enforce",
        ledger=ledger,
        framework_version="1.16.0",
        start_id="0" * 32,
    )


def of_the_step(plan: Plan, ranks: int) -> dict[str, Any]:
    """The check of one step, which every rank makes of all ranks' rows, and one rank's line in its ledger."""
    lengths = made_up_lengths(plan.prompts_per_rollout * GROUP)
    step = plan.step(0)
    term = plan.spec.loss.policy
    members = [
        Row(tokens=lengths[position][0], group=(member.rollout, member.prompt))
        for member, position in zip(step.members, step.positions, strict=True)
    ]
    rows = [
        TrainedRow(member.rollout, member.prompt, position // GROUP, member.sample, row.tokens, position, float(weight))
        for member, position, row, weight in zip(
            step.members, step.positions, members, token_weights(term, members), strict=True
        )
    ]
    one = Rank(plan, lengths, ranks, 0)
    one.generate()
    shares = [[item for batch in rank for item in batch if item is not None] for rank in one.shares.of(step)]
    busiest = max(range(ranks), key=lambda rank: len(shares[rank]))
    own = [rows[item] for item in shares[busiest]]
    sizes: list[int] = []

    def gather(mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """As accelerate's `gather_object`: every rank's pickle comes, as long as the longest."""
        fields = [(row.rollout, 0, row.prompt, row.sample, row.tokens, row.weight, 0.0, 1e-6) for row in rows]
        pickles = [pickle.dumps([(fields[item], None, None) for item in share]) for share in shares]
        sizes.append(max(map(len, pickles)) * (ranks - 1))
        started = time.process_time()
        everyone = [each for one_rank in pickles for each in pickle.loads(one_rank)]
        unpickled.append(time.process_time() - started)
        made.append(started)
        return everyone

    unpickled: list[float] = []
    made: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder("trl", orders_of(plan, Path(folder)), rank=0, world_size=ranks, gather=gather)
        recorder.plan = plan
        recorder.compare(0, own)
        checked = time.process_time() - made[0]  # from where the pickles have arrived
        normaliser = Normaliser.of(term, members)
        facts = [
            {name: value for name, value in made_up_facts(row.index).items() if name != "generated_at_step"}
            for row in own
        ]

        def write(number: int) -> None:
            recorder.write(
                number,
                own,
                facts,
                normaliser=normaliser,
                learning_rate=1e-6,
                gradient_norm=1.0,
                skipped=False,
                generated_at_step=[0] * len(own),
            )

        write(0)
        header = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        seconds = []
        for number in range(1, 33):
            plan.step(number)  # known by then, and counted with the plan
            started = time.process_time()
            write(number)
            seconds.append(time.process_time() - started)
        recorder.close()
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return {
        "check": {"seconds": checked, "received": sizes[0]},
        "ledger": {"seconds": statistics.median(seconds), "bytes": (written - header) / 32, "rows": len(own)},
    }


def of_receipts(plan: Plan, ranks: int) -> dict[str, Any]:
    """Orders to every training worker and their receipts, once when training begins."""
    orders, sizes = orders_of(plan, None), {"orders": 0, "receipt": 0}

    def asked(workers: Sequence[Any], function: Callable[..., Any], *values: Any) -> list[Any]:
        """In place of Ray's: every answer travels by pickle; the workers' own time is left out."""
        sizes["orders"] = len(pickle.dumps(values))
        first = pickle.dumps(function(0, *values))
        sizes["receipt"] = len(first)
        answers = [pickle.dumps(Receipt(rank, ranks, orders.spec.digest())) for rank in range(ranks)]
        started.append(time.process_time())
        return [pickle.loads(answer) for answer in answers]

    def install(rank: Any, given: Any) -> Receipt:
        return Receipt.here(given, rank=rank, world_size=ranks)

    started: list[float] = []
    with mock.patch.object(workers_ray, "asked", asked):
        receipts = workers_ray.install_everywhere(range(ranks), orders, install)
    assert len(receipts) == ranks
    return {"seconds": time.process_time() - started[0], **sizes}


def simulated(prompts: int, ranks: int, completions: int, samples: int) -> dict[str, Any]:
    """Every figure of one size, under a token budget; the shares by count beside it."""
    budget = Plan(spec(ranks, completions, 2 * (CAP + PROMPT[1])), prompts)
    by_count = Plan(spec(ranks, completions, None), prompts)
    counted = Rank(by_count, made_up_lengths(completions * STEPS), ranks, 0)
    counted.generate()
    first = by_count.step(0)

    def share() -> Any:
        counted.shares.clear()
        return counted.shares.of(first)

    found = {
        "plan": of_the_plan(budget),
        "exchange": of_the_exchange(budget, ranks, samples),
        "by_count_seconds": median_seconds(3, share),
        **of_the_step(budget, ranks),
        "receipts": of_receipts(budget, ranks),
    }
    exchange = found["exchange"]
    found["step_seconds"] = sum(found[name]["seconds"] for name in ("plan", "check", "ledger"))
    found["step_seconds"] += sum(exchange["seconds"].values()) / STEPS
    found["held_bytes"] = sum(exchange[name] for name in ("generated", "held", "buffers"))
    found["rank_bytes"] = exchange["python_bytes"] + found["held_bytes"]
    return found


# ---- the control: two real processes


def control_case() -> tuple[Plan, list[tuple[int, int, int]]]:
    return Plan(spec(2, 16, 2 * (CAP + PROMPT[1])), 1000), made_up_lengths(16 * STEPS)


def real_rank(rank: int, folder: str) -> None:
    """One of two processes that exchange a made-up rollout over gloo, in both ways."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    told = Traffic()

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(2)]
        torch.distributed.all_gather(parts, tensor.contiguous())
        told.received += parts[1 - rank].numel() * tensor.element_size()
        return torch.cat(parts)

    plan, lengths = control_case()
    one = Rank(plan, lengths, 2, rank, gather)
    rows = one.share_out(torch.distributed.all_to_all_single)
    trained = {
        step.positions[item]
        for step in plan.steps_using(0)
        for batch in one.shares.own(step)
        for item in batch
        if item is not None
    }
    wrong = [
        position
        for position, row in rows.slots.items()
        if rows.tensors["completion_ids"][row, : lengths[position][2]].unique().tolist() != [position]
        or int(rows.tensors["completion_mask"][row].sum()) != lengths[position][2]
        or int(rows.tensors["prompt_mask"][row].sum()) != lengths[position][1]
        or rows.facts[position] != made_up_facts(position)
    ]
    # Before: every column of every rank, padded to the longest of all.
    whole = Traffic()
    for name, column in made_up_columns([lengths[place] for place in one.mine], one.mine.start).items():
        kind, padding = COLUMNS[name]
        if column.dim() > 1:
            widest = max(each[1 if kind == "prompt" else 2] for each in lengths)
            amount = (widest - column.shape[1], 0) if kind == "prompt" else (0, widest - column.shape[1])
            column = torch.nn.functional.pad(column, amount, value=padding)
        parts = [torch.empty_like(column) for _ in range(2)]
        torch.distributed.all_gather(parts, column.contiguous())
        whole.received += parts[1 - rank].numel() * column.element_size()
    found = {
        "received": one.traffic.received,
        "sent": one.traffic.sent,
        "lengths": told.received,
        "before": whole.received,
        "held": held_bytes(rows),
        "wrong_rows": wrong,
        "lacking": sorted(trained - rows.slots.keys()),
    }
    Path(folder, f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    torch.distributed.destroy_process_group()


def control() -> dict[str, Any]:
    """Bytes of two real processes beside those of the simulation, by rank; raises where rows are not the right ones."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(real_rank, (folder,), nprocs=2)
        real = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    plan, lengths = control_case()
    for each in real:
        if each.pop("wrong_rows") or each.pop("lacking"):
            raise SystemExit("the control: rows came that are not those that a rank trains")
    played = []
    for rank in (0, 1):
        one = Rank(plan, lengths, 2, rank)
        rows = one.share_out()
        traffic = {"received": one.traffic.received, "sent": one.traffic.sent, "lengths": one.lengths_bytes}
        played.append({**traffic, "before": bytes_before(lengths, 2)["received"], "held": held_bytes(rows)})
    return {"real": real, "simulated": played, "equal": real == played}


def amount(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def page(result: dict[str, Any]) -> str:
    columns = result["completions"]
    found = [result["sizes"][name] for name in columns]

    def line(what: str, each: Callable[[dict[str, Any]], str]) -> str:
        return f"| {what} | " + " | ".join(map(each, found)) + " |\n"

    def moved(one: dict[str, Any]) -> dict[str, Any]:
        exchange: dict[str, Any] = one["exchange"]
        return exchange

    heading = "| | " + " | ".join(f"{int(name):,} completions a step" for name in columns) + " |\n"
    rule = "|---|" + "---|" * len(columns) + "\n"
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    same = result["control"]
    return (
        "# A run of thousands of ranks, by simulation\n\n"
        f"Written by `{result['command']}`: one process plays {result['samples']} of {result['ranks']:,} ranks over "
        f"{result['prompts']:,} prompts; CPU time; {versions}; {result['machine']}. A rollout is {STEPS} steps, "
        f"{GROUP} completions a prompt; prompts of {PROMPT[0]} to {PROMPT[1]} tokens, completions lognormal (median "
        f"{MEDIAN}, sigma {SIGMA:g}, at most {CAP:,}); columns: {', '.join(NAMES)}. The largest of the sampled "
        "ranks for bytes, the median for times. The network's own time is not in it.\n\n"
        "## The exchange after generation, for each rank and rollout\n\n"
        + heading
        + rule
        + line(
            "before: rows received (the whole rollout, padded)", lambda one: amount(moved(one)["before"]["received"])
        )
        + line("now: rows received (its own, no padding)", lambda one: amount(moved(one)["received"]))
        + line("now: rows sent", lambda one: amount(moved(one)["sent"]))
        + line("before: rows held at once", lambda one: amount(moved(one)["before"]["held"]))
        + line(
            "now: rows generated, rows trained, and the largest column on its way: at most all three at once",
            lambda one: " + ".join(amount(moved(one)[name]) for name in ("generated", "held", "buffers")),
        )
        + line("now: other ranks that it sends to or receives from", lambda one: f"{moved(one)['peers']:,}")
        + line("before: facts received, pickled", lambda one: amount(moved(one)["before"]["facts"]))
        + line("now: lengths received, integers", lambda one: amount(moved(one)["lengths"]))
        + line("before: unpickling the facts", lambda one: milliseconds(moved(one)["seconds_unpickling"]))
        + line("now: reading the lengths", lambda one: milliseconds(moved(one)["seconds"]["lengths"]))
        + line(
            "now: looking up the rollout's steps in the plan", lambda one: milliseconds(moved(one)["seconds"]["plan"])
        )
        + line("now: who sends what, and the messages", lambda one: milliseconds(moved(one)["seconds"]["exchange"]))
        + "\n## Each optimizer step, for each rank\n\n"
        + heading
        + rule
        + line("plan: the step", lambda one: f"{milliseconds(one['plan']['seconds'])}, {amount(one['plan']['bytes'])}")
        + line(
            "shares of all ranks by tokens",
            lambda one: f"{milliseconds(moved(one)['seconds']['shares'] / STEPS)}, {amount(moved(one)['share_bytes'])}",
        )
        + line("shares of all ranks by count", lambda one: milliseconds(one["by_count_seconds"]))
        + line(
            "check: all ranks' rows against the plan",
            lambda one: f"{milliseconds(one['check']['seconds'])}, {amount(one['check']['received'])} received",
        )
        + line(
            "ledger: the line of the rank with most rows",
            lambda one: (
                f"{milliseconds(one['ledger']['seconds'])}, {amount(one['ledger']['bytes'])} for "
                f"{one['ledger']['rows']} row{'s' * (one['ledger']['rows'] != 1)}"
            ),
        )
        + line("all of it, the exchange's part included", lambda one: milliseconds(one["step_seconds"]))
        + line(
            "memory at once: what is known of all ranks' rows, its own rows, a column on its way",
            lambda one: amount(one["rank_bytes"]),
        )
        + "\n## Once, where a driver gives workers their orders (verl, OpenRLHF, EasyR1)\n\n"
        + heading
        + rule
        + line("orders, to each worker", lambda one: amount(one["receipts"]["orders"]))
        + line("receipt, from each worker", lambda one: amount(one["receipts"]["receipt"]))
        + line("all receipts read and held against each other", lambda one: milliseconds(one["receipts"]["seconds"]))
        + "\n## Control: two real processes on gloo\n\n"
        "| bytes | rank 0, real | rank 0, simulated | rank 1, real | rank 1, simulated |\n|---|---|---|---|---|\n"
        + "".join(
            f"| {name} | "
            + " | ".join(f"{same[side][rank][name]:,}" for rank in (0, 1) for side in ("real", "simulated"))
            + " |\n"
            for name in same["real"][0]
        )
    )


def block(result: dict[str, Any]) -> str:
    """The figures as docs/trl.md has them."""
    names = result["completions"]
    sizes = [result["sizes"][name] for name in names]
    rows: dict[str, Callable[[dict[str, Any]], str]] = {
        "rows received in a rollout, before": lambda one: amount(one["exchange"]["before"]["received"]),
        "rows received in a rollout": lambda one: amount(one["exchange"]["received"]),
        "rows held at once, before": lambda one: amount(one["exchange"]["before"]["held"]),
        "rows held at once, with a column on its way": lambda one: amount(one["held_bytes"]),
        "CPU time of a step outside of the model": lambda one: milliseconds(one["step_seconds"]),
        "of it, every rank's shares": lambda one: milliseconds(one["exchange"]["seconds"]["shares"] / STEPS),
        "memory outside of the model": lambda one: amount(one["rank_bytes"]),
    }
    titles = " | ".join(f"{int(name):,} completions a step" for name in names)
    return (
        f"| a rank of {result['ranks']:,}, {result['prompts']:,} prompts | {titles} |\n|---|{'---|' * len(names)}\n"
        + "".join(f"| {what} | {' | '.join(map(each, sizes))} |\n" for what, each in rows.items())
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=1_000_000)
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--completions", type=int, nargs="+", default=[1024, 32768], help="of an optimizer step")
    parser.add_argument("--samples", type=int, default=3, help="ranks that are played")
    parser.add_argument("--control", action="store_true", help="the control alone")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    parser.add_argument("--write", action="store_true", help="also write the tables, here and in docs/trl.md")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    controlled = control()
    if not controlled["equal"]:
        raise SystemExit(f"the simulation and two real processes differ: {json.dumps(controlled)}")
    if options.control:
        print(json.dumps(controlled))
        return
    names = [str(completions) for completions in options.completions]
    result = {
        "command": " ".join(["python benchmarks/scale.py", *sys.argv[1:]]),
        "prompts": options.prompts,
        "ranks": options.ranks,
        "samples": options.samples,
        "completions": names,
        "sizes": {name: simulated(options.prompts, options.ranks, int(name), options.samples) for name in names},
        "control": controlled,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, one used, load average {load:.1f} at the beginning",
        "versions": {"Python": platform.python_version(), "torch": version("torch")},
    }
    print(page(result))
    text = json.dumps(result, indent=2) + "\n"
    if options.json:
        options.json.write_text(text, encoding="utf-8")
    if options.write:
        RESULTS.write_text(page(result), encoding="utf-8")
        RESULTS.with_suffix(".json").write_text(text, encoding="utf-8")
        PAGE.write_text(BLOCK.sub(lambda _: block(result), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
