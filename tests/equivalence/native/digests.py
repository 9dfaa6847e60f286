"""Digests of the code that decides what a wrapped run trains: `python digests.py FRAMEWORK` prints that framework's,
with `--filtered` those of a run with a group filter, with `--critic` those of one with a critic.

The runs of `recorded.json` keep the digests that they were made with, taken in the interpreter that ran them from the
files that it imports; `test_recorded_result.py` holds them against the files as they are now. Comments, docstrings,
layout, the order of definitions, the modules that names come from (`a.b.f` of an `import a.b` is `f`), which file of a
part they stand in (see `COMPANIONS`), whether a name of a module begins with an underscore, classes of exceptions,
`__repr__` and `_repr_html_`, and the table of refusals with what it alone asks are no part of a digest: they decide
nothing of what a run trains. Standard library only, and nothing of a framework or an adapter is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

CORE = {name: f"meaning/{name}.py" for name in ("plan", "weights", "order")} | {
    "microbatch": "meaning/micro_batches.py"
}
"""Modules of the core, by the names that records have for them."""
ROWS = {"identified_rows": "kit/identified_rows.py"}
"""A module of the core that two frameworks' adapters hand rows to workers with."""
WITH_ROWS = ("verl", "easyr1")
CUT = {
    "trl": {name: f"kit/{name}.py" for name in ("step_cost", "packed_batches")},
    "verl": {"packed_batches": "kit/packed_batches.py"},
}
"""Modules of the core that an adapter cuts micro-batches with."""
PACKED = {name: f"kit/{name}.py" for name in ("packing", "packable")}
"""What acts beside them where rows are read without padding, or prompts once; see `packed`."""
MEASURING = {name: f"kit/{name}.py" for name in ("measuring", "sharded")}
"""Modules of the core that measure, see `measuring`."""
OF_MEASURING = ("watching", "chosen_tokens", "apart", "queued")
"""Modules of an adapter that measure what is trained and whose weights generated it, where it has them."""
PARTS = ("engine", "runtime", "trainer*", "driver", "feed", "rows", "epochs", "shares", "exchange", "loss_terms")
PARTS += ("images", "pace", "padding_free", "shared_prompts", "sharing", "candidates", "other_engines", "distillation")
PARTS += ("older",)
"""Names of the modules of an adapter that act on a run, where it has them."""
FILTERED = {"verl": ("candidates_v1",)}
"""What acts beside them where a group filter decides which prompts fill a rollout; so does the core's plan of them."""
CRITICS = ("critic", "critic_engine", "advantages")
"""What acts beside them where a critic is trained; so does the core's run of it."""
COMPANIONS = {"runtime": ("refusals",), "plan": ("stream",), "engine": ("turns",)}
"""Module -> others of its folder that hold parts of it, where they are there: one digest is of all."""
FRAMEWORKS = ("trl", "verl", "openrlhf", "easyr1", "open_instruct")


def files(framework: str, *, filtered: bool = False, critic: bool = False) -> dict[str, Path]:
    """The modules of a framework's digest, by name, as this interpreter would import them. filtered: of a run with a
    group filter. critic: of one with a critic."""
    core, adapter = (_folder(name) for name in ("batchbridge", f"batchbridge_{framework}"))
    parts = {**CORE, **(ROWS if framework in WITH_ROWS else {}), **CUT.get(framework, {})}
    if filtered:
        parts["candidates"] = "meaning/candidates.py"
    if critic:
        parts["critic_run"] = "meaning/critic_run.py"
    found = {f"batchbridge.{name}": core / file for name, file in parts.items()}
    for part in (*PARTS, *(FILTERED.get(framework, ()) if filtered else ()), *(CRITICS if critic else ())):
        found |= {f"batchbridge_{framework}.{file.stem}": file for file in sorted(adapter.glob(f"{part}.py"))}
    return found


def digests(framework: str, *, filtered: bool = False, critic: bool = False) -> dict[str, str]:
    """Module -> digest; see `files`."""
    found = files(framework, filtered=filtered, critic=critic)
    return {name: digest_of(file) for name, file in found.items()}


def packed() -> dict[str, str]:
    """Module -> digest, of what acts in passes of packed rows alone; for records of what was measured in them."""
    core = _folder("batchbridge")
    return {f"batchbridge.{name}": digest_of(core / file) for name, file in PACKED.items()}


def measuring(framework: str) -> dict[str, str]:
    """Module -> digest, of the code that measures what a wrapped run trains; for records of what was measured."""
    core, adapter = (_folder(name) for name in ("batchbridge", f"batchbridge_{framework}"))
    found = {f"batchbridge.{name}": core / file for name, file in MEASURING.items()}
    for part in OF_MEASURING:
        found |= {f"batchbridge_{framework}.{file.stem}": file for file in adapter.glob(f"{part}.py")}
    return {name: digest_of(file) for name, file in found.items()}


BEFORE_A_RUN = ("REFUSALS", "started", "assumes", "would_use")
"""Tables, and arguments of a `Runtime`, that decide whether a run starts and what is said before it does."""


def digest_of(file: Path) -> str:
    """Of a module's code, with its companions'."""
    every = [file, *(file.with_stem(name) for name in COMPANIONS.get(file.stem, ()))]
    return digest(*(one.read_text(encoding="utf-8") for one in every if one.is_file()))


@functools.cache
def digest(*texts: str) -> str:
    """Of the code of a module, or of several that are one."""
    plain = [_Plain(ast.parse(text)) for text in texts]
    whole = ast.Module([node for one in plain for node in one.tree.body], [])
    _without_underscores(whole)
    tree, asked = _of_the_run(whole)
    own = {name for node in tree.body for name in _binds(node)}
    elsewhere = {name for one in plain for name in one.names}
    """Names of what may as well stand in another module: what is imported, and exceptions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            named = {alias.asname or alias.name: ast.unparse(alias) for alias in node.names}
            elsewhere |= {text for name, text in named.items() if name not in asked | own | {*BEFORE_A_RUN}}
        elif isinstance(node, ast.ClassDef) and _is_exception(node):
            elsewhere.add(node.name)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If):
            node.body = [one for one in node.body if not _decides_nothing(one)] or [ast.Pass()]
    _with_their_bases(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            node.body.sort(key=lambda one: ast.unparse(one) if isinstance(one, ast.FunctionDef) else "")
    every = [*sorted(elsewhere), *sorted({ast.unparse(node) for node in tree.body}), *_bound_again(tree)]
    code = "\n".join(every)
    return hashlib.blake2b(code.encode(), digest_size=8).hexdigest()


def _bound_again(tree: ast.Module) -> Iterator[str]:
    """The statements that bind one name, where they stand in another order than sorted: the last one counts."""
    bound: dict[str, list[str]] = {}
    for node in tree.body:
        for name in _binds(node):
            bound.setdefault(name, []).append(ast.unparse(node))
    yield from (f"{name}: {texts}" for name, texts in sorted(bound.items()) if texts != sorted(texts))


def _without_underscores(tree: ast.Module) -> None:
    """Makes names of a module, its own and imported ones, public where nothing else has the public name."""
    imported = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    every = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    known = {*(name for node in tree.body for name in _binds(node)), *(one.asname or one.name for one in imported)}
    public = {name: name[1:] for name in known if re.match("_[A-Za-z]", name) and name[1:] not in known | every}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = public.get(node.id, node.id)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            node.name = public.get(node.name, node.name)
    for alias in imported:
        alias.name, alias.asname = public.get(alias.name, alias.name), alias.asname and public.get(alias.asname)


def _with_their_bases(tree: ast.Module) -> None:
    """Puts a class that is only another one's base into that one."""
    for base in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        users = [node for node in tree.body if node is not base and base.name in _names(node)]
        user = users[0] if len(users) == 1 else None
        if not isinstance(user, ast.ClassDef) or [ast.unparse(one) for one in user.bases] != [base.name]:
            continue
        hides = _methods(base) & _methods(user)
        if not hides and not any(base.name in _names(one) for one in user.body):
            tree.body.remove(base)
            said = [] if base.bases or base.decorator_list else [one for one in base.body if _says_a_type(one)]
            user.bases, user.body = base.bases, [*(one for one in base.body if one not in said), *user.body]


def _methods(node: ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}


def _says_a_type(node: ast.stmt) -> bool:
    return isinstance(node, ast.AnnAssign) and node.value is None


class _Plain(ast.NodeTransformer):
    """A module in which `a.b.f` of an `import a.b` is `f`, as where `from a.b import f` stands. names: such f."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = [alias for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        self.modules = {alias.name for alias in nodes if "." in alias.name and alias.asname is None}
        self.names: set[str] = set()
        self.tree: ast.Module = self.visit(tree)

    def visit_Import(self, node: ast.Import) -> ast.Import | None:
        """Without the imported modules."""
        node.names = [alias for alias in node.names if alias.name not in self.modules or alias.asname]
        return node if node.names else None

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """The name alone, where a module's dotted name stands before it."""
        if self.modules and ast.unparse(node.value) in self.modules:
            self.names.add(node.attr)
            return ast.Name(node.attr, node.ctx)
        return self.generic_visit(node)


def _of_the_run(tree: ast.Module) -> tuple[ast.Module, set[str]]:
    """A module without what speaks before a run and what that alone asks, and the names that it alone asks for."""
    asked: set[str] = set()
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        before = [word for word in call.keywords if word.arg in BEFORE_A_RUN]
        call.keywords = [word for word in call.keywords if word not in before]
        asked |= {name for word in before for name in _names(word)}
    kept = list(tree.body)
    while True:
        for one in kept:
            others = {name for other in kept if other is not one for name in _names(other)}
            binds = _binds(one)
            if binds and (binds <= set(BEFORE_A_RUN) or (binds <= asked and not binds & others)):
                asked |= _names(one)
                kept.remove(one)
                break
        else:
            return (run := ast.Module(kept, [])), asked - _names(run)


def _binds(node: ast.stmt) -> set[str]:
    """The names of a module that a statement makes, but for imports."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def _names(node: ast.AST) -> set[str]:
    """The names that code reads."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}


def changed(recorded: dict[str, str], now: dict[str, str]) -> list[str]:
    """Modules whose digests differ, or that only one of the two has."""
    return sorted(name for name in recorded.keys() | now.keys() if recorded.get(name) != now.get(name))


def _decides_nothing(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return _is_exception(node)
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "_repr_html_")
    text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return text or isinstance(node, ast.ImportFrom)


def _is_exception(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id.endswith(("Error", "Exception")) for base in node.bases)


def _folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(package)
    return Path(spec.origin).parent


if __name__ == "__main__":
    import json

    asked = {name: f"--{name}" in sys.argv for name in ("filtered", "critic")}
    print(json.dumps(digests(sys.argv[1], **asked)))
