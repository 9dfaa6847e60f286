"""The sizes of batches that a configuration has whatever its open settings say.

A setting that nobody knows here (a value that only running decides, a word that a fork has registered) leaves a reading
without a meaning. Most such settings decide no batch, and the sizes are what a user asks for first. So the
configuration is read once more with a known value in the place of each; its sizes are shown where none of them comes
from such a setting, under the condition that is said beside them. No verdict rests on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.meaning.findings import Finding
from batchbridge.reading.arguments import without
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read
from batchbridge.reading.undeclared import deciding


class SizesBesideOpen(NamedTuple):
    """A reading whose sizes hold beside settings that are open."""

    reading: Reading
    open_keys: tuple[str, ...]
    """The settings that are open, in the user's spelling."""

    @property
    def condition(self) -> str:
        """The condition of the sizes, for a person."""
        keys = self.open_keys
        said = ", ".join(keys[:4]) + (f" and {len(keys) - 4} more" if keys[4:] else "")
        verbs = "is open here, changes" if len(keys) == 1 else "are open here, change"
        return f"so counted, and right if {said}, which {verbs} no sizes"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        spec = self.reading.spec
        assert spec is not None
        return {
            "open_keys": list(self.open_keys),
            "world_size": spec.topology.world_size,
            "prompts_per_rollout": spec.rollout.prompts_per_rollout,
            "completions_per_prompt": spec.rollout.completions_per_prompt,
            "completions_per_step": spec.optimizer_step.completions_per_step,
        }


def sizes_beside_open(source: object, reading: Reading, **said: Any) -> SizesBesideOpen | None:
    """The sizes of `source` beside what `reading` leaves open; None: it has a meaning, something is wrong with it for
    certain, or an open setting decides a size. said: arguments of `read`."""
    adapter = plugins.adapters().get(reading.framework)
    if adapter is None or reading.spec is not None or not reading.native or reading.verdict != "undecided":
        return None
    if source is None or isinstance(source, Reading):
        return None
    loaded = load_source(source, **{name: said.get(name) for name in ("env", "command", "world_size")})
    open_keys = _open_keys(adapter, reading)
    if not open_keys:
        return None
    version = None if reading.copy is not None else reading.framework_version
    asked = {**said, "framework": reading.framework, "version": version}
    values = _known_values(adapter, reading, open_keys)
    bare = without(loaded, open_keys.keys() - values.keys())
    settled = read(load_source(bare, overrides=values), **asked)
    if settled.spec is None or any(_decides(key, settled) for key in open_keys):
        return None
    taken = {key: settled.native.get(key.lstrip("+~")) for key in open_keys}
    flipped = {key: not value for key, value in taken.items() if isinstance(value, bool)}
    if flipped:  # a switch has but two values: the sizes have to be the same with both
        other = read(load_source(bare, overrides=values | flipped), **asked)
        if other.spec is None or _sizes(other) != _sizes(settled):
            return None
    return SizesBesideOpen(settled, tuple(open_keys))


def _decides(key: str, reading: Reading) -> bool:
    """Whether a setting decides a size, or is a group of settings one of which does that nobody has said."""
    return any(one == key or (one.startswith(f"{key}.") and one not in reading.given) for one in deciding(reading))


def _open_keys(adapter: Adapter, reading: Reading) -> dict[str, Finding]:
    """The settings that leave a reading open, each with the finding about it. One that is not declared is none of them:
    nothing reads it."""
    about = [one for one in reading.wrong if one.code not in adapter.undeclared]
    return {str(where.key): one for one in about for where in one.where if where.key is not None}


def _known_values(adapter: Adapter, reading: Reading, open_keys: Mapping[str, Finding]) -> dict[str, Any]:
    """A value that is known here for an open setting: the one that its finding proposes, or else the default, as far as
    an empty configuration says it."""
    empty = adapter.read(Source(), Context(framework_version=reading.framework_version, copy=reading.copy))
    found: dict[str, Any] = {}
    for key, one in open_keys.items():
        if (proposed := _proposed(one, key)) is not None:
            found[key] = proposed
        elif key.lstrip("+~") in empty.native:
            found[key] = empty.native[key.lstrip("+~")]
    return found


def _proposed(finding: Finding, key: str) -> Any:
    """The value that a finding proposes for a setting where it proposes no other change."""
    return next((fix.changes[key] for fix in finding.fixes if [*fix.changes] == [key]), None)


def _sizes(reading: Reading) -> tuple[Any, ...]:
    spec = reading.spec
    assert spec is not None
    return spec.rollout, spec.optimizer_step, reading.derived.get("optimizer_steps_per_rollout")
