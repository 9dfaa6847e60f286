"""What a reader must not do, whatever it reads: noticed by an audit hook, and bounded in CPU time and memory.

The hook cannot be removed from its process, so everything here runs in a process of its own (`run.py`).
"""

from __future__ import annotations

import collections
import dataclasses
import os
import resource
import signal
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

MEGABYTE = 1 << 20


class SideEffect(BaseException):
    """A reader did what no reader may. Not an `Exception`: code that guards itself against those must not hide it."""


class TooSlow(BaseException):
    """An input took more than its CPU time."""


FORBIDDEN = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.spawn",
    "os.fork",
    "os.kill",
    "os.startfile",
    "pty.",
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "smtplib.",
    "webbrowser.",
    "ctypes.",
    "shutil.",
    "tempfile.",
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.utime",
    "os.setxattr",
    "os.putenv",
    "os.unsetenv",
    "pickle.find_class",
    "code.__new__",
    "function.__new__",
    "sys.settrace",
    "sys.setprofile",
)
"""Beginnings of audit events that no reader causes. Source: CPython docs, "Audit events table"."""

IMPORTABLE = frozenset(
    {
        *(
            "batchbridge",
            "bashread",
            "pyread",
            "yaml",
            "_yaml",
            "ruamel",
            "click",
            "rich",
            "pluggy",
            "packaging",
            "pydantic",
            "pydantic_core",
        ),
        *("tree_sitter", "tree_sitter_bash", "omegaconf", "antlr4", "annotated_types", "typing_extensions", "numpy"),
        *("typing_inspection", "markdown_it", "mdurl", "pygments"),
    }
)
"""What may be imported on use beside the standard library and the adapters (`batchbridge_*`)."""

_IMPORT_SYSTEM = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
_COMPILING = (typing.__file__, dataclasses.__file__, collections.__file__)
"""The standard library's own users of `compile` and `exec`: annotations, dataclasses, named tuples."""


class Guard:
    """The hook's state: armed only while a reader runs on an input."""

    def __init__(self, readable: tuple[Path, ...]) -> None:
        self.armed = False
        self.input = ""
        self.violations: list[str] = []
        self._readable = tuple(str(folder) for folder in readable)
        sys.addaudithook(self._audit)

    @contextmanager
    def over(self, text: str, cpu_seconds: float) -> Iterator[None]:
        """Everything inside is watched. text: the input, which may name files that are then read."""
        self.input, self.violations = text, []
        previous = signal.signal(signal.SIGVTALRM, _too_slow)
        signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
        self.armed = True
        try:
            yield
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, previous)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event.startswith(FORBIDDEN):
            self._refuse(f"{event} {arguments!r:.200}")
        elif event == "open":
            self._opened(*arguments)
        elif event in ("os.listdir", "os.scandir"):
            self._looked(arguments[0])
        elif event == "import":
            self._imported(str(arguments[0]))
        elif event in ("exec", "compile") and not _importing():
            self._refuse(f"{event} of {arguments!r:.200}")

    def _opened(self, path: Any, mode: Any, flags: int) -> None:
        if isinstance(path, int):
            self._refuse(f"open of descriptor {path}")
        if flags & 0b11 or (isinstance(mode, str) and set(mode) & set("wax+")):
            self._refuse(f"open of {path!r} for writing ({mode})")
        name = _absolute(path.decode(errors="replace") if isinstance(path, bytes) else str(path))
        # A file that the input names may be read: `config=FILE` and `--config FILE` mean it.
        if not name.startswith(self._readable) and not any(part in self.input for part in (name, Path(name).name)):
            self._refuse(f"open of {name!r}, which the input does not name")

    def _looked(self, path: Any) -> None:
        name = _absolute(str(path))
        if not _importing() and not name.startswith(self._readable) and str(path) not in self.input:
            self._refuse(f"listing of {path!r}, which the input does not name")

    def _imported(self, name: str) -> None:
        top = name.partition(".")[0]
        known = top in IMPORTABLE or top in sys.stdlib_module_names
        known = known or top.startswith(("batchbridge_", "_sysconfigdata_"))
        # The standard library's own C modules are audited with the path of their file.
        if not known and not name.startswith(self._readable):
            self._refuse(f"import of {name}")

    def _refuse(self, what: str) -> None:
        self.violations.append(what)
        raise SideEffect(what)


def _absolute(name: str) -> str:
    return os.path.abspath(name)  # noqa: PTH100  (resolve() can raise on what an input names)


def _importing() -> bool:
    """Whether the standard library compiles on behalf of our code, not of an input."""
    frame: FrameType | None = sys._getframe(2)
    if frame is not None and frame.f_code.co_filename in _COMPILING:
        return True
    while frame is not None:
        if frame.f_code.co_filename in _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False


def _too_slow(number: int, frame: FrameType | None) -> None:
    raise TooSlow("too much CPU time")


def limit_memory(megabytes: int) -> None:
    """From here on this process may map at most so much more than it has: one input cannot take the machine."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    now = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + megabytes * MEGABYTE, resource.RLIM_INFINITY))


def resident_megabytes() -> float:
    """What this process has in memory now (MiB)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / MEGABYTE
