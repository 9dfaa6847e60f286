"""A custom engine behind verl's interface, registered as the backend `own`, that has nothing of FSDP's: what an
adapter may take for granted of any engine, and no more.

Its conventions are those that differ between verl's engines: whole weights on every rank, averaged once a step; a
schedule that asks a step function for batches, and divides by their number a loss that was multiplied by it; an
optimizer that is not one of torch's, and clips inside of its own step. Source of the interface: verl 0.9.1
workers/engine/base.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from verl.utils import tensordict_utils as tu
from verl.workers.engine import BaseEngine, EngineRegistry
from verl.workers.engine.base import BaseEngineCtx
from verl.workers.engine.utils import postprocess_batch_func, prepare_micro_batches


class OwnOptimizer:
    """Gradient descent in Adam's way, with clipping inside of the step; no torch optimizer, and no hooks."""

    def __init__(self, module: torch.nn.Module, config: Any) -> None:
        self.parameters = [one for one in module.parameters() if one.requires_grad]
        more = dict(config.override_optimizer_config or {})
        self.inner = torch.optim.AdamW(
            self.parameters, lr=config.lr, betas=tuple(config.betas), weight_decay=config.weight_decay, **more
        )
        self.bound = config.clip_grad

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.inner.param_groups
        return groups

    def step(self) -> tuple[bool, float, None]:
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.bound)
        self.inner.step()
        return True, float(norm), None


class _Mode(BaseEngineCtx):  # type: ignore[misc]  # verl is not typed
    def __enter__(self) -> None:
        super().__enter__()
        self.engine.module.train(self.mode == "train")

    def __exit__(self, *error: Any) -> None:
        if self.mode == "train":
            self.engine.optimizer_zero_grad()
        super().__exit__(*error)


@EngineRegistry.register(model_type="language_model", backend="own", device=["cuda", "cpu"])
class OwnEngine(BaseEngine):  # type: ignore[misc]  # as above
    """See the module."""

    def __init__(
        self, model_config: Any, engine_config: Any, optimizer_config: Any, checkpoint_config: Any, **_: Any
    ) -> None:
        self.model_config, self.engine_config, self.optimizer_config = model_config, engine_config, optimizer_config
        self.mode: str | None = None

    is_param_offload_enabled = is_optimizer_offload_enabled = False

    def initialize(self) -> None:
        self.chunks = [AutoModelForCausalLM.from_pretrained(self.model_config.local_path, attn_implementation="eager")]
        self.optimizer = OwnOptimizer(self.module, self.optimizer_config)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer.inner, lambda tick: 1.0)

    @property
    def module(self) -> torch.nn.Module:
        """The one part of the model that this process has."""
        return self.chunks[0]

    def train_mode(self, **options: Any) -> Any:
        return _Mode(self, "train", **options)

    def eval_mode(self, **options: Any) -> Any:
        return _Mode(self, "eval", **options)

    def optimizer_zero_grad(self) -> None:
        for parameter in self.optimizer.parameters:
            parameter.grad = None

    def optimizer_step(self) -> float:
        _, norm, _ = self.optimizer.step()
        return norm

    def lr_scheduler_step(self) -> float:
        self.lr_scheduler.step()
        return float(self.lr_scheduler.get_last_lr()[0])

    def get_data_parallel_size(self) -> int:
        return int(torch.distributed.get_world_size())

    def get_data_parallel_rank(self) -> int:
        return int(torch.distributed.get_rank())

    def get_data_parallel_group(self) -> Any:
        return torch.distributed.group.WORLD

    def is_mp_src_rank_with_outputs(self) -> bool:
        return True

    def to(self, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
        """Everything stays where it is."""

    def get_per_tensor_param(self, **_: Any) -> Any:
        return ((name, value.detach()) for name, value in self.module.state_dict().items()), None

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        group = self.get_data_parallel_group()
        tokens = data["loss_mask"].sum()
        torch.distributed.all_reduce(tokens, group=group)
        tu.assign_non_tensor(data, sp_size=1, batch_num_tokens=tokens.item(), dp_size=self.get_data_parallel_size())
        micro_batches, indices = prepare_micro_batches(data=data, dp_group=group, same_micro_num_in_dp=True)
        batches, outputs = iter(micro_batches), []
        with torch.set_grad_enabled(not forward_only):
            for _ in micro_batches:  # the schedule: it knows how many there are, and not what they are
                made, to_loss = self.forward_step(batches, self.module)
                loss, output = to_loss(made, loss_function, len(micro_batches))
                if not forward_only:
                    (loss / len(micro_batches)).backward()
                outputs.append(output)
        if not forward_only:
            for parameter in self.optimizer.parameters:
                if parameter.grad is not None:
                    torch.distributed.all_reduce(parameter.grad, group=group)
                    parameter.grad /= self.get_data_parallel_size()
        return postprocess_batch_func(output_lst=outputs, indices=indices, data=data)

    def forward_step(self, batches: Iterator[Any], module: torch.nn.Module) -> tuple[Any, Callable[..., Any]]:
        """The model's part of one micro-batch, and what makes a loss of it."""
        batch = next(batches)
        ids = batch["input_ids"]
        mask = torch.nested.as_nested_tensor([torch.ones_like(row) for row in ids.unbind()], layout=torch.jagged)
        real = mask.to_padded_tensor(0).bool()
        logits = module(input_ids=ids.to_padded_tensor(0), attention_mask=real.long()).logits[real]
        logprobs = logits.log_softmax(-1)
        made = logprobs.gather(-1, ids.values().roll(-1)[:, None])[:, 0]
        outputs = {"log_probs": torch.nested.nested_tensor_from_jagged(made, ids.offsets())}
        if tu.get(batch, "calculate_entropy", default=False):
            entropy = -(logprobs.exp() * logprobs).sum(-1)
            outputs["entropy"] = torch.nested.nested_tensor_from_jagged(entropy, ids.offsets())
        return outputs, functools.partial(self._loss, batch)

    def _loss(self, batch: Any, outputs: Any, loss_function: Any, count: int) -> tuple[torch.Tensor, dict[str, Any]]:
        if loss_function is None:
            return torch.zeros(()), {"model_output": outputs, "loss": 0.0, "metrics": {}}
        loss, metrics = loss_function(model_output=outputs, data=batch, dp_group=self.get_data_parallel_group())
        return loss * count, {"loss": loss.detach().item(), "metrics": metrics}


@EngineRegistry.register(model_type="language_model", backend="own_staged", device=["cuda", "cpu"])
class StagedEngine(OwnEngine):
    """All processes are one replica, as the stages of a pipeline are: the last one has the loss, and all the update.

    The others wait for gradients, and never see a log-probability.
    """

    def initialize(self) -> None:
        super().initialize()
        alone = [torch.distributed.new_group([rank]) for rank in range(torch.distributed.get_world_size())]
        self.alone = alone[torch.distributed.get_rank()]

    def get_data_parallel_size(self) -> int:
        return 1

    def get_data_parallel_rank(self) -> int:
        return 0

    def get_data_parallel_group(self) -> Any:
        return self.alone

    def is_mp_src_rank_with_outputs(self) -> bool:
        return bool(torch.distributed.get_rank() == torch.distributed.get_world_size() - 1)

    def forward_backward_batch(self, data: Any, loss_function: Callable[..., Any], forward_only: bool = False) -> Any:
        found: dict[str, Any] = {"model_output": {}, "loss": [], "metrics": {}}
        if self.is_mp_src_rank_with_outputs():
            found = super().forward_backward_batch(data, loss_function, forward_only)
        if not forward_only:
            for parameter in self.optimizer.parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                torch.distributed.broadcast(parameter.grad, torch.distributed.get_world_size() - 1)
        return found
