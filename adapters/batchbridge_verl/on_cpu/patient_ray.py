"""A Ray that starts on a busy machine: import this module before `ray.init`.

Ray's raylet gives each of its agents 15 seconds to write down its port, and ends the start otherwise. Here they are
written down beforehand, and the dashboard's agent starts without the dashboard's parts. Source: Ray 2.60.0
_private/services.py start_raylet, dashboard/agent.py.

Its own file: drivers import it before Ray starts, without the rest.
"""

from __future__ import annotations

import functools
import inspect
import socket
from typing import Any

import ray._private.utils
from ray import _raylet
from ray._private import services

ABSENT = -1
"""The text that an agent writes down for a service that it does not offer."""
_native = services.start_raylet


@functools.wraps(_native)
def start_raylet(*arguments: Any, **options: Any) -> Any:
    """Ray's own, after every agent's port is written down."""
    bound = inspect.signature(_native).bind(*arguments, **options)
    place = bound.arguments["session_dir"], bound.arguments["node_id"]
    bound.arguments["runtime_env_agent_port"] = port = free_port()
    _raylet.persist_port(*place, _raylet.RUNTIME_ENV_AGENT_PORT_NAME, port)
    for name in ("METRICS_AGENT_PORT_NAME", "METRICS_EXPORT_PORT_NAME", "DASHBOARD_AGENT_LISTEN_PORT_NAME"):
        _raylet.persist_port(*place, getattr(_raylet, name), ABSENT)
    return _native(*bound.args, **bound.kwargs)


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


services.start_raylet = start_raylet
ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("not wanted in tests")
