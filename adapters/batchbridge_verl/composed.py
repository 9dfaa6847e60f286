"""The defaults of the verl that is installed: composed by hydra from the package's own configuration folder.

Neither verl nor torch is imported. Composing costs more than a whole check may, with hydra's import, so it is done
only where it can tell something new: where the folder's files are those of the release, what they compose to is
the shipped table (a test composes them and compares every key), and that table is taken.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from batchbridge import Finding, Fix, Where
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.records import dataclass
from batchbridge_verl.ahead import own_defaults
from batchbridge_verl.installed import package_folder
from batchbridge_verl.settings import ENGINE, NEWEST, UNRECORDED, chosen_by_key, defaults_of

DIGESTS: Mapping[str, str] = {
    "0.4.0": "471367f22b1f33ed71f8b496d2f84c08",
    "0.4.1": "5fdd8dd1826fba978b9fa1f69109b0a6",
    "0.5.0": "09f48d9a69ce1b9468f1fdff8aa6fc5b",
    "0.6.0": "b820d97f0fc2b169f3c92ae2f8b6afe2",
    "0.6.1": "d187ce51470faf01b6a60c2677621b18",
    "0.7.0": "714162ff0f92c5a0d681bd4f3125961a",
    "0.7.1": "dccbb5f23748eea1bcab21ff008ff485",
    "0.8.0": "0b426b992c2fd2c49054f10deb6b4f44",
    "0.9.0": "1ced499d54f317b984f98b4c56622080",
    "0.9.1": "78008876b99f37a1e6f967d27fe5dd91",
}
"""Version to the digest (`digest`) of the configuration files of its wheel."""


@dataclass(frozen=True)
class ComposedDefaults:
    """Dotted key to default, interpolations as they stand; where they come from, for a person; what went wrong; whose
    they are, in a sentence."""

    values: Mapping[str, Any]
    detail: str
    findings: tuple[Finding, ...] = ()
    whose: str = ""

    @cached_property
    def groups(self) -> frozenset[str]:
        """Every group of settings."""
        found: set[str] = set()
        for key in self.values:
            group = key.rpartition(".")[0]
            while group and group not in found:  # the groups around one that was met were met with it
                found.add(group)
                group = group.rpartition(".")[0]
        return frozenset(found)


def defaults_for(version: str, engine: str, program: str = "main_ppo") -> ComposedDefaults:
    """The defaults of `version`: of the installed package where it is that version, else the shipped table; with what a
    program has otherwise."""
    package = package_folder(version)
    found = _shipped(version, engine) if package is None else _installed(package, version, engine)
    own = own_defaults(program, version)
    return replace(found, values={**found.values, **own}) if own else found


@lru_cache(maxsize=32)
def _shipped(version: str, engine: str) -> ComposedDefaults:
    return ComposedDefaults(defaults_of(version, engine), f"default of verl {version}")


@lru_cache(maxsize=16)
def _installed(package: Path, version: str, engine: str) -> ComposedDefaults:
    shipped = _shipped(version, engine)
    folder = package / "trainer" / "config"
    try:
        same = digest(folder) == DIGESTS.get(version)
    except OSError:
        return shipped
    if same:
        return ComposedDefaults(shipped.values, f"default of verl {version}, as installed")
    if importlib.util.find_spec("hydra") is None:
        return ComposedDefaults(shipped.values, shipped.detail, (_unread(folder, version, "hydra is not installed"),))
    try:
        values = compose(folder, version, engine)
    except Exception as error:  # whatever a changed configuration makes hydra or OmegaConf raise
        return ComposedDefaults(shipped.values, shipped.detail, (_unread(folder, version, _first_line(error)),))
    return ComposedDefaults(values, f"default of verl {version}, composed by hydra from the installed package")


GENERATED = "trainer/config/_generated_ppo_trainer.yaml"
"""verl's own composed configuration, for FSDP. Source: verl 0.5.0 to 0.9.1."""


def difference(version: str) -> str:
    """The entries of the configuration of the installed `version` that differ from the newest table, as text; empty
    where another version is installed. Nothing is imported or composed."""
    package = package_folder(version)
    return "" if package is None else difference_in(package)


def difference_in(package: Path) -> str:
    """The entries of the configuration in a package's folder that differ, as in `difference`."""
    import yaml

    from batchbridge.kit.declared import difference as differs

    try:
        made = yaml.safe_load((package / GENERATED).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    known = {key: value for key, value in defaults_of(NEWEST, "fsdp").items() if value != UNRECORDED}
    have = {key: value for key, value in settings_in(made) if key in known or key not in defaults_of(NEWEST, "fsdp")}
    told = ({key: repr(value) for key, value in side.items() if key != ENGINE} for side in (known, have))
    return differs(*told)


def compose(folder: Path, version: str, engine: str) -> dict[str, Any]:
    """The configuration that hydra composes from `folder`, by dotted key. Raises whatever hydra and OmegaConf do."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from omegaconf import OmegaConf

    by_key = chosen_by_key(engine, version)
    name = "ppo_trainer" if by_key or engine == "fsdp" else f"ppo_{engine}_trainer"
    words = [f"{ENGINE}={engine}"] if by_key and engine != "fsdp" else []
    with initialize_config_dir(str(folder.resolve()), version_base=None):
        config = hydra_compose(name, overrides=words)
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return {key: value for key, value in settings_in(plain) if key != ENGINE}


def digest(folder: Path) -> str:
    """Digest of every YAML file below `folder`: relative names and contents."""
    import hashlib  # in most environments there is no verl whose files it could digest

    told = hashlib.sha256()
    for file in sorted(folder.rglob("*.yaml")):
        told.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return told.hexdigest()[:32]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:120]}"


def _unread(folder: Path, version: str, why: str) -> Finding:
    text = (
        f"the installed verl {version} has other configuration files than the release, and they are not composed "
        f"({why}): the release's defaults are taken"
    )
    where, fixes = (Where("defaults", None, str(folder)),), (Fix("install batchbridge[hydra]"),)
    ways, source = fixes if "not installed" in why else (), "verl trainer/config of the installed package"
    return Finding("BB-VERL-079", "warning", "config", text, where, ways, source=source)
