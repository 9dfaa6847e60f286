"""A rollout backend that generates nothing, named `scripted`: import this module in every process beside `cpu`.

Completions come from the agent loop (`agent.ScriptedAgent`), which knows prompt and sample, so that two replicas cannot
answer alike. Source: verl 0.9.1 workers/rollout/base.py, replica.py.

`BATCHBRIDGE_WEIGHTS`: folder where rank 0 leaves the weights that it is sent, by the rollouts done.
`BATCHBRIDGE_KILL`: `rank/step`: that training process kills itself after it has trained that optimizer step.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
import torch
import verl.workers.rollout.base as base
import verl.workers.rollout.replica as replica

from batchbridge import hookimpl
from batchbridge.contract import plugins
from batchbridge_on_cpu.verl.server import ScriptedServer
from batchbridge_verl import sampling


class ScriptedRollout(base.BaseRollout):  # type: ignore[misc]  # verl is untyped here
    """Takes every weight that is sent, and keeps it where the test asks for it."""

    async def resume(self, tags: Any) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(self, weights: Any, **options: Any) -> None:
        kept = {name: tensor.detach().cpu().clone() for name, tensor in weights}
        folder = os.environ.get("BATCHBRIDGE_WEIGHTS")
        if folder and os.environ.get("RANK", "0") == "0":
            Path(folder).mkdir(parents=True, exist_ok=True)
            torch.save(kept, Path(folder) / f"{options.get('global_steps')}.pt")


class ScriptedReplica(replica.RolloutReplica):  # type: ignore[misc]  # verl is untyped here
    """One server without a model."""

    async def launch_servers(self) -> None:
        handle = ray.remote(ScriptedServer).options(num_cpus=0, max_concurrency=64).remote()
        self.servers = [handle]
        self._server_handle, self._server_address = handle, f"scripted-{self.replica_rank}"


sampling.ENGINES.add("scripted")  # its agent keeps the seeds where the test asks for them
replica.RolloutReplicaRegistry.register("scripted", lambda: ScriptedReplica)
base._ROLLOUT_REGISTRY["scripted", "async"] = f"{__name__}.{ScriptedRollout.__name__}"


class Killer:
    """Ends this process after an optimizer step; see the module."""

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        if os.environ["BATCHBRIDGE_KILL"] == f"{os.environ.get('RANK')}/{record['step']}":
            os.kill(os.getpid(), signal.SIGKILL)


if os.environ.get("BATCHBRIDGE_KILL"):
    plugins.manager().register(Killer(), "batchbridge_verl_killer")
