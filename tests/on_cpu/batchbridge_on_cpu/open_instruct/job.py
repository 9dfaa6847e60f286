"""Open-Instruct's real learner and real data preparation actor without vLLM: in one process per rank (`Job`), or as
Ray's actors (`ray_job`).

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 SCRIPT       (`cpu.start` first)

What is replaced beside `cpu`: the engines (`Engine`: completions and rewards are a pure function of prompt and sample),
and in `Job` Ray's calls (every rank prepares all data itself: the learner asks the actor beside it). For tests.
Source: open-instruct e6c3044 grpo_fast.py, data_loader.py.
"""

from __future__ import annotations

import json
import os
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbridge.testing.tiny import PAD, ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_on_cpu.open_instruct import packed

SETTINGS: Mapping[str, Any] = {
    "num_unique_prompts_rollout": 3,
    "num_samples_per_prompt_rollout": 4,
    "max_prompt_token_length": 8,
    "response_length": 24,
    "pack_length": 40,
    "async_steps": 1,
    "filter_zero_std_samples": False,
}
"""Of StreamingDataLoaderConfig."""
ARGS: Mapping[str, Any] = {
    "seed": 7,
    "beta": 0.0,
    "load_ref_policy": False,
    "use_rho_correction": False,
    "learning_rate": 0.0,
    "deepspeed_stage": 2,
    "deepspeed_zpg": 1,
    "max_grad_norm": 1e9,
    "fused_optimizer": False,
    "with_tracking": False,
    "push_to_hub": False,
    "try_auto_save_to_beaker": False,
}
"""Of GRPOExperimentConfig."""
SAMPLER_LOGPROB = -3.0
"""What the scripted engine claims for every token that it sampled."""


def prepare(folder: Path) -> Path:
    """Writes the tiny policy and its tokenizer; returns where."""
    place = folder / "policy"
    tiny_policy().save_pretrained(place)
    tiny_tokenizer().save_pretrained(place)
    return place


class Engine:
    """In the place of the prompts' queue: every prompt that is put in is answered, the last of a burst first.

    model_step: what answers say of the weights that made them. burst: prompts whose answers wait for each other.
    truths: what prompts should be scored by, where it is another than the dataset's.
    """

    def __init__(self, burst: int, group: int, script: ScriptedRollouts) -> None:
        self._burst, self._group, self._script = burst, group, script
        self._held: list[Any] = []
        self.results: queue.Queue[Any] = queue.Queue()
        self.asked: list[int] = []
        self.truths: list[tuple[int, Any]] = []
        self.model_step = 0

    def put(self, request: Any) -> None:
        """Takes a prompt."""
        self.asked.append(int(request.index))
        self.truths += [] if request.ground_truth is None else [(int(request.index), request.ground_truth)]
        self._held.append(self._answer(request))
        if len(self._held) == self._burst:
            while self._held:
                self.results.put(self._held.pop())

    def _answer(self, request: Any) -> Any:
        from open_instruct import data_types

        prompt, samples = int(request.index), range(self._group)
        responses = [self._script.completion(prompt, sample) for sample in samples]
        return data_types.GenerationResult(
            responses=responses,
            finish_reasons=["stop"] * self._group,
            masks=[self._script.loss_mask(prompt, sample) for sample in samples],
            request_info=data_types.RequestInfo(
                num_calls=[0] * self._group,
                timeouts=[0] * self._group,
                tool_errors=[""] * self._group,
                tool_outputs=[""] * self._group,
                tool_runtimes=[0.0] * self._group,
                tool_calleds=[False] * self._group,
                tool_call_stats=[[] for _ in samples],
                rollout_states=[{} for _ in samples],
            ),
            index=prompt,
            prompt_id=request.prompt_id,
            token_statistics=data_types.TokenStatistics(8, sum(map(len, responses)), 1.0, 0.0),
            logprobs=[[SAMPLER_LOGPROB] * len(response) for response in responses],
            reward_scores=[self._script.reward(prompt, sample) for sample in samples],
            reward_metrics={},
            model_step=self.model_step,
        )


class LocalActor:
    """Stands for the data preparation actor's handle; what it is called with runs here."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.__ray_call__ = _Remote(lambda function, *values: function(actor, *values))
        self.get_data = _Remote(actor.get_data)
        self.get_state, self.set_state = _Remote(actor.get_state), _Remote(actor.set_state)


class _Remote:
    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What learners and actor are built from. actor: what the data preparation actor is called with, without queues."""

    config: Any
    args: Any
    tokenizer: Any
    model: Any
    actor: Mapping[str, Any]


def parts(
    policy: Path,
    *,
    prompts: int,
    rollouts: int,
    ranks: int,
    settings: Mapping[str, Any] | None = None,
    args: Mapping[str, Any] | None = None,
    script: ScriptedRollouts | None = None,
) -> Parts:
    """Of a job with scripted completions.

    settings, args: beside `SETTINGS` and `ARGS`. rollouts: training steps of the run.
    """
    from open_instruct import data_loader, data_types, grpo_utils, model_utils, vllm_utils

    tokenizer = tiny_tokenizer()
    config = data_loader.StreamingDataLoaderConfig(**{**SETTINGS, **(settings or {})})
    made = grpo_utils.GRPOExperimentConfig(
        **{"per_device_train_batch_size": 1, "num_learners_per_node": [ranks], **ARGS, **(args or {})}
    )
    group, per_rollout = config.num_samples_per_prompt_rollout, config.num_unique_prompts_rollout
    made.world_size, made.num_training_steps = ranks, rollouts
    shared = made.sequence_parallel_size > 1
    made.total_episodes = rollouts * group * per_rollout
    actor = {
        "dataset": dataset(prompts, script or ScriptedRollouts(), tokenizer),
        "tokenizer": tokenizer,
        "config": config,
        "generation_config": vllm_utils.SamplingConfig(temperature=1.0, n=group),
        "num_training_steps": rollouts,
        "seed": made.seed,
        "per_device_train_batch_size": made.per_device_train_batch_size,
        "global_batch_size": per_rollout,
        "dp_world_size": ranks // made.sequence_parallel_size,
        "max_possible_score": 6.0,
        "actor_manager": None,
        "model_dims": None,
        "verbose": False,
        "work_dir": str(policy.parent / "work"),
        "tool_names": [],
        "run_name": "test",
        "model_name": None,
        "base_env_config": data_types.EnvConfig(),
    }
    attention = "flash_2" if shared else "torch"
    model = model_utils.ModelConfig(model_name_or_path=str(policy), attn_implementation=attention)
    return Parts(config=config, args=made, tokenizer=tokenizer, model=model, actor=actor)


class Job:
    """One rank without Ray: a learner that is loaded, and the actor that it asks; `train` is one training step.

    Takes what `parts` takes, and what `Engine` does: a rollout's prompts are a burst by default.
    """

    def __init__(
        self, policy: Path, *, script: ScriptedRollouts | None = None, burst: int | None = None, **more: Any
    ) -> None:
        import ray
        from open_instruct import data_loader, grpo_fast

        self.rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        found = parts(policy, ranks=ranks, script=script, **more)
        self.config, self.args = found.config, found.args
        per_rollout, group = found.config.num_unique_prompts_rollout, found.config.num_samples_per_prompt_rollout
        self.engine = Engine(burst or per_rollout, group, script or ScriptedRollouts())
        kind: type[Any] = data_loader.DataPreparationActor.__ray_metadata__.modified_class
        self.actor = kind(inference_results_Q=self.engine.results, param_prompt_Q=self.engine, **found.actor)
        handle = LocalActor(self.actor)
        ray.get_actor, ray.get = lambda name: handle, lambda answer: answer
        learner: type[Any] = grpo_fast.PolicyTrainerRayProcess.__ray_metadata__.modified_class
        self.learner = learner(
            ranks, self.rank, 0, address, port, self.args, self.config, data_loader.VLLMConfig(), found.tokenizer
        )
        self.loaded = self.learner.from_pretrained(self.args, found.model, None, "", found.tokenizer)

    def train(self) -> Any:
        """One training step, after which the engine has the new weights."""
        said = self.learner.step()
        self.engine.model_step += 1
        return said

    def close(self) -> None:
        """Ends the thread that prepares data; the next job may share sequences in another way."""
        from deepspeed.runtime.sequence_parallel import parallel_state_sp
        from open_instruct import data_types
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        parallel_state_sp._SEQUENCE_PARALLEL_GROUP = parallel_state_sp._SEQUENCE_DATA_PARALLEL_GROUP = None
        ALL_ATTENTION_FUNCTIONS[packed.NAME] = packed.attention

        self.engine.results.put(data_types.ShutdownSentinel())


def ray_job(policy: Path, *, ranks: int, **more: Any) -> tuple[list[Any], Any]:
    """Ray's actors of a job: its learners, loaded, and the data preparation actor, not started."""
    import ray
    from open_instruct import data_loader, grpo_fast

    found = parts(policy, ranks=ranks, **more)
    options = {"num_cpus": 0, "num_gpus": 0}
    actor = data_loader.DataPreparationActor.options(name=data_loader.DATA_PREP_ACTOR_NAME, **options).remote(
        inference_results_Q=None, param_prompt_Q=None, **found.actor
    )
    ray.get(actor.__ray_call__.remote(answered))
    learners: list[Any] = []
    address, port = None, None
    for rank in range(ranks):
        learners.append(
            grpo_fast.PolicyTrainerRayProcess.options(**options).remote(
                ranks, rank, 0, address, port, found.args, found.config, data_loader.VLLMConfig(), found.tokenizer
            )
        )
        if not rank:
            address, port = ray.get(learners[0].get_master_addr_port.remote())
    loading = [one.from_pretrained.remote(found.args, found.model, None, "", found.tokenizer) for one in learners]
    ray.get(loading)
    return learners, actor


def answered(actor: Any) -> None:
    """In the data preparation actor's process: a scripted engine in place of the queues."""
    engine = Engine(actor.global_batch_size, actor.config.num_samples_per_prompt_rollout, ScriptedRollouts())
    actor.param_prompt_Q, actor.inference_results_Q = engine, engine.results


def weights_sent(actor: Any) -> None:
    """In the data preparation actor's process: the engine has the weights after one more training step."""
    actor.param_prompt_Q.model_step += 1


def dataset(prompts: int, script: ScriptedRollouts, tokenizer: Any) -> Any:
    """What Open-Instruct's own transformation leaves of a dataset with scripted prompts."""
    from datasets import Dataset
    from open_instruct import dataset_transformation as names

    texts = [script.prompt(index) for index in range(prompts)]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    assert not any(PAD in one for one in ids)
    return Dataset.from_dict(
        {
            "index": list(range(prompts)),
            names.INPUT_IDS_PROMPT_KEY: ids,
            names.GROUND_TRUTHS_KEY: [[json.dumps({"query": text, "rubrics": []})] for text in texts],
            names.VERIFIER_SOURCE_KEY: ["scripted"] * prompts,
            names.RAW_PROMPT_KEY: texts,
        }
    )


def full_gradient(engine: Any) -> Any:
    """The gradient of all parameters of a DeepSpeed engine before its optimizer step, averaged over the ranks, flat."""
    import torch
    from deepspeed.utils import safe_get_full_grad

    return torch.cat([safe_get_full_grad(parameter).detach().flatten() for parameter in engine.module.parameters()])
