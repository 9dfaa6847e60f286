"""OpenRLHF's and DeepSpeed's own code on a machine without GPUs, vLLM or flash-attn: what they say of a command line.

Real: the main block of `openrlhf.cli.train_ppo_ray` (parser and checks); `train`, up to its trainer; `get_strategy`,
`DeepspeedStrategy.__init__`, `setup_distributed`, `get_ds_train_config` and `get_ds_eval_config`; PyTorch's
`init_device_mesh` on a process group of its own `fake` backend, of any size in one process, of which this process is
the last; `DeepSpeedConfig`; the device mesh of DeepSpeed's tensor parallelism.

Replaced: the modules of `ABSENT`, by empty ones; "cuda", by "cpu"; ring attention's patches of transformers, by
nothing; the world that DeepSpeed asks for, by the fake group.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

os.environ.setdefault("DS_ACCELERATOR", "cpu")

ABSENT = ("vllm", "flash_attn", "ring_flash_attn", "modelscope")
"""Modules that need a GPU or a hub; they decide nothing of what is asked here."""
PROGRAM = "openrlhf.cli.train_ppo_ray"


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `ABSENT`, every name of theirs a class that does nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)

        def missing(name: str) -> type:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda self, *arguments, **named: None})

        module.__getattr__ = missing  # type: ignore[method-assign]  # PEP 562
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        return None


sys.meta_path.insert(0, _Absent())
logging.disable(logging.WARNING)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of these packages about each other, while they are imported
    import deepspeed
    import openrlhf.utils
    import ray
    import torch
    import torch.distributed
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import groups
    from torch.testing._internal.distributed.fake_pg import FakeStore

    importlib.import_module(PROGRAM)  # every import that it makes, once
    strategy_module = importlib.import_module("openrlhf.utils.deepspeed.deepspeed")
    trainer_of_ray = importlib.import_module("openrlhf.trainer.ray")
    launcher = importlib.import_module("openrlhf.trainer.ray.launcher")
    placement_group = importlib.import_module("ray.util.placement_group")
    ring_attn_utils = importlib.import_module("openrlhf.models.ring_attn_utils")

_CODE = importlib.util.find_spec(PROGRAM).loader.get_code(PROGRAM)  # type: ignore[union-attr]  # it was just imported


class Accepted(BaseException):
    """The parser is through: `args` as `train` gets them."""

    def __init__(self, args: types.SimpleNamespace) -> None:
        super().__init__()
        self.args_ = args


class Built(BaseException):
    """`train` has built its groups of workers, and comes to its trainer."""


def run(argv: Sequence[str]) -> types.SimpleNamespace | str:
    """The arguments of `train`; else argparse's last line, or `Type: message` of what the checks raise."""

    def stop(args: types.SimpleNamespace) -> None:
        raise Accepted(args)

    error = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["train_ppo_ray.py", *argv]),
        mock.patch.object(ray, "is_initialized", return_value=True),
        mock.patch.object(openrlhf.utils, "get_strategy", stop),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(error),
    ):
        try:
            program()
        except Accepted as accepted:
            return accepted.args_
        except SystemExit:
            return error.getvalue().strip().splitlines()[-1]
        except Exception as raised:  # whatever it says, it is what a user would see
            return f"{type(raised).__name__}: {raised}"
    raise RuntimeError("the program ended before it built a strategy")


def build(argv: Sequence[str]) -> str | None:
    """What `train` raises while it builds its groups of workers, up to its trainer; None: nothing. Ray's placement
    groups, the engines and the groups themselves are stand-ins."""
    trainer = mock.Mock()
    trainer.PPOTrainer.remote.side_effect = trainer.PPOTrainerAsync.remote.side_effect = Built
    names = ("openrlhf.trainer.ppo_trainer", "openrlhf.trainer.ppo_trainer_async")
    with (
        mock.patch.object(sys, "argv", ["train_ppo_ray.py", *argv]),
        mock.patch.dict(sys.modules, dict.fromkeys(names, trainer)),
        mock.patch.object(ray, "is_initialized", return_value=True),
        mock.patch.object(ray, "get"),
        mock.patch.object(placement_group, "placement_group"),
        mock.patch.object(trainer_of_ray, "create_vllm_engines"),
        mock.patch.object(launcher, "RayActorGroup"),
        mock.patch.object(strategy_module.DeepspeedStrategy, "print"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            program()
        except Built:
            return None
        except Exception as raised:  # as above
            return f"{type(raised).__name__}: {raised}"
    raise RuntimeError("the program ended before it built a trainer")


def program() -> None:
    """The main block, from its beginning."""
    exec(_CODE, {"__name__": "__main__"})


@contextlib.contextmanager
def world_of(devices: int) -> Iterator[None]:
    """A process group of so many devices, of which this process is the last: it is the first to be left out."""
    torch.distributed.init_process_group("fake", rank=devices - 1, world_size=devices, store=FakeStore())

    def mesh(kind: str, shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> object:
        return torch.distributed.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=mesh_dim_names)

    try:
        with (
            mock.patch.object(deepspeed, "init_distributed"),
            mock.patch.object(strategy_module, "init_device_mesh", mesh),
            mock.patch.object(deepspeed.comm, "initialize_mesh_device", lambda shape, names: mesh("", shape, names)),
            mock.patch.object(ring_attn_utils, "patch_transformers_for_ring_flash_attn"),
            mock.patch.object(deepspeed.comm, "get_world_size", torch.distributed.get_world_size),
            mock.patch.object(deepspeed.comm, "get_rank", torch.distributed.get_rank),
        ):
            yield
    finally:
        torch.distributed.destroy_process_group()


def strategy_of(args: types.SimpleNamespace, sizes: Mapping[str, int | bool]) -> Any:
    """OpenRLHF's strategy for `args` with other `sizes` (dotted names)."""
    args = copy.deepcopy(args)
    for name, value in sizes.items():
        node: Any = args
        *path, last = name.split(".")
        for part in path:
            node = getattr(node, part)
        setattr(node, last, value)
    return openrlhf.utils.get_strategy(args)


def prepare(strategy: Any, trained: bool) -> str | tuple[int, int]:
    """What starting a worker of `strategy` in the present world says: the accumulation that OpenRLHF and DeepSpeed
    count, or what is raised. `trained`: the policy or the critic, else a model that is not trained."""
    try:
        strategy.setup_distributed()
        config = DeepSpeedConfig(strategy.get_ds_train_config() if trained else strategy.get_ds_eval_config())
        if strategy.ds_tensor_parallel_size > 1:  # as DeepSpeedEngine._configure_tensor_parallel_states
            with mock.patch.object(groups, "_TENSOR_MODEL_PARALLEL_GROUP", None):
                groups._init_tp_mesh_device(tensor_model_parallel_size=strategy.ds_tensor_parallel_size)
    except Exception as raised:  # as above
        return f"{type(raised).__name__}: {raised}"
    return strategy.accumulated_gradient, config.gradient_accumulation_steps
