"""The types of the fields of EasyR1's configurations, asked of EasyR1 itself. Type: the field's, as OmegaConf holds it,
with ? where it may be null. Run with what verl/trainer/config.py imports.

    python record_types.py --of CHECKOUT       the types of one checkout, as JSON
    python record_types.py --takes CHECKOUT    which of the command lines on standard input, a JSON list, it takes
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any


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


def main(what: str, checkout: str) -> None:
    """See the module."""
    print(json.dumps(types(Path(checkout)) if what == "--of" else takes(Path(checkout), json.load(sys.stdin))))


if __name__ == "__main__":
    main(*sys.argv[1:])
