"""Hydra's composition of a folder of YAML files by their defaults lists, without Hydra: what a configuration declares.

Only the files that a list names are read, and nothing in them runs. Source: hydra-core 1.3.2 `defaults_list.py`,
`config_loader_impl.py`; a test holds it against the compositions that frameworks ship.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from batchbridge.errors import BatchBridgeError

MOST_FILES = 200
"""Files of one composition."""
MAX_BYTES = 1 << 20
MOST_VALUES = 50_000
"""Values of one file, counted with every alias expanded."""
_PACKAGE = re.compile(r"^\s*#\s*@package\s+(\S+)", re.MULTILINE)
_GLOBAL = "_global_"


class NotComposed(BatchBridgeError, ValueError):
    """A configuration whose files are not all there, or use what is not followed: why."""


def composed(
    folders: Sequence[Path], name: str, chosen: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[Path]]:
    """The configuration `name` of `folders`, where an earlier one is searched first, interpolations as they stand; and
    the files that it is made of. chosen: group to its option, in place of the list's own.

    Raises `NotComposed`.
    """
    walk = _Walk(tuple(folders), dict(chosen or {}))
    result: dict[str, Any] = {}
    for package, body in walk.parts(name, ""):
        for part in reversed(package.split(".") if package else []):
            body = {part: body}
        _merge(result, body)
    result.pop("hydra", None)
    return result, walk.files


class _Walk:
    """One composition: where files are searched, which options are chosen, what was read."""

    def __init__(self, folders: tuple[Path, ...], chosen: dict[str, str]) -> None:
        self._folders, self._chosen = list(folders), chosen
        self.files: list[Path] = []

    def parts(self, name: str, package: str | None, *, optional: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Package and content of the parts of the file `name`, in the order in which they are merged."""
        file = next((one / f"{name}.yaml" for one in self._folders if (one / f"{name}.yaml").is_file()), None)
        if file is None:
            if optional:
                return
            raise NotComposed(f"there is no {name}.yaml")
        if len(self.files) >= MOST_FILES:
            raise NotComposed(f"more than {MOST_FILES} files")
        self.files.append(file)
        header, loaded = _loaded(file, file.stat().st_mtime_ns)
        body = dict(loaded)
        listed = body.pop("defaults", None) or []
        group = PurePosixPath(name).parent.as_posix()
        group = "" if group == "." else group
        if package is None:
            package = header if header is not None else group.replace("/", ".")
            package = "" if package == _GLOBAL else package
        if not isinstance(listed, list):
            raise NotComposed(f"{name}.yaml: defaults is not a list")
        self._search(body)
        for entry in listed:
            if isinstance(entry, dict) and len(entry) == 1 and (key := str(next(iter(entry)))).startswith("override "):
                self._chosen.setdefault(key.removeprefix("override ").strip().lstrip("/"), next(iter(entry.values())))
        own = False
        for entry in listed:
            if entry == "_self_":
                own = True
                yield package, body
            else:
                yield from self._entry(entry, group, package)
        if not own:
            yield package, body

    def _search(self, body: Mapping[str, Any]) -> None:
        hydra = body.get("hydra")
        paths = hydra.get("searchpath") if isinstance(hydra, dict) else None
        for path in paths if isinstance(paths, list) else ():
            tail = str(path).partition("://")[2].replace(".", "/") if str(path).startswith("pkg:") else str(path)[7:]
            ends = [one for one in self._folders if one.as_posix().endswith(tail)]
            near = next((up / tail for one in self._folders for up in one.parents if (up / tail).is_dir()), None)
            if not ends and near is not None:
                self._folders.append(near)

    def _entry(self, entry: object, group: str, package: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The parts that an entry of a defaults list, which stands in `group`, brings."""
        if isinstance(entry, str):
            name, _, below = entry.partition("@")
            name = name.lstrip("/") if name.startswith("/") else f"{group}/{name}".lstrip("/")
            yield from self.parts(name.removesuffix(".yaml"), ".".join(filter(None, (package, below))))
            return
        if not isinstance(entry, dict) or len(entry) != 1:
            raise NotComposed(f"the entry {entry!r:.60} of a defaults list")
        key, option = next(iter(entry.items()))
        key = str(key)
        if key.startswith("override "):
            return
        optional = key.startswith("optional ")
        name, at, below = key.removeprefix("optional ").strip().partition("@")
        absolute = name.startswith("/")
        target = _normal(name.lstrip("/") if absolute else f"{group}/{name}")
        option = self._chosen.get(f"{target}@{below}" if at else target, self._chosen.get(target, option))
        if option is None or option == "???":
            return
        for one in option if isinstance(option, list) else (option,):
            text = str(one).removesuffix(".yaml")
            text = re.sub(r"\$\{([\w.]+)\}", lambda found: str(self._chosen.get(found[1], found[0])), text)
            self._chosen.setdefault(target, text)
            if at:
                inside = "" if below == "_here_" else below
                where: str | None = ".".join(filter(None, (package, inside)))
                where = inside.removeprefix(_GLOBAL).lstrip(".") if inside.startswith(_GLOBAL) else where
            else:
                where = None if not group or absolute else ".".join(filter(None, (package, _plain(name))))
            yield from self.parts(f"{target}/{text}", where, optional=optional)


def _normal(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part not in ("", ".", ".."):
            parts.append(part)
    return "/".join(parts)


def _plain(name: str) -> str:
    return ".".join(part for part in name.split("/") if part not in ("", ".", ".."))


def _merge(into: dict[str, Any], what: Mapping[str, Any]) -> None:
    for key, value in what.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, Mapping):
            into[key] = {}
            _merge(into[key], value)
        else:
            into[key] = value


@lru_cache(maxsize=512)
def _loaded(file: Path, changed_ns: int) -> tuple[str | None, dict[str, Any]]:
    """The `@package` of a file's header, and its content."""
    import yaml

    try:
        if file.stat().st_size > MAX_BYTES:
            raise NotComposed(f"{file.name} has more than {MAX_BYTES} bytes")
        text = file.read_text(encoding="utf-8")
        body = yaml.load(text, Loader=_loader())
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise NotComposed(f"{file.name} is not read: {type(error).__name__}") from None
    if not isinstance(body, dict | None):
        raise NotComposed(f"{file.name} is not a mapping")
    _count(body, file.name)
    header = _PACKAGE.search(text)
    return (header[1] if header else None), {str(key): value for key, value in (body or {}).items()}


def _count(body: object, name: str) -> None:
    """Refusal of a file with too many values, each alias expanded."""
    rest, values = [body], 0
    while rest:
        one = rest.pop()
        values += 1
        if values > MOST_VALUES:
            raise NotComposed(f"{name} has more than {MOST_VALUES} values")
        rest += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()


@cache
def _loader() -> Any:
    """PyYAML's safe loader, in C where it is there, with OmegaConf's numbers: 1e-6 is one. Source: omegaconf
    2.3.0 `get_yaml_loader`."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class OmegaConfLoader(base):  # type: ignore[misc]  # the class in C is not typed
        yaml_implicit_resolvers: ClassVar[Any] = {
            key: [(tag, pattern) for tag, pattern in rows if tag != "tag:yaml.org,2002:timestamp"]
            for key, rows in base.yaml_implicit_resolvers.items()
        }

    OmegaConfLoader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(
            r"^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)"
            r"|\.[0-9_]+(?:[eE][-+][0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+0123456789."),
    )
    return OmegaConfLoader
