"""Trainers of R1-V's family, for tests of what is observed of them: two stand-ins that are written here and have the
family's seams (that of TRL 0.14, whose `compute_loss` does everything; that of later releases, whose sampler repeats
rows and whose rollouts serve several passes), and the projects' own files from a checkout, with the tiny policy and
scripted completions."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import GenerationConfig, LlamaForCausalLM, Trainer
from trl import GRPOConfig

from batchbridge.kit.versions import holds, version
from batchbridge.testing.tiny import PAD, ScriptedRollouts, tiny_policy, tiny_tokenizer

GROUP, BETA = 4, 0.05
CHECKOUTS = {"R1-V": "BATCHBRIDGE_R1_V", "VLM-R1": "BATCHBRIDGE_VLM_R1"}
"""Project to the environment variable that names its checkout."""
SCRIPT = ScriptedRollouts(empty=frozenset(), longest=12)


def config(folder: Path, **given: Any) -> GRPOConfig:
    """The arguments of a run on a CPU, without logs and checkpoints."""
    settings: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "num_generations": GROUP,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_completion_length": SCRIPT.longest,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "beta": BETA,
        "remove_unused_columns": False,
        "num_train_epochs": 2,
    }
    return GRPOConfig(**settings | given)


def dataset(prompts: int = 8) -> Dataset:
    """Prompts of the script, and the number of an image that nobody looks at."""
    return Dataset.from_dict({"prompt": [SCRIPT.prompt(n) for n in range(prompts)], "image": list(range(prompts))})


def reward(prompts: list[str], completions: list[str], **others: Any) -> list[float]:
    """The script's reward of each row of whole groups."""
    return [SCRIPT.reward(SCRIPT.prompt_index(prompt), row % GROUP) for row, prompt in enumerate(prompts)]


def scripted(model: Any, *, repeats: bool) -> None:
    """Lets a model answer `generate` with the script. repeats: a group is made of each row."""
    tokenizer = tiny_tokenizer()

    def generate(input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        if repeats:
            input_ids = input_ids.repeat_interleave(GROUP, dim=0)
        texts = tokenizer.batch_decode(input_ids, skip_special_tokens=True)
        rows = [
            torch.tensor(SCRIPT.completion(SCRIPT.prompt_index(text), row % GROUP)) for row, text in enumerate(texts)
        ]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        return torch.cat([input_ids, padded], dim=1)

    model.generate = generate


class StandIn(Trainer):  # type: ignore[misc]  # transformers is untyped here
    """A trainer with the seams of TRL 0.14's copies. aggregate: "sequences" as they have it, or "tokens"; times: a
    factor of the loss; clips: whether ratios are clipped; own_advantages: in place of the family's."""

    aggregate, times, clips = "sequences", 1.0, False
    own_advantages: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __init__(self, args: GRPOConfig, train_dataset: Dataset, policy: Any = None) -> None:
        model = tiny_policy() if policy is None else policy
        self.reference = tiny_policy(seed=1)
        self.reward_funcs = [reward]
        self.num_generations, self.beta = args.num_generations, args.beta
        self.generation_config = GenerationConfig(do_sample=True, num_return_sequences=self.num_generations)
        self.set_up(args)
        super().__init__(
            model=model,
            args=args,
            data_collator=list,
            train_dataset=train_dataset,
            processing_class=tiny_tokenizer(),
        )
        self.model_accepts_loss_kwargs = False
        scripted(self.model, repeats=self.generation_config.num_return_sequences == self.num_generations)

    def set_up(self, args: GRPOConfig) -> None:
        """What a class that is derived from this one sets up first."""

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs

    def _get_per_token_logps(self, model: Any, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=ids, attention_mask=attention_mask).logits[:, :-1]
        return logits.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]

    def complete(self, model: Any, inputs: list[Any]) -> dict[str, Any]:
        """Generates and scores; everything that a loss needs."""
        texts = [one["prompt"] for one in inputs]
        asked = self.processing_class(texts, return_tensors="pt", padding=True)
        whole = self.accelerator.unwrap_model(model).generate(
            input_ids=asked["input_ids"], attention_mask=asked["attention_mask"], config=self.generation_config
        )
        each, width = len(whole) // len(texts), asked["input_ids"].shape[1]
        ends = whole[:, width:] == self.processing_class.eos_token_id
        mask = (ends.cumsum(1) - ends.int() == 0).int()
        attention = torch.cat([asked["attention_mask"].repeat_interleave(each, dim=0), mask], dim=1)
        told = [text for text in texts for _ in range(each)]
        rewards = torch.tensor(
            [one(prompts=told, completions=self.processing_class.batch_decode(whole)) for one in self.reward_funcs]
        ).sum(0)
        groups = rewards.view(-1, self.num_generations)
        advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).flatten()
        if self.own_advantages is not None:
            advantages = self.own_advantages(groups).flatten()
        with torch.inference_mode():
            reference = self._get_per_token_logps(self.reference, whole, attention)[:, width - 1 :]
        return {
            "trainer": self,
            "ids": whole,
            "width": width,
            "attention": attention,
            "mask": mask,
            "advantages": advantages,
            "ref_per_token_logps": reference,
        }

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> torch.Tensor:
        return self.loss_of(model, self.complete(model, inputs))

    def loss_of(self, model: Any, made: dict[str, Any]) -> torch.Tensor:
        """The loss of completions."""
        mask, new = made["mask"], self._get_per_token_logps(model, made["ids"], made["attention"])
        new = new[:, made["width"] - 1 :]
        old = made.get("old_per_token_logps")
        ratio = (new - (new.detach() if old is None else old)).exp()
        towards = made["ref_per_token_logps"] - new
        advantages = made["advantages"][:, None]
        policy = ratio * advantages
        if self.clips:
            policy = torch.minimum(policy, ratio.clamp(1 - self.args.epsilon, 1 + self.args.epsilon) * advantages)
        loss = -(policy - self.beta * (towards.exp() - towards - 1))
        if self.aggregate == "tokens":
            return self.times * (loss * mask).sum() / mask.sum()
        return self.times * ((loss * mask).sum(1) / mask.sum(1)).mean()


class LaterStandIn(StandIn):
    """A trainer with the seams of later copies: a sampler repeats rows, and a rollout serves several passes."""

    clips = True

    def set_up(self, args: GRPOConfig) -> None:
        self.num_iterations = args.num_iterations
        self.generation_config = GenerationConfig(do_sample=True)
        self.buffer: dict[int, dict[str, Any]] = {}
        self.calls = 0

    def _get_train_sampler(self, *given: Any) -> Any:
        count, group = len(self.train_dataset), self.num_generations
        window = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        chunk = window * self.accelerator.num_processes // group

        class Repeated(torch.utils.data.Sampler):  # type: ignore[type-arg]
            def __iter__(self) -> Iterator[int]:
                for first in range(0, count - chunk + 1, chunk):
                    for _ in range(passes):
                        for prompt in range(first, first + chunk):
                            yield from [prompt] * group

            def __len__(self) -> int:
                return count * group * passes

        passes = self.num_iterations
        return Repeated()

    def _generate_and_score_completions(self, inputs: Any, model: Any) -> dict[str, Any]:
        made = self.complete(model, inputs)
        if self.num_iterations > 1:
            with torch.no_grad():
                old = self._get_per_token_logps(model, made["ids"], made["attention"])
            made["old_per_token_logps"] = old[:, made["width"] - 1 :]
        return made

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any) -> torch.Tensor:
        place = self.calls % self.args.gradient_accumulation_steps
        self.calls += 1
        if self.state.global_step % self.num_iterations == 0:
            self.buffer[place] = self._generate_and_score_completions(inputs, model)
        return self.loss_of(model, self.buffer[place])


def with_more_kl(model: Any, made: dict[str, Any]) -> torch.Tensor:
    """A loss of `StandIn` whose KL term weighs twice what its settings say."""
    trainer = made["trainer"]
    trainer.beta, beta = 2 * trainer.beta, trainer.beta
    try:
        return StandIn.loss_of(trainer, model, made)
    finally:
        trainer.beta = beta


for _stand_in, _name in ((StandIn, "Qwen2VLGRPOTrainer"), (LaterStandIn, "VLMGRPOTrainer")):
    _stand_in.__module__, _stand_in.__qualname__ = "standing_in.grpo_trainer", _name  # a copy is known by its name
    _stand_in.__name__ = _name


# ---- the projects' own files


class _WithPictures(LlamaForCausalLM):  # type: ignore[misc]
    """The tiny policy, which takes pictures and leaves them alone."""

    def forward(self, *given: Any, pixel_values: Any = None, image_grid_thw: Any = None, **options: Any) -> Any:
        return super().forward(*given, **options)


class _Processor:
    """A processor that makes a number of each picture."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: list[str], images: Any = None, **options: Any) -> Any:
        options.pop("add_special_tokens", None)
        made = self._tokenizer(text, **{**options, "return_token_type_ids": False})
        made["pixel_values"] = torch.zeros(len(text), 1)
        made["image_grid_thw"] = torch.ones(len(text), 3, dtype=torch.long)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def own_file(project: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a project's trainer, loaded from its checkout without what its package imports beside; skips the
    test where no checkout is named."""
    place = os.environ.get(CHECKOUTS[project])
    if not place:
        pytest.skip(f"{CHECKOUTS[project]} names no checkout of {project}")
    if not holds("<4.52" if project == "VLM-R1" else "<5", version("transformers")):
        pytest.skip(f"{project}'s trainer does not train on this release of transformers")
    package = next(iter(sorted(Path(place).glob("src/*/src/open_r1/trainer")))).parent
    for name in ("open_r1", "open_r1.trainer", "open_r1.vlm_modules"):
        module = types.ModuleType(name)
        module.__path__ = [str(package.joinpath(*name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, module)
    for name in [name for name in sys.modules if name.startswith("open_r1.") and name.count(".") > 1]:
        monkeypatch.delitem(sys.modules, name)
    spec = importlib.util.find_spec("open_r1.trainer.grpo_trainer")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def r1_v(monkeypatch: pytest.MonkeyPatch, folder: Path, **given: Any) -> Any:
    """R1-V's own trainer over the tiny policy."""
    module = own_file("R1-V", monkeypatch)
    policy = tiny_policy()
    policy.__class__ = _WithPictures
    tiny_tokenizer().save_pretrained(folder / "policy")
    policy.config.save_pretrained(folder / "policy")
    policy.config._name_or_path = str(folder / "policy")
    policy.warnings_issued = {}
    built = module.Qwen2VLGRPOTrainer(policy, [reward], args=config(folder, **given), train_dataset=dataset())
    built.processing_class = _Processor(tiny_tokenizer())
    built.ref_model.load_state_dict(tiny_policy(seed=1).state_dict())
    scripted(built.model, repeats=True)
    return built


def vlm_r1(monkeypatch: pytest.MonkeyPatch, folder: Path, **given: Any) -> Any:
    """VLM-R1's own trainer over the tiny policy, in its own module for models a text model's."""
    module = own_file("VLM-R1", monkeypatch)
    base = sys.modules["open_r1.vlm_modules.vlm_module"].VLMBaseModule

    class Loaded:
        @staticmethod
        def from_pretrained(place: str, **options: Any) -> Any:
            policy = tiny_policy()
            policy.warnings_issued = {}
            return policy

    class Tokenizer:
        @staticmethod
        def from_pretrained(place: str, **options: Any) -> Any:
            return tiny_tokenizer()

    class TextModule(base):  # type: ignore[misc, valid-type]
        def get_vlm_key(self) -> str:
            return "text"

        def get_model_class(self, model_id: str, model_init_kwargs: Any) -> Any:
            return Loaded

        def get_processing_class(self) -> Any:
            return Tokenizer

        def get_vision_modules_keywords(self) -> list[str]:
            return []

        def get_custom_multimodal_keywords(self) -> list[str]:
            return []

        def get_non_generate_params(self) -> list[str]:
            return []

        def get_custom_processing_keywords(self) -> list[Any]:
            return []

        def prepare_prompt(self, processing_class: Any, inputs: Any) -> list[str]:
            return [one["prompt"] for one in inputs]

        def prepare_model_inputs(self, processing_class: Any, texts: Any, images: Any, **options: Any) -> Any:
            options.pop("add_special_tokens", None)
            return processing_class(texts, **options, return_token_type_ids=False), None

    built = module.VLMGRPOTrainer(
        model="tiny",
        reward_funcs=[reward],
        args=config(folder, **given),
        vlm_module=TextModule(),
        train_dataset=dataset().remove_columns("image"),
    )
    built.ref_model.load_state_dict(tiny_policy(seed=1).state_dict())
    scripted(built.model, repeats=False)
    return built
