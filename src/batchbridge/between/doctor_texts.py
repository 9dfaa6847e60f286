"""The error texts that people paste most, as data: what each means, where it holds, and the way out.

Source of each row: the thread in which users pasted it, or the symbol that raises it. Only the fragments that are
needed to recognise a text stand here.
"""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge.between.doctor import (
    Ask,
    ErrorText,
    Numbers,
    devices,
    divisors,
    multiples,
    pattern,
    setting,
    smallest_factor,
)
from batchbridge.findings import Fix

# ---- TRL


def _trl_groups(n: Numbers) -> Iterator[Fix]:
    """One of the sizes changed so that a rollout holds whole groups of at least two."""
    world, micro, group = n["world"], n["micro"], n["group"]
    accumulation = n.get("accumulation", 1)
    completions = world * micro * accumulation
    if group >= 2:
        yield from setting(
            "per_device_train_batch_size", *multiples(smallest_factor(group, world * accumulation), micro)
        )
        if "accumulation" in n:
            yield from setting(
                "gradient_accumulation_steps", *multiples(smallest_factor(group, world * micro), accumulation)
            )
        yield from devices(*multiples(smallest_factor(group, micro * accumulation), world))
    legal = divisors(completions, group, least=2) if completions >= 2 else []
    yield from setting("num_generations", *legal)
    if not legal:
        yield from setting("per_device_train_batch_size", max(group, 2))


def _trl_batch(n: Numbers) -> Iterator[Fix]:
    yield from setting("generation_batch_size", *multiples(n["group"], n["batch"]))
    yield from setting("num_generations", *divisors(n["batch"], n["group"], least=2))


def _trl_micro_steps(n: Numbers) -> Iterator[Fix]:
    yield from setting("generation_batch_size", *multiples(n["global"], n["batch"]))


# ---- verl and its relatives


def _chunks(n: Numbers) -> Iterator[Fix]:
    rows, parts = n["rows"], n["parts"]
    yield from (Fix(f"{size} rows") for size in multiples(parts, rows))
    if n.get("n"):
        yield from setting("data.train_batch_size", *multiples(smallest_factor(parts, n["n"]), rows // n["n"]))
    yield from (Fix(f"{count} workers") for count in divisors(rows, parts))


def _mini_batch_above_zero(n: Numbers) -> Iterator[Fix]:
    yield from setting("actor_rollout_ref.actor.ppo_mini_batch_size", -(-n["devices"] // n["n"]))


def _mini_of_micro(n: Numbers) -> Iterator[Fix]:
    mini, micro = n["mini"], n["micro"]
    yield from setting("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", *(divisors(mini, micro) if mini else []))
    if "devices" in n and "n" in n:
        unit = smallest_factor(micro * n["devices"], n["n"])
        yield from setting(
            "actor_rollout_ref.actor.ppo_mini_batch_size", *multiples(unit, mini * n["devices"] // n["n"])
        )


def _minimal_batch(n: Numbers) -> Iterator[Fix]:
    yield from (Fix(f"train_batch_size x n = {size} (completions)") for size in multiples(n["minimal"], n["real"]))
    if n.get("n"):
        yield from setting(
            "data.train_batch_size", *multiples(smallest_factor(n["minimal"], n["n"]), n["real"] // n["n"])
        )


def _engine_devices(n: Numbers) -> Iterator[Fix]:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    yield from setting(key, *(size for size in divisors(n["world"], n["tensor"]) if size <= n["world"]))
    yield from devices(*multiples(n["tensor"], n["world"]))


def _prompts_at_least(n: Numbers) -> Iterator[Fix]:
    yield Fix(f"data.train_batch_size = {n['mini']}", {"data.train_batch_size": n["mini"]})
    yield from setting("actor_rollout_ref.actor.ppo_mini_batch_size", *divisors(n["prompts"], n["prompts"]))


# ---- OpenRLHF (DeepSpeed's own assertion)


def _deepspeed_batch(n: Numbers) -> Iterator[Fix]:
    unit = n["micro"] * n["devices"]
    for size in multiples(unit, n["train"]):
        yield Fix(f"train_batch_size = {size} (accumulation {size // unit})", {"train_batch_size": size})
    if n["train"] and n["devices"] and n["train"] % n["devices"] == 0:
        yield from setting("micro_train_batch_size", *divisors(n["train"] // n["devices"], n["micro"]))
    if n["train"] and n["micro"] and n["train"] % n["micro"] == 0:
        yield from devices(*divisors(n["train"] // n["micro"], n["devices"]))


def _accumulation_above_zero(n: Numbers) -> Iterator[Fix]:
    yield from setting("train_batch_size", n["devices"] * n["micro"])


# ---- EasyR1, SkyRL, Unsloth


def _easyr1_rollout(n: Numbers) -> Iterator[Fix]:
    yield from setting("worker.actor.global_batch_size", *divisors(n["rollout"], n["global"]))
    yield from setting("data.rollout_batch_size", *multiples(n["global"], n["rollout"]))


def _skyrl_mini(n: Numbers) -> Iterator[Fix]:
    yield from (Fix(f"{size} rows") for size in multiples(n["mini"], n["rows"]))
    yield from (Fix(f"mini-batches of {size} rows") for size in divisors(n["rows"], n["mini"]))


def _unsloth(n: Numbers) -> Iterator[Fix]:
    yield Fix(
        f"say per_device_train_batch_size = {n['group']} yourself, with gradient_accumulation_steps and memory in mind",
        {"per_device_train_batch_size": n["group"]},
    )
    yield from setting("num_generations", *(size for size in divisors(n["micro"], n["group"], least=2)))


_SAMPLES = Ask(name="n", question="completions per prompt (rollout.n)")
_DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")

_GROUP = Ask(name="group", question="num_generations (completions per prompt)")

TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="trl-global-batch",
        framework="trl",
        versions=">=0.15,<0.17",
        pattern=pattern(
            r"global train batch size \(# x #\) must be evenly divisible by the number of generations per prompt"
            r"(?: \(#\))?",
            "world",
            "micro",
            "group",
        ),
        rule="devices x per_device_train_batch_size (completions of one micro-step; accumulation does not count) is a "
        "multiple of num_generations (completions per prompt), which is at least 2",
        meaning="a micro-step would cut a group. A device kept for vLLM does not train: 8 devices with one for vLLM "
        "are 7. From 0.17 on accumulation counts, and the same settings may be legal",
        phase="construction",
        source="huggingface/open-r1 issues 217 and 249, huggingface/trl issues 2858 and 2876; trl 0.15 GRPOTrainer",
        neighbours=_trl_groups,
        asks=(_GROUP,),
    ),
    ErrorText(
        name="trl-effective-batch",
        framework="trl",
        versions=">=0.17,<0.20",
        pattern=pattern(
            r"effective train batch size \(# x # x #\) must be evenly divisible by"
            r"(?: the number of generations per prompt(?: \(#\))?)?",
            "world",
            "micro",
            "accumulation",
            "group",
        ),
        rule="devices x per_device_train_batch_size x gradient_accumulation_steps (completions) is a multiple of "
        "num_generations (completions per prompt), which is at least 2",
        meaning="an optimizer step would cut a group",
        phase="construction",
        source="huggingface/trl pull request 3283; trl 0.17.0 GRPOTrainer.__init__, 0.18.0 to 0.19.1 GRPOConfig",
        neighbours=_trl_groups,
        asks=(_GROUP,),
    ),
    ErrorText(
        name="trl-generation-batch",
        framework="trl",
        versions=">=0.20",
        pattern=pattern(r"generation_batch_size \(#\) must be divisible by num_generations \(#\)", "batch", "group"),
        rule="generation_batch_size (completions per rollout; by default per_device_train_batch_size x devices x "
        "steps_per_generation) is a multiple of num_generations (completions per prompt)",
        meaning="a rollout would cut a group",
        phase="construction",
        source="trl 0.20.0 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=_trl_batch,
    ),
    ErrorText(
        name="trl-generation-micro-steps",
        framework="trl",
        versions=">=0.18",
        pattern=pattern(
            r"generation_batch_size \(#\) must be divisible by the global batch size \(#\)", "batch", "global"
        ),
        rule="generation_batch_size (completions per rollout) is a multiple of per_device_train_batch_size x devices",
        meaning="a rollout would cut a micro-step",
        phase="construction",
        source="trl 0.18 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=_trl_micro_steps,
    ),
    ErrorText(
        name="verl-equal-chunks",
        framework="verl",
        versions="all, and its relatives (EasyR1, TinyZero, Logic-RL)",
        pattern=pattern(r"only support equal chunk\. Got size of DataProto # and chunk #", "rows", "parts"),
        rule="the rows of a batch (prompts x rollout.n completions, or what is left of them) are a multiple of the "
        "workers that share them (devices, or agent-loop workers)",
        meaning="the batch cannot be dealt out evenly; the run dies after model load and, where it "
        "validates first, after the whole validation",
        phase="first_rollout",
        source="volcengine/verl issues 473, 606 and 4152; Jiayi-Pan/TinyZero issue 47",
        neighbours=_chunks,
        asks=(_SAMPLES,),
    ),
    ErrorText(
        name="verl-mini-batch-zero",
        framework="verl",
        versions="<0.8",
        pattern=pattern(r"ppo_mini_batch_size # should be larger than 0 after normalization", "mini"),
        rule="ppo_mini_batch_size (prompts) x rollout.n is at least the data-parallel size",
        meaning="the mini-batch is shared out to the devices with integer division, and nothing is left for each",
        phase="worker_start",
        source="PRIME-RL/TTRL issue 43; verl 0.4.0 to 0.7.1 fsdp_workers.py",
        neighbours=_mini_batch_above_zero,
        asks=(_DEVICES, _SAMPLES),
    ),
    ErrorText(
        name="verl-mini-of-micro",
        framework="verl",
        versions="<0.8",
        pattern=pattern(
            r"normalized ppo_mini_batch_size #(?: should be|:? must be)? divisible by ppo_micro_batch_size_per_gpu #",
            "mini",
            "micro",
        ),
        rule="ppo_mini_batch_size x rollout.n / data-parallel size (completions per device) is a multiple of "
        "ppo_micro_batch_size_per_gpu (completions)",
        meaning="the last micro-batch would be smaller; before verl pull request 833 it was not checked, and training "
        "gave NaN",
        phase="worker_start",
        source="verl 0.4.0 to 0.7.1 fsdp_workers.py; volcengine/verl pull requests 552 and 833",
        neighbours=_mini_of_micro,
        asks=(_DEVICES, _SAMPLES),
    ),
    ErrorText(
        name="verl-mini-above-rollout",
        framework="verl",
        versions=">=0.4",
        pattern=pattern(
            r"train_batch_size >= (?:self\.)?config\.actor_rollout_ref\.actor\.ppo_mini_batch_size"
            r"|train_batch_size \(#\) must be >= (?:actor\.)?ppo_mini_batch_size \(#\)",
            "prompts",
            "mini",
        ),
        rule="data.train_batch_size (prompts per rollout) is at least ppo_mini_batch_size (prompts per optimizer step)",
        meaning="an optimizer step may not reach over several rollouts in verl",
        phase="config",
        source="open-proof-corpus issue 2; verl validate_config (an assertion before 0.6.0, then a ValueError)",
        neighbours=_prompts_at_least,
        asks=(
            Ask(name="prompts", question="data.train_batch_size (prompts)"),
            Ask(name="mini", question="ppo_mini_batch_size (prompts)"),
        ),
    ),
    ErrorText(
        name="verl-minimal-batch",
        framework="verl",
        versions=">=0.4",
        pattern=pattern(
            r"real_train_batch_size \(#\) must be divisible by minimal possible batch size \(#\)", "real", "minimal"
        ),
        rule="data.train_batch_size x rollout.n (completions per rollout) is a multiple of the data-parallel size",
        meaning="a rollout cannot be dealt out evenly",
        phase="config",
        source="verl validate_config",
        neighbours=_minimal_batch,
        asks=(_SAMPLES,),
    ),
    ErrorText(
        name="verl-engine-devices",
        framework="verl",
        versions=">=0.4",
        pattern=pattern(
            r"rollout world_size: # is not divisible by (?:infer_tp|infer_world_size): #", "world", "tensor"
        ),
        rule="the devices are a multiple of rollout.tensor_model_parallel_size",
        meaning="an inference engine would have no whole set of devices",
        phase="worker_start",
        source="volcengine/verl issues 1191 and 1785",
        neighbours=_engine_devices,
    ),
    ErrorText(
        name="verl-micro-batch-chunks",
        framework="verl",
        versions="with the HF rollout",
        pattern=pattern(r"len\(batch_lst\) \(#\) != chunks \(#\)", "rows", "parts"),
        rule="the rows of a device are a multiple of the rollout's micro-batches",
        meaning="the HF rollout cuts its prompts into chunks that do not come out even",
        phase="first_rollout",
        source="volcengine/verl issue 3933",
        neighbours=lambda n: (Fix(f"{size} chunks") for size in divisors(n["rows"], n["parts"])),
    ),
    ErrorText(
        name="deepspeed-batch",
        framework="openrlhf",
        versions="all (DeepSpeed's own assertion)",
        pattern=pattern(
            r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size # != # \* # \* #",
            "train",
            "micro",
            "accumulation",
            "devices",
        ),
        rule="train_batch_size (completions per optimizer step) is micro_train_batch_size x accumulation x "
        "data-parallel size: a multiple of micro_train_batch_size x data-parallel size",
        meaning="accumulation is a quotient rounded down, and the product is no longer the train batch; often after "
        "one device was lost or kept for something else",
        phase="worker_start",
        source="OpenRLHF/OpenRLHF issue 346",
        neighbours=_deepspeed_batch,
    ),
    ErrorText(
        name="deepspeed-accumulation-zero",
        framework="openrlhf",
        versions="all (DeepSpeed's own assertion)",
        pattern=pattern(r"Gradient accumulation steps: # has to be greater than 0", "accumulation"),
        rule="train_batch_size (completions per optimizer step) is at least micro_train_batch_size x data-parallel "
        "size",
        meaning="one micro-batch on every device is more than the whole optimizer step",
        phase="worker_start",
        source="OpenRLHF/OpenRLHF issues 434 and 584",
        neighbours=_accumulation_above_zero,
        asks=(_DEVICES, Ask(name="micro", question="micro_train_batch_size (completions per device)")),
    ),
    ErrorText(
        name="easyr1-rollout-of-global",
        framework="easyr1",
        versions=">=0.3",
        pattern=r"[Rr]ollout batch size must be divisible by actor global batch size",
        rule="data.rollout_batch_size (prompts per rollout) is a multiple of worker.actor.global_batch_size (prompts "
        "per optimizer step)",
        meaning="the last optimizer step of a rollout would be smaller",
        phase="construction",
        source="EasyR1 RayPPOTrainer.__init__",
        neighbours=_easyr1_rollout,
        asks=(
            Ask(name="rollout", question="data.rollout_batch_size (prompts)"),
            Ask(name="global", question="worker.actor.global_batch_size (prompts)"),
        ),
    ),
    ErrorText(
        name="easyr1-offload-with-accumulation",
        framework="easyr1",
        versions=">=0.3",
        pattern=r"[Cc]annot use FSDP's CPU offload when gradient accumulation is enabled",
        rule="with CPU offload each device takes its share of an optimizer step in one micro-batch",
        meaning="FSDP cannot add up gradients that it moves to the CPU; set the micro-batch to the device's share, "
        "global_batch_size x rollout.n / devices, or turn enable_cpu_offload off",
        phase="worker_start",
        source="EasyR1 FSDPWorker",
        neighbours=lambda n: setting(
            "worker.actor.micro_batch_size_per_device_for_update",
            *([n["global"] * n["n"] // n["devices"]] if n["devices"] else []),
        ),
        asks=(Ask(name="global", question="worker.actor.global_batch_size (prompts)"), _SAMPLES, _DEVICES),
    ),
    ErrorText(
        name="division-by-zero-share",
        framework="easyr1",
        versions="EasyR1, verl and their forks (Python's own text, which has many causes)",
        pattern=r"ZeroDivisionError: integer division or modulo by zero",
        rule="global_batch_size (prompts) x rollout.n is at least the devices",
        meaning="if it comes from a batch setting: a share per device was rounded down to 0, and something is divided "
        "by it. Any other division by zero reads the same",
        phase="worker_start",
        source="dvlab-research/Seg-Zero issue 65",
        neighbours=lambda n: setting("worker.actor.global_batch_size", -(-n["devices"] // n["n"]) if n["n"] else 1),
        asks=(_DEVICES, _SAMPLES),
    ),
    ErrorText(
        name="skyrl-mini-batch",
        framework="skyrl",
        versions="not known (no adapter reads SkyRL)",
        pattern=pattern(r"data batch size must be divisible by mini_batch_size, got # and #", "rows", "mini"),
        rule="the rows of a training batch are a multiple of the mini-batch",
        meaning="with several turns a trajectory gives several rows, so their number depends on the rollouts",
        phase="optimizer_step",
        source="NovaSky-AI/SkyRL issue 1501",
        neighbours=_skyrl_mini,
    ),
    ErrorText(
        name="unsloth-silent-rewrite",
        framework="unsloth",
        versions="with trl >=0.15 (no adapter reads Unsloth)",
        pattern=pattern(r"change the batch size of # to the `?num_generations`? of #", "micro", "group"),
        rule="per_device_train_batch_size is a multiple of num_generations",
        meaning="no error: Unsloth rewrites per_device_train_batch_size, so an optimizer step has more completions "
        "than was asked for, and memory may not suffice",
        phase="construction",
        source="unslothai/unsloth issues 2765 and 3572",
        neighbours=_unsloth,
    ),
)
"""One row per text; names are stable."""
