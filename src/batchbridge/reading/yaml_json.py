"""YAML and JSON as data: plain values, the line of each key, and everything that is wrong, as findings.

Nothing in a document runs or expands without bound: tags are refused, aliases are counted before they are expanded,
depth and node count are bounded. Scalars are PyYAML's, keys are the user's own text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from batchbridge.errors import BatchBridgeError
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding, Fix, Where

if TYPE_CHECKING:
    import yaml

MAX_NODES = 50_000
"""Most values and keys of one file, counted with every alias expanded."""
MAX_DEPTH = 64
"""Deepest nesting of mappings and lists."""


@dataclass
class Document:
    """A parsed file: its value, the line of each dotted key, and what is wrong."""

    value: Any = None
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)


class RefusedFile(BatchBridgeError):
    """A file that cannot be used, with the one finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def problem(code: str, message: str, file: str, line: int | None = None, key: str | None = None) -> Finding:
    place = (Where(key=key, file=file or None, line=line),) if file or key else ()
    return Finding(code, "error", "config", message, place)


def refuse(code: str, message: str, file: str, line: int | None = None, fix: str | None = None) -> NoReturn:
    found = replace(problem(code, message, file, line), fixes=(Fix(fix),) if fix else ())
    raise RefusedFile(replace(found, undecided=code in NOT_READ))


_WIDE_COLON = re.compile("^[ \\t]*([\\w.-]+)[ \\t]*\uff1a", re.MULTILINE)
NOT_READ = ("BB002", "BB003", "BB043")
"""Codes of files that are not read and may be right: too large, no text, in another language."""


# ---- YAML


def parse_yaml(text: str, file: str) -> Document:
    import yaml

    document = Document()
    loader = None
    try:
        loader = _loader_class()(text)
        node = loader.get_node() if loader.check_node() else None
        if node is not None:
            document.value = _Builder(loader, document, file).build(node, "")
        if loader.check_node():
            begins = loader.peek_event()  # type: ignore[no-untyped-call]  # untyped in the stubs
            more = "another document begins here: of a YAML file one document is read"
            document.problems.append(problem("BB004", more, file, begins.start_mark.line + 1))
    except RefusedFile as refused:
        document.problems.append(replace(refused.finding, where=_in_file(refused.finding, file)))
    except yaml.MarkedYAMLError as error:
        # A key without its colon is noticed where the next line begins.
        of_key = error.context == "while scanning a simple key"
        mark = (of_key and error.context_mark) or error.problem_mark or error.context_mark
        what = "; ".join(part for part in (error.context, error.problem) if part)
        wide = _WIDE_COLON.search(text)  # of a Chinese keyboard; what YAML notices is a later line
        place = text.count("\n", 0, wide.end()) if wide else mark.line if mark else None
        found = problem("BB004", f"this is not YAML: {what}", file, None if place is None else place + 1)
        fix = Fix(f"write {wide[1]}: with a plain colon and a blank, not the full-width one") if wide else None
        if r"'\t'" in what:
            fix = Fix("indent with blanks: YAML takes no tabs")
        document.problems.append(replace(found, fixes=(fix,) if fix else ()))
    except yaml.YAMLError as error:  # a character that YAML forbids
        what = str(error).splitlines()[0]
        position = getattr(error, "position", None)
        line = text.count("\n", 0, position) + 1 if isinstance(position, int) else None
        document.problems.append(problem("BB004", f"this is not YAML: {what}", file, line))
    except (RecursionError, ValueError, OverflowError) as error:
        line = None if loader is None else loader.get_mark().line + 1
        document.problems.append(problem("BB004", f"this is not YAML: {error}", file, line))
    finally:
        if loader is not None:
            loader.dispose()
    return document


def plain_scalar(text: str) -> Any:
    """The value of a text that is one plain scalar of YAML: PyYAML says which, and nothing is parsed for it. Raises
    what PyYAML does where it has none."""
    import yaml

    loader = _idle_loader()
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # untyped in the stubs
    return loader.yaml_constructors[tag](loader, yaml.ScalarNode(tag, text))


@cache
def _idle_loader() -> yaml.SafeLoader:
    return _loader_class()("")


def _in_file(finding: Finding, file: str) -> tuple[Where, ...]:
    return tuple(replace(where, file=file or None) for where in finding.where) if file else finding.where


@cache
def _loader_class() -> type[yaml.SafeLoader]:
    """PyYAML's safe loader with bounds; a class made on first use, because importing PyYAML is not free."""
    import yaml

    class BoundedLoader(yaml.SafeLoader):
        """Counts nodes with aliases expanded, and depth, while the document is composed, before anything is built."""

        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.expanded = 0
            self.depth = 0
            self.sizes: dict[int, int] = {}

        def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]  # untyped in the stubs
            if self.check_event(yaml.AliasEvent):
                node = super().compose_node(parent, index)
                if id(node) not in self.sizes:
                    refuse("BB007", "an alias refers to the value that contains it", "<text>", line)
                self._count(self.sizes[id(node)], line)
                return node
            before = self.expanded
            self._count(1, line)
            self.depth += 1
            if self.depth > MAX_DEPTH:
                refuse("BB007", f"nested deeper than {MAX_DEPTH} levels", "<text>", line)
            node = super().compose_node(parent, index)
            self.depth -= 1
            self.sizes[id(node)] = self.expanded - before
            return node

        def _count(self, nodes: int, line: int) -> None:
            self.expanded += nodes
            if self.expanded > MAX_NODES:
                refuse("BB007", f"more than {MAX_NODES:,} values with aliases expanded", "<text>", line)

    return BoundedLoader


class _Builder:
    """Builds plain values from a composed document, noting lines and duplicate keys."""

    def __init__(self, loader: yaml.SafeLoader, document: Document, file: str) -> None:
        self.loader, self.document, self.file = loader, document, file

    def build(self, node: yaml.Node, path: str) -> Any:
        import yaml

        # A file that is not a mapping is named, not quoted: it may be none of ours.
        quotes = bool(path or not self.file) or not isinstance(node, yaml.ScalarNode)
        if node.tag.removeprefix(_CORE) not in _TAGS:
            tag = node.tag.replace(_CORE, "!!") if quotes else "on a single value"
            self._wrong("BB006", f"tag {tag}: configuration files are data, tags are not followed", node, path)
            return None
        if isinstance(node, yaml.MappingNode) and node.tag.endswith(":map"):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag.endswith(":seq"):
            return [self.build(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode):
            self._wrong("BB006", f"tag {node.tag.replace(_CORE, '!!')} on a list or a mapping", node, path)
            return None
        try:
            return self.loader.construct_object(node, deep=True)
        except (ValueError, OverflowError, AttributeError, LookupError, yaml.YAMLError) as error:
            what = str(getattr(error, "problem", None) or error)
            text = f"{node.value!r:.40} cannot be read: {what}" if quotes else "the file holds a single value"
            self._wrong("BB009", text, node, path)
            return None

    def _mapping(self, node: yaml.MappingNode, path: str) -> dict[str, Any]:
        """Own keys over merged ones (`<<`), the last of equal keys, as PyYAML has it."""
        values: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key, key_node, value_node in self._pairs(node, path):
            here = f"{path}.{key}" if path else key
            line = key_node.start_mark.line + 1
            if key in own:
                self.document.problems.append(_duplicate_key(here, self.file, own[key], line))
            own[key] = line
            values[key] = self.build(value_node, here)
            self.document.lines[here] = line
        for key, key_node, value_node in self._merged(node, path):
            if key not in values:
                here = f"{path}.{key}" if path else key
                values[key] = self.build(value_node, here)
                self.document.lines[here] = key_node.start_mark.line + 1
        return values

    def _pairs(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        import yaml

        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong("BB005", "a key is a list or a mapping; text was expected", key_node, path)
            elif key_node.tag != _MERGE:
                yield key_node.value, key_node, value_node

    def _merged(self, node: yaml.MappingNode, path: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
        """Pairs that `<<` brings in, nearest first."""
        import yaml

        for key_node, value_node in reversed(node.value):  # of several << the last counts, as in PyYAML
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _MERGE:
                continue
            for source in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                if isinstance(source, yaml.MappingNode):
                    yield from reversed(list(self._pairs(source, path)))  # the last of equal keys counts
                    yield from self._merged(source, path)
                else:
                    self._wrong("BB004", "this is not YAML: << needs a mapping or a list of mappings", source, path)

    def _wrong(self, code: str, message: str, node: yaml.Node, path: str) -> None:
        self.document.problems.append(problem(code, message, self.file, node.start_mark.line + 1, path or None))


_CORE = "tag:yaml.org,2002:"
_MERGE = f"{_CORE}merge"
_TAGS = {"null", "bool", "int", "float", "str", "timestamp", "binary", "seq", "map", "merge", "value"}
"""YAML's own types; `merge` and `value` are the plain scalars `<<` and `=`."""


def _duplicate_key(key: str, file: str, first: int, second: int) -> Finding:
    return Finding(
        "BB008",
        "warning",
        "config",
        f"{key} is set twice, in line {first} and in line {second}; the last one counts",
        (Where(key=key, file=file or None, line=second),),
        native="readers disagree: PyYAML takes the last, OmegaConf refuses the file",
    )


# ---- JSON


def parse_json(text: str, file: str) -> Document:
    import json

    document = Document()
    try:
        for key, line, first in _json_keys(text, file):
            document.lines[key] = line
            if first is not None:
                document.problems.append(_duplicate_key(key, file, first, line))
        document.value = json.loads(text) if text.strip() else None
    except RefusedFile as refused:
        document.problems.append(refused.finding)
    except json.JSONDecodeError as error:
        document.problems.append(problem("BB004", f"this is not JSON: {error.msg}", file, error.lineno))
    except (RecursionError, ValueError) as error:
        document.problems.append(problem("BB004", f"this is not JSON: {error}", file))
    return document


def _json_keys(text: str, file: str) -> Iterator[tuple[str, int, int | None]]:
    """(dotted key, line, line of an earlier equal key or None), from the tokens alone; also holds the bounds."""
    import json
    import re

    stack: list[tuple[str, dict[str, int] | None, int]] = []  # path, keys seen (None in a list), items so far
    line, nodes, at, path = 1, 0, 0, ""
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"(\s*:)?|[\[\]{},]', text):
        line += text.count("\n", at, token.start())
        at = token.start()
        word = token.group()
        nodes += 1
        if nodes > 2 * MAX_NODES:
            refuse("BB007", f"more than {MAX_NODES:,} values", file, line)
        if word in "[{":
            here = path if not stack or stack[-1][1] is not None else f"{stack[-1][0]}[{stack[-1][2]}]"
            stack.append((here, {} if word == "{" else None, 0))
            if len(stack) > MAX_DEPTH:
                refuse("BB007", f"nested deeper than {MAX_DEPTH} levels", file, line)
        elif word in "]}":
            if stack:
                stack.pop()
        elif word == ",":
            if stack:
                stack[-1] = (stack[-1][0], stack[-1][1], stack[-1][2] + 1)
        elif token.group(1) and stack and (seen := stack[-1][1]) is not None:
            try:
                key = str(json.loads(word[: -len(token.group(1))]))
            except ValueError:
                continue  # json.loads of the whole text says what is wrong
            parent = stack[-1][0]
            path = f"{parent}.{key}" if parent else key
            yield path, line, seen.get(key)
            seen[key] = line


def groups(key: str) -> Iterator[str]:
    """The groups that a dotted key stands in, the outermost first."""
    parts = key.split(".")
    return (".".join(parts[:end]) for end in range(1, len(parts)))
