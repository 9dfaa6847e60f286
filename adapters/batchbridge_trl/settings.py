"""TRL's settings by version: what those mean that decide something here, and keys that are gone.

Every key that the parser knows, its type and its default stand in `declared.json`, which tests/upstream/declare.py
writes; a row here says what a key means, or that a type says too little. A key that was removed or renamed stands in
`GONE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import Kind, WrongValue
from batchbridge.kit.parser_kinds import (
    ANY,
    BOOL,
    FLOAT,
    FLOATS,
    INT,
    MAPPING,
    OPTIONAL_BOOL,
    OPTIONAL_FLOAT,
    OPTIONAL_INT,
    OPTIONAL_TEXT,
    PLAIN_MAPPING,
    TEXT,
    TEXTS,
    WHOLE_TEXT,
    any_case,
    passes_unchecked,
)
from batchbridge.kit.shipped_settings import Meant, rows, shipped
from batchbridge.kit.versions import holds as holds
from batchbridge.kit.versions import includes
from batchbridge_trl.settings_transformers import MEANT_TRAINING_ARGUMENTS, STARTS
from batchbridge_trl.settings_transformers import TRANSFORMERS as TRANSFORMERS
from batchbridge_trl.tables import RemovedKey, SettingGroup

VERSIONS = ">=0.15"
"""Versions that are read. The rows are complete, wheel by wheel, for every release from 0.15.0 to `NEWEST`; a newer one
is read as that."""
OLDEST_ENFORCED = "0.18.0"
"""The oldest version whose running trainer may be patched; what newer ones need stands in `proven`."""
NEWEST = "1.16.0"
"""The newest version whose rows are complete; `write` writes for it when nobody names one."""

RELEASES = tuple(shipped("batchbridge_trl")["GRPOConfig"].releases)
"""Every release that the rows are complete for."""
COMMITS = {
    "013d360b8f27": "0.16.0.dev0",
    "69ad852e5654": "0.16.0.dev0",
    "019fc6dbaa03": "0.16.0.dev0",
    "d625c5533a6b": "0.17.0.dev0",
    "c04e84c4545a": "0.17.0.dev0",
    "1bca49515ecd": "0.18.0.dev0",
    "9ac614fb081e": "0.18.0.dev0",
}
"""Commits of TRL's that Open-R1's setup.py has pinned, and X-R1's requirements, to what `trl.__version__` is there."""
OLD_CODE = ">=0.14,<0.15"
"""Versions of TRL that are read as the next release, with sizes of their own."""


def is_old_code(version: str | None) -> bool:
    """Whether a version is one whose trainer repeats rows itself; see `whose_trainer.REPEATS_ROWS`."""
    return version is not None and includes(OLD_CODE, version)


def transformers_of(version: str) -> str:
    """The transformers release that is assumed beside TRL `version`."""
    return next(release for versions, release in TRANSFORMERS if holds(versions, version))


def _scale(value: object) -> str | bool:
    if isinstance(value, (str, bool)):
        return value
    raise WrongValue("group, batch, none, true or false", passes_unchecked(value))


def _automatic(value: object) -> Any:
    if isinstance(value, str) and value.lower() in ("auto", "none", "null"):
        return value if value == "auto" else None
    try:
        return OPTIONAL_INT.convert(value)
    except WrongValue as wrong:
        native = "ValueError: invalid literal for int()" if isinstance(value, str) else wrong.native
        raise WrongValue("an integer, or auto", native) from None


def _variables(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise WrongValue("a mapping", "ValueError: `env` field should be a dict in the YAML file.")


AUTOMATIC = Kind(
    *("int or auto", "an integer, or auto", _automatic),
    {**OPTIONAL_INT.schema, "pattern": f"{WHOLE_TEXT}|^(auto|{any_case('none')}|{any_case('null')})$"},
)
VARIABLES = Kind("env", "a mapping", _variables, {"type": "object"})
SCALE = Kind("scale", "group, batch, none, true or false", _scale, {"type": ["string", "boolean"]})
SCALES = {True: "group", False: "none"}
NAMED_SCALES = {"group": "group", "batch": "batch", "none": "none", True: "group", False: "none"}
INVERTED_SCALES = {"group": "none", "none": "group", "batch": "group", True: "none", False: "group"}
"""The real effect of a value of `scale_rewards`. Booleans are mapped to group and none from 0.22 on. 0.22.0 and 0.22.1
test for the wrong names, so that "group", their default, leaves rewards unscaled. Source: trl
GRPOTrainer._generate_and_score_completions of each version. Of two that do the same, `write` takes the first."""
TRUNCATED = {False: "keep", True: "mask"}
SHUFFLES = {True: "epoch_permutation", False: "none", None: "none"}
DROPOUT = {False: "on", True: "off"}
TOP_K = (lambda native: native or 0, lambda canonical: canonical)
TOP_K_OR_NULL = (lambda native: native or 0, lambda canonical: canonical or None)

_GRPO_CONFIG = (
    Meant("learning_rate", "carried.learning_rate"),
    Meant("router_aux_loss_coef", "carried.router_loss_coefficient", kind=OPTIONAL_FLOAT),
    Meant("disable_dropout", "carried.dropout", DROPOUT, before=True),
    Meant("max_prompt_length", "carried.max_prompt_tokens", until="0.26.0"),
    Meant("num_generations", "rollout.completions_per_prompt", kind=INT),
    Meant("num_generations_eval", before=True),
    Meant("max_completion_length", "carried.max_completion_tokens"),
    Meant("shuffle_dataset", "order.prompt_shuffle", SHUFFLES, before=True),
    *(Meant(name, before=True) for name in ("generation_batch_size", "steps_per_generation")),
    Meant("temperature", "carried.temperature", kind=FLOAT),
    Meant("top_p", "carried.top_p", before=True),
    Meant("top_k", "carried.top_k", TOP_K, until="0.18.0", before=True),
    Meant("top_k", "carried.top_k", TOP_K_OR_NULL, since="0.18.0", until="0.27.0"),
    Meant("top_k", "carried.top_k", TOP_K, OPTIONAL_INT, since="0.27.0", until="0.28.0"),
    # Declared as int, so that the parser takes no word for null, and yet null itself is.
    Meant("top_k", "carried.top_k", TOP_K, OPTIONAL_INT._replace(name=INT.name), since="0.28.0"),
    Meant("use_vllm", kind=BOOL),
    *(Meant(name, before=True) for name in ("vllm_mode", "vllm_tensor_parallel_size", "delta", "epsilon_high")),
    Meant("beta", "objective.kl_coefficient"),
    Meant("num_iterations", "optimizer_step.passes_per_rollout", before=True),
    Meant("importance_sampling_level", "objective.ratio_level", before=True),
    Meant("multi_objective_aggregation", before=True),
    Meant("scale_rewards", "advantage.scale", SCALES, until="0.22.0", before=True),
    Meant("scale_rewards", "advantage.scale", INVERTED_SCALES, SCALE, since="0.22.0", until="0.22.2"),
    Meant("scale_rewards", "advantage.scale", NAMED_SCALES, SCALE, since="0.22.2"),
    Meant("mask_truncated_completions", "rollout.truncated_completions", TRUNCATED, before=True),
    *(Meant(name, before=True) for name in ("top_entropy_quantile", "use_adaptive_entropy")),
    Meant("entropy_coef", "objective.entropy_coefficient", before=True),
    Meant("vllm_importance_sampling_clip_min", before=True),
    *(Meant(name, before=True) for name in ("use_bias_correction_kl", "log_completions_hub_repo")),
    Meant("lr_scheduler_kwargs", kind=PLAIN_MAPPING),
)
_UNDECLARED = (
    Key("router_aux_loss_coef", OPTIONAL_FLOAT, None, "carried.router_loss_coefficient", versions="<1.7", fixed=True),
    Key("epsilon", OPTIONAL_FLOAT, None, versions="<0.16", fixed=True),
    Key("loss_type", TEXT, "grpo", versions="<0.16", fixed=True),
    Key("loss_type", TEXT, "bnpo", versions=">=0.16,<0.17", fixed=True),
    Key("vllm_importance_sampling_correction", BOOL, False, versions="<0.23", fixed=True),
    Key("vllm_importance_sampling_mode", TEXT, "token_truncate", versions="<0.26", fixed=True),
    Key("vllm_importance_sampling_clip_max", OPTIONAL_FLOAT, None, versions="<1.6", fixed=True),
    Key("vllm_importance_sampling_cap", OPTIONAL_FLOAT, None, versions="<0.23", fixed=True),
)
"""The values of releases without a setting that are not the setting's first default."""
_LAUNCH = (
    Key("accelerate_config", OPTIONAL_TEXT, None),
    Key("config_file", OPTIONAL_TEXT, None),
    Key("num_processes", OPTIONAL_INT, None),
    Key("num_machines", OPTIONAL_INT, None),
    Key("machine_rank", OPTIONAL_INT, None),
    Key("main_process_ip", OPTIONAL_TEXT, None),
    Key("main_process_port", OPTIONAL_INT, None),
    Key("mixed_precision", OPTIONAL_TEXT, None),
    Key("gpu_ids", ANY, None),
)

_PARSED = {
    **{kind.name: kind for kind in (INT, FLOAT, BOOL, TEXT)},
    **{kind.name: kind for kind in (OPTIONAL_INT, OPTIONAL_FLOAT, OPTIONAL_BOOL, OPTIONAL_TEXT)},
    **dict.fromkeys(("dict", "dict?"), MAPPING),
    **dict.fromkeys(("list[str]", "list[str]?", "list[any]", "list[any]?"), TEXTS),
    "list[float]?": FLOATS,
    "int|str?": AUTOMATIC,
    **dict.fromkeys(("any", "any?", "any|str", "any|str?", "list[str]|str?", "list[any]|str?"), ANY),
}
"""The kinds that TRL's parser takes for fields, by the words that `declared.json` has for types."""


def _group(name: str, title: str, meant: Sequence[Meant] = (), undeclared: Sequence[Key] = ()) -> SettingGroup:
    table = shipped("batchbridge_trl")[name]
    starts = STARTS if name == "TrainingArguments" else ()
    return SettingGroup(title, tuple(rows(table, _PARSED, meant, starts, undeclared)))


GRPO_CONFIG = _group("GRPOConfig", "trl GRPOConfig and _BaseConfig, 0.15.0 to 1.16.0", _GRPO_CONFIG, _UNDECLARED)
TRAINING_ARGUMENTS = _group(
    "TrainingArguments", "transformers TrainingArguments 4.51.3, 4.57.6 and 5.23.0", MEANT_TRAINING_ARGUMENTS
)
SCRIPT_ARGUMENTS = _group("ScriptArguments", "trl.scripts.utils ScriptArguments, 0.15.0 to 1.16.0")
GRPO_SCRIPT_ARGUMENTS = _group("GRPOScriptArguments", "trl.scripts.grpo GRPOScriptArguments, 0.15.0 to 1.16.0")
MODEL_CONFIG = _group("ModelConfig", "trl ModelConfig, 0.15.0 to 1.16.0")
DATASET_MIXTURE = _group("DatasetMixtureConfig", "trl.scripts.utils DatasetMixtureConfig, 0.15.0 to 1.16.0")
LAUNCH = SettingGroup("trl.cli.commands.training: unknown keys go to accelerate's launcher", _LAUNCH)
ENVIRONMENT = SettingGroup(
    "trl TrlParser.parse_args_and_config: the key `env` sets variables", (Key("env", VARIABLES),)
)

TRAINER_GROUPS = (GRPO_CONFIG, TRAINING_ARGUMENTS)
"""The groups of settings that a `GRPOConfig` holds."""
TRL_GROUPS = (
    *TRAINER_GROUPS,
    SCRIPT_ARGUMENTS,
    GRPO_SCRIPT_ARGUMENTS,
    MODEL_CONFIG,
    DATASET_MIXTURE,
    LAUNCH,
    ENVIRONMENT,
)
"""The groups of settings that a recipe of `trl grpo` may hold."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    "ddp_backend": ("nccl", "gloo", "mpi", "hccl", "cncl", "mccl", "xccl", "ccl"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver"),
    "train_sampling_strategy": ("random", "sequential", "group_by_length", "batch_rebalance"),
    "bnb_4bit_quant_type": ("fp4", "nf4"),
    **dict.fromkeys(("dtype", "torch_dtype"), ("auto", "bfloat16", "float16", "float32")),
    **dict.fromkeys(("half_precision_backend", "fp16_backend"), ("auto", "apex", "cpu_amp")),
}
"""Settings of which argparse takes these words alone; a file's are not looked at. Source: `choices` in transformers
4.51.3, 4.57.6 and 5.23.0 TrainingArguments (which has xccl for ccl) and in trl 0.18.0 and 1.16.0 ModelConfig."""

_RENAMED = {
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "push_to_hub_token": "hub_token",
    "torchdynamo": "torch_compile_backend",
}
_REPLACED = {
    "adafactor": "optim",
    "group_by_length": "train_sampling_strategy",
    "push_to_hub_model_id": "hub_model_id",
    **dict.fromkeys(("save_safetensors", "include_tokens_per_second", "half_precision_backend")),
}
"""Settings of TrainingArguments that transformers 5 has under another name, and those that others replace, or none."""
_OLD_TRAINING_ARGUMENTS = "transformers TrainingArguments: in 4.57.6, not in 5.23.0"
_IN_5_14 = "transformers TrainingArguments: in 5.14.0, not in 5.15.0"
GONE = (
    RemovedKey("max_prompt_length", "trl 0.28.0", None, "trl GRPOConfig 0.28.0; prompts are not cut since 0.26.0"),
    RemovedKey("torch_dtype", "trl 0.27.0", "dtype", "trl ModelConfig 0.27.0", same="dtype"),
    RemovedKey(
        *("wandb_log_unique_prompts", "trl 0.27.0", "log_unique_prompts", "trl GRPOConfig 0.27.0"),
        same="log_unique_prompts",
    ),
    RemovedKey("use_liger_loss", "trl 0.28.0", "use_liger_kernel", "trl GRPOConfig 0.28.0"),
    RemovedKey("vllm_device", "trl 0.18.0", None, "trl GRPOConfig 0.18.0; vllm_mode says where generation runs"),
    RemovedKey(
        "vllm_max_model_len", "trl 0.18.0", "vllm_max_model_length", "trl GRPOConfig 0.18.0; the new key came in 0.26"
    ),
    RemovedKey("vllm_dtype", "trl 0.18.0", None, "trl GRPOConfig 0.18.0"),
    RemovedKey("vllm_enable_prefix_caching", "trl 0.18.0", None, "trl GRPOConfig 0.18.0"),
    RemovedKey(
        *("vllm_guided_decoding_regex", "trl 0.28.0", "vllm_structured_outputs_regex", "trl GRPOConfig 0.28.0"),
        same="vllm_structured_outputs_regex",
    ),
    RemovedKey("gradient_checkpointing_use_reentrant", "trl 0.27.0", None, "trl ScriptArguments 0.27.0"),
    RemovedKey(
        *("warmup_ratio", "transformers 5.15", "warmup_steps (below 1 it is a share)", _IN_5_14),
        same="warmup_steps",
    ),
    RemovedKey("overwrite_output_dir", "transformers 5", None, _OLD_TRAINING_ARGUMENTS, unread=True),
    RemovedKey(
        *("evaluation_strategy", "transformers 4.46", "eval_strategy", "transformers TrainingArguments 4.56.2"),
        same="eval_strategy",
    ),
    *(RemovedKey(key, "transformers 5", new, _OLD_TRAINING_ARGUMENTS, same=new) for key, new in _RENAMED.items()),
    *(RemovedKey(key, "transformers 5", new, _OLD_TRAINING_ARGUMENTS) for key, new in _REPLACED.items()),
    RemovedKey("logging_dir", "transformers 5.15", None, _IN_5_14),
)
"""Keys that published recipes still hold and that newer versions do not take: looked up where a version has no row.
`same`: transformers 4.57.6 TrainingArguments copies the old value to the new key; TRL's own keys a release renamed.
`unread`: no line of transformers 4.57.6 but the field's own names it."""

OF_LAUNCHER = (
    *("cpu", "multi_gpu", "quiet", "num_cpu_threads_per_process", "enable_cpu_affinity", "same_network", "tee"),
    *("log_dir", "role", "rdzv_backend", "rdzv_conf", "max_restarts", "monitor_interval", "main_training_function"),
    *("downcast_bf16", "use_deepspeed", "deepspeed_config_file", "zero_stage", "zero3_init_flag", "gradient_clipping"),
    *("zero3_save_16bit_model", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path"),
    *("offload_param_nvme_path", "use_fsdp", "use_parallelism_config", "mpirun_hostfile"),
    *(f"dynamo_{name}" for name in ("backend", "mode", "use_fullgraph", "use_dynamic", "use_regional_compilation")),
    *(f"deepspeed_{name}" for name in ("hostfile", "exclusion_filter", "inclusion_filter", "multinode_launcher")),
    *(f"fsdp_{name}" for name in ("version", "offload_params", "sharding_strategy", "reshard_after_forward")),
    *(f"fsdp_{name}" for name in ("auto_wrap_policy", "backward_prefetch", "forward_prefetch", "state_dict_type")),
    *(f"fsdp_{name}" for name in ("use_orig_params", "cpu_ram_efficient_loading", "sync_module_states")),
    *(f"fsdp_activation_checkpointing{name}" for name in ("", "_offload")),
    *(f"parallelism_config_{name}_size" for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp")),
)
"""Further options of accelerate's launcher, but for those of TPUs, Megatron-LM, FP8 and AWS. Source: accelerate 1.15.0
commands/launch.py."""
PACKAGED_ACCELERATE_CONFIGS = {
    **dict.fromkeys(("fsdp1", "fsdp2", "multi_gpu", "zero1", "zero2", "zero3"), 8),
    "single_gpu": 1,  # it says num_processes 8 as well, and distributed_type NO, which runs one process
}
"""`accelerate_config` by name -> processes. Source: trl/accelerate_configs, 1.9.1 and 1.16.0."""
