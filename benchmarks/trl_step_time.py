"""Time of a GRPOTrainer's optimizer step, wrapped with a token budget against unwrapped, alternating in one process.

    python benchmarks/trl_step_time.py [--lengths lognormal|equal] [--processes 2] [--device cuda] [--json FILE]
    python benchmarks/trl_step_time.py --write [--device cuda]

Completions are scripted and each run trains the same ones; what is timed is `training_step` and the forward-only
passes, generation left out. Prints the median ratio wrapped / unwrapped with its spread, and how far apart the first
gradients are. --sharded shards the model over the processes, on a CPU on gloo. --memory also runs either side once in
processes of its own and compares peak memory (the largest of the ranks; on CPU: of the whole process, with a glibc that
keeps nothing it could give back). --largest-budget doubles the budget until a step
fits no longer, or until it holds a whole step. --write runs every row of `ROWS`, or those of --rows (with --pairs 0
their memory alone), and writes trl_step_time.json and .md beside this file (trl_step_time_cuda with --device cuda).
A report, never a gate. With --device cuda the model has the shape of Qwen2-0.5B, random, in bf16.

Needs torch, transformers, accelerate and trl, and this checkout, which need not be installed: of BatchBridge's own
dependencies those four lack pluggy alone, whose wheel may lie on PYTHONPATH as it is, where nothing can be installed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
warnings.filterwarnings("ignore", category=FutureWarning)  # deprecations inside TRL and transformers

import torch
import transformers
from transformers.trainer_callback import PrinterCallback

if find_spec("batchbridge") is None:
    sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("src", "adapters")]

import batchbridge_trl
from batchbridge import wrap
from batchbridge.contract import plugins
from batchbridge.kit.versions import installed
from batchbridge.testing.tiny import EOS, FIRST_WORD, WORDS, Script
from batchbridge_trl.testing import Captured, scripted_trainer

# What shards on a CPU is the tests' own.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "adapters" / "trl" / "native"))

if "trl" not in plugins.adapters():  # not installed: no entry point names it
    plugins.manager().register(batchbridge_trl, "trl")

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

CAP = 1024
"""Tokens of the longest completion."""
PROMPT = 2
"""Tokens of a prompt."""
GROUP = 8
"""Completions of a prompt."""
MEAN, SIGMA = 150, 0.9
"""Mean of the lognormal lengths (tokens) and deviation of their logarithm."""


@dataclass(frozen=True)
class Lengths(Script):
    """Completions of lognormal lengths, or all of the mean length."""

    equal: bool = False

    def tokens(self, prompt: int, sample: int) -> int:
        if self.equal:
            return MEAN
        drawn = random.Random(prompt * 1009 + sample).lognormvariate(math.log(MEAN) - SIGMA**2 / 2, SIGMA)
        return max(2, min(int(drawn), CAP))

    def completion(self, prompt: int, sample: int) -> list[int]:
        count = self.tokens(prompt, sample) - 1
        return [FIRST_WORD + (prompt * 7 + sample * 11 + k * 5) % WORDS for k in range(count)] + [EOS]

    def prompt(self, index: int) -> str:
        return f"w{index % WORDS} w{index // WORDS}"  # PROMPT tokens

    def longest_of(self, completions: int) -> int:
        """Tokens of the longest of so many completions."""
        return max(self.tokens(prompt, sample) for prompt in range(completions // GROUP) for sample in range(GROUP))


EQUAL = ("--lengths", "equal", "--tokens-per-device", str(2 * (PROMPT + MEAN)))
"""Half of a native micro-batch: without padding, smaller ones take less memory and, on a CPU, no more time."""

ROWS: dict[str, tuple[tuple[str, ...], ...]] = {
    "cpu": (
        ("--memory",),
        ("--processes", "2"),
        ("--processes", "2", "--sharded", "zero2", "--memory"),
        ("--processes", "2", "--sharded", "zero3", "--memory"),
        ("--processes", "2", "--sharded", "fsdp2", "--memory"),
        ("--passes", "2"),
        (*EQUAL, "--completions", "32", "--steps", "2", "--pairs", "9", "--memory"),
        (*EQUAL, "--completions", "32", "--steps", "6", "--pairs", "7", "--processes", "2"),
    ),
    "cuda": (
        ("--memory", "--largest-budget", "--tokens-per-device", "16384"),
        ("--passes", "2", "--tokens-per-device", "16384"),
        ("--lengths", "equal", "--memory"),
    ),
}
"""What `--write` measures on a device: the options of each row. Equal lengths take more steps: the ratio is near 1."""

SHAPES: dict[str, dict[str, Any]] = {
    # CPU: 4 layers of width 256. CUDA: the shape of Qwen2-0.5B; source: its published config.json.
    "cpu": {
        "vocab_size": 8192,
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    },
    "cuda": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "tie_word_embeddings": True,
    },
}


def policy(device: str) -> Any:
    """A random policy in float32; TRL's autocast makes it bf16 on CUDA."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        **{"tie_word_embeddings": False} | SHAPES[device],
        num_key_value_heads=2,
        max_position_embeddings=2 * CAP,
        pad_token_id=0,
        eos_token_id=EOS,
        bos_token_id=None,
        attn_implementation="sdpa",
    )
    return Qwen2ForCausalLM(config)


def sharding(kind: str | None) -> dict[str, Any]:
    """The trainer's settings that shard a model; DeepSpeed's sizes and clipping are the trainer's."""
    if kind == "fsdp2":
        layers = {"version": 2, "transformer_layer_cls_to_wrap": ["Qwen2DecoderLayer"]}
        return {"fsdp": True, "fsdp_config": layers}
    if kind is None:
        return {}
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    own = {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    stage: dict[str, Any] = {"stage": int(kind.removeprefix("zero")), "overlap_comm": False}
    return {"deepspeed": dict.fromkeys(sizes, "auto") | own | {"zero_optimization": stage}}


def script_of(options: argparse.Namespace) -> Lengths:
    return Lengths(longest=CAP, empty=frozenset(), equal=options.lengths == "equal")


def build(folder: Path, options: argparse.Namespace) -> Any:
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer: Any = scripted_trainer(
        folder,
        script=script_of(options),
        prompts=options.completions // GROUP,
        policy=policy(options.device),
        use_cpu=options.device == "cpu",
        bf16=options.device == "cuda",
        per_device_train_batch_size=options.micro,
        gradient_accumulation_steps=options.completions // (options.micro * processes),
        num_generations=GROUP,
        num_iterations=options.passes,
        max_completion_length=CAP,
        gradient_checkpointing=options.device == "cuda",
        max_steps=options.steps + 1,
        loss_type="dapo",
        shuffle_dataset=False,
        learning_rate=1e-4,
        **sharding(options.sharded),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def synchronise(options: argparse.Namespace) -> None:
    if options.device == "cuda":
        torch.cuda.synchronize()


def run(wrapped: bool, folder: Path, options: argparse.Namespace) -> tuple[list[float], torch.Tensor]:
    """Seconds of each optimizer step of one run, the first (warm-up) left out, and the first step's gradient."""
    trainer = build(folder, options)
    clock = {"step": 0.0, "generation": 0.0}
    generate = trainer._generate

    def timed_generate(*arguments: Any, **keywords: Any) -> Any:
        started = time.perf_counter()
        output = generate(*arguments, **keywords)
        clock["generation"] += time.perf_counter() - started
        return output

    trainer._generate = timed_generate
    if wrapped:
        wrap(trainer, ledger=folder / "ledger", tokens_per_device=options.tokens_per_device)
    step, seconds = trainer.training_step, []

    def timed_step(*arguments: Any) -> Any:
        synchronise(options)
        started = time.perf_counter()
        loss = step(*arguments)
        synchronise(options)
        clock["step"] += time.perf_counter() - started
        return loss

    trainer.training_step = timed_step

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seconds.append(clock["step"] - clock["generation"])
            clock.update(step=0.0, generation=0.0)

    if options.sharded in ZERO:
        from sharded_on_cpu import CapturedWhole

        captured: Any = CapturedWhole(trainer)
    else:
        captured = Captured(trainer.model)
    trainer.add_callback(Clock())
    if not options.only:  # memory: the captured copies are nobody's
        trainer.add_callback(captured)
    trainer.train()
    if options.sharded:  # never DDP compared with itself
        kind = type(trainer.model_wrapped)
        assert any(one.__name__ in ("FSDPModule", "DeepSpeedEngine") for one in kind.__mro__), kind
    if options.only:
        return seconds, torch.empty(0)
    return seconds[1:], captured.gradients[0].double()


ZERO = ("zero2", "zero3")
NOT_MEASURED = ("json", "only", "memory", "largest_budget", "write", "rows")


def peak_bytes(options: argparse.Namespace) -> int:
    if options.device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    # Not ru_maxrss: Linux lets a child begin with its parent's, and this one's parent has run both sides.
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def largest_of_ranks(count: int) -> int:
    """The largest of the processes' counts, on every one. Collective."""
    if not torch.distributed.is_initialized():
        return count
    whole = torch.tensor([count], dtype=torch.int64)
    torch.distributed.all_reduce(whole, torch.distributed.ReduceOp.MAX)
    return int(whole.item())


def measure(options: argparse.Namespace) -> dict[str, Any]:
    ratios, native, fast, apart = [], [], [], 0.0
    with tempfile.TemporaryDirectory() as name:
        for pair in range(options.pairs):
            medians, gradients = {}, {}
            for wrapped in (False, True) if pair % 2 == 0 else (True, False):
                seconds, gradients[wrapped] = run(wrapped, Path(name) / f"{pair}-{wrapped}", options)
                medians[wrapped] = statistics.median(seconds)
            ratios.append(medians[True] / medians[False])
            native.append(medians[False])
            fast.append(medians[True])
            apart = max(apart, float((gradients[True] - gradients[False]).norm() / gradients[False].norm()))
            say(f"pair {pair}: native {native[-1]:.3f} s, wrapped {fast[-1]:.3f} s, ratio {ratios[-1]:.3f}")
    script = script_of(options)
    drawn = [script.tokens(prompt, sample) for prompt in range(options.completions // GROUP) for sample in range(GROUP)]
    return {
        "ratio_median": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "native_step_seconds": statistics.median(native),
        "wrapped_step_seconds": statistics.median(fast),
        "gradients_apart": apart,
        "padding_alone_would_allow": sum(drawn) / (len(drawn) * max(drawn)),
        "options": {name: value for name, value in vars(options).items() if name not in NOT_MEASURED},
        "machine": machine(options),
        "versions": {
            name: installed(name) or "not installed"
            for name in ("batchbridge", "trl", "transformers", "accelerate", "torch")
        },
    }


def largest_budget(options: argparse.Namespace) -> int:
    """The largest of the budgets 1024, 2048, ... (tokens per device) with which steps fit into the device's memory."""
    fits, budget = 0, CAP
    whole = options.completions * (PROMPT + script_of(options).longest_of(options.completions))
    while fits < whole:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(True, Path(folder), argparse.Namespace(**{**vars(options), "tokens_per_device": budget}))
            except torch.OutOfMemoryError:
                break
        fits, budget = budget, 2 * budget
    return fits


def machine(options: argparse.Namespace) -> str:
    if options.device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread per process"


def say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, flush=True)


LAUNCHED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK")
"""What a launcher tells a process: children that it starts have a launcher of their own."""


def alone(wrapped: bool, options: argparse.Namespace) -> int:
    """Peak memory (bytes) of one side in a process of its own, without what glibc would keep for later."""
    words = [option for option in sys.argv[1:] if option not in ("--memory", "--largest-budget")]
    side = "wrapped" if wrapped else "native"
    plain = {name: value for name, value in os.environ.items() if name not in LAUNCHED}
    child = subprocess.run(
        [sys.executable, __file__, *words, "--only", side],
        check=True,
        capture_output=True,
        text=True,
        env={**plain, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"},
    )
    return int(child.stdout.split()[-1])


def write(device: str, pairs: int, steps: int, again: Sequence[int] | None) -> None:
    """Measures the rows `again` (None: every one), keeps the others as they were, and writes both files."""
    here = Path(__file__).with_name(f"trl_step_time{'' if device == 'cpu' else f'_{device}'}")
    results = [{} for _ in ROWS[device]] if again is None else json.loads(here.with_suffix(".json").read_text())
    for row, words in enumerate(ROWS[device]):
        if again is not None and row not in again:
            continue
        said = ("--device", device, "--pairs", str(pairs), "--steps", str(steps), *words)
        load = os.getloadavg()[0]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "result.json"
            subprocess.run([sys.executable, __file__, *said, "--json", str(file)], check=True)
            found = json.loads(file.read_text())
            results[row] = {"command": " ".join(said), "load_average": load, **found} if pairs else results[row] | found
        here.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    here.with_suffix(".md").write_text("\n".join(page(results, device)) + "\n", encoding="utf-8")


def page(results: list[dict[str, Any]], device: str) -> Iterator[str]:
    """The table, a line at a time."""
    first = results[0]
    versions = ", ".join(f"{name} {said}" for name, said in first["versions"].items())
    yield "# Time of an optimizer step in TRL\n"
    loads = [row["load_average"] for row in results]
    yield f"Written by `python benchmarks/trl_step_time.py --write --device {device}`: {first['machine']}, load average"
    yield f"{min(loads):.1f} to {max(loads):.1f} when a row began; {versions}."
    yield "Rows are measured one by one, and again where they change (`--rows`): not all in one run of it."
    yield "Wrapped with a token budget against unwrapped, alternating in one process; rows have this script's options;"
    yield "where they give no budget it is what a native micro-batch holds, its padding included."
    yield "A ratio below 1 is faster. Gradients: the first step's, wrapped minus native, over the native norm.\n"
    yield "| options | wrapped / native: median (spread) | native step, s | gradients apart | memory | most tokens |"
    yield "|---|---|---|---|---|---|"
    for row in results:
        low, high = row["ratio_spread"]
        peak = row.get("peak_bytes")
        cells = (
            f"`{row['command']}`",
            f"{row['ratio_median']:.3f} ({low:.3f} to {high:.3f})",
            f"{row['native_step_seconds']:.2f}",
            f"{row['gradients_apart']:.1e}",
            f"{peak['wrapped'] / peak['native']:.3f} of native" if peak else "",
            f"{row['largest_budget']} tokens" if "largest_budget" in row else "",
        )
        yield f"| {' | '.join(cells)} |"


def told(result: dict[str, Any], pairs: int) -> str:
    """What was measured, in a line."""
    parts = []
    if pairs:
        low, high = result["ratio_spread"]
        parts = [
            f"ratio {result['ratio_median']:.3f} (from {low:.3f} to {high:.3f}) over {pairs} pairs",
            f"native step {result['native_step_seconds']:.3f} s",
            f"gradients {result['gradients_apart']:.1e} apart",
            f"padding alone would allow {result['padding_alone_would_allow']:.2f}",
        ]
    parts += [f"peak bytes {result['peak_bytes']}"] if "peak_bytes" in result else []
    parts += [f"largest budget {result['largest_budget']}"] if "largest_budget" in result else []
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", choices=("lognormal", "equal"), default="lognormal")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="data-parallel processes on this machine")
    parser.add_argument("--sharded", choices=(*ZERO, "fsdp2"), help="how the model is sharded over the processes")
    parser.add_argument(
        "--completions", type=int, default=64, help=f"completions per optimizer step, groups of {GROUP}"
    )
    parser.add_argument("--micro", type=int, default=4, help="native per_device_train_batch_size")
    parser.add_argument(
        "--tokens-per-device",
        type=int,
        help="budget of the wrapped run; default: what a native micro-batch holds",
    )
    parser.add_argument(
        "--passes", type=int, default=1, help="num_iterations; more than 1 scores old log-probabilities"
    )
    parser.add_argument("--pairs", type=int, default=5, help="alternating pairs of runs; 0: memory alone")
    parser.add_argument("--steps", type=int, default=2, help="timed optimizer steps in a run")
    parser.add_argument("--memory", action="store_true", help="also compare peak memory")
    parser.add_argument("--largest-budget", action="store_true", help="also find the largest budget that fits")
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--write", action="store_true", help="measure every row, and write the table")
    parser.add_argument("--rows", type=int, nargs="+", help="with --write: these rows of the table only, from 0")
    parser.add_argument("--only", choices=("native", "wrapped"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tokens_per_device is None:
        # TRL pads to the longest completion of a rollout, which is all that the script has.
        longest = script_of(options).longest_of(options.completions)
        options.tokens_per_device = options.micro * (PROMPT + longest)
    if options.write:
        write(options.device, options.pairs, options.steps, options.rows)
        return
    if options.processes > 1 and "RANK" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.processes}"]
        raise SystemExit(subprocess.call([sys.executable, *launcher, __file__, *sys.argv[1:]]))
    if options.device == "cpu":
        torch.set_num_threads(1)
        os.environ["ACCELERATE_USE_CPU"] = "true"
        if options.sharded == "fsdp2":
            from sharded_on_cpu import shard_on_the_cpu

            shard_on_the_cpu()
        elif options.sharded:
            from sharded_on_cpu import zero_on_the_cpu

            zero_on_the_cpu()
    if options.only:
        with tempfile.TemporaryDirectory() as folder:
            run(options.only == "wrapped", Path(folder), options)
        say(str(largest_of_ranks(peak_bytes(options))))
        return
    result = measure(options) if options.pairs else {}
    if options.memory and os.environ.get("RANK", "0") == "0":
        result["peak_bytes"] = {"native": alone(False, options), "wrapped": alone(True, options)}
    if options.largest_budget and options.processes == 1:
        result["largest_budget"] = largest_budget(options)
    say(told(result, options.pairs))
    if options.json and os.environ.get("RANK", "0") == "0":
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    if options.processes > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
