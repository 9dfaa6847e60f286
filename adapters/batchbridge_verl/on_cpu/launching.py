"""The stock entry of verl, `python -m verl.trainer.main_ppo`, on CPU with scripted rollouts: its files and settings.

Nothing of verl is edited. `batchbridge run` may stand before the command.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from batchbridge.testing.equivalence import ADAM_EPSILON
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_verl.settings import holds

MODULES = tuple(f"batchbridge_verl.on_cpu.{name}" for name in ("cpu", "rollouts"))
"""The modules that `import verl` imports in every process."""
AGENT = "batchbridge_verl.on_cpu.agent.ScriptedAgent"
_OPTIM = "actor_rollout_ref.actor.optim"
ADAMW = (f"{_OPTIM}.lr=1e-2", f"++{_OPTIM}.override_optimizer_config={{eps:{ADAM_EPSILON}}}")
"""Overrides that name a run's optimizer."""


def prepare(
    folder: Path, *, prompts: int = 12, seed: int = 0, agent: str = AGENT, script: ScriptedRollouts | None = None
) -> None:
    """Writes the tiny policy, its tokenizer, `prompts` prompts of the script and the registration of the agent loop."""
    from datasets import Dataset

    script = script or ScriptedRollouts()
    tiny_policy(seed).save_pretrained(folder / "policy")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder / "policy")
    rows = [
        {
            "data_source": "scripted",
            "prompt": [{"role": "user", "content": script.prompt(index)}],
            "ability": "none",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": index, "split": "train"},
        }
        for index in range(prompts)
    ]
    Dataset.from_list(rows).to_parquet(str(folder / "prompts.parquet"))
    (folder / "agent.yaml").write_text(f"- name: scripted\n  _target_: {agent}\n", encoding="utf-8")


def float32(config: str) -> list[str]:
    """Overrides of an engine's configuration: a reference in bf16 would bend every KL term."""
    mixed = "{param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}"
    return [f"{config}.model_dtype=fp32", f"{config}.dtype=float32", f"+{config}.mixed_precision={mixed}"]


def overrides(folder: Path, ranks: int, *, optimizer: Sequence[str] = ADAMW, ray: Path | None = None) -> list[str]:
    """Hydra overrides of `ppo_trainer`: GRPO in float32 on `ranks` CPU ranks, 6 prompts of 4 completions per rollout, 3
    prompts per optimizer step. ray: its folder, of a short path. optimizer: `ADAMW`, or another choice of overrides."""
    actor, ref, rollout, model = (f"actor_rollout_ref.{name}" for name in ("actor", "ref", "rollout", "model"))
    return [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={folder}/prompts.parquet",
        f"data.val_files={folder}/prompts.parquet",
        "data.train_batch_size=6",
        "data.max_prompt_length=64",
        "data.max_response_length=24",
        f"{model}.path={folder}/policy",
        f"{model}.use_remove_padding=False",
        f"{model}.enable_gradient_checkpointing=False",
        f"+{model}.override_config.attn_implementation=eager",
        f"{actor}.strategy=fsdp2",
        f"{actor}.ppo_mini_batch_size=3",
        f"{actor}.ppo_micro_batch_size_per_gpu=2",
        f"{actor}.use_torch_compile=False",
        f"{actor}.fsdp_config.use_torch_compile=False",
        *(word for role in (actor, ref) for word in float32(f"{role}.fsdp_config")),
        *optimizer,
        f"{actor}.optim.weight_decay=0.0",
        f"{rollout}.name=scripted",
        f"{rollout}.n=4",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=2",
        f"{rollout}.agent.num_workers=1",
        f"{rollout}.agent.default_agent_loop=scripted",
        f"{rollout}.agent.agent_loop_config_path={folder}/agent.yaml",
        "trainer.device=cpu",
        f"trainer.n_gpus_per_node={ranks}",
        "trainer.nnodes=1",
        "trainer.logger=[console]",
        "trainer.val_before_train=False",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder}/checkpoints",
        *_of_release(actor, ref, rollout, model),
        "ray_kwargs.ray_init.num_cpus=14",  # of Ray's bookkeeping: actors wait for what they ask for
        f"+ray_kwargs.ray_init.num_gpus={ranks}",
        f"+ray_kwargs.ray_init.resources={{cpu:{ranks}}}",  # what 0.8.0 places its workers by
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init.object_store_memory=200000000",
        f"+ray_kwargs.ray_init._temp_dir={ray or folder / 'ray'}",
    ]


def _of_release(actor: str, ref: str, rollout: str, model: str) -> list[str]:
    """Overrides that one release has and another has not."""
    version = importlib.metadata.version("verl")
    if holds("<0.7.1", version):
        return [f"{rollout}.mode=async"]
    if holds(">=0.8.0", version):
        return ["reward.num_workers=1", "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"]
    return [
        "reward.num_workers=1",
        "trainer.use_legacy_worker_impl=disable",
        *(f"{role}.fsdp_config.strategy=fsdp2" for role in (actor, ref)),
        # Its padded rows are trained otherwise than they are: see the refusal `padded_rows`.
        f"{model}.use_remove_padding=True",
        f"++{model}.override_config.attn_implementation=sdpa",
    ]


def environment(own: Mapping[str, str] = os.environ, modules: Sequence[str] = MODULES) -> dict[str, str]:
    """`own` with what the CPU platform, the scripted rollouts and a quiet, small Ray need."""
    return {
        **own,
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "VERL_ENGINE_DEVICE": "cuda",
        "OMP_NUM_THREADS": own.get("OMP_NUM_THREADS", "1"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "WANDB_MODE": "disabled",
        "HYDRA_FULL_ERROR": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_raylet_start_wait_time_s": "60",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_agent_register_timeout_ms": "180000",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",  # Ray adds 15 by itself: on a busy machine such workers hardly run
    }
