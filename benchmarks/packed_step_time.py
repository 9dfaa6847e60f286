"""What micro-batches without padding cost and give in verl and OpenRLHF as they are, on a CPU.

    python benchmarks/packed_step_time.py --framework verl|openrlhf [--write]

One optimizer step of the framework's own training worker, in which the layer that `wrap` puts there is installed:
micro-batches of four completions, token budgets over padded rows, and the same budgets over packed ones
(`use_remove_padding`, `ds.packing_samples`); in verl also with each prompt read once (`padding="free"`), whose
attention is computed prompt by prompt and completion by completion. Processor time of one process with one thread, all
layouts in turns, the least of each; and the tokens that the policy was run on over those that are real. Attention is
torch's sdpa, which for packed rows gets a mask and computes what it hides; flash attention on a GPU does not. Control:
of equal lengths nothing is padded, so that packing has nothing to give. --write puts the framework's part into
packed_step_time.json and .md beside this file. A report, never a gate. Needs what check_cost.py needs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("BATCHBRIDGE_OPTIMIZER", "adamw")  # torch's: DeepSpeed's own compiles C++

import check_cost as cost
import torch
import trl_runs as runs

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import MicroBatch

COMPLETIONS, TURNS = 16, 2
WORK = cost.Work(COMPLETIONS, budget=0, tokens=runs.MEAN)
ROWS: Mapping[str, tuple[int, bool]] = {
    # name: tokens of a prompt, whether all completions have one length
    "prompts of 2 tokens, lognormal lengths": (2, False),
    "prompts of 256 tokens, lognormal lengths": (256, False),
    "control: prompts of 2 tokens, equal lengths": (2, True),
}


class Layout(NamedTuple):
    """How a step is cut: budget: tokens of a micro-batch, in longest rows; None: four completions."""

    budget: int | None
    packed: bool
    shared: bool = False
    """Whether each prompt is read once, its completions behind it."""


LAYOUTS: Mapping[str, Layout] = {
    "four completions, padded": Layout(None, packed=False),
    "budget of one longest row, padded": Layout(1, packed=False),
    "budget of one longest row, packed": Layout(1, packed=True),
    "budget of four longest rows, padded": Layout(4, packed=False),
    "budget of four longest rows, packed": Layout(4, packed=True),
}
SHARED: Mapping[str, Layout] = {
    "budget of one longest row, prompts shared": Layout(1, packed=True, shared=True),
    "budget of four longest rows, prompts shared": Layout(4, packed=True, shared=True),
}
"""Of verl alone."""
Step = Callable[[], Any]


def verl(folder: Path, layout: Layout, longest: int, rows: Callable[[Plan, int], Any]) -> tuple[Any, Step]:
    """verl's policy, and what trains a step."""
    from batchbridge_on_cpu.verl.scripted import packed
    from batchbridge_on_cpu.verl.workers import batch, training_worker
    from batchbridge_verl.engine import install, probe

    overrides = ["model.override_config.attn_implementation=sdpa", "actor.ppo_micro_batch_size_per_gpu=4"]
    layed_out = packed(attention="sdpa") if layout.packed else []
    worker = training_worker(
        cost.policy_in(folder, WORK), *(f"actor_rollout_ref.{one}" for one in overrides), *layed_out
    )
    spec = cost.spec_of(COMPLETIONS)
    plan = Plan(spec, cost.prompts_of(COMPLETIONS))
    told = cost.orders("verl", spec, {"loss_agg_mode": "token-mean", "policy_loss.loss_mode": "vanilla"})
    told = dataclasses.replace(told, padding="free" if layout.shared else "padded")
    cut: dict[str, Any] = {"micro_batch_size_per_gpu": 4}
    if layout.budget is not None:
        cut = {"use_dynamic_bsz": True, "max_token_len_per_gpu": layout.budget * longest}
    sizes = {"mini_batch_size": COMPLETIONS, "global_batch_size": COMPLETIONS}

    def train() -> None:
        worker.batchbridge._last = None  # the same step again
        worker.train_mini_batch(batch(*rows(plan, 0), step=0, **cut, **sizes))

    install(worker, told)
    probe(worker)
    return worker.engine.module, train


def openrlhf(folder: Path, layout: Layout, longest: int, rows: Callable[[Plan, int], Any]) -> tuple[Any, Step]:
    """OpenRLHF's policy, and what trains a step."""
    from batchbridge_on_cpu.openrlhf.workers import actor_trainer, experience
    from batchbridge_openrlhf.engine import install

    trainer = actor_trainer(
        cost.policy_in(folder, WORK),
        steps=cost.STEPS + 1,
        dataset_size=cost.prompts_of(COMPLETIONS),
        **{
            "ds.zero_stage": 2,
            "ds.attn_implementation": "sdpa",
            "ds.packing_samples": layout.packed,
            "train.batch_size": COMPLETIONS,
            "rollout.batch_size": COMPLETIONS // runs.GROUP,
            "rollout.n_samples_per_prompt": runs.GROUP,
        },
    )
    micro = MicroBatch(completions_per_device=4)
    if layout.budget is not None:
        micro = MicroBatch(tokens_per_device=layout.budget * longest, cap="soft")
    spec = cost.spec_of(COMPLETIONS).replace(micro_batch=micro)
    plan = Plan(spec, cost.prompts_of(COMPLETIONS))
    told = cost.orders(
        "openrlhf", spec, {"loss.token_level_loss": True, "loss.policy_loss_type": "ppo", "loss.dual_clip": 3.0}
    )

    def train() -> None:
        install(trainer, told)
        trainer.replay_buffer.clear()
        for sample, member in zip(*rows(plan, 0), strict=True):
            trainer.replay_buffer.append(experience(sample, member))
        trainer.ppo_train(0.0)

    return trainer.actor.model.module, train


FRAMEWORKS = {"verl": verl, "openrlhf": openrlhf}


def measure(framework: str, prompt: int, *, equal: bool) -> dict[str, dict[str, float]]:
    """Of each layout: seconds of a step, and tokens that the policy was run on over the real ones."""
    script = runs.Lengths(longest=runs.CAP, empty=frozenset(), equal=equal, prompt_tokens=prompt)
    seen: list[int] = []

    def rows(plan: Plan, step: int) -> Any:
        samples, members = cost.trained(plan, step, script)
        # Each group has a prompt of its own.
        own = [dataclasses.replace(one, prompt=[5 + one.group] * prompt) for one in samples]
        return own, members

    plan = Plan(cost.spec_of(COMPLETIONS), cost.prompts_of(COMPLETIONS))
    lengths = [len(sample.prompt) + len(sample.completion) for sample in rows(plan, 0)[0]]
    with tempfile.TemporaryDirectory() as folder:
        ready = {}
        for name, layout in {**LAYOUTS, **(SHARED if framework == "verl" else {})}.items():
            place = Path(folder) / str(len(ready))
            place.mkdir()
            policy, train = FRAMEWORKS[framework](place, layout, max(lengths), rows)
            policy.register_forward_pre_hook(
                lambda module, given, named: seen.append((named.get("input_ids", *given[:1])).numel()),
                with_kwargs=True,
            )
            ready[name] = train
        found: dict[str, dict[str, float]] = {name: {"seconds": float("inf")} for name in ready}
        for turn in range(TURNS + 1):
            for name, train in ready.items():
                seen.clear()
                started = time.process_time()
                train()
                seconds = time.process_time() - started
                if turn:
                    found[name]["seconds"] = min(found[name]["seconds"], seconds)
                found[name]["tokens"] = sum(seen) / sum(lengths)
    return found


def page(found: Mapping[str, Any]) -> str:
    lines = [
        "# Micro-batches without padding in verl and OpenRLHF",
        "",
        "Written by `python benchmarks/packed_step_time.py --framework NAME --write`, a part at a time: 4 layers of",
        f"width 256, one process, one step of {COMPLETIONS} completions, processor time, the least of {TURNS} in",
        "turns, over that of the first line. Tokens: those that the policy was run on over the real ones. Attention is",
        "sdpa; over packed rows it gets a mask, and computes what it hides.",
    ]
    for framework, part in sorted(found.items()):
        lines += ["", f"## {framework}", "", f"{part['machine']}."]
        for row, layouts in part["rows"].items():
            base = next(iter(layouts.values()))["seconds"]
            lines += ["", f"{row[0].upper()}{row[1:]}:", "", "| micro-batches | time | tokens |", "|---|---|---|"]
            lines += [
                f"| {name} | {one['seconds'] / base:.2f} | {one['tokens']:.2f} |" for name, one in layouts.items()
            ]
    return "\n".join([*lines, ""])


def main() -> None:
    torch.set_num_threads(1)
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--framework", choices=sorted(FRAMEWORKS), required=True)
    arguments.add_argument("--write", action="store_true")
    options = arguments.parse_args()
    rows = {name: measure(options.framework, prompt, equal=equal) for name, (prompt, equal) in ROWS.items()}
    file = Path(__file__).with_suffix(".json")
    found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    names = ("batchbridge", options.framework, "transformers", "torch")
    versions = ", ".join(f"{name} {runs.installed(name)}" for name in names)
    found[options.framework] = {
        "machine": f"{runs.machine('cpu')}; {versions}",
        "rows": rows,
    }
    written = page(found)
    if options.write:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(written, encoding="utf-8")
    print(written)


if __name__ == "__main__":
    main()
