"""SkyRL's own trainer and FSDP workers train two steps of each rollout on a CPU, and do what the reading says.

Run by name, with SkyRL 0.3.0's files, ray, torch and transformers on the path.
"""

from __future__ import annotations

import asyncio
import os
import types
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import skyrl_on_cpu

from batchbridge import Source
from batchbridge.kit import Context, LossTerm, Row, token_weights
from batchbridge.kit.torch_random import TorchGenerator
from batchbridge_skyrl.config import SkyRLAdapter

SETTINGS: dict[str, Any] = {
    "trainer.placement.colocate_all": False,
    "trainer.placement.policy_num_gpus_per_node": 2,
    "trainer.placement.ref_num_gpus_per_node": 2,
    "trainer.train_batch_size": 4,
    "trainer.policy_mini_batch_size": 2,
    "trainer.micro_train_batch_size_per_gpu": 1,
    "trainer.epochs": 2,
    "trainer.max_prompt_length": 8,
    "trainer.algorithm.use_kl_loss": False,
    "generator.n_samples_per_prompt": 2,
    "generator.sampling_params.max_generate_length": 8,
}
"""What is read. Two devices, three rollouts an epoch, two optimizer steps of four completions each."""
PLAIN: dict[str, Any] = {
    "trainer.flash_attn": False,
    "trainer.remove_microbatch_padding": False,
    "trainer.gradient_checkpointing": False,
    "trainer.use_expandable_segments": False,
    "trainer.policy.fsdp_config.mixed_precision.param_dtype": "fp32",
    "trainer.eval_interval": -1,
    "trainer.ckpt_interval": -1,
    "trainer.resume_mode": None,
    "trainer.logger": "console",
    "trainer.print_example_interval": -1,
    "trainer.enable_ray_gpu_monitor": False,
    "generator.inference_engine.enable_ray_prometheus_stats": False,
    "data.dataloader.num_workers": 0,
}
"""What makes it small: no kernels, no evaluation, no checkpoints."""
PROMPTS = 12


def lengths(prompt: int, sample: int) -> int:
    """Response tokens of a scripted completion."""
    return 2 + (3 * prompt + sample) % 4


class Scripted:
    """A generator without an engine."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def generate(self, asked: Any, disable_tqdm: bool = False) -> dict[str, Any]:
        ids = [(int(one.instance_id), place % 2) for place, one in enumerate(asked["trajectory_ids"])]
        self.asked.append([prompt for prompt, sample in ids if sample == 0])
        responses = [[1 + (7 * p + 5 * s + t) % 60 for t in range(lengths(p, s))] for p, s in ids]
        return {
            "prompt_token_ids": [[prompt + 1] * 3 for prompt, _ in ids],
            "response_ids": responses,
            "rewards": [float((prompt + sample) % 2) for prompt, sample in ids],
            "loss_masks": [[1] * len(response) for response in responses],
            "stop_reasons": ["stop"] * len(ids),
            "rollout_metrics": {},
            "rollout_logprobs": None,
        }


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """One Ray for one run: SkyRL's registries keep the actor of a process's first."""
    skyrl_on_cpu.setup()
    import ray

    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    setup = {"env_vars": {"PYTHONPATH": paths}, "worker_process_setup_hook": "skyrl_on_cpu.setup"}
    os.environ["SKYRL_DUMP_INFRA_LOG_TO_STDOUT"] = "1"
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, runtime_env=setup, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cluster: None) -> Any:
    """A whole run: what was generated, and what each policy step was given."""
    folder = tmp_path_factory.mktemp("skyrl")
    import ray
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads)).save_pretrained(folder / "model")
    from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import CriticWorker, PolicyWorker, RefWorker
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.trainer import RayPPOTrainer

    reduction = {"trainer.algorithm.loss_reduction": "token_mean"}
    where = {"trainer.policy.model.path": str(folder / "model"), "trainer.export_path": str(folder)}
    cfg = SkyRLTrainConfig.from_cli_overrides({**SETTINGS, **PLAIN, **reduction, **where})

    class Prompts(torch.utils.data.Dataset):  # type: ignore[type-arg,misc]
        def __len__(self) -> int:
            return PROMPTS

        def __getitem__(self, place: int) -> dict[str, Any]:
            said = [{"role": "user", "content": str(place)}]
            return {"prompt": said, "env_class": "x", "env_extras": {}, "uid": str(place)}

        def collate_fn(self, items: Any) -> Any:
            return items

    words = types.SimpleNamespace(pad_token_id=0, eos_token_id=63, decode=lambda *a, **k: "")
    tracker = types.SimpleNamespace(log=lambda *a, **k: None, finish=lambda: None)
    generator, steps = Scripted(), []
    trainer = RayPPOTrainer(cfg, tracker, words, Prompts(), types.SimpleNamespace(), generator)
    trainer.build_models(PolicyWorker, CriticWorker, RefWorker)
    trainer.init_weight_sync_state = trainer.save_checkpoints = trainer.save_models = lambda *a, **k: None

    async def not_sent(*args: Any, **named: Any) -> None:
        """Weights go to no engine."""

    trainer.dispatch.save_weights_for_sampler = not_sent
    normalize = trainer._normalize_advantages

    def seen(data: Any, boundaries: Any, prompts: Any = None) -> Any:
        raw = data["advantages"].clone()
        data = normalize(data, boundaries, prompts)
        weights = (data["advantages"] / raw).nan_to_num()
        steps.append([(weights[a:b], data["loss_mask"][a:b]) for a, b in boundaries])
        return data

    trainer._normalize_advantages = seen
    asyncio.run(trainer.train())
    values = {**SETTINGS, **reduction}
    yield types.SimpleNamespace(values=values, generated=generator.asked, steps=steps)
    for actor in trainer.policy_model._actor_handlers:
        ray.kill(actor)


def test_prompts_come_in_the_order_of_trainer_seed(run: Any) -> None:
    generator = TorchGenerator(42)
    first = generator.permutation(PROMPTS)
    assert run.generated[:3] == [first[start : start + 4] for start in (0, 4, 8)]
    assert len(run.generated) == 6
    assert sorted(prompt for rollout in run.generated[3:] for prompt in rollout) == list(range(PROMPTS))
    assert run.generated[3:] != run.generated[:3]


def test_each_step_trains_consecutive_groups_with_the_weights_of_the_reading(run: Any) -> None:
    spec = SkyRLAdapter().read(Source(values=run.values), Context(framework_version="0.3.0", world_size=2)).spec
    assert spec is not None
    size = spec.optimizer_step.completions_per_step
    assert [len(rollout) for rollout in run.steps] == [2] * 6
    for prompts, rollout in zip(run.generated, run.steps, strict=True):
        everyone = [(prompt, sample) for prompt in prompts for sample in range(2)]
        for number, (weights, mask) in enumerate(rollout):
            part = everyone[number * size : (number + 1) * size]
            rows = [Row(tokens=lengths(*both), group=both[0]) for both in part]
            assert [int(row.sum()) for row in mask] == [row.tokens for row in rows]
            wanted = token_weights(spec.loss.policy, rows)
            assert weights.max(dim=1).values.tolist() == pytest.approx([float(weight) for weight in wanted], rel=1e-6)
            other = token_weights(LossTerm(aggregation="sequence_sum"), rows)
            assert [float(weight) for weight in other] != pytest.approx([float(weight) for weight in wanted], rel=1e-2)
            assert sum(weight * row.tokens for weight, row in zip(wanted, rows, strict=True)) == Fraction(1)
