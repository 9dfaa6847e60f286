"""Texts of what every framework runs on (torch, Ray, vLLM, DeepSpeed, Megatron, Unsloth), which no adapter owns:
rows that `doctor` has beside the adapters' own."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge.contract.error_text import ErrorText, Numbers
from batchbridge.kit.error_texts import divisors, multiples, pattern, setting
from batchbridge.meaning.findings import Fix


def _skyrl_mini(n: Numbers) -> Iterator[Fix]:
    yield from (Fix(f"{size} rows") for size in multiples(n["mini"], n["rows"]))
    yield from (Fix(f"mini-batches of {size} rows") for size in divisors(n["rows"], n["mini"]))


def _unsloth(n: Numbers) -> Iterator[Fix]:
    yield Fix(
        f"say per_device_train_batch_size = {n['group']} yourself, with gradient_accumulation_steps and memory in mind",
        {"per_device_train_batch_size": n["group"]},
    )
    yield from setting("num_generations", *(size for size in divisors(n["micro"], n["group"], least=2)))


def _out_of_memory(n: Numbers) -> Iterator[Fix]:
    yield Fix(
        "a smaller micro-batch, the optimizer step kept: TRL per_device_train_batch_size with as much more "
        "gradient_accumulation_steps; verl ppo_micro_batch_size_per_gpu; EasyR1 "
        "micro_batch_size_per_device_for_update; OpenRLHF micro_train_batch_size"
    )
    yield Fix(
        "micro-batches sized in tokens: batchbridge run --tokens-per-device; verl use_dynamic_bsz with "
        "ppo_max_token_len_per_gpu; OpenRLHF use_dynamic_batch with train_max_tokens_per_gpu"
    )
    yield Fix(
        "less for the generator: vllm_gpu_memory_utilization (TRL, OpenRLHF), gpu_memory_utilization (verl, EasyR1)"
    )


def _heads(n: Numbers) -> Iterator[Fix]:
    yield from setting("tensor_parallel_size", *divisors(n["heads"], n["tensor"]))


def _killed(n: Numbers) -> Iterator[Fix]:
    yield Fix(
        "look into the kernel's log for the time of it (dmesg: oom-kill), and into Slurm's (sacct: OUT_OF_MEMORY)"
    )
    yield Fix("less host memory: fewer workers of data loaders, no offloading of parameters and optimizer, more nodes")
    yield Fix("go on from the newest checkpoint, in the same ledger: docs/resume.md")


_KILLED_RULE = "not a batch rule: a process ended without an error of its own"
_KILLED = (
    "SIGKILL leaves no traceback. It is most often the kernel's, for lack of host memory (not the devices'), else a "
    "queue's at its limit of memory or time, or a person's; another exit has its own error above, in that worker's log"
)


COMMON_TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="unrecognized-argument",
        framework="argparse",
        versions="every version",
        pattern=r"error: unrecognized arguments|argument --[\w./-]{1,300}: invalid \w{1,20} value",
        rule="every option of the command is one of the script's, and its value of the option's kind",
        meaning="the option is misspelt, of another version, or followed by a value that cannot be converted",
        phase="config",
        source="Python's argparse; OpenRLHF's and Open-Instruct's command lines",
        neighbours=lambda n: (Fix("the nearest option: batchbridge check names it, of the script or the command"),),
    ),
    ErrorText(
        name="out-of-memory",
        framework="torch",
        versions="every version",
        pattern=r"OutOfMemoryError(?:: \w+ out of memory)?|(?:CUDA|HIP|NPU|XPU|MPS)(?: error:| backend)? out of memory",
        rule="not a batch rule: no size is illegal, this one does not fit the device",
        meaning="what sets the memory is completions x tokens of one micro-batch on one device, not the batch of the "
        "optimizer step. Check the change with batchbridge diff: many frameworks weigh tokens by micro-batch",
        phase="optimizer_step",
        source="torch.OutOfMemoryError",
        of_memory=True,
        neighbours=_out_of_memory,
    ),
    ErrorText(
        name="collective-timeout",
        framework="torch",
        versions="every version",
        pattern=r"Watchdog caught collective operation timeout|(?:NCCL|HCCL|Gloo)[^.\n]{0,80} tim(?:ed ?out|eout)",
        rule="not a batch rule: a rank waited for the others longer than the limit",
        meaning="one rank died, or went on alone: the first error of any rank is the cause, this is its echo. Where no "
        "rank says another one, ranks had unequally many micro-batches or a generation outlasted the limit",
        phase="optimizer_step",
        source="torch ProcessGroupNCCL",
        neighbours=lambda n: (
            Fix("look for another error above, in the log of every rank: batchbridge doctor LOG"),
            Fix("a longer limit, in seconds: TRL ddp_timeout; verl actor_rollout_ref.nccl_timeout"),
        ),
    ),
    ErrorText(
        name="killed-rank",
        framework="torch",
        versions="every version",
        pattern=r"Signal 9 \(SIGKILL\) received by PID",
        rule=_KILLED_RULE,
        meaning=_KILLED,
        phase="optimizer_step",
        source="torch 2.13.0 distributed.elastic ProcessFailure",
        neighbours=_killed,
    ),
    ErrorText(
        name="killed-worker",
        framework="ray",
        versions="every version",
        pattern=r"The (?:actor|worker) died unexpectedly (?:before finishing|while executing) this task",
        rule=_KILLED_RULE,
        meaning=_KILLED,
        phase="optimizer_step",
        source="ray 2.60.0 exceptions.ActorDiedError, WorkerCrashedError",
        neighbours=_killed,
    ),
    ErrorText(
        name="tensor-parallel-heads",
        framework="vllm",
        versions="every version",
        pattern=pattern(
            r"[Nn]umber of (?:attention|KV|key/value) heads \(#\) must be divisible by tensor (?:model )?parallel size "
            r"\(#\)",
            "heads",
            "tensor",
        ),
        rule="not a batch rule: the model's attention heads are a multiple of the tensor parallel size",
        meaning="the model cannot be split so; the batch changes only where other devices hold copies of the policy",
        phase="worker_start",
        source="vllm ModelConfig.verify_with_parallel_config",
        neighbours=_heads,
    ),
    ErrorText(
        name="unsloth-silent-rewrite",
        framework="unsloth",
        versions="with trl >=0.15",
        pattern=pattern(r"change the batch size of # to the `?num_generations`? of #", "micro", "group"),
        rule="per_device_train_batch_size is a multiple of num_generations",
        meaning="no error: Unsloth rewrites per_device_train_batch_size, so an optimizer step has more completions "
        "than was asked for, and memory may not suffice",
        phase="construction",
        source="unslothai/unsloth issues 2765 and 3572",
        neighbours=_unsloth,
    ),
    ErrorText(
        name="no-optimizer-step",
        framework="megatron",
        versions="slime, and others on Megatron",
        pattern=r"assert self\.lr_decay_steps > 0",
        rule="the run has at least one optimizer step: rollouts x prompts x completions of each / completions of an "
        "optimizer step (slime: num_rollout x rollout_batch_size x n_samples_per_prompt // global_batch_size)",
        meaning="the division gives 0 steps, so the learning rate's schedule has no length",
        phase="construction",
        source="megatron.core optimizer_param_scheduler.py; THUDM/slime arguments.py",
        neighbours=lambda n: (Fix("more rollouts, or fewer completions in an optimizer step (global_batch_size)"),),
    ),
    ErrorText(
        name="deepspeed-active-modules",
        framework="deepspeed",
        versions="ZeRO stage 3",
        pattern=r"assert not param\.ds_active_sub_modules|ds_active_sub_modules",
        rule="not a batch rule: a parameter is used while ZeRO gathers it for another module",
        meaning="the model runs twice before its backward pass is over, or generates while it trains (sync_ref_model, "
        "gradient checkpointing with reentrant calls, a shared head). With TRL before 0.17 it came at an epoch's end, "
        "in an optimizer step of fewer micro-batches than gradient_accumulation_steps",
        phase="optimizer_step",
        source="deepspeed runtime/zero/partition_parameters.py; huggingface/open-r1 issue 299",
        neighbours=lambda n: (
            Fix("ZeRO stage 2, or gradient checkpointing without re-entrant calls"),
            Fix(
                "with TRL before 0.17: a dataset of whole optimizer steps (batchbridge check --dataset-size says which)"
            ),
        ),
        codes=("BB-TRL-064",),
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
)
