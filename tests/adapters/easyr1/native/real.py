"""EasyR1's own code on a machine without GPUs, vLLM or Ray workers: what it says of a configuration, and its numbers.

Real: the configuration dataclasses and their merge by OmegaConf; `create_dataloader`; `RayPPOTrainer.__init__`,
`_make_batch_data`, `_balance_batch`, `apply_kl_penalty` and `compute_advantage`; the dispatch of a `DataProto` to the
workers; `FSDPWorker.__init__` and `init_model` with device mesh, optimizer, schedule and rollout, on a process group of
PyTorch's own `fake` backend (any world size in one process); `DataParallelPPOActor.compute_log_prob` and
`update_policy`, `DataParallelPPOCritic.compute_values`.

Replaced: modules that are only imported (`ABSENT`), by empty ones; the dataset, by one of N rows; the model, its
tokenizer and FSDP's wrapping, by one linear layer, and its forward pass by zeros; vLLM's engine, checkpoints and
profiling, by nothing; the other processes' rows, by copies; the length of a row, by `PROMPT` + `RESPONSE` tokens (no
check of the batch arithmetic reads it); "cuda", by "cpu".
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

PHASES = ("config", "construction", "worker_start", "first_rollout", "optimizer_step")
ABSENT = ("vllm", "qwen_vl_utils", "flash_attn", "einops", "msgspec", "peft", "codetiming", "liger_kernel")
"""Modules that need a GPU or decide nothing here; an empty one stands for each that is not installed."""
PROMPT, RESPONSE = 2, 97
"""Tokens of every row. A prime that no micro-batch has: kl_penalty=full fits a square by accident."""


class _Anything:
    """A class that takes every argument, and whose every method does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


class _Empty(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 a module's attribute, not a class's default

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, type(name, (_Anything,), {}))
        return getattr(self, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


RENAMED = {
    # transformers 5 renamed, moved or removed them; EasyR1 before 0.3.2 imports them, and the checks do not use them.
    "transformers": ("AutoModelForVision2Seq",),
    "transformers.modeling_utils": ("no_init_weights",),
    "transformers.modeling_flash_attention_utils": ("index_first_axis", "pad_input", "unpad_input"),
}


def _as_in_transformers_4() -> None:
    for module, names in RENAMED.items():
        for name in names:
            importlib.import_module(module)
            if not hasattr(sys.modules[module], name):
                setattr(sys.modules[module], name, type(name, (), {}))


class EasyR1:
    """One checkout, imported. Only one per process: both it and verl are called `verl`."""

    def __init__(self, checkout: Path) -> None:
        os.environ.update(RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="1")
        sys.path.insert(0, str(checkout))
        absent = tuple(name for name in ABSENT if importlib.util.find_spec(name) is None)
        sys.meta_path.insert(0, _Finder(absent))
        import importlib.metadata as metadata

        import tensordict
        import torch
        import torch.distributed as dist

        original = metadata.version
        metadata.version = lambda name: "0.8.4" if name == "vllm" else original(name)  # what 0.3.x asks for
        torch.set_num_threads(1)
        torch.cuda.get_device_name = lambda *args: "none"  # type: ignore[assignment]
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
        tensordict.TensorDict.cuda = lambda self, device=None: self  # type: ignore[method-assign]
        dist.all_gather_object = lambda found, mine, group=None: found.__setitem__(slice(None), [mine] * len(found))
        self.torch = torch
        load = importlib.import_module
        self.version: str = load("verl").__version__
        folder = Path(str(load("verl").__file__)).resolve()
        if checkout.resolve() not in folder.parents:
            raise ImportError(f"verl comes from {folder}, not from {checkout}")
        self.commit = subprocess.run(
            ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        self.config = load("verl.trainer.config")
        self.loader = load("verl.trainer.data_loader")
        _as_in_transformers_4()
        self.trainer = load("verl.trainer.ray_trainer")
        self.workers = load("verl.workers.fsdp_workers")
        self.actor = load("verl.workers.actor.dp_actor")
        self.dispatch = load("verl.single_controller.base.decorator")
        self.protocol = load("verl.protocol")
        for module in (self.actor, self.trainer):
            module.tqdm = lambda rows, **kwargs: rows  # type: ignore[attr-defined]
        mesh = self.workers.init_device_mesh
        self.workers.init_device_mesh = lambda device, **kwargs: mesh("cpu", **kwargs)
        self._without_a_model()
        rollout = load(sys.modules["verl.workers.rollout"].vLLMRollout.__module__)
        for name in ("LLM", "SamplingParams"):
            setattr(rollout, name, _Anything)
        rollout._get_logit_bias = lambda *args, **kwargs: None  # type: ignore[attr-defined]
        self._on_cpu("verl.utils.seqlen_balancing")

    def _without_a_model(self) -> None:
        workers, torch = self.workers, self.torch

        class Model(torch.nn.Linear):  # type: ignore[name-defined, misc]
            def __init__(self) -> None:
                super().__init__(1, 1)

            def tie_weights(self) -> None:
                pass

            def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
                pass

        loads = types.SimpleNamespace(from_pretrained=lambda *args, **kwargs: Model())
        settings = types.SimpleNamespace(
            from_pretrained=lambda *args, **kwargs: types.SimpleNamespace(model_type="none")
        )
        for name in ("AutoModelForCausalLM", "AutoModelForTokenClassification"):
            setattr(workers, name, loads)
        for name in ("AutoModelForVision2Seq", "AutoModelForImageTextToText"):
            if hasattr(workers, name):
                setattr(workers, name, types.SimpleNamespace(_model_mapping={}))
        for name in ("AutoConfig", "GenerationConfig"):
            setattr(workers, name, settings)
        workers.get_tokenizer = lambda *args, **kwargs: types.SimpleNamespace(
            pad_token_id=0, bos_token_id=0, eos_token_id=0
        )
        workers.PreTrainedModel = Model
        workers.get_processor = lambda *args, **kwargs: None
        workers.FSDP = lambda model, **kwargs: model
        for name in ("FSDPVLLMShardingManager", "FlopsCounter", "FSDPCheckpointManager"):
            setattr(workers, name, _Anything)
        for name in ("print_gpu_memory_usage", "print_model_size", "get_fsdp_wrap_policy", "apply_ulysses_patch"):
            setattr(workers, name, lambda *args, **kwargs: None)

    def _on_cpu(self, name: str) -> None:
        """`torch.tensor(..., device="cuda")` of one module makes a tensor on the CPU."""
        torch = self.torch

        class OnCpu(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                return getattr(torch, name)

            def tensor(self, *args: Any, **kwargs: Any) -> Any:
                return torch.tensor(*args, **{key: value for key, value in kwargs.items() if key != "device"})

        importlib.import_module(name).torch = OnCpu("torch")  # type: ignore[attr-defined]

    # ---- what it knows

    def keys(self) -> dict[str, Any]:
        """Every key of a configuration, with its default."""
        from omegaconf import OmegaConf

        found: dict[str, Any] = {}

        def walk(node: Mapping[str, Any], prefix: str) -> None:
            for name, value in node.items():
                if isinstance(value, dict) and value:
                    walk(value, f"{prefix}{name}.")
                else:
                    found[f"{prefix}{name}"] = value

        walk(OmegaConf.to_container(OmegaConf.structured(self.config.PPOConfig())), "")
        return found

    # ---- what it says

    def judge(self, settings: Mapping[str, Any], prompts: int) -> dict[str, Any]:
        """The first phase that fails (None: none), its error, and every number that came out before."""
        numbers: dict[str, Any] = {}
        for phase, numbers_of in zip(PHASES, self._phases(settings, prompts), strict=False):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    numbers |= numbers_of()
            except Exception as error:
                return {"phase": phase, "error": type(error).__name__, "message": str(error)[:160], "numbers": numbers}
        return {"phase": None, "error": None, "message": None, "numbers": numbers}

    def _phases(self, settings: Mapping[str, Any], prompts: int) -> Iterator[Any]:
        state = types.SimpleNamespace()
        yield lambda: self._configure(state, settings)
        yield lambda: self._construct(state, prompts)
        yield lambda: self._start(state)
        yield lambda: self._roll_out(state)
        yield lambda: self._step(state)

    def _configure(self, state: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """As `trainer/main.py` does it."""
        from omegaconf import OmegaConf

        words = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        merged = OmegaConf.merge(OmegaConf.structured(self.config.PPOConfig()), OmegaConf.from_dotlist(words))
        state.config = OmegaConf.to_object(merged)
        state.config.deep_post_init()
        state.config.worker.actor.use_torch_compile = False  # it decides no batch, and takes seconds
        state.config.worker.actor.padding_free = False
        return {}

    def _construct(self, state: Any, prompts: int) -> dict[str, Any]:
        class Dataset:
            def __init__(self, **kwargs: Any) -> None:
                pass

            def __len__(self) -> int:
                return prompts

            def __getitem__(self, index: int) -> int:
                return index

        self.loader.RLHFDataset = Dataset
        train, validation = self.loader.create_dataloader(state.config.data, None, None)
        state.batch = train.batch_size
        state.trainer = self.trainer.RayPPOTrainer(
            state.config,
            None,
            None,
            train,
            validation,
            dict.fromkeys(role for role in self.trainer.Role if role.name != "RewardModel"),
            None,
        )
        return {"training_steps": state.trainer.training_steps}

    def _start(self, state: Any) -> dict[str, Any]:
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        trainer = state.config.trainer
        state.world = trainer.nnodes * trainer.n_gpus_per_node
        os.environ["WORLD_SIZE"] = str(state.world)
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=state.world)
        roles = ["actor_rollout_ref"] if hasattr(self.trainer.Role, "ActorRolloutRef") else ["actor_rollout", "ref"]
        roles += ["critic"] if state.trainer.use_critic else []
        state.workers = {}
        for role in roles:
            worker = self.workers.FSDPWorker(copy.deepcopy(state.config.worker), role)
            worker.init_model()
            state.workers[role] = worker
        state.worker = state.workers[roles[0]]
        state.last_group = self._group_of_the_last_device(state)
        return {"completions_per_device_per_step": state.worker.config.actor.global_batch_size_per_device}

    def _group_of_the_last_device(self, state: Any) -> Any:
        """The sequence-parallel group of a device that no replica has, where there is one."""
        ulysses = state.worker.ulysses_device_mesh
        if ulysses is None or state.world % ulysses.size(1) == 0:
            return contextlib.nullcontext()
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=state.world - 1, world_size=state.world)
        shape = (state.world // ulysses.size(1), ulysses.size(1))
        mesh = self.workers.init_device_mesh("cuda", mesh_shape=shape, mesh_dim_names=("dp", "sp"))
        return self.workers.FSDPUlyssesShardingManager(mesh)

    def _rows(self, count: int) -> dict[str, Any]:
        ones = self.torch.ones((count, PROMPT + RESPONSE), dtype=self.torch.long)
        return {"input_ids": ones, "attention_mask": ones.clone(), "position_ids": ones.clone()}

    def _roll_out(self, state: Any) -> dict[str, Any]:
        group, generated = state.config.worker.rollout.n, []

        def generate(batch: Any) -> Any:
            self.dispatch._split_args_kwargs_data_proto(state.world, batch)
            generated.append(len(batch))
            rows = self._rows(len(batch) * group)
            answers = rows["input_ids"][:, :RESPONSE].clone()
            return self.protocol.DataProto.from_dict(
                {**rows, "prompts": answers, "responses": answers, "response_mask": answers}, meta_info={}
            )

        trainer = state.trainer
        group_of_workers = types.SimpleNamespace(world_size=state.world, generate_sequences=generate)
        trainer.actor_rollout_wg = trainer.actor_rollout_ref_wg = group_of_workers
        if hasattr(trainer, "_make_batch_data"):
            import numpy

            def batches() -> Iterator[dict[str, Any]]:
                while True:
                    ids = numpy.empty(state.batch, dtype=object)
                    yield {**self._rows(state.batch), "raw_prompt_ids": ids, "multi_modal_data": ids.copy()}

            trainer.data_iterator = batches()
            batch = trainer._make_batch_data(metrics={})
        else:  # before 0.3.1 the loop of `fit` has it in its body
            batch = generate(self.protocol.DataProto.from_dict(self._rows(state.batch)))
        trainer._balance_batch(batch, metrics={})
        state.sizes = []
        with state.last_group:
            pass
        forward_sizes = self._old_logprobs(state, self._part(state, batch))
        zeros = batch.batch["responses"].float() * 0.0
        reference = ["ref_log_probs"] if trainer.use_reference_policy else []
        for name in ("old_log_probs", "token_level_scores", "token_level_rewards", *reference):
            batch.batch[name] = zeros.clone()
        if trainer.use_critic:
            state.workers["critic"].critic.compute_values(self._part(state, batch))
        algorithm = state.config.algorithm
        if not algorithm.use_kl_loss and trainer.use_reference_policy:
            self.trainer.apply_kl_penalty(batch, trainer.kl_ctrl, algorithm.kl_penalty)
        if "uid" not in batch.non_tensor_batch:
            import numpy

            names = [str(row // group) for row in range(len(batch))]
            batch.non_tensor_batch["uid"] = numpy.array(names, dtype=object)
        self.trainer.compute_advantage(batch, algorithm.adv_estimator)
        batch.non_tensor_batch.clear()
        state.data = self._part(state, batch)
        return {
            "generation_batches": len(generated),
            "completions_per_rollout": len(batch),
            "forward_micro_batches": len(forward_sizes),
        }

    def _part(self, state: Any, batch: Any) -> Any:
        """What the first worker gets of a batch."""
        ((parts,), _) = self.dispatch._split_args_kwargs_data_proto(state.world, batch)
        parts[0].meta_info["temperature"] = 1.0
        parts[0].non_tensor_batch = {}
        return state.worker.ulysses_sharding_manager.preprocess_data(parts[0]) or parts[0]

    def _old_logprobs(self, state: Any, data: Any) -> list[int]:
        actor, sizes = state.worker.actor, state.sizes
        weight = actor.actor_module.weight

        def forward(inputs: Any, temperature: float) -> Any:
            sizes.append(len(inputs["input_ids"]))
            return inputs["responses"] * weight.sum() * 0.0

        actor._forward_micro_batch = forward
        actor.compute_log_prob(data)
        found, sizes[:] = list(sizes), []
        return found

    def _step(self, state: Any) -> dict[str, Any]:
        steps: list[int] = []
        actor, sizes = state.worker.actor, state.sizes
        original = actor._optimizer_step

        def step() -> Any:
            steps.append(len(sizes))
            return original()

        actor._optimizer_step = step
        actor.update_policy(state.data)
        return {
            "optimizer_steps_per_rollout": len(steps),
            "micro_batches_per_step": steps[0],
            "completions_per_step_and_device": sum(sizes[: steps[0]]),
        }
