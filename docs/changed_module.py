"""A Python module with some of its definitions replaced: what docs/tutorial.md's `change` blocks do to a file."""

from __future__ import annotations

import ast


def changed(text: str, block: str) -> str:
    """A module with the definitions of `block`: of the same name replaced, others added behind its imports or, to a
    class, at its end."""
    behind = ""
    for new in ast.parse(block).body:
        source = str(ast.get_source_segment(block, new))
        body = ast.parse(text).body
        if isinstance(new, (ast.Import, ast.ImportFrom)):
            text = text.replace("\nfrom batchbridge", f"\n{source}\nfrom batchbridge", 1)
        elif isinstance(new, ast.ClassDef):
            for member in new.body:
                own = "\n".join(block.splitlines()[member.lineno - 1 : member.end_lineno])
                (owner,) = [one for one in ast.parse(text).body if _name(one) == new.name]
                assert isinstance(owner, ast.ClassDef)
                text = _with(text, owner.body, _name(member), own, after=owner.body[-1])
        else:
            imports = [one for one in body if isinstance(one, (ast.Import, ast.ImportFrom))]
            after = next((one for one in body if behind and _name(one) == behind), imports[-1])
            text, behind = _with(text, body, _name(new), source, after=after), _name(new)
    return text


def _with(text: str, body: list[ast.stmt], name: str, source: str, *, after: ast.stmt) -> str:
    lines = text.splitlines()
    for old in body:
        if _name(old) == name:
            return "\n".join([*lines[: old.lineno - 1], source, *lines[old.end_lineno :], ""])
    return "\n".join([*lines[: after.end_lineno], "", source, *lines[after.end_lineno :], ""])


def _name(node: ast.stmt) -> str:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    return str(getattr(node, "name", ""))
