"""The passes of `batchbridge run --dry --memory`: TRL's own `train()` runs as far as its first step, so that the model
and the optimizer stand as they train; there, rows of made-up tokens are trained instead of what would be generated.

The process trains nothing afterwards: weights and optimizer are not put back.
"""

from __future__ import annotations

import contextlib
import math
from itertools import islice
from typing import Any, NoReturn

import torch

from batchbridge import CannotAttach, unwrap
from batchbridge.kit import device_memory
from batchbridge.kit.measured_passes import MeasuredPasses, measured_passes
from batchbridge.kit.patches import temporarily
from batchbridge_trl.copied import is_followed
from batchbridge_trl.forks import is_unsloths
from batchbridge_trl.images import reads_images
from batchbridge_trl.ms_swift import is_swift
from batchbridge_trl.sharding import loaded_in_shards

PROMPTS = 256
"""The prompts of the dataset by whose longest the rows are made, where no setting bounds them."""


class _AllMeasured(BaseException):
    """The end of `train()`: nothing of the user's catches it."""


def measure(trainer: Any) -> MeasuredPasses:
    """The memory that this trainer's passes take. Raises `CannotAttach` where it is not measured."""
    if reason := objection(trainer):
        raise CannotAttach({"measured_passes": reason})
    if "batchbridge" in vars(trainer):
        unwrap(trainer)
    found: MeasuredPasses | None = None
    native = trainer.training_step

    def instead(model: Any, inputs: Any, num_items_in_batch: Any = None) -> NoReturn:
        nonlocal found
        found = _measured(trainer, native, model)
        raise _AllMeasured

    trainer.callback_handler.callbacks.clear()  # trackers, and the user's own: this is no run
    with temporarily(trainer, training_step=instead), contextlib.suppress(_AllMeasured):
        trainer.train()
    if found is None:
        raise CannotAttach({"measured_passes": "the trainer ended before a step of its training"})
    return found


def objection(trainer: Any) -> str | None:
    """The reason why the passes of this trainer are not measured; None where they are."""
    if device_memory.memory_of(trainer.accelerator.device) is None:
        return device_memory.NO_LIMIT
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or loaded_in_shards(trainer):
        return "it is not proven under ZeRO and FSDP, whose ranks put the model together in every pass"
    if is_unsloths(trainer) or is_swift(trainer) or is_followed(trainer):
        return "it is proven with TRL's own trainer alone"
    if reads_images(trainer):
        return "it is not proven for models that read images, whose rows are not made of tokens alone"
    return None


def _measured(trainer: Any, native: Any, model: Any) -> MeasuredPasses:
    memory = device_memory.memory_of(trainer.accelerator.device)
    assert memory is not None, "refused where there is none"
    args = trainer.args
    prompt, whose = _prompt_tokens(trainer)
    response = args.max_completion_length

    def run(rows: int) -> None:
        made = _rows(trainer, rows, prompt, response)
        with temporarily(trainer, _prepare_inputs=lambda inputs: made):
            native(model, {}, None)

    def update() -> None:
        with temporarily(trainer.accelerator.gradient_state, sync_gradients=True):  # else accelerate's does nothing
            trainer.optimizer.step()

    resting, passes, failed = measured_passes(memory, prompt + response, run, update)
    return MeasuredPasses(
        resting=resting,
        limit=memory.limit,
        passes=passes,
        failed=failed,
        longest=prompt + response,
        rows=args.per_device_train_batch_size,
        micro_batch=f"per_device_train_batch_size {args.per_device_train_batch_size}",
        said=f"a row is {prompt:,} tokens of prompt ({whose}) and {response:,} of completion (max_completion_length)",
    )


def _prompt_tokens(trainer: Any) -> tuple[int, str]:
    """(the tokens of the longest prompt, by what that is known)."""
    if bound := getattr(trainer.args, "max_prompt_length", None):
        return int(bound), "max_prompt_length"
    counts = [len(_tokens(trainer.processing_class, row["prompt"])) for row in islice(trainer.train_dataset, PROMPTS)]
    return max(counts, default=1), f"the longest of the first {len(counts)}"


def _tokens(tokenizer: Any, prompt: Any) -> Any:
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"]
    return tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=True)[
        "input_ids"
    ]


def _rows(trainer: Any, rows: int, prompt: int, response: int) -> dict[str, torch.Tensor]:
    """The inputs of TRL's loss with every tensor that it may ask for: random token ids, as likely as any others.

    Source: trl 0.18.0 to 1.16.0, GRPOTrainer._generate_and_score_completions (its output) and _compute_loss.
    """
    device = trainer.accelerator.device
    vocabulary = trainer.model.config.get_text_config().vocab_size

    def ids(width: int) -> torch.Tensor:
        return torch.randint(vocabulary, (rows, width), device=device)

    def each_token(value: float) -> torch.Tensor:
        return torch.full((rows, response), value, device=device)

    made = {
        "prompt_ids": ids(prompt),
        "prompt_mask": torch.ones((rows, prompt), dtype=torch.long, device=device),
        "completion_ids": ids(response),
        "completion_mask": torch.ones((rows, response), dtype=torch.long, device=device),
        "advantages": torch.randn(rows, device=device),
        "num_items_in_batch": torch.tensor(rows * response, device=device),
    }
    for name in ("old_per_token_logps", "ref_per_token_logps", "sampling_per_token_logps"):
        made[name] = each_token(-math.log(vocabulary))
    return {**made, "importance_sampling_ratio": each_token(1.0)}
