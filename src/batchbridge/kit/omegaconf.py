"""OmegaConf's rules for plain values, without running anything: scalars, flattening, interpolations.

OmegaConf itself would run resolvers (`oc.env` reads the environment), so what refers where is decided here: `${a.b}`,
`${.b}` relative to the key, and `${oc.select:a.b,default}`.
Other resolvers are refused by name, but for those of the framework's
own that its adapter gives.
Source: omegaconf 2.3.1, grammar OmegaConfGrammarParser.g4, built-in resolver `oc.select`; a test compares both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from batchbridge.kit.hydra_overrides import NotRead, closing, parse_value
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.kinds import WrongValue

MAX_DEPTH = 32
"""Deepest nesting of mappings, and longest chain of interpolations."""

FINITE = r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9_]+(?:[eE][-+][0-9]+)?)"
_NUMBER_OF_YAML_1_1 = (
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|\.(?:inf|Inf|INF))"
    r"|\.(?:nan|NaN|NAN)"
)
_NUMBER = rf"{FINITE}|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
"""Text that OmegaConf's YAML loader takes for a float and PyYAML does not always: 1e-6. Source: omegaconf 2.3.1
get_yaml_loader."""


flatten = settings_in
"""The name by which modules import it that recorded measurements are about."""


class Unresolved(WrongValue):
    """An interpolation, or a value, that says nothing here: why. `variable`: the environment variable that it asks
    for."""

    def __init__(self, message: str, variable: str | None = None) -> None:
        super().__init__(message)
        self.variable = variable


def number(text: str) -> float | None:
    """The float that OmegaConf's YAML loader reads in `text`; None where it stays text."""
    if len(text) > 60 or not re.fullmatch(_NUMBER, text):
        return None
    plain = text.replace("_", "").lower()
    return float(plain.replace(".inf", "inf").replace(".nan", "nan"))


def typed(value: Any, depth: int = 0) -> Any:
    """A value of a loader of YAML 1.1 as OmegaConf's reads it: 1e-6 is a float, also inside lists and mappings; "0.5",
    which that loader would have made a number of, was quoted, and is text."""
    if isinstance(value, str):
        found = None if re.fullmatch(_NUMBER_OF_YAML_1_1, value) else number(value)
        return value if found is None else found
    if depth < MAX_DEPTH and isinstance(value, list):
        return [typed(part, depth + 1) for part in value]
    if depth < MAX_DEPTH and isinstance(value, dict):
        return {key: typed(part, depth + 1) for key, part in value.items()}
    return value


class Resolver:
    """Values by dotted key, with their interpolations followed."""

    def __init__(
        self,
        values: Mapping[str, Any],
        env: Mapping[str, str] | None = None,
        unknown: Collection[str] = (),
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        """`env`: environment variables that the user gave; no other is looked at. `unknown`: keys whose value is not
        known, nor what refers to them. `functions`: resolvers that a framework registers, by name."""
        self.functions, self.values, self.env, self.unknown = functions or {}, values, env or {}, unknown
        self._groups: set[str] | None = None
        self.origin = ""
        """The last key that was asked: where the value of `get` stands."""

    def get(self, key: str) -> Any:
        """The value of `key`. Raises `Unresolved`; `KeyError` where there is no such key."""
        return self._follow(key, ())

    def _follow(self, key: str, chain: tuple[str, ...]) -> Any:
        self.origin = key
        if key in chain or len(chain) > MAX_DEPTH:
            raise Unresolved(f"{' -> '.join([*chain[:4], key])}: the interpolation leads back to itself")
        if key in self.unknown:
            raise Unresolved(f"it refers to {key}, which is not known")
        value = self.values[key]
        if isinstance(value, str) and "${" in value:
            return self._expand(value, key, (*chain, key))
        return value

    def _expand(self, text: str, key: str, chain: tuple[str, ...]) -> Any:
        """`text` with every `${...}` replaced; the value itself where the text is one interpolation."""
        parts: list[Any] = []
        at = 0
        while (start := text.find("${", at)) >= 0:
            if start and text[start - 1] == "\\":
                raise Unresolved(f"{text!r:.80}: escaped interpolations are not followed")
            end = closing(text, start)
            if end is None:
                raise Unresolved(f"{text!r:.80}: ${{ is not closed")
            parts += text[at:start], self._value(text[start + 2 : end - 1].strip(), key, chain)
            at = end
        parts.append(text[at:])
        said = [part for part in parts if not isinstance(part, str) or part]
        return said[0] if len(said) == 1 else "".join(str(part) for part in said)

    def _value(self, inner: str, key: str, chain: tuple[str, ...]) -> Any:
        name, colon, arguments = inner.partition(":")
        if not colon:
            path = str(self._expand(inner, key, chain)) if "${" in inner else inner
            try:
                return self._lookup(path, key, chain)
            except KeyError:
                raise Unresolved(f"${{{inner}}} refers to no key") from None
        if name.strip() == "oc.env":
            variable = arguments.partition(",")[0].strip()
            if variable in self.env:
                return self.env[variable]  # text, as OmegaConf has it
            raise Unresolved(f"${{{inner}}} asks for the environment variable {variable}", variable)
        if name.strip() in self.functions:
            return self._called(name.strip(), arguments, key, chain)
        if name.strip() != "oc.select":
            raise Unresolved(f"the resolver {name.strip()[:40]} is not run")
        path, comma, default = arguments.partition(",")
        try:
            return self._lookup(path.strip(), key, chain)
        except KeyError:
            pass
        if "${" in default:
            return self._expand(default.strip(), key, chain)
        try:
            return parse_value(default.strip()) if comma else None
        except NotRead as error:
            raise Unresolved(str(error)) from None

    def _called(self, name: str, arguments: str, key: str, chain: tuple[str, ...]) -> Any:
        try:
            values = [
                self._expand(part, key, chain) if "${" in part else parse_value(part) for part in _parts(arguments)
            ]
            return self.functions[name](*values)
        except Unresolved:
            raise
        except (ArithmeticError, TypeError, ValueError) as error:
            raise Unresolved(f"${{{name}:{arguments[:60]}}}: {error}") from None

    def _lookup(self, path: str, key: str, chain: tuple[str, ...]) -> Any:
        """The value of a path; `KeyError` where there is none. A group gives leaves, which no setting of ours takes."""
        if path.startswith("."):
            level = len(path) - len(path.lstrip("."))
            parents = key.split(".")[:-level]
            path = ".".join([*parents, path.lstrip(".")])
        if path in self.values:
            return self._follow(path, chain)
        if self._groups is None:
            self._groups = {known[: dot.start()] for known in self.values for dot in re.finditer(r"\.", known)}
        if path in self._groups:
            return {name: value for name, value in self.values.items() if name.startswith(f"{path}.")}
        raise KeyError(path)


def _parts(text: str) -> list[str]:
    """Arguments between commas that stand in no braces."""
    parts, depth = [""], 0
    for mark in text:
        depth += {"{": 1, "}": -1}.get(mark, 0)
        if mark == "," and not depth:
            parts.append("")
        else:
            parts[-1] += mark
    return [part.strip() for part in parts]
