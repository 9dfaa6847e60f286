"""Jobs that are sent to a Ray cluster (`ray job submit`, `JobSubmissionClient`): `batchbridge run` stands before their
entrypoint, and their runtime environment has the launch.

Two doors of Ray's lead here, in whatever process of the command sends the job: the import of its client, and the
function that `ray job submit` calls before it sends anything (RAY_JOB_SUBMIT_HOOK). A `ray` that cannot import
batchbridge fails at the second, and sends nothing. Source: ray 2.60 dashboard/modules/job/cli.py, sdk.py.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from types import ModuleType
from typing import Any

from batchbridge.running.launch import JOB, THEIR_SUBMIT_HOOK, Launch, arrived, current_launch, start
from batchbridge.running.telling import tell

HANDED_OVER = "BATCHBRIDGE_JOB"
"""The variable that holds the launch of a job; `batchbridge run --handed-over` takes it from there. It is not
`ENVIRONMENT`: Ray refuses a variable that a job has and its driver's `ray.init` has, too."""
_OPTION = "--handed-over"


def reach_jobs(module: ModuleType) -> None:
    """The hook into ray.dashboard.modules.job.sdk: every job that this process sends has the launch."""
    client: Any = module.JobSubmissionClient
    native = client.submit_job

    @functools.wraps(native)
    def submit_job(self: Any, *, entrypoint: str, runtime_env: Any = None, **options: Any) -> Any:
        if (launch := current_launch()) is None or _has_run(entrypoint):
            return native(self, entrypoint=entrypoint, runtime_env=runtime_env, **options)
        entrypoint, runtime_env = handed_over(launch, entrypoint, runtime_env)
        sent = native(self, entrypoint=entrypoint, runtime_env=runtime_env, **options)
        arrived(f"{JOB}-{os.getpid()}", str(sent))
        where = f"the ledger is written where the job runs, in {launch.ledger}" if launch.ledger else "without a ledger"
        text = (
            f"Ray job {sent}: `{entrypoint.partition(_OPTION)[0]}{_OPTION} --` stands before its entrypoint, and the "
            f"launch in its runtime environment ({HANDED_OVER}); {where}, its log says whether a trainer was reached"
        )
        tell(text)
        return sent

    client.submit_job = submit_job


def submitting(**options: Any) -> None:
    """The function that `ray job submit` calls before it sends a job: makes sure of the hook, calls the user's."""
    start()
    if theirs := os.environ.get(THEIR_SUBMIT_HOOK):
        module, _, name = theirs.rpartition(".")
        getattr(importlib.import_module(module), name)(**options)


def handed_over(launch: Launch, entrypoint: str, runtime_env: Any) -> tuple[str, dict[str, Any]]:
    """The entrypoint and the runtime environment of a job, with `batchbridge run` and the launch in them."""
    made = dict(runtime_env or {})
    there = replace(launch, arrivals=None)  # a folder of this machine
    made["env_vars"] = {**(made.get("env_vars") or {}), HANDED_OVER: json.dumps(asdict(there))}
    try:
        words = shlex.split(entrypoint)
    except ValueError:
        words = []
    if not words or re.search(r"[\n&|;<>()$`*?\[{~]", entrypoint) or "=" in words[0]:
        words = ["sh", "-c", entrypoint]  # as Ray runs it
    python = re.search(r"(?:^|[\s;&|(])(\S*python[0-9.]*)\s", entrypoint)
    ours = ["batchbridge"] if python is None else [python[1], "-m", "batchbridge"]
    return shlex.join([*ours, "run", _OPTION, "--", *words]), made


def taken_over(environment: Mapping[str, str]) -> Launch | None:
    """The launch that a job was sent with, or None. It is a run of its own: what sent the job may be a process of
    the same machine, and follows the job that would wait for it."""
    text = environment.get(HANDED_OVER)
    if not text:
        return None
    sent = json.loads(text)
    del sent["run"]
    return Launch(**sent)


def _has_run(entrypoint: str) -> bool:
    """Whether the user has put `batchbridge run` there."""
    return re.search(r"\bbatchbridge\s+run\b", entrypoint) is not None
