"""A rollout backend that generates nothing, named `scripted`: import this module in every process beside `cpu`.

Completions come from the agent loop (`agent.ScriptedAgent`), which knows prompt and sample, so that two replicas cannot
answer alike. Source: verl 0.9.1 workers/rollout/base.py, replica.py.

Its own file: verl imports it by this name in every process.
"""

from __future__ import annotations

from typing import Any

import ray
import verl
import verl.workers.rollout.base as base
import verl.workers.rollout.replica as replica

from batchbridge_verl import sampling
from batchbridge_verl.on_cpu.server import ScriptedServer
from batchbridge_verl.settings import holds


class ScriptedRollout(base.BaseRollout):  # type: ignore[misc]  # verl is untyped here
    """Takes every weight that is sent, and keeps none."""

    async def resume(self, tags: Any) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, **options: Any) -> None:
        for _ in weights:  # it is a stream, and each part of it an exchange of all ranks
            pass


class ScriptedReplica(replica.RolloutReplica):  # type: ignore[misc]  # verl is untyped here
    """One server without a model."""

    async def launch_servers(self) -> None:
        # Before 0.7.1 the server has its workers send their weights: vllm_async_server.py wake_up.
        sending = self.workers if holds("<0.7.1", verl.__version__) else []
        handle = ray.remote(ScriptedServer).options(num_cpus=0, max_concurrency=64).remote(sending)
        self.servers = [handle]
        self._server_handle, self._server_address = handle, f"scripted-{self.replica_rank}"

    def get_ray_class_with_init_args(self) -> Any:
        """The class of workers that only generate: there are none."""
        raise NotImplementedError("scripted rollouts are generated beside the training processes")


sampling.ENGINES.add("scripted")  # its agent plays what it is asked for, whatever the seed
replica.RolloutReplicaRegistry.register("scripted", lambda: ScriptedReplica)
base._ROLLOUT_REGISTRY["scripted", "async"] = f"{__name__}.{ScriptedRollout.__name__}"
