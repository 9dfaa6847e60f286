"""Ray's part in a launch: worker processes that the cluster starts, on any node, run `batchbridge.running.launch.start`
first.

An adapter names this as a hook of its own: `{"ray": "batchbridge.kit:reach_workers"}`. Ray hands the
function's name and the launch to every worker process of the job (its `worker_process_setup_hook` and environment
variables); a node that cannot import it fails to start workers, with Ray's error. Source: ray 2.60 runtime_env, worker
process setup.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from types import ModuleType
from typing import Any

from batchbridge.running.launch import ENVIRONMENT, TRAINER, arrived, current_launch, start

SETUP_HOOK = "worker_process_setup_hook"
START = "batchbridge.running.launch.start"


def reach_workers(ray: ModuleType) -> None:
    """Makes `ray.init` of this process carry the launch to every worker, and confirms that it arrived there."""
    native = ray.init
    if hasattr(native, "batchbridge"):
        return

    @functools.wraps(native)
    def init(*arguments: Any, **options: Any) -> Any:
        launch = current_launch()
        if launch is None:
            return native(*arguments, **options)
        options["runtime_env"] = with_launch(options.get("runtime_env"))
        result = native(*arguments, **options)
        confirm(ray, launch.run)
        atexit.register(collect, launch.run)  # after Ray's own: called before it
        return result

    native_shutdown = ray.shutdown

    @functools.wraps(native_shutdown)
    def shutdown(*arguments: Any, **options: Any) -> Any:
        if (launch := current_launch()) is not None and ray.is_initialized():
            collect(launch.run)
        return native_shutdown(*arguments, **options)

    ray.shutdown = shutdown  # type: ignore[attr-defined]  # ray is untyped here
    init.batchbridge = True  # type: ignore[attr-defined]  # the mark that keeps a second call from wrapping again
    ray.init = init  # type: ignore[attr-defined]  # ray is untyped here


def with_launch(runtime_env: Any) -> dict[str, Any]:
    """A runtime environment with the launch in it; a setup hook of the user's own is kept, and then ours arrives by
    PYTHONPATH alone."""
    made = dict(runtime_env or {})
    made["env_vars"] = {**(made.get("env_vars") or {}), ENVIRONMENT: os.environ[ENVIRONMENT]}
    made.setdefault(SETUP_HOOK, START)
    return made


def confirm(ray: Any, run: str) -> None:
    """The check (`CannotAttach`) that a worker process of this cluster belongs to the launch `run`."""
    from batchbridge.errors import CannotAttach

    try:
        found = ray.get(ray.remote(num_cpus=0)(_launch_in_worker).remote())
    except Exception as error:
        reason = f"Ray's worker processes cannot import batchbridge ({error}); install it on every node"
        raise CannotAttach({"arrival": reason}) from error
    if found != run:
        reason = f"Ray's worker processes belong to the launch {found or 'none'}, not to this one"
        raise CannotAttach({"arrival": reason})
    arrived(f"ray-{os.getpid()}", run)


def announce(run: str) -> None:
    """Tells the whole cluster that a trainer of the launch `run` was wrapped."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_key(run), b"wrapped", overwrite=True)


def collect(run: str) -> None:
    """The receipt that `announce` left in the cluster, taken in the process of the command before it leaves there."""
    ray = sys.modules.get("ray")

    if ray is None or not ray.is_initialized():
        return
    from ray.experimental import internal_kv

    if internal_kv._internal_kv_get(_key(run)) == b"wrapped":
        arrived(f"{TRAINER}-of-the-cluster", run)


def _key(run: str) -> bytes:
    return f"batchbridge:{run}".encode()


def _launch_in_worker() -> str | None:
    launch = current_launch()
    start()
    return None if launch is None else launch.run
