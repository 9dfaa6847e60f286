"""A script of our own with the structure of Open-R1's grpo.py: TrlParser over three dataclasses, `--config RECIPE`,
TRL's GRPOTrainer. Until it ends it knows nothing of BatchBridge; the test puts it at src/open_r1/grpo.py."""

from __future__ import annotations

from dataclasses import dataclass, field

import deepspeed
import trl
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config

from batchbridge_on_cpu.leaving import leave

# DeepSpeed would compile an exchange of its own, behind a lock that a process which is killed meanwhile leaves behind.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


@dataclass
class Arguments(ScriptArguments):
    """What the script takes beside TRL's."""

    reward_funcs: list[str] = field(default_factory=lambda: ["tags"])
    dataset_prompt_column: str = field(default="prompt")


@dataclass
class Config(trl.GRPOConfig):
    """TRL's, with a key of the script's own."""

    system_prompt: str | None = field(default=None)
    benchmarks: list[str] = field(default_factory=list)


def tags(completions: list[list[dict[str, str]]], **columns: object) -> list[float]:
    """The share of marks that a completion has once."""
    marks = ("<think>", "</think>", "<answer>", "</answer>")
    return [sum(each[0]["content"].count(mark) == 1 for mark in marks) / len(marks) for each in completions]


def main() -> None:
    script, config, model_config = TrlParser((Arguments, Config, ModelConfig)).parse_args_and_config()
    tokenizer = AutoTokenizer.from_pretrained(model_config.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(
        model_config.model_name_or_path, attn_implementation=model_config.attn_implementation
    )

    def conversation(example: dict[str, str]) -> dict[str, list[dict[str, str]]]:
        said = [] if config.system_prompt is None else [{"role": "system", "content": config.system_prompt}]
        return {"prompt": [*said, {"role": "user", "content": example[script.dataset_prompt_column]}]}

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[tags],
        args=config,
        train_dataset=load_dataset(script.dataset_name)["train"].map(conversation),
        peft_config=get_peft_config(model_config),
        processing_class=tokenizer,
    )
    trainer.train()
    stage = trainer.accelerator.deepspeed_engine_wrapped.engine.zero_optimization_stage()
    print(f"trained in a {type(trainer.model_wrapped).__name__}, ZeRO-{stage}", flush=True)
    trainer.save_model(config.output_dir)


if __name__ == "__main__":
    main()
    leave()  # gloo's threads may abort a process that ends by itself
