"""The start of a run, as far as its words and files say it: what Accelerate is told, and which trainer is built.

Read, never run. Source: accelerate 1.15.0 commands/launch.py and commands/config; transformers 5.23.0
TrainingArguments.__post_init__; trl/accelerate_configs, 1.9.1 and 1.16.0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge import Source
from batchbridge.kit import load_source, near_file
from batchbridge_trl.settings import PACKAGED_ACCELERATE_CONFIGS

STOCK, OF_UNSLOTH = "trl.GRPOTrainer", "unsloth.GRPOTrainer"
COPIES = frozenset({"Qwen2VLGRPOTrainer", "Qwen2VLGRPOVLLMTrainer", "Qwen2VLGRPOVLLMTrainerModified", "VLMGRPOTrainer"})
COPIES |= {"AsyncGRPOTrainer"}
"""Trainers that are copies of TRL's on transformers' own: R1-V, VLM-R1 and what was made of them, TRL's experimental
one."""


class StartOfRun(NamedTuple):
    """The way in which a run is started.

    is_known: whether a command is known; a recipe alone is started without a launcher's own settings. sharding: "none"
    (one process, or DDP), "deepspeed", "fsdp", "other"; None: a file that was named is not here. engine: DeepSpeed's
    configuration, as far as it is said; None likewise. fsdp: 1 or 2. mixed_precision: the launcher's own. mesh: sizes
    of Accelerate's device mesh by dimension. trainers: the classes that the script names, by module; None: the script
    is not here. streams: whether it asks for a dataset to be streamed. replaced: whether Unsloth's class certainly
    stands in the place of TRL's.
    """

    is_known: bool
    sharding: str | None = "none"
    engine: Mapping[str, Any] | None = {}
    fsdp: int | None = None
    mixed_precision: str | None = None
    mesh: Mapping[str, Any] = {}
    trainers: tuple[str, ...] | None = (STOCK,)
    streams: bool = False
    replaced: bool = False

    @property
    def zero_stage(self) -> int | None:
        """The ZeRO stage."""
        stage = _group(self.engine or {}, "zero_optimization").get("stage")
        return stage if isinstance(stage, int) else None


def start_of(source: Source, native: Mapping[str, Any], script: str | None) -> StartOfRun:
    """The way in which the run of a source is started. script: what its command starts, where that is not TRL's own."""
    start = _accelerate(source, native)._replace(is_known=bool(source.argv) or "launcher" in source.launcher)
    if native.get("deepspeed") is not None:
        start = start._replace(sharding="deepspeed", engine=_engine(native["deepspeed"], source.path))
    elif native.get("fsdp") not in (None, "", [], False):
        version = _group(native, "fsdp_config").get("version")
        start = start._replace(sharding="fsdp", fsdp=version if isinstance(version, int) else start.fsdp)
    if isinstance(mesh := native.get("parallelism_config"), Mapping):
        start = start._replace(mesh={**start.mesh, **mesh})
    if script is None:
        return start
    tree = _tree(script, source.path)
    return (
        start._replace(trainers=None) if tree is None else start._replace(trainers=_built(tree), streams=_streams(tree))
    )


def _accelerate(source: Source, native: Mapping[str, Any]) -> StartOfRun:
    """The options, which win, and the file that Accelerate's launcher is told."""
    launcher, said = source.launcher, StartOfRun(is_known=False)
    named = launcher.get("config_file") or native.get("accelerate_config") or native.get("config_file")
    if isinstance(named, str) and named in PACKAGED_ACCELERATE_CONFIGS:
        said = _PACKAGED[named]
    elif isinstance(named, str):
        path = near_file(named, source.path)
        said = said._replace(sharding=None) if path is None else _file(path)
    if "use_deepspeed" in launcher:
        stage, engine = launcher.get("zero_stage", ""), said.engine
        if "deepspeed_config_file" in launcher:
            engine = _engine(launcher["deepspeed_config_file"], source.path)
        elif stage.isdigit():
            engine = _zero(int(stage))
        said = said._replace(sharding="deepspeed", engine=engine)
    elif "use_fsdp" in launcher:
        said = said._replace(sharding="fsdp", fsdp=2 if launcher.get("fsdp_version") == "2" else 1)
    precision = launcher.get("mixed_precision") or native.get("mixed_precision") or said.mixed_precision
    return said._replace(mixed_precision=precision)


def _zero(stage: Any) -> Mapping[str, Any]:
    return {"zero_optimization": {"stage": stage}}


_PACKAGED: Mapping[str, StartOfRun] = {
    **{f"zero{stage}": StartOfRun(False, "deepspeed", _zero(stage), None, "bf16") for stage in (1, 2, 3)},
    **{f"fsdp{version}": StartOfRun(False, "fsdp", {}, version, "bf16") for version in (1, 2)},
    "multi_gpu": StartOfRun(False, mixed_precision="bf16"),
    "single_gpu": StartOfRun(False, mixed_precision="bf16"),
}
_KINDS = {"DEEPSPEED": "deepspeed", "FSDP": "fsdp", "MEGATRON_LM": "other", "TPU": "other", "XLA": "other"}
_MESH = "parallelism_config_"


def _file(path: Path) -> StartOfRun:
    """An accelerate file."""
    values = load_source(path).values
    sharding = _KINDS.get(str(values.get("distributed_type")).upper(), "none")
    deepspeed, fsdp = (_group(values, f"{name}_config") for name in ("deepspeed", "fsdp"))
    file = deepspeed.get("deepspeed_config_file")
    engine = _zero(deepspeed.get("zero_stage")) if file is None else _engine(file, path)
    mesh = {key.removeprefix(_MESH): value for key, value in _group(values, "parallelism_config").items()}
    return StartOfRun(
        is_known=False,
        sharding=sharding,
        engine=engine if sharding == "deepspeed" else {},
        fsdp=int(fsdp.get("fsdp_version") or 1) if sharding == "fsdp" else None,
        mixed_precision=str(values.get("mixed_precision") or "no"),
        mesh=mesh,
    )


def _group(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}


def _engine(config: Any, beside: Path | None) -> Mapping[str, Any] | None:
    """DeepSpeed's configuration: a mapping, or a file that holds it; None where it is not here."""
    if isinstance(config, str):
        path = near_file(config, beside)
        return None if path is None else load_source(path).values
    return config if isinstance(config, Mapping) else None


def _tree(script: str, beside: Path | None) -> ast.Module | None:
    """A script as it is parsed; None: it is not here, or no Python."""
    path = near_file(script, beside) or near_file(f"{script.replace('.', '/')}.py", beside)
    if path is None:
        return None
    from batchbridge.kit.declared_settings import parsed

    return parsed(path)


@lru_cache(maxsize=8)
def _streams(tree: ast.Module) -> bool:
    """Whether a script asks for a dataset to be streamed: some dataset, to train on or another."""
    said = (node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "streaming")
    return any(isinstance(node.value, ast.Constant) and node.value.value is True for node in said)


@lru_cache(maxsize=8)
def _built(tree: ast.Module) -> tuple[str, ...]:
    """The trainers that a script names."""
    modules = dict(_imports(tree))
    nodes = [node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))]
    named = {_full(node, modules) for node in nodes}
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    named |= {cls.name for cls in classes}
    trainers = {name for name in named if name.endswith("GRPOTrainer") or name.rpartition(".")[2] in COPIES}
    for cls in classes:  # a base stands before what is derived from it
        if any(_full(base, modules) in trainers for base in cls.bases):
            trainers.add(cls.name)
    trainers -= {name for name in trainers if _adds_to_trls(tree, name, modules)}
    if any(module.partition(".")[0] == "unsloth" for module in modules.values()):
        trainers.add(OF_UNSLOTH)  # importing it replaces TRL's
    trainers |= {f"{_full(node, modules)} = ..." for node in nodes if _patches(node)}
    stock = {name for name in trainers if is_trls(name)}
    return tuple(sorted({*(trainers - stock), *({STOCK} if stock else ())}))


def is_trls(name: str) -> bool:
    """Whether a dotted name is TRL's own trainer; what lies in its `experimental` is another one."""
    return name.startswith("trl.") and name.endswith(".GRPOTrainer") and not name.startswith("trl.experimental.")


def _adds_to_trls(tree: ast.AST, name: str, modules: Mapping[str, str]) -> bool:
    """Whether a class of the script is TRL's own trainer, and leaves every method alone that a wrapped run needs."""
    cls = next((one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == name), None)
    if cls is None or len(cls.bases) != 1 or not is_trls(_full(cls.bases[0], modules)):
        return False
    own = {part.name for part in cls.body if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))}
    own |= {one.id for part in cls.body for one in ast.walk(part) if isinstance(one, ast.Name) and _is_set(one)}
    # What a constructor of one's own does is not followed.
    return not own & {"__init__", "train", *needed()}


def _patches(node: ast.Name | ast.Attribute) -> bool:
    """Whether a method of TRL's trainer that a wrapped run needs, or its data collator, is set, on whatever has it."""
    return isinstance(node, ast.Attribute) and _is_set(node) and node.attr in {"data_collator", *needed("trl")}


def needed(*packages: str) -> set[str]:
    """Functions and methods that a wrapped run needs, by their own names; packages: of these alone."""
    from batchbridge_trl.proven import CODE

    found = (one.functions.values() for one in CODE.packages if not packages or one.name in packages)
    return {name.rpartition(".")[2] for files in found for names in files for name in names}


def _is_set(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                outer = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (outer, outer)


def _full(node: ast.expr, modules: Mapping[str, str]) -> str:
    """A dotted name with its module; empty for anything else."""
    if isinstance(node, ast.Name):
        return modules.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (outer := _full(node.value, modules)):
        return f"{outer}.{node.attr}"
    return ""


def unknown_trainers(start: StartOfRun) -> Sequence[str]:
    """The trainers that a script names beside TRL's own, and Unsloth's where that is certain."""
    known = {STOCK, OF_UNSLOTH} if start.replaced else {STOCK}
    return [name for name in start.trainers or () if name not in known]
