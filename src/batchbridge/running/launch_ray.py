"""Ray's part in a launch: worker processes that the cluster starts, on any node, run `batchbridge.running.launch.start`
first.

An adapter names this as a hook of its own: `{"ray": "batchbridge.kit:reach_workers"}`. Ray hands the
function's name and the launch to every worker process of the job (its `worker_process_setup_hook` and environment
variables); a node that cannot import it fails to start workers, with Ray's error. Source: ray 2.60 runtime_env, worker
process setup.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any

from batchbridge.running.launch import ENVIRONMENT, TRAINER, arrived, current_launch, has_started, with_site

SETUP_HOOK = "worker_process_setup_hook"
START = "batchbridge.running.launch.start"
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable in which a job's driver finds its runtime environment."""
_HOOK_VARIABLE = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
_SECONDS = 10


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
        options["runtime_env"] = with_launch(options.get("runtime_env"), out_of_job(os.environ))
        result = native(*arguments, **options)
        confirm(ray, launch.run)
        threading.Thread(target=_collect_soon, args=(launch.run,), daemon=True).start()
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


def with_launch(runtime_env: Any, of_job: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A runtime environment with the launch in it: a setup hook of the user's own is called after ours, and PYTHONPATH
    has our folder before theirs. of_job: what a job's runtime environment had of both (`out_of_job`)."""
    job, made = dict(of_job or {}), dict(runtime_env or {})
    variables = {**(job.pop("env_vars", None) or {}), **(made.get("env_vars") or {})}
    if "PYTHONPATH" in variables:
        variables["PYTHONPATH"] = with_site(variables["PYTHONPATH"])
    made["env_vars"] = {**variables, ENVIRONMENT: os.environ[ENVIRONMENT]}
    theirs = made.get(SETUP_HOOK, job.get(SETUP_HOOK))
    made[SETUP_HOOK] = START if theirs in (None, START) else chained(theirs)
    return made


def out_of_job(environment: MutableMapping[str, str]) -> dict[str, Any]:
    """The parts that a launch needs of the runtime environment of the job that we run in, taken out of it: Ray refuses
    a driver that says again what its job says."""
    if JOB_CONFIG not in environment:
        return {}
    config = json.loads(environment[JOB_CONFIG])
    job = config.get("runtime_env") or {}
    variables = job.get("env_vars") or {}
    taken: dict[str, Any] = {"env_vars": {name: variables.pop(name) for name in ("PYTHONPATH",) if name in variables}}
    if SETUP_HOOK in job:
        taken[SETUP_HOOK] = job.pop(SETUP_HOOK)
        variables.pop(_HOOK_VARIABLE, None)
    environment[JOB_CONFIG] = json.dumps(config)
    return taken


def chained(theirs: Any) -> Callable[[], None]:
    """A setup hook that calls ours, then the user's: a function, or its name. Ray takes it to every worker by value."""

    def start_both() -> None:
        import importlib

        from batchbridge.running.launch import start

        start()
        if isinstance(theirs, str):
            module, _, name = theirs.rpartition(".")
            getattr(importlib.import_module(module), name)()
        else:
            theirs()

    return start_both


def confirm(ray: Any, run: str) -> None:
    """The check (`CannotAttach`) that a worker process of this cluster belongs to the launch `run`."""
    from batchbridge.errors import CannotAttach

    try:
        found, reached = ray.get(ray.remote(num_cpus=0)(_launch_in_worker).remote(run))
    except Exception as error:
        reason = f"Ray's worker processes cannot import batchbridge ({error}); install it on every node"
        raise CannotAttach({"arrival": reason}) from error
    if found != run:
        reason = f"Ray's worker processes belong to the launch {found or 'none'}, not to this one"
        raise CannotAttach({"arrival": reason})
    if not reached:
        reason = (
            "Ray's worker processes have the launch, but did not start it: neither the setup hook nor PYTHONPATH of "
            "their runtime environment brought it; start Ray by `ray.init` under `batchbridge run`, or submit the job "
            "with `batchbridge run` before its entrypoint"
        )
        raise CannotAttach({"arrival": reason})
    arrived(f"ray-{os.getpid()}", run)


def announce(run: str, kind: str = TRAINER, text: str = "") -> None:
    """Tells the whole cluster that a trainer of the launch `run` was wrapped, or judged. kind, text: the receipt."""
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(_key(run), json.dumps([kind, text or run]).encode(), overwrite=True)


def collect(run: str) -> bool:
    """The receipt that `announce` left in the cluster, taken in the process of the command before it leaves there;
    whether it is there."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    from ray.experimental import internal_kv

    found = internal_kv._internal_kv_get(_key(run))
    if not found:
        return False
    kind, text = json.loads(found)
    arrived(f"{kind}-of-the-cluster", text)
    return True


def in_actor() -> bool:
    """Whether this process is an actor of Ray's."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None


def _collect_soon(run: str) -> None:
    """Takes the receipt as soon as it is there, so that nobody is told that no trainer was reached."""
    with contextlib.suppress(Exception):  # the cluster may go away at any time
        ray = sys.modules["ray"]
        while ray.is_initialized() and not collect(run):
            time.sleep(_SECONDS)


def _key(run: str) -> bytes:
    return f"batchbridge:{run}".encode()


def _launch_in_worker(run: str) -> tuple[str | None, bool]:
    """The launch of a worker process, and whether it had been started there before anybody asked."""
    reached = has_started(run)
    launch = current_launch()
    return None if launch is None else launch.run, reached
