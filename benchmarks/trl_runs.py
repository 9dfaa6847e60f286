"""Runs of a `GRPOTrainer` that benchmarks time: policies of random weights, scripted completions, native and wrapped.

Of trl_step_time.py, check_cost.py and gpu.py. Needs torch, transformers, accelerate and trl, and this checkout, which
need not be installed: of BatchBridge's own dependencies those four lack pluggy alone, whose wheel may lie on PYTHONPATH
as it is, where nothing can be installed.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import runpy
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
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
from batchbridge.testing.tiny import EOS, FIRST_WORD, WORDS, ScriptedRollouts
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
"""Tokens of a prompt, unless `prompt_tokens` says more: the two words that tell it from others."""
GROUP = 8
"""Completions of a prompt, which they share."""
MEAN, SIGMA = 150, 0.9
"""Mean of the lognormal lengths (tokens) and deviation of their logarithm."""

SHAPES: dict[str, dict[str, Any]] = {
    # 0.5B, 1.5B: the shapes of Qwen2-0.5B and Qwen2-1.5B, of their published config.json.
    "small": {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    | {"num_attention_heads": 4, "tie_word_embeddings": False},
    "tiny": {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    | {"num_attention_heads": 4, "tie_word_embeddings": False},
    # Every token is a word of the tokenizer: for engines that draw.
    "words": {"vocab_size": FIRST_WORD + WORDS, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    | {"num_attention_heads": 4, "tie_word_embeddings": False},
    "0.5B": {"vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
    | {"num_attention_heads": 14, "tie_word_embeddings": True},
    "1.5B": {"vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    | {"num_attention_heads": 12, "tie_word_embeddings": True},
}
ADAPTERS = {"r": 16, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": "gaussian", "task_type": "CAUSAL_LM"}
"""LoRA of the rows that have it."""
ZERO = ("zero2", "zero3")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run is of.

    policy: a name of `SHAPES`. completions: per optimizer step, in groups of `GROUP`. micro: native
    per_device_train_batch_size. tokens_per_device: budget of the wrapped run; 0: its micro-batches are the native ones.
    steps: timed ones, after one that is not. cap, mean: of the completions' lengths (tokens). bf16: autocast, of
    float32 weights. tf32: of a GPU's float32 products; None: as the framework has it. cudnn: whether torch may take
    cuDNN's attention. wrap: further arguments of `wrap`, padding say. exchanged: the first prompt's completions are
    others of the same lengths, for controls.
    """

    device: str = "cpu"
    policy: str = "small"
    lengths: str = "lognormal"
    cap: int = CAP
    mean: int = MEAN
    prompt_tokens: int = PROMPT
    exchanged: bool = False
    completions: int = 64
    micro: int = 4
    tokens_per_device: int = 0
    passes: int = 1
    steps: int = 2
    loss_type: str = "dapo"
    bf16: bool = False
    tf32: bool | None = None
    attention: str = "sdpa"
    cudnn: bool = True
    checkpointing: bool = False
    lora: bool = False
    sharded: str | None = None
    wrap: Mapping[str, Any] = field(default_factory=dict)

    @property
    def script(self) -> Lengths:
        """What the policy is made to say."""
        return Lengths(
            longest=self.cap,
            empty=frozenset(),
            equal=self.lengths == "equal",
            mean=self.mean,
            prompt_tokens=self.prompt_tokens,
            exchanged=self.exchanged,
        )

    @property
    def native_tokens(self) -> int:
        """Tokens that a native micro-batch holds, padding included: TRL pads to the longest completion of a rollout."""
        return self.micro * (self.prompt_tokens + self.script.longest_of(self.completions))

    @property
    def tokens(self) -> int:
        """Tokens of an optimizer step, a prompt counted with each of its completions."""
        lengths = self.script.lengths(self.completions)
        return sum(lengths) + self.prompt_tokens * len(lengths)


@dataclass(frozen=True)
class Lengths(ScriptedRollouts):
    """Completions of lognormal lengths, or all of the mean length."""

    equal: bool = False
    mean: int = MEAN
    prompt_tokens: int = PROMPT
    exchanged: bool = False

    def tokens(self, prompt: int, sample: int) -> int:
        if self.equal:
            return self.mean
        drawn = random.Random(prompt * 1009 + sample).lognormvariate(math.log(self.mean) - SIGMA**2 / 2, SIGMA)
        return max(2, min(int(drawn), self.longest))

    def completion(self, prompt: int, sample: int) -> list[int]:
        count, other = self.tokens(prompt, sample) - 1, int(self.exchanged and prompt == 0)
        return [FIRST_WORD + (prompt * 7 + sample * 11 + k * 5 + other) % WORDS for k in range(count)] + [EOS]

    def prompt(self, index: int) -> str:
        more = (f"w{(index * 13 + k * 7) % WORDS}" for k in range(self.prompt_tokens - PROMPT))
        return " ".join((f"w{index % WORDS}", f"w{index // WORDS}", *more))

    def lengths(self, completions: int) -> list[int]:
        """Tokens of each of so many completions."""
        return [self.tokens(prompt, sample) for prompt in range(completions // GROUP) for sample in range(GROUP)]

    def longest_of(self, completions: int) -> int:
        """Tokens of the longest of so many completions."""
        return max(self.lengths(completions))


def policy(setting: Setting) -> Any:
    """A random policy in float32, made on its device: on a CPU the weights of the larger ones would take minutes."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        **SHAPES[setting.policy],
        num_key_value_heads=2,
        max_position_embeddings=2 * CAP,
        pad_token_id=0,
        eos_token_id=EOS,
        bos_token_id=None,
        attn_implementation=setting.attention,
    )
    with torch.device(setting.device):
        return Qwen2ForCausalLM(config)


def adapters(setting: Setting) -> Any:
    """PEFT's configuration of a run with LoRA; None without."""
    if not setting.lora:
        return None
    from peft import LoraConfig

    return LoraConfig(**ADAPTERS)


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


def build(folder: Path, setting: Setting, **arguments: Any) -> Any:
    """A trainer that is not wrapped; `arguments` of `scripted_trainer` and `GRPOConfig`."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    made: dict[str, Any] = {
        "script": setting.script,
        "prompts": setting.completions // GROUP,
        "policy": arguments.pop("policy", None) or policy(setting),
        "peft_config": adapters(setting),
        "use_cpu": setting.device == "cpu",
        "bf16": setting.bf16,
        "tf32": setting.tf32 if setting.device == "cuda" else None,
        "per_device_train_batch_size": setting.micro,
        "gradient_accumulation_steps": setting.completions // (setting.micro * processes),
        "num_generations": GROUP,
        "num_iterations": setting.passes,
        "max_completion_length": setting.cap,
        "gradient_checkpointing": setting.checkpointing,
        "max_steps": setting.steps + 1,
        "loss_type": setting.loss_type,
        "shuffle_dataset": False,
        "learning_rate": 1e-4,
    }
    trainer: Any = scripted_trainer(folder, **made | sharding(setting.sharded) | arguments)
    trainer.remove_callback(PrinterCallback)
    return trainer


def clock(device: str) -> float:
    """Seconds of a clock that has waited for the device."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def forget(device: str) -> None:
    """Gives back what earlier runs held: trainers lie in circles of references."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@dataclass(kw_only=True)
class Measured:
    """What a run came to: seconds of each optimizer step, generation left out; places (tokens and padding) that the
    policy read in each, with gradients; the shapes (rows, width) that it read in the steps that are timed; the first
    step's gradient, on the CPU; the device's largest memory in bytes, after the first step, beyond what it had before
    the run, on a GPU."""

    seconds: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    shapes: set[tuple[int, ...]] = field(default_factory=set)
    gradient: torch.Tensor | None = None
    peak_bytes: int | None = None


def run(wrapped: bool, folder: Path, setting: Setting, *, gradient: bool = True) -> Measured:
    """One run, native or wrapped. gradient: whether the first step's is kept."""
    forget(setting.device)
    torch.backends.cuda.enable_cudnn_sdp(setting.cudnn)
    before = torch.cuda.memory_allocated() if setting.device == "cuda" else 0
    trainer = build(folder, setting)
    spent, found = {"step": 0.0, "generation": 0.0, "places": 0.0}, Measured()

    def timed(native: Callable[..., Any], name: str) -> Callable[..., Any]:
        def function(*arguments: Any, **keywords: Any) -> Any:
            started = clock(setting.device)
            output = native(*arguments, **keywords)
            spent[name] += clock(setting.device) - started
            return output

        return function

    def read(module: Any, arguments: Any, keywords: Any) -> None:
        ids = keywords.get("input_ids", arguments[0] if arguments else None)
        spent["places"] += ids.numel() if torch.is_grad_enabled() else 0
        if found.seconds:
            found.shapes.add(tuple(ids.shape))

    trainer._generate = timed(trainer._generate, "generation")
    if wrapped:
        budget = {"tokens_per_device": setting.tokens_per_device} if setting.tokens_per_device else {}
        wrap(trainer, **{"ledger": folder / "ledger", **budget, **setting.wrap})
    trainer.training_step = timed(trainer.training_step, "step")
    trainer.model.register_forward_pre_hook(read, with_kwargs=True)

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            found.seconds.append(spent["step"] - spent["generation"])
            found.places.append(int(spent["places"]))
            spent.update(step=0.0, generation=0.0, places=0.0)
            if gradient and found.gradient is None:
                found.gradient = captured.gradients.pop().cpu()
            if state.global_step == 1 and setting.device == "cuda":
                torch.cuda.reset_peak_memory_stats()

    trainer.add_callback(Clock())
    if gradient:
        captured = first_captured(trainer, setting)
        trainer.add_callback(captured)
    trainer.train()
    if setting.sharded:  # never DDP compared with itself
        kind = type(trainer.model_wrapped)
        assert any(one.__name__ in ("FSDPModule", "DeepSpeedEngine") for one in kind.__mro__), kind
    if setting.device == "cuda":
        found.peak_bytes = int(torch.cuda.max_memory_allocated()) - before
    if setting.sharded in ZERO:  # DeepSpeed's hooks keep the engine, in circles that Python does not see
        trainer.model_wrapped.destroy()
        for parameter in trainer.model.parameters():
            parameter.data, parameter.grad = torch.empty(0), None
    return found


def first_captured(trainer: Any, setting: Setting) -> Any:
    """A callback that keeps the first step's raw gradient, and no states: a copy of every weight in each step."""
    captured: Any = Captured(trainer.model)
    name = "on_pre_optimizer_step"
    if setting.sharded in ZERO:
        from sharded_on_cpu import CapturedWhole

        captured, name = CapturedWhole(trainer), "_capture"
    native, seen = getattr(captured, name), []

    def once(*arguments: Any, **keywords: Any) -> None:
        if not seen:
            seen.append(native(*arguments, **keywords))

    setattr(captured, name, once)
    captured.on_step_begin = lambda *_, **__: None
    return captured


def apart(one: torch.Tensor, other: torch.Tensor, device: str = "cpu") -> float:
    """`norm(one - other) / norm(other)`, in float64, a part of them at a time."""
    difference = norm = 0.0
    for left, right in zip(one.split(1 << 26), other.split(1 << 26), strict=True):
        exact = right.to(device).double()
        difference += float((left.to(device).double() - exact).square().sum())
        norm += float(exact.square().sum())
    return math.sqrt(difference / norm)


def pairs(setting: Setting, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Native and wrapped runs in turns, `count` of each: the ratio of their median step times, and the rest."""
    ratios, medians, peaks, distance = [], {False: [], True: []}, {False: 0, True: 0}, 0.0
    places: dict[bool, int] = {}
    shapes: dict[bool, int] = {}
    with tempfile.TemporaryDirectory() as name:
        for pair in range(count):
            found = {}
            for wrapped in (False, True) if pair % 2 == 0 else (True, False):
                found[wrapped] = run(wrapped, Path(name) / f"{pair}-{wrapped}", setting)
                medians[wrapped].append(statistics.median(found[wrapped].seconds[1:]))
                peaks[wrapped] = max(peaks[wrapped], found[wrapped].peak_bytes or 0)
                places[wrapped] = found[wrapped].places[-1]
                shapes[wrapped] = len(found[wrapped].shapes)
            ratios.append(medians[True][-1] / medians[False][-1])
            distance = max(distance, apart(found[True].gradient, found[False].gradient, setting.device))
            seconds = f"native {medians[False][-1]:.3f} s, wrapped {medians[True][-1]:.3f} s"
            say(f"pair {pair}: {seconds}, ratio {ratios[-1]:.3f}")
    lengths = setting.script.lengths(setting.completions)
    return {
        "ratio_median": statistics.median(ratios),
        "ratio_spread": [min(ratios), max(ratios)],
        "native_step_seconds": statistics.median(medians[False]),
        "wrapped_step_seconds": statistics.median(medians[True]),
        "gradients_apart": distance,
        "padding_alone_would_allow": sum(lengths) / (len(lengths) * max(lengths)),
        "step_tokens": setting.tokens,
        "step_places": {"native": places[False], "wrapped": places[True]},
        "shapes": {"native": shapes[False], "wrapped": shapes[True]},
        **({"device_peak_bytes": {"native": peaks[False], "wrapped": peaks[True]}} if peaks[True] else {}),
    }


def own_noise(setting: Setting, say: Callable[[str], None]) -> dict[str, float]:
    """How far the native gradient of a step moves by rounding alone, and by a fault: norms over its own norm.

    noise: with micro-batches half the size. control: with other completions of the first prompt.
    """
    one = replace(setting, steps=0)
    others = {"noise": replace(one, micro=one.micro // 2), "control": replace(one, exchanged=True)}
    with tempfile.TemporaryDirectory() as name:
        kept = {each: run(False, Path(name) / each, of).gradient for each, of in {"": one, **others}.items()}
    found = {each: apart(kept[each], kept[""], setting.device) for each in others}
    say(f"the native gradient: {found['noise']:.1e} by its split, {found['control']:.1e} by other completions")
    return found


def measured_on() -> dict[str, str]:
    """The commit and the date of a figure that is kept; see `batchbridge_on_cpu.figures`."""
    root = Path(__file__).parents[1]
    place = root / "tests" / "on_cpu" / "batchbridge_on_cpu" / "figures.py"
    found: dict[str, str] = runpy.run_path(str(place))["measured_on"](root)
    return found


def machine(device: str) -> str:
    """What the figures are of."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread per process"


def versions(*more: str) -> dict[str, str]:
    """Of what a step runs in."""
    names = ("batchbridge", "trl", "transformers", "accelerate", "torch", *more)
    return {name: installed(name) or "not installed" for name in names}
