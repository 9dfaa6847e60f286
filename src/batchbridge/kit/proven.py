"""The code that a running trainer consists of, told by its functions' text: a version number is only a label.

An adapter lists, for every package involved, the functions of the *control flow*, which its patches replace or rely on,
and those of the *loss* (`Code`). Its `proven.json` records their digests (`batchbridge.kit.fingerprints`) in
releases:

- `tested`: the native tests run on this release;
- `read`: every function that differs from a tested release was read, and what the patches rely on is the same;
- `seen`: recorded by `nox -s upstream`, and nobody has looked yet. Such a release is only known by name.

Each function is compared on its own, so that a release that changed none of them passes, whatever its number. Functions
of a tested release everywhere are *proven*. Control flow that is known, with a loss that is not, or that was read only,
is *measured*: the weights that the loss gives to tokens are measured at attach, and the run is refused unless they are
the plan's. Control flow that is not known is *refused*, unless `allow=("unproven_code",)` accepts it; it is measured
then.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from batchbridge.contract.evidence import Code, Evidence, Grade, Package, Record, named
from batchbridge.errors import CannotAttach
from batchbridge.kit import fingerprints, versions

UNPROVEN = "unproven_code"
"""The name by which `wrap(..., allow=...)` accepts control flow that is not known."""

_DECORATORS = ("torch", "ray", "contextlib", "functools")
"""Modules whose decorators may stand around a framework's function; the framework's own may, too."""


def methods(of: str, *names: str) -> tuple[str, ...]:
    """Functions of the class `of`, as a `Package` names them."""
    return tuple(f"{of}.{name}" for name in names)


# ---- recorded releases


@lru_cache(maxsize=16)
def records(home: str) -> Mapping[str, Record]:
    """Package to its recorded releases: `proven.json` of the adapter `home`."""
    file = Path(str(importlib.import_module(home).__file__)).with_name("proven.json")
    return parse(json.loads(file.read_bytes()))


def parse(made: Mapping[str, Any]) -> dict[str, Record]:
    """The records in the JSON form of `proven.json`, where a digest's releases are one text."""
    return {
        name: Record(
            labels=dict(one["labels"]),
            functions={
                key: {digest: tuple(labels.split()) for digest, labels in known.items()}
                for key, known in one["functions"].items()
            },
        )
        for name, one in made.items()
    }


def evidence(
    code: Code,
    folders: Mapping[str, Path | None],
    *,
    installed: Mapping[str, str | None] | None = None,
    foreign: Iterable[tuple[str, bool | None]] = (),
    known: Mapping[str, Record] | None = None,
) -> Evidence:
    """The evidence for the code in `folders` (package to folder; None: not there).

    installed: package to its version; of several releases with the same code, the label is that one. foreign: functions
    of live objects that stand in no recorded file, and whether they are control flow (None: held by their effect); see
    `foreign_functions`. known: recorded releases; None: those of the adapter.
    """
    known = records(code.home) if known is None else known
    control, loss, read, by_effect = list[str](), list[str](), list[str](), list[str]()
    labels: dict[str, str | None] = {}
    for package in code.packages:
        record = known.get(package.record, Record({}, {}))
        found = fingerprints.of_package(package, folders.get(package.name), record.functions)
        missing = frozenset(key for key, digest in found.items() if not digest)
        misses_as_known = record.lacks_as_known(missing)
        for key, digest in found.items():
            statuses = record.statuses(key, digest) if digest or misses_as_known else set()
            title = f"{package.title} {key}" if digest else f"{package.title} {key} (missing)"
            if "tested" in statuses:
                continue
            if "read" in statuses:
                read.append(title)
            else:
                (control if package.decides_control(key) else loss).append(title)
        labels[package.title] = label = _label(record, found, (installed or {}).get(package.name))
        if label is None and not (control or loss or read):
            read.append(f"{package.title}, whose functions are those of several releases")
    for name, decides in foreign:
        (by_effect if decides is None else control if decides else loss).append(name)
    grade: Grade = "refused" if control else "measured" if loss or read or by_effect else "proven"
    told = {"control": control, "loss": loss, "read": read, "by_effect": by_effect}
    return Evidence(grade=grade, labels=labels, **{kind: tuple(names) for kind, names in told.items()})


def _label(record: Record, have: Mapping[str, str], version: str | None) -> str | None:
    equal = record.equal(have)
    if version in equal:
        return version
    tested = [label for label in equal if record.labels[label] == "tested"]
    return next(reversed(tested or equal), None)


# ---- what is installed, and what runs


def folder_of(package: str) -> Path | None:
    """The folder of an installed package, which is not imported; None where there is none."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations)))


def package_folder(package: Package) -> Path | None:
    """The folder of an installed package; None where there is none, or one of another project."""
    folder = folder_of(package.name)
    return folder if folder is not None and (folder / package.marker).is_file() else None


def evidence_here(code: Code, *objects: object, folders: Mapping[str, Path | None] | None = None) -> Evidence:
    """The evidence for the installed packages; with `objects`, for what is loaded in this process and for them, too.

    folders: where a package is found otherwise.
    """
    where = {package.name: package_folder(package) for package in code.packages} | dict(folders or {})
    there = {package.name: versions.installed(package.distribution) for package in code.packages}
    foreign = foreign_functions(code, where, objects) if objects else ()
    return evidence(code, where, installed=there, foreign=foreign)


def require(
    code: Code, allow: Iterable[str], *objects: object, folders: Mapping[str, Path | None] | None = None
) -> Evidence:
    """The evidence for the installed code and for the live `objects`; grade "proven" or "measured".

    Raises `CannotAttach` for a version below the oldest supported, and, unless `allow` has "unproven_code", for control
    flow that is not known, naming the functions.
    """
    first = code.packages[0]
    version = versions.installed(first.distribution)
    if version is not None and code.oldest is not None and not versions.holds(f">={code.oldest}", version):
        reason = f"{first.title} {version} is older than {code.oldest}, the oldest version whose trainer is wrapped"
        raise CannotAttach({"version": reason})
    found = evidence_here(code, *objects, folders=folders)
    if found.grade != "refused":
        return found
    if UNPROVEN not in allow:
        raise CannotAttach({UNPROVEN: refusal(found)})
    return replace(found, grade="measured")


def refusal(found: Evidence) -> str:
    """The reason why control flow that is not known is refused, and what can be done."""
    return (
        f"the code that BatchBridge patches or relies on is not one that it knows: {named(found.control)}; "
        f'use a recorded version, or allow=("{UNPROVEN}",), which measures the weights of this code at attach and is '
        "still refused where they are not the plan's"
    )


def foreign_functions(
    code: Code, folders: Mapping[str, Path | None], objects: Iterable[object]
) -> list[tuple[str, bool | None]]:
    """Functions that this process would run in place of recorded ones, and whether they are control flow (None: held
    by their effect).

    A loaded module or class whose function was replaced; a method that a class was given and this release has not; one
    that the class of one of `objects` overrides; one that was set on the object. What BatchBridge itself has patched is
    looked through.
    """
    homes = [folder.resolve() for folder in folders.values() if folder is not None]
    found = list[tuple[str, bool | None]]()
    for package in code.packages:
        folder = folders.get(package.name)
        if folder is None:
            continue
        for key, digest in fingerprints.of_package(package, folder).items():
            file, _, name = key.partition(": ")
            module = _loaded(package.name, file, folder)
            if module is None:
                continue
            if not digest:
                if (added := _added(module, name)) is not None and not _is_ours(added):
                    found.append((f"{package.title} {key} (added by {_origin(added)})", package.decides_control(key)))
                continue
            function = _resolved(module, name)
            if function is None or not _stands_in(function, folder / file, name, homes):
                by = "" if function is None else f" by {_origin(function)}"
                found.append((f"{package.title} {key} (replaced{by})", package.decides_control(key)))
    for one in objects:
        found += [(where, decides) for _, where, decides in overridden(code, one)]
    return found


def overridden(code: Code, one: object) -> Iterator[tuple[str, str, bool | None]]:
    """Methods of an object that stand in another class than a recorded one, or on the object itself: name, where, and
    whether it is control flow (None: held by its effect). One that only hands on (`pass_through`) is none of them."""
    mro, own = type(one).__mro__, vars(one) if hasattr(one, "__dict__") else {}
    recorded: dict[str, dict[tuple[str, str], bool]] = {}
    for package in code.packages:
        for file, names in package.functions.items():
            for name in names:
                cls, dot, method = name.rpartition(".")
                if dot:
                    place = _module_name(package.name, file), cls
                    recorded.setdefault(method, {})[place] = package.decides_control(f"{file}: {name}")
    from batchbridge.kit.pass_through import passes_through  # of live objects alone: a file has none

    for method, classes in recorded.items():
        kinds = [decides for place, decides in classes.items() if any(_is_place(base, place) for base in mro)]
        if not kinds:
            continue
        # Ray's stand-in for a class has every method again, with tracing around it; `_resolved` looks into it.
        owners = (base for base in mro if method in vars(base) and "__ray_actor_class__" not in vars(base))
        deciding = ((base, any(_is_place(base, place) for place in classes)) for base in owners)
        owner, known = next((one for one in deciding if one[1] or not passes_through(one[0], method)), (None, True))
        decides = None if method in code.by_effect else any(kinds)
        if owner is not None and not known:
            yield method, f"{owner.__module__}.{owner.__qualname__}.{method} (overrides)", decides
        if method in own and not _is_ours(own[method]):
            where = f"{type(one).__qualname__}.{method} (set on the object, {_origin(own[method])})"
            yield method, where, decides


def _is_place(cls: type, place: tuple[str, str]) -> bool:
    """Whether a class is the recorded one; that of a script is of the main module."""
    return cls.__qualname__ == place[1] and cls.__module__ in (place[0], "__main__")


def _module_name(package: str, file: str) -> str:
    return f"{package}.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")


def _loaded(package: str, file: str, folder: Path) -> ModuleType | None:
    """The module of a file, where it is loaded; a script is its own main module."""
    main = sys.modules.get("__main__")
    if main is not None and _same_file(getattr(main, "__file__", None) or "", folder / file):
        return main
    found = sys.modules.get(_module_name(package, file))
    return found if found is not None and _same_file(getattr(found, "__file__", None) or "", folder / file) else None


def _resolved(module: ModuleType, name: str) -> Any:
    """A function or method as the module has it now, not bound; None where it has none."""
    owner, dot, method = name.rpartition(".")
    if not dot:
        return vars(module).get(name)
    cls = vars(module).get(owner)
    cls = getattr(getattr(cls, "__ray_metadata__", None), "modified_class", cls)  # Ray's stand-in for a class
    return None if not isinstance(cls, type) else inspect.getattr_static(cls, method, None)


def _added(module: ModuleType, name: str) -> Any:
    """A method that a class has of its own now, and its text has not; None where there is none."""
    owner, _, method = name.rpartition(".")
    cls = vars(module).get(owner)
    return vars(cls).get(method) if isinstance(cls, type) else None


def _stands_in(function: Any, file: Path, name: str, homes: list[Path]) -> bool:
    """Whether a function is the one that stands in `file` as `name`, decorators of the frameworks around it or not."""
    from batchbridge.kit.code_names import written_name  # for a run: `check` imports this module, too

    function = getattr(function, "__func__", None) or getattr(function, "fget", None) or function
    made = getattr(function, "__code__", None)
    if made is not None and written_name(made) == name and _same_file(made.co_filename, file):
        return True
    if not (_is_ours(function) or _decorates(made, function, homes)):
        return False
    inner = getattr(function, "__wrapped__", None)
    # A decorator that leaves no trace (DeepSpeed's) has the function among its variables.
    held = [inner] if inner is not None else [_content(cell) for cell in getattr(function, "__closure__", None) or ()]
    return any(callable(one) and one is not function and _stands_in(one, file, name, homes) for one in held)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _decorates(made: Any, function: Any, homes: list[Path]) -> bool:
    """Whether the wrapper around a function is a decorator of one of the packages, or of those that they build on."""
    if made is None:
        return type(function).__module__.partition(".")[0] in _DECORATORS
    file = Path(made.co_filename).resolve()
    if any(home in file.parents for home in homes):
        return True
    name = getattr(function, "__globals__", {}).get("__name__", "")
    return str(name).partition(".")[0] in _DECORATORS


def _is_ours(value: Any) -> bool:
    """Whether BatchBridge made a function or an object."""
    function = getattr(value, "__func__", value)
    scope = getattr(function, "__globals__", None)
    module = str(scope.get("__name__")) if scope is not None else type(value).__module__
    top = module.partition(".")[0]
    return top == "batchbridge" or top.startswith("batchbridge_")


def _origin(value: Any) -> str:
    from batchbridge.kit.code_names import written_name

    function = getattr(value, "__func__", value)
    made = getattr(function, "__code__", None)
    if made is None:
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{function.__globals__.get('__name__')}.{written_name(made)}"


def _same_file(one: str, other: Path) -> bool:
    return bool(one) and (one == str(other) or _resolved_path(one) == _resolved_path(str(other)))


@lru_cache(maxsize=256)
def _resolved_path(file: str) -> Path:
    return Path(file).resolve()
