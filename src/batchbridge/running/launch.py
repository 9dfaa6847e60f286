"""Processes that one does not start oneself: what `batchbridge run -- COMMAND` puts into each of them.

The command runs with one environment variable (`Launch`, as JSON) and a folder at the head of PYTHONPATH whose
`sitecustomize` calls `start` in every Python process: then, when a module that the adapter named is imported, the
adapter's function is called with it. Workers that a cluster starts are reached by `batchbridge.running.launch_ray`.

A process that has nothing of this environment is not touched; a trainer that should have been reached and was not ends
the run with an error. Standard library only: every Python process of the job imports this.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from batchbridge.running.telling import keep_last_words

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # the import system asks for methods, and that module brings temporary files and archives into every process
    Loader = MetaPathFinder = object

ENVIRONMENT = "BATCHBRIDGE_RUN"
"""The environment variable that holds the launch."""
TRAINER, JOB, JUDGED, LOST = "trainer", "job", "judged", "lost"
"""The beginnings of the names of receipts that say: a trainer was wrapped; a job was sent that looks after its own; a
trainer was judged, and does not train; a ledger could not be written to its end."""
SUBMIT_HOOK, THEIR_SUBMIT_HOOK = "RAY_JOB_SUBMIT_HOOK", "BATCHBRIDGE_THEIR_SUBMIT_HOOK"
"""The variable that names what `ray job submit` calls before it sends anything, and the one that keeps the user's."""
SITE = Path(__file__).parent / "_site"
"""The folder with `sitecustomize`."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The facts that every process of a launched command knows.

    framework: the command's, or "unknown": the trainer that it builds says. hooks: module of the framework ->
    `package.module:function`. spec: what the run should mean (`Spec.to_dict`); None: what its own configuration means.
    like, like_version: in its place, a configuration that can only be read once the trainer's devices are known. mode,
    ledger, tokens_per_device, allow, report_to, padding: as in `wrap`. arrivals: folder for `arrived`. run: this
    launch. expect_within: seconds after which a line says that no trainer was wrapped; 0: never. verbose: every patch
    of a trainer is said. instead: a function (`package.module:name`) that a trainer is given to in place of `wrap`,
    whose text is the receipt; the process then ends. Empty: trainers are wrapped.
    """

    framework: str
    hooks: Mapping[str, str]
    mode: str = "enforce"
    spec: Mapping[str, Any] | None = None
    like: str | None = None
    like_version: str | None = None
    ledger: str | None = None
    tokens_per_device: int | Literal["auto"] | None = None
    allow: Sequence[str] = ()
    report_to: str | None = None
    padding: str = "padded"
    arrivals: str | None = None
    expect_within: float = 0
    verbose: bool = False
    instead: str = ""
    run: str = field(default_factory=lambda: uuid.uuid4().hex)

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """`own` (an environment) with the launch in it."""
        theirs = own.get(SUBMIT_HOOK, "")
        kept = {} if theirs in ("", _SUBMITTING) else {THEIR_SUBMIT_HOOK: theirs}
        return {**own, **kept, **self.variables(own), SUBMIT_HOOK: _SUBMITTING}

    def variables(self, own: Mapping[str, str]) -> dict[str, str]:
        """The variables by which Python processes are reached. own: an environment, whose PYTHONPATH stays."""
        return {ENVIRONMENT: json.dumps(asdict(self)), "PYTHONPATH": with_site(own.get("PYTHONPATH", ""))}


_SUBMITTING = "batchbridge.running.launch_jobs.submitting"
_OWN_HOOKS = {"ray.dashboard.modules.job.sdk": "batchbridge.running.launch_jobs:reach_jobs"}
"""The hooks of every launch: a job may be sent to a cluster by whatever framework's command."""


def with_site(path: str) -> str:
    """`path`, as PYTHONPATH has it, with the folder of `sitecustomize` at its head."""
    others = [part for part in path.split(os.pathsep) if part and part != str(SITE)]
    return os.pathsep.join([str(SITE), *others])


def current_launch() -> Launch | None:
    """The launch that this process belongs to, or None."""
    text = os.environ.get(ENVIRONMENT)
    return None if not text else Launch(**json.loads(text))


def start() -> None:
    """Installs the launch's hooks in this process; called again, or without a launch, it does nothing."""
    launch = current_launch()
    if launch is not None and not has_started(launch.run):
        call_after_import({**_OWN_HOOKS, **launch.hooks}, launch.run)
        if launch.arrivals is not None:
            keep_last_words(launch.arrivals)


def has_started(run: str) -> bool:
    """Whether this process has the hooks of the launch `run`."""
    return any(isinstance(finder, _Finder) and finder.run == run for finder in sys.meta_path)


def call_after_import(hooks: Mapping[str, str], run: str = "") -> None:
    """Calls `package.module:function` with each module of `hooks` after its import, or now where it is imported.

    run: the launch that asks for it.
    """
    sys.meta_path.insert(0, _Finder(hooks, run))
    for name, target in hooks.items():
        if name in sys.modules:
            _call(target, sys.modules[name])


def arrived(name: str, text: str) -> None:
    """Leaves a receipt in the launch's folder, where this machine has it."""
    launch = current_launch()
    if launch is None or launch.arrivals is None or not Path(launch.arrivals).is_dir():
        return
    being_written = Path(launch.arrivals, f".{name}")
    being_written.write_text(text, encoding="utf-8")
    being_written.replace(Path(launch.arrivals, name))  # whoever waits for the receipt finds all of it


def named(place: str) -> Callable[[Any], Any]:
    """The function that `package.module:name` names; the module is imported."""
    module, _, name = place.partition(":")
    found: Callable[[Any], Any] = getattr(importlib.import_module(module), name)
    return found


def _call(target: str, module: ModuleType) -> None:
    named(target)(module)


class _Finder(MetaPathFinder):
    """A finder that lets the other finders find a module, and calls its hook once it is executed. An error in a hook is
    an error of the import: a run that cannot be reached must not go on natively."""

    def __init__(self, hooks: Mapping[str, str], run: str) -> None:
        self._hooks, self.run = dict(hooks), run
        self._finding: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks or fullname in self._finding:
            return None
        self._finding.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._hooks[fullname])
        return spec


class _Loader(Loader):
    """A module's own loader, and the hook after it."""

    def __init__(self, native: Any, hook: str) -> None:
        self._native, self._hook = native, hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._native.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._native.exec_module(module)
        _call(self._hook, module)
