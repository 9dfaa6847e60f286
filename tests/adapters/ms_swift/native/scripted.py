"""ms-swift's `GRPOTrainer` on a CPU, whose engine plays the scripted rollouts; everything else is ms-swift's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from swift.infer_engine.protocol import ChatCompletionResponse, ChatCompletionResponseChoice, ChatMessage, UsageInfo
from swift.model import get_model_processor
from swift.rlhf_trainers.arguments import GRPOConfig
from swift.rlhf_trainers.grpo_trainer import GRPOTrainer
from swift.template import get_template

from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

SCRIPT = ScriptedRollouts(empty=frozenset())
"""Its completions all have tokens to train: a loss mask is entered by a scheduler of several turns alone."""


def near_policy() -> Any:
    """A policy near the one that is trained."""
    policy, generator = tiny_policy(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return policy


def loaded(folder: Path, policy: Any) -> tuple[Any, Any]:
    """A policy as ms-swift loads it, with what its trainer asks of it, and the processor."""
    policy.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    words = {"torch_dtype": torch.float32, "device_map": "cpu", "model_type": "llama", "attn_impl": "eager"}
    made: tuple[Any, Any] = get_model_processor(str(folder), **words)
    return made


def swift_trainer(
    output_dir: Path,
    script: ScriptedRollouts = SCRIPT,
    prompts: int = 12,
    reference: Any = None,
    lora: bool = False,
    **arguments: Any,
) -> Any:
    """A trainer whose settings are those of `batchbridge_trl.testing.scripted_trainer`."""
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "num_generations": 4,
        "max_completion_length": script.longest,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "weight_decay": 0.0,
        "beta": 0.0,
        "loss_type": "grpo",
        "gradient_checkpointing": False,
        "check_model": False,
        "dataloader_num_workers": 0,
        "dataloader_persistent_workers": False,
        "scale_rewards": "group",
        "kl_in_reward": False,
    }
    args = GRPOConfig(**settings | arguments)
    with args.distributed_state.main_process_first():
        model, processor = loaded(output_dir / "policy", tiny_policy())
        held = None
        if lora:
            torch.manual_seed(0)
            model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
        elif args.beta:
            held, _ = loaded(output_dir / "reference", tiny_policy() if reference is None else reference)
    template = get_template(processor, template_type="dummy", max_length=200, truncation_strategy="left")
    template.set_mode("train")
    rows = [[{"role": "user", "content": script.prompt(index)}] for index in range(prompts)]

    def scripted_reward(completions: Any, messages: Any, request_id: Any, **others: Any) -> list[float]:
        return [script.reward(*played[each]) for each in request_id]

    trainer = GRPOTrainer(
        model,
        held,
        reward_funcs=[scripted_reward],
        args=args,
        template=template,
        train_dataset=Dataset.from_dict({"messages": rows}),
    )
    played: dict[str, tuple[int, int]] = {}

    def infer(requests: Any, config: Any = None, **others: Any) -> list[Any]:
        texts = [request.messages[-1]["content"] for request in requests]
        first, group = trainer.accelerator.process_index * len(texts), trainer.num_generations
        answers = []
        for row, (text, request) in enumerate(zip(texts, requests, strict=True)):
            who = (script.prompt_index(text), (first + row) % group)
            played[request.uuid] = who
            ids = script.completion(*who)
            message = ChatMessage(role="assistant", content=processor.decode(ids))
            choice = ChatCompletionResponseChoice(0, message, finish_reason="stop", token_ids=ids)
            answers.append(ChatCompletionResponse(model="scripted", choices=[choice], usage=UsageInfo(0, 0, 0)))
        return answers

    trainer.engine.infer = infer
    return trainer


def other_order(built: Any) -> None:
    """The sampler has another seed than the settings."""
    native = built._get_train_sampler

    def seeded(*given: Any, **options: Any) -> Any:
        sampler = native(*given, **options)
        sampler.generator.manual_seed(1)
        return sampler

    built._get_train_sampler = seeded
