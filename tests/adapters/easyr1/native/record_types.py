"""The keys of EasyR1's configurations and the types of their fields, by versions: python record_types.py CHECKOUT ...

Rewrites the adapter's keys.json from one checkout of each version that it reads, oldest first. Type: the field's, as
OmegaConf holds it, with ? where it may be null. Run with what verl/trainer/config.py imports.

    python record_types.py --of CHECKOUT       the types of one checkout, as JSON
    python record_types.py --takes CHECKOUT    which of the command lines on standard input, a JSON list, it takes
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[4] / "adapters" / "batchbridge_easyr1" / "keys.json"


def configuration(checkout: Path) -> Any:
    """The structured configuration of one checkout. Only one per process: all are called `verl`."""
    sys.path[:0] = [str(Path(__file__).parent), str(checkout)]
    import real
    from omegaconf import OmegaConf

    absent = tuple(name for name in real.ABSENT if importlib.util.find_spec(name) is None)
    sys.meta_path.insert(0, real._Finder(absent))
    return OmegaConf.structured(importlib.import_module("verl.trainer.config").PPOConfig())


def types(checkout: Path) -> dict[str, str]:
    """Key to type."""
    from omegaconf import DictConfig, ListConfig

    found: dict[str, str] = {}

    def walk(node: Any, prefix: str) -> None:
        for name in node:
            inner = node._get_node(name)
            if isinstance(inner, DictConfig) and inner._metadata.object_type not in (dict, None):
                walk(inner, f"{prefix}{name}.")
                continue
            kind = "dict" if isinstance(inner, DictConfig) else "list" if isinstance(inner, ListConfig) else None
            kind = kind or inner._metadata.ref_type.__name__
            found[f"{prefix}{name}"] = f"{kind}?" if inner._metadata.optional else kind

    walk(configuration(checkout), "")
    return found


def takes(checkout: Path, commands: list[list[str]]) -> list[bool]:
    """Whether each command line becomes a configuration, as `trainer/main.py` makes it."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    base, taken = configuration(checkout), []
    for words in commands:
        try:
            OmegaConf.to_object(OmegaConf.merge(base, OmegaConf.from_cli(words)))
        except OmegaConfBaseException:
            taken.append(False)
        else:
            taken.append(True)
    return taken


def main(checkouts: list[str]) -> None:
    """See the module."""
    if checkouts[0] in ("--of", "--takes"):
        checkout = Path(checkouts[1])
        print(json.dumps(types(checkout) if checkouts[0] == "--of" else takes(checkout, json.load(sys.stdin))))
        return
    by_version: dict[str, dict[str, str]] = {}
    for checkout in checkouts:
        said = (Path(checkout) / "verl" / "__init__.py").read_text(encoding="utf-8")
        version = said.partition("__version__ = ")[2].split()[0].strip("\"'")
        words = [sys.executable, __file__, "--of", checkout]
        by_version[version] = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    versions = list(by_version)
    table: dict[str, dict[str, str]] = {"": {}}
    for key, kind in sorted({(key, kind) for found in by_version.values() for key, kind in found.items()}):
        have = [version for version in versions if by_version[version].get(key) == kind]
        first, last = versions.index(have[0]), versions.index(have[-1])
        assert have == versions[first : last + 1], f"{key} comes, goes and comes again"
        bounds = [f">={versions[first]}"] if first else []
        bounds += [f"<{versions[last + 1]}"] if last + 1 < len(versions) else []
        table.setdefault(",".join(bounds), {})[key] = kind
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
