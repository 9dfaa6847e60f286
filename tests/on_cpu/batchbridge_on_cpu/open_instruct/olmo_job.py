"""Open-Instruct's real learner of grpo.py, as `job` has that of grpo_fast.py: in one process per rank.

The loop is OLMo-core's trainer, so that `train` runs the whole of it. What is replaced beside what `cpu`, `olmo` and
`job` say: the engine has new weights when the script's own callback sends them, without Ray. For tests.
Source: open-instruct e6c3044 grpo.py, grpo_olmo_core_actor.py, grpo_callbacks.VLLMWeightSyncCallback.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.open_instruct.job import Engine, LocalActor, _Remote, parts

ARGS: Mapping[str, Any] = {"model_dtype": "float32", "local_eval_every": -1, "checkpoint_state_freq": -1}
"""Of GRPOExperimentConfig, beside those of `job`."""
_NUMBERS = itertools.count()


class Job:
    """As `job.Job`, whose arguments it takes. `train`: every training step of the run."""

    def __init__(
        self,
        policy: Path,
        *,
        script: ScriptedRollouts | None = None,
        burst: int | None = None,
        args: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        import ray
        from open_instruct import data_loader, grpo_olmo_core_actor, model_utils

        self.rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        # OLMo-core's trainer saves before and after a run, and goes on from what it finds.
        self._output = policy.parent / f"output-{next(_NUMBERS)}"
        shutil.rmtree(self._output, ignore_errors=True)  # of a run that was ended
        output = {"output_dir": str(self._output), **ARGS}
        found = parts(policy, ranks=ranks, script=script, args={**output, **(args or {})}, **more)
        self.config, self.args = found.config, found.args
        per_rollout, group = found.config.num_unique_prompts_rollout, found.config.num_samples_per_prompt_rollout
        self.engine = Engine(burst or per_rollout, group, script or ScriptedRollouts())
        kind: type[Any] = data_loader.DataPreparationActor.__ray_metadata__.modified_class
        self.actor = kind(inference_results_Q=self.engine.results, param_prompt_Q=self.engine, **found.actor)
        handle = LocalActor(self.actor)
        ray.get_actor, ray.get = lambda name: handle, lambda answer: answer
        learner: type[Any] = grpo_olmo_core_actor.PolicyTrainerOLMoCoreProcess.__ray_metadata__.modified_class
        self.learner = learner(
            world_size=ranks,
            rank=self.rank,
            local_rank=0,
            master_addr=address,
            master_port=port,
            local_world_size=ranks,
            model_name_or_path=str(policy),
            grpo_config=self.args,
            max_sequence_length=found.config.max_prompt_token_length + found.config.response_length,
            streaming_config=found.config,
            vllm_config=data_loader.VLLMConfig(),
            tokenizer=found.tokenizer,
            attn_implementation=model_utils.AttentionBackendName("flash_2"),
        )
        self.learner.setup_model()
        self.learner.actor_manager = SimpleNamespace(set_should_stop=_Remote(lambda said: said))

    def train(self) -> Any:
        """The script's own loop, from its first training step to its last; asked for once more, nothing is left."""
        from open_instruct import vllm_utils

        if hasattr(self.learner, "trainer"):
            return None

        native = vllm_utils.broadcast_weights_to_vllm
        vllm_utils.broadcast_weights_to_vllm = self._sent
        try:
            return self.learner.fit()
        finally:
            vllm_utils.broadcast_weights_to_vllm = native

    def _sent(self, *, model_step: int, **more: Any) -> list[Any]:
        self.engine.model_step = model_step
        return []

    def close(self) -> None:
        """Ends the thread that prepares data; the next job may shard its model in another way."""
        from olmo_core.distributed import parallel
        from open_instruct import data_types

        parallel._WORLD_MESH = None
        shutil.rmtree(self._output, ignore_errors=True)
        self.engine.results.put(data_types.ShutdownSentinel())
