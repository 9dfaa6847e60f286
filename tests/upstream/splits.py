"""The places where a framework splits the rows of a batch, or a size of one: `splits.json`, by release.

    python tests/upstream/splits.py verl 0.4.0=UNPACKED/verl 0.4.1=UNPACKED/verl ...

A place is a function with a call of `chunk`, `split` (of rows, not of a text), `make_iterator` and the like, with a
size that is divided, or with a call of what the framework itself shares rows by (`OWN_CALLS`). The file says for each
of them which rules hold its sizes, or why none is needed; a test holds it against the installed framework, so that a
release that splits elsewhere, or otherwise, is noticed. Releases that are on record and not named stay as they are.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
CALLS = frozenset({"chunk", "split", "make_iterator", "make_minibatch_iterator", "tensor_split", "array_split"})
OWN_CALLS: Mapping[str, frozenset[str]] = {
    "trl": frozenset(
        {"split_tensor_dict", "split_pixel_values_by_grid", "RepeatSampler", "RepeatRandomSampler", "slice"}
        | {"shuffle_tensor_dict", "shuffle_sequence_dict", "repeat_iterable_dataset", "gather_object"}
    ),
    "open_instruct": frozenset(
        {"exact_div", "ShufflingIterator", "HFDataLoader", "pack_sequences", "prepare_collated_data_for_workers"}
    ),
}
"""Framework to its own functions and classes that share rows out."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "verl": (
        *("protocol.py", "single_controller/base/decorator.py", "trainer/ppo", "experimental/agent_loop"),
        *("experimental/reward_loop", "workers/fsdp_workers.py", "workers/megatron_workers.py"),
        *("workers/engine_workers.py", "workers/actor", "workers/critic", "workers/reward_model"),
        *("workers/sharding_manager", "workers/rollout/hf_rollout.py", "utils/tensordict_utils.py"),
    ),
    "easyr1": ("protocol.py", "single_controller/base/decorator.py", "trainer", "workers"),
    "openrlhf": (
        *("models/ring_attn_utils.py", "trainer/ppo_trainer.py", "trainer/ppo_utils", "trainer/ray"),
        "utils/deepspeed/deepspeed.py",
    ),
    "trl": ("trainer/grpo_trainer.py", "trainer/grpo_config.py", "trainer/utils.py", "generation"),
    "open_instruct": (
        *("grpo_fast.py", "grpo.py", "grpo_utils.py", "grpo_olmo_core_actor.py", "data_loader.py", "rl_utils.py"),
        *("olmo_core_train_modules.py", "vllm_utils.py", "ppo_vllm_thread_ray_gtrl.py"),
    ),
}
"""Framework to the files and folders of its package that the batch of a rollout comes by."""


def splits_in(package: Path, framework: str) -> dict[str, str]:
    """`file: function` -> digest of its splits' form, of an unpacked package."""
    found, calls = {}, CALLS | OWN_CALLS.get(framework, frozenset())
    for part in PARTS[framework]:
        place = package / part
        for file in sorted(place.rglob("*.py") if place.is_dir() else [place]):
            if file.is_file():
                tree = ast.parse(file.read_text(encoding="utf-8"))
                found |= {
                    f"{file.relative_to(package).as_posix()}: {name}": form for name, form in _functions(tree, calls)
                }
    return found


def _functions(tree: ast.Module, calls: frozenset[str]) -> Iterator[tuple[str, str]]:
    for owner in (tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))):
        prefix = f"{owner.name}." if isinstance(owner, ast.ClassDef) else ""
        for node in owner.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                forms = [ast.unparse(one) for one in ast.walk(node) if _splits(one, calls)]
                if forms:
                    yield f"{prefix}{node.name}", hashlib.sha256("\n".join(forms).encode()).hexdigest()[:12]


def _splits(node: ast.AST, calls: frozenset[str]) -> bool:
    if isinstance(node, (ast.AugAssign, ast.BinOp)):
        return isinstance(node.op, ast.FloorDiv)
    if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Attribute, ast.Name)):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
    of_text = not (node.args or node.keywords) or any(_is_text(word) for word in node.args)
    return name in calls and not (name == "split" and of_text)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def recorded(framework: str) -> dict[str, Any]:
    """Place -> `held` (codes of rules, or a reason) and `forms` (digest -> releases)."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")).get(framework, {}) if FILE.is_file() else {}
    return found


def recorded_of(framework: str, release: str) -> dict[str, str]:
    """`file: function` -> digest, as `splits_in` finds them in a package of `release`."""
    entries = recorded(framework).items()
    forms = ((place, form, said.split()) for place, entry in entries for form, said in entry["forms"].items())
    return {place: form for place, form, releases in forms if release in releases}


def main(words: list[str]) -> None:
    """The command."""
    framework, *named = words
    table = recorded(framework)
    for release, _, folder in (word.partition("=") for word in named):
        for entry in table.values():
            forms = {form: " ".join(x for x in said.split() if x != release) for form, said in entry["forms"].items()}
            entry["forms"] = {form: said for form, said in forms.items() if said}
        for place, form in splits_in(Path(folder), framework).items():
            entry = table.setdefault(place, {"held": "", "forms": {}})
            entry["forms"][form] = f"{entry['forms'].get(form, '')} {release}".strip()
    whole = json.loads(FILE.read_text(encoding="utf-8")) if FILE.is_file() else {}
    whole[framework] = {place: table[place] for place in sorted(table) if table[place]["forms"]}
    FILE.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
