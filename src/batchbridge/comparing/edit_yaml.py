"""Changes of single keys in a YAML text: every other byte stays as it is.

Values are replaced, keys inserted and removed by their places in the text, so that comments, order, quotes, anchors,
line ends and spacing are kept because nobody touches them. (A parser that writes a document anew keeps most of them:
ruamel.yaml 0.19 changes seven of twelve published recipes that it only loads and dumps, `null` into nothing, say.)
The result is parsed again, and must hold the old values and the changes, and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from batchbridge.errors import CannotEdit
from batchbridge.kit.config_texts import yaml_float
from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.findings import Finding
from batchbridge.reading.yaml_json import groups, parse_yaml


class _Removed:
    def __repr__(self) -> str:
        return "removed"


REMOVED: Any = _Removed()
"""The new value of a key that goes."""


def edit(text: str, changes: Mapping[str, Any]) -> str:
    """`text` with each dotted key of `changes` set to its value, or removed. Raises `CannotEdit`.

    A key that stands in its mapping is changed there; a new one comes last in the deepest mapping on its path that
    exists. Of an anchored value that changes, unchanged aliases keep the old one. A group that loses its last key goes.
    """
    if inside := [(key, whole) for key in changes for whole in groups(key) if whole in changes]:
        raise CannotEdit(*(f"{key} is changed, and so is {whole}, which holds it" for key, whole in inside))
    before = _values(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    if not text.endswith("\n"):
        return edit(text + newline, changes).removesuffix(newline)
    root, aliases = _compose(text)
    if root is None:
        raise CannotEdit("the document is empty")
    editor = _Editor(text, newline, aliases)
    editor.mapping(root, {tuple(key.split(".")): value for key, value in changes.items()}, ())
    result = _apply(text, editor.finished())
    _verify(before, _values(result), changes)
    return result


def rename(text: str, names: Mapping[str, str]) -> str:
    """`text` with each dotted key of `names` under its new name, in the same group; its value, comments and place stay.
    Raises `CannotEdit`."""
    before = _values(text)
    root, _ = _compose(text)
    edits = []
    for old, new in names.items():
        if old.rpartition(".")[0] != new.rpartition(".")[0]:
            raise CannotEdit(f"{old} would move to another group as {new}")
        key = None if root is None else _key_of(root, tuple(old.split(".")))
        if key is None or key.kind != "scalar" or key.anchor is not None:
            raise CannotEdit(f"{old} does not stand in the file under this name")
        group = key.value.rpartition(".")[0]  # of a key that is written dotted
        name = new.rpartition(".")[2]
        edits.append(_Edit(key.start, key.end, scalar(f"{group}.{name}" if group else name, text[key.start : key.end])))
    result = _apply(text, edits)
    renamed = {}
    for key_, value in before.items():
        old = next((old for old in names if key_ == old or key_.startswith(f"{old}.")), "")
        renamed[names[old] + key_[len(old) :] if old else key_] = value
    if len(renamed) != len(before):
        raise CannotEdit("a new name is there already")
    _verify(renamed, _values(result), {})
    return result


def _key_of(item: _Item, path: _Path) -> _Item | None:
    """The key at `path` below a mapping, as it is written there."""
    for key, value in item.pairs:
        head = tuple(key.value.split("."))
        if head == path:
            return key
        if path[: len(head)] == head and value.kind == "mapping":
            return _key_of(value, path[len(head) :])
    return None


def scalar(value: Any, like: str = "") -> str:
    """`value` as YAML on one line, read alike by PyYAML and OmegaConf; texts in the quotes of `like`, the old value."""
    if isinstance(value, str):
        if like.startswith("'") and "\n" not in value and value.isprintable():
            return "'" + value.replace("'", "''") + "'"
        plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if plain and not like.startswith('"') else _quoted(value)
    if isinstance(value, float):
        return yaml_float(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar(str(key))}: {scalar(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(scalar, value)) + "]"
    return json.dumps(value)


def _quoted(value: str) -> str:
    """A text in double quotes, with what YAML forbids in a text escaped."""
    return "".join(
        char if char.isprintable() else f"\\U{ord(char):08x}" for char in json.dumps(value, ensure_ascii=False)
    )


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_/.-]*[A-Za-z0-9_]*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""Plain words that YAML 1.1 or 1.2 reads as something else than text."""


# ---- the text as a tree of places


@dataclass
class _Item:
    """A node: its kind and the places of its first character and behind its last one; anchors and tags included."""

    kind: Literal["scalar", "mapping", "sequence", "alias"]
    start: int
    end: int
    column: int
    flow: bool = False
    anchor: str | None = None
    value: str = ""
    null: bool = False
    block_text: bool = False
    items: list[_Item] = field(default_factory=list)
    target: _Item | None = None

    @cached_property
    def pairs(self) -> list[tuple[_Item, _Item]]:
        """A mapping's keys with their values."""
        return list(zip(self.items[::2], self.items[1::2], strict=True)) if self.kind == "mapping" else []


def _values(text: str) -> dict[str, Any]:
    """Flat values of a text that has no problem at all. Raises `CannotEdit`."""
    document = parse_yaml(text, "")
    if document.problems:
        raise CannotEdit(*map(with_line, document.problems))
    if document.value is None:
        return {}
    if not isinstance(document.value, dict):
        raise CannotEdit("the document is not a mapping of settings")
    return dict(settings_in(document.value))


def with_line(found: Finding) -> str:
    """A finding's message, behind its line in the file."""
    line = found.where[0].line if found.where else None
    return f"line {line}: {found.message}" if line else found.message


def _compose(text: str) -> tuple[_Item | None, list[_Item]]:
    """(the root mapping or None, every alias in the order of the text). Depth and size were checked by `_values`."""
    import yaml

    anchors: dict[str | None, _Item] = {}
    aliases: list[_Item] = []
    events = iter(yaml.parse(text, Loader=yaml.SafeLoader))

    def node(event: Any) -> _Item:
        """The node that begins with an event; the events of what it holds are taken."""
        if isinstance(event, yaml.AliasEvent):
            aliases.append(_Item("alias", *_span(event), target=anchors.get(event.anchor)))
            return aliases[-1]
        if isinstance(event, yaml.ScalarEvent):
            item = _Item("scalar", *_span(event), anchor=event.anchor, value=event.value)
            item.null = event.style is None and event.tag is None and event.value in ("", "~", "null", "Null", "NULL")
            item.block_text = event.style in ("|", ">")
            # A block text ends before its line's end, so that the line stays.
            item.end = item.start + len(text[item.start : item.end].rstrip("\r\n \t"))
            anchors[item.anchor] = item  # of None: asked for by nobody
            return item
        kind: Any = "mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence"
        item = _Item(kind, *_span(event), flow=bool(event.flow_style), anchor=event.anchor)
        anchors[item.anchor] = item
        while not isinstance(event := next(events), yaml.CollectionEndEvent):
            item.items.append(node(event))
        if item.flow:
            item.end = _span(event)[1]
        elif item.items:
            item.end = item.items[-1].end
            item.column = item.items[0].column  # behind an anchor: where the first key stands
        return item

    root = next((node(event) for event in events if isinstance(event, yaml.NodeEvent)), None)
    return (root if root is not None and root.kind == "mapping" else None), aliases


def _span(event: Any) -> tuple[int, int, int]:
    return event.start_mark.index, event.end_mark.index, event.start_mark.column


# ---- edits


@dataclass(frozen=True)
class _Edit:
    start: int
    end: int
    text: str


def _apply(text: str, edits: Iterable[_Edit]) -> str:
    """All edits, the last place first; of several in one place, the first one's text comes first."""
    ranked = sorted(enumerate(edits), key=lambda one: (one[1].start, one[1].end, one[0]), reverse=True)
    behind = len(text)
    for _, change in ranked:
        if change.end > behind:
            raise CannotEdit("two changes meet in one place")
        behind = change.start
        text = text[: change.start] + change.text + text[change.end :]
    return text


_Path = tuple[str, ...]
_ANCHOR = re.compile(r"&\S+\s+")


class _Editor:
    """Collects the edits of one text."""

    def __init__(self, text: str, newline: str, aliases: list[_Item]) -> None:
        self.text, self.newline, self.aliases = text, newline, aliases
        self.edits: list[_Edit] = []
        self.lines_gone: list[_Edit] = []
        self.new_lines: list[tuple[int, list[str]]] = []
        self.anchored: list[tuple[_Item, Any]] = []
        """Anchored scalars with their new values."""
        self.at_aliases: dict[int, tuple[_Item, Any]] = {}
        """Aliases that are replaced or removed, by identity, with their new values."""

    def finished(self) -> list[_Edit]:
        """Every edit of the text."""
        edits = [*self.edits, *self.lines_gone]
        kept: set[int] = set()
        for value, new in self.anchored:
            edits += self._anchor(value, new, kept)
        for at, (alias, new) in self.at_aliases.items():
            if at not in kept and new is not REMOVED:
                edits.append(_Edit(alias.start, alias.end, scalar(new)))
        return [*edits, *(self._new_lines(at, lines) for at, lines in self.new_lines)]

    def mapping(self, item: _Item, changes: Mapping[_Path, Any], path: _Path) -> None:
        """The edits of one mapping and of what it holds; `changes` by path inside it."""
        new = dict(changes)
        removed: list[int] = []
        for index, (key, value) in enumerate(item.pairs):
            head = tuple(key.value.split("."))
            inner = _inside(new, head)
            if not inner:
                continue
            new = {rest: change for rest, change in new.items() if rest[: len(head)] != head}
            here = (*path, *head)
            if inner.get(()) is REMOVED or (value.kind == "mapping" and _empties(value, inner)):
                removed.append(index)
            elif () in inner:
                self._replace(key, value, inner[()], here)
            elif value.kind == "mapping":
                self.mapping(value, inner, here)
            elif value.null:
                self._fill(item, key, value, inner)
            elif any(change is not REMOVED for change in inner.values()):
                kind = {"alias": "an alias", "sequence": "a list"}.get(value.kind, f"{value.value!r:.40}")
                raise CannotEdit(f"{'.'.join(here)} is {kind}; it would have to be a group of settings")
        self._remove(item, removed)
        if added := {rest: change for rest, change in new.items() if change is not REMOVED}:
            self._insert(item, added, whole=len(removed) == len(item.pairs))

    def _replace(self, key: _Item, value: _Item, new: Any, path: _Path) -> None:
        if self._shares(value, new):
            return
        self._leaves(value, path)
        if value.kind == "scalar" or value.flow:
            space = " " if value.start == value.end and not self.text[value.start - 1].isspace() else ""
            like = self.text[value.start : value.end] if value.kind == "scalar" else ""
            self.edits.append(_Edit(value.start, value.end, space + scalar(new, like)))
        else:
            colon = self.text.index(":", key.end) + 1
            self.edits.append(_Edit(colon, colon, f" {scalar(new)}"))
            # The lines of the old value go; a comment behind the key stays.
            first = self.text.rfind("\n", colon, value.start)
            self.edits.append(_Edit(colon if first < 0 else self._before_newline(first), value.end, ""))

    def _anchor(self, value: _Item, new: Any, kept: set[int]) -> list[_Edit]:
        """An anchored scalar: aliases that get the same new value stay; the first unchanged one takes the old value."""
        uses = [alias for alias in self.aliases if alias.target is value]
        old = self.text[value.start : value.end]
        match = _ANCHOR.match(old)
        plain = old[match.end() :] if match else ""
        changed = [self.at_aliases.get(id(alias)) for alias in uses]
        if new is not REMOVED and all(one is not None and same(one[1], new) for one in changed):
            kept |= {id(alias) for alias in uses}
            return [_Edit(value.start, value.end, f"&{value.anchor} {scalar(new, plain)}")]
        edits = [] if new is REMOVED else [_Edit(value.start, value.end, scalar(new, plain))]
        left = [alias for alias, one in zip(uses, changed, strict=True) if one is None]
        if left and value.block_text:
            raise CannotEdit(f"the anchor &{value.anchor} is a block of text that aliases need")
        return [*edits, *(_Edit(alias.start, alias.end, old) for alias in left[:1])]

    def _leaves(self, item: _Item, path: _Path) -> None:
        """`item` goes as a whole: no anchor inside may be needed elsewhere."""
        inside = _anchored(item)
        for alias in self.aliases:
            if item.start <= alias.start < item.end:
                self.at_aliases[id(alias)] = (alias, REMOVED)
            elif alias.target is not None and any(alias.target is one for one in inside):
                raise CannotEdit(f"{'.'.join(path)} holds the anchor &{alias.target.anchor}, which is used elsewhere")

    def _shares(self, value: _Item, new: Any) -> bool:
        """Whether an alias or an anchored scalar gets the `new` value: that is decided when all of them are known."""
        if value.kind == "alias":
            self.at_aliases[id(value)] = (value, new)
            return True
        if value.kind == "scalar" and value.anchor is not None:
            self.anchored.append((value, new))
            return True
        return False

    def _remove(self, item: _Item, indexes: list[int]) -> None:
        """Notes the edits that take these pairs of a mapping out: of a flow mapping the pair, else its whole lines."""
        for index in indexes:
            key, value = item.pairs[index]
            if not self._shares(value, REMOVED):
                self._leaves(value, (key.value,))
            if item.flow:
                self.edits.append(_flow_removal(item, index, indexes))
                continue
            start = self.text.rfind("\n", 0, key.start) + 1
            if self.text[start : key.start].strip(" \ufeff"):
                raise CannotEdit(f"{key.value} shares its line with something else")
            self.lines_gone.append(_Edit(start, self.text.index("\n", value.end) + 1, ""))

    def _fill(self, parent: _Item, key: _Item, value: _Item, changes: Mapping[_Path, Any]) -> None:
        """Makes a group of a key without a value."""
        tree = _tree({rest: change for rest, change in changes.items() if change is not REMOVED})
        if not tree:
            return
        if value.anchor is not None:
            raise CannotEdit(f"{key.value} is an anchored null; it would have to be a group of settings")
        if parent.flow:
            self.edits.append(_Edit(value.start, value.end, ("" if value.start < value.end else " ") + scalar(tree)))
            return
        start = value.start
        while value.start < value.end and self.text[start - 1] in " \t":
            start -= 1
        self.edits.append(_Edit(start, value.end, ""))
        self.new_lines.append((value.end, list(self._lines(tree, key.column + self._step()))))

    def _insert(self, item: _Item, changes: Mapping[_Path, Any], whole: bool) -> None:
        """Adds keys behind the last one of a mapping. whole: every key that it has is removed."""
        tree = _tree(changes)
        if not item.flow:
            self.new_lines.append((item.end, list(self._lines(tree, item.column))))
            return
        comma = ", " if item.pairs and not whole else ""
        at = item.pairs[-1][1].end if comma else item.end - 1
        self.edits.append(_Edit(at, at, comma + scalar(tree)[1:-1]))

    def _new_lines(self, at: int, lines: list[str]) -> _Edit:
        """New lines behind the line of `at`, or behind the last line before it that stays."""
        at = self._line_end(at)
        while gone := [one for one in self.lines_gone if one.start <= at < one.end]:
            if gone[0].start == 0:
                return _Edit(0, 0, "".join(f"{line}{self.newline}" for line in lines))
            at = self._before_newline(gone[0].start - 1)
        return _Edit(at, at, "".join(f"{self.newline}{line}" for line in lines))

    def _line_end(self, at: int) -> int:
        """The place of the line end at or behind `at` (of its carriage return, where it has one)."""
        return self._before_newline(self.text.index("\n", at))

    def _before_newline(self, newline: int) -> int:
        return newline - 1 if newline and self.text[newline - 1] == "\r" else newline

    def _lines(self, tree: Mapping[str, Any], column: int) -> Iterator[str]:
        for key, value in tree.items():
            if isinstance(value, _Group):
                yield f"{' ' * column}{scalar(key)}:"
                yield from self._lines(value, column + self._step())
            else:
                yield f"{' ' * column}{scalar(key)}: {scalar(value)}"

    def _step(self) -> int:
        """Columns by which the text indents its groups."""
        found = _GROUP.search(self.text)
        return len(found[1]) if found else 2


_GROUP = re.compile(r"^[^\s#-][^#\n]*:[ \t]*(?:#[^\n]*|\r)?\n(?:[ \t]*(?:#[^\n]*)?\r?\n)*( +)[^\s#-]", re.MULTILINE)
"""A key, and the indentation of the first key below it."""


def _inside(changes: Mapping[_Path, Any], head: _Path) -> dict[_Path, Any]:
    return {rest[len(head) :]: change for rest, change in changes.items() if rest[: len(head)] == head}


def _empties(item: _Item, changes: Mapping[_Path, Any]) -> bool:
    """Whether nothing would be left of a mapping."""
    if not item.pairs or any(change is not REMOVED for change in changes.values()):
        return False
    for key, value in item.pairs:
        inner = _inside(changes, tuple(key.value.split(".")))
        if () not in inner and not (value.kind == "mapping" and inner and _empties(value, inner)):
            return False
    return True


def _flow_removal(item: _Item, index: int, removed: list[int]) -> _Edit:
    """A pair of `{a: 1, b: 2}` with one comma."""
    key, value = item.pairs[index]
    if any(later not in removed for later in range(index + 1, len(item.pairs))):
        return _Edit(key.start, item.pairs[index + 1][0].start, "")
    return _Edit(item.pairs[index - 1][1].end if index else key.start, value.end, "")


class _Group(dict[str, Any]):
    """A group of keys, not a value that is a mapping."""


def _tree(changes: Mapping[_Path, Any]) -> _Group:
    tree = _Group()
    for path, value in changes.items():
        at = tree
        for name in path[:-1]:
            at = at.setdefault(name, _Group())
        at[path[-1]] = value
    return tree


def _anchored(item: _Item) -> list[_Item]:
    found, pending = [], [item]
    while pending:
        one = pending.pop()
        found += [one] if one.anchor is not None else []
        pending += one.items
    return found


def _verify(before: Mapping[str, Any], after: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Whether `after` holds what `before` held, with the changes; raises `CannotEdit` naming what came otherwise."""
    wanted = dict(before)
    for key, value in changes.items():
        for other in [other for other in wanted if other == key or other.startswith(f"{key}.")]:
            del wanted[other]
        if value is not REMOVED:
            for group in groups(key):
                wanted.pop(group, None)  # an empty one
            wanted |= dict(settings_in({key: value}))
    wrong = [
        key for key in {**wanted, **after} if key not in after or key not in wanted or not same(wanted[key], after[key])
    ]
    if wrong:
        raise CannotEdit(
            *(f"{key} would change too: it shares a value with a key that must change" for key in wrong[:3])
        )


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal to every reader: 1 and 1.0 are, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other) or (one != one and other != other)
