"""Former names of what adapters and tests import, each with its new name and the release in which the former one
goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

GOES_IN = "0.4.0"
"""The release without these names: they stay for two minor releases, 0.2 and 0.3."""
_HYDRA, _OMEGACONF = "batchbridge.kit.hydra_settings", "batchbridge.kit.omegaconf_settings"
RENAMED: Mapping[str, Mapping[str, str]] = {
    # module -> former name -> MODULE:NAME now
    "batchbridge.kit.values": {"Told": "batchbridge.kit.values:FieldValue"},
    "batchbridge.kit.hydra_said": {
        "HydraProgram": f"{_HYDRA}:HydraProgram",
        "HydraSaid": f"{_HYDRA}:HydraSettings",
    },
    "batchbridge.kit.omegaconf_said": {
        "Natively": f"{_OMEGACONF}:ValueFindings",
        "Said": f"{_OMEGACONF}:OmegaConfSettings",
        "as_given": f"{_OMEGACONF}:as_given",
        "followed": f"{_OMEGACONF}:followed",
        "place_of": f"{_OMEGACONF}:place_of",
    },
    "batchbridge.testing.tiny": {"Script": "batchbridge.testing.tiny:ScriptedRollouts"},
}


def old_names(module: str) -> Callable[[str], Any]:
    """The function `__getattr__` of a module with former names: it warns, and returns the object of the new name."""

    def get(name: str) -> Any:
        import importlib
        import warnings

        if name not in RENAMED[module]:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, new = RENAMED[module][name].partition(":")
        text = f"{module}.{name} is now {home}.{new}; the former name goes in BatchBridge {GOES_IN}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(home), new)

    return get
