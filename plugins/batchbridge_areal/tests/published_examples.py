"""Every YAML file that AReaL publishes, as AReaL's own parser takes it: writes `published.json`. By hand, where a
checkout is on the path and torch, hydra-core and omegaconf are installed.

    python tests/published_examples.py FOLDER_OF_EXAMPLES

Of each file: its digest, what it gives of the settings that are read here, and what `load_expr_config` makes of them,
or the error of the parser, or of the dealing of a rollout to replicas. A group that the program's own configuration
class must have is left out of what is parsed, and named.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from areals_code import module
from batchbridge.kit.key_table import settings_in
from batchbridge_areal.settings import DECLARED, FACTS, KEYS, STRICT

READ = {*FACTS["settings"], *(row.key for row in KEYS if row.fields or row.kind.name == "group?")}
WHOLE = ("ref", "critic", "teacher", "rollout.agent")
KNOWN = {row.key for row in (*DECLARED, *KEYS)}
DEFAULTS = {row.key: row.default for row in KEYS}


def given(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a file that are read here, and those in strict groups that nobody knows."""
    for key, value in settings_in(values, KNOWN):
        if key in WHOLE:
            style = {
                part: value[part] for part in ("export_style", "mode") if isinstance(value, Mapping) and part in value
            }
            yield key, None if value is None else style
        elif key in READ or (key not in KNOWN and key.startswith(STRICT)):
            yield key, value


def parsed(file: Path) -> tuple[dict[str, Any], list[str]]:
    """The settings as AReaL's parser leaves them, and the groups that PPOConfig does not have."""
    from omegaconf import OmegaConf

    classes = module("api/cli_args.py")
    read, _ = classes.parse_cli_args(["--config", str(file)])
    OmegaConf.set_struct(read, False)
    own = [key for key in read if key not in classes.PPOConfig.__dataclass_fields__]
    for key in own:
        del read[key]
    return OmegaConf.to_container(
        OmegaConf.structured(OmegaConf.to_object(classes.to_structured_cfg(read, classes.PPOConfig))), resolve=True
    ), own


def dealt(resolved: Mapping[str, Any]) -> None:
    """A rollout's groups, dealt to the replicas by AReaL's own function."""
    replicas = module("api/alloc_mode.py").ModelAllocation.from_str(resolved["actor.backend"]).parallel.dp_size
    module("utils/seqpack.py").balanced_greedy_partition([1] * resolved["train_dataset.batch_size"], K=replicas)


def example(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"sha256": hashlib.sha256(file.read_bytes()).hexdigest()[:16]}
    found["given"] = dict(given(yaml.safe_load(file.read_text("utf-8"))))
    try:
        values, found["own"] = parsed(file)
        flat = dict(settings_in(values, READ))
        dealt(flat)
        found["resolved"] = {key: flat[key] for key in sorted(READ - set(WHOLE)) if flat[key] != DEFAULTS[key]}
    except Exception as error:  # AReaL's own verdict, whatever its type
        found["error"] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
    return found


def nameless(settings: dict[str, Any]) -> None:
    """The place of the prompts is the publisher's own."""
    if isinstance(settings.get("train_dataset.path"), str):
        settings["train_dataset.path"] = "DATASET"


if __name__ == "__main__":
    root = Path(sys.argv[1])
    files = {str(file.relative_to(root)): example(file) for file in sorted(root.rglob("*.yaml"))}
    for said in files.values():
        nameless(said["given"])
        nameless(said.get("resolved", {}))
    lines = [f"{json.dumps(name)}: {json.dumps(said, sort_keys=True)}" for name, said in files.items()]
    Path(__file__).with_name("published.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
