"""The predicted steps of unwrapped runs against recorded runs of the real GRPOTrainer: membership and weights, exactly.

One process on CPU, a tiny random model, scripted rollouts. What a micro-batch's loss is divided by is read off TRL's
own loss, not assumed: with every token's loss replaced by 1, the loss is the sum of the token weights.
"""

from __future__ import annotations

import warnings
from fractions import Fraction

import pytest
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from batchbridge.contract.reading import Context, Source
from batchbridge.kit.torch_random import TorchGenerator
from batchbridge_trl.config import TrlAdapter

WORDS = ["<pad>", "<eos>", "<unk>", *(f"t{i}" for i in range(61))]
LENGTHS = (1, 3, 2, 7, 5, 4, 9, 6)


def response_length(prompt, sample):
    """Tokens of the scripted completion, the end token included."""
    return LENGTHS[(3 * prompt + sample) % len(LENGTHS)] + 1


def scripted(prompt, sample):
    """A completion that tells its prompt and sample by its first token, and a length that varies."""
    return [3 + prompt * 6 + sample, *([3] * (response_length(prompt, sample) - 2)), 1]


def tokenizer():
    plain = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def model():
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=1,
            tie_word_embeddings=False,
        )
    )


def record(folder, prompts, settings):
    """The real run: per optimizer step, per micro-batch, the (prompt, sample) rows and the loss's sum of token "
    "weights."""

    def rollout(texts, trainer):
        seen, ids, completions = {}, [], []
        for text in texts:
            prompt = int(text[1:])
            sample = seen.get(prompt, 0)
            seen[prompt] = sample + 1
            ids.append(trainer.processing_class(text)["input_ids"])
            completions.append(scripted(prompt, sample))
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [[0.0] * len(c) for c in completions]}

    config = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        max_completion_length=16,
        learning_rate=0.0,
        **settings,
    )
    trainer = GRPOTrainer(
        model=model(),
        reward_funcs=lambda completions, **columns: [float(i % 3) for i, _ in enumerate(completions)],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": [f"t{i}" for i in range(prompts)]}),
        processing_class=tokenizer(),
        rollout_func=rollout,
    )
    steps = {}
    original = trainer.compute_loss

    def compute_loss(model, inputs, *args, **kwargs):
        rows = [divmod(int(ids[0]) - 3, 6) for ids in inputs["completion_ids"]]
        # Advantage -1 at ratio 1 makes every token's loss 1, so the loss is the sum of the token weights.
        inputs = {**inputs, "advantages": -torch.ones(len(rows)), "old_per_token_logps": None}
        loss = original(model, inputs, *args, **kwargs)
        steps.setdefault(trainer.state.global_step, []).append((rows, loss.item()))
        return loss

    trainer.compute_loss = compute_loss
    trainer.train()
    return config, [steps[index] for index in sorted(steps)]


CASES = [
    # prompts, micro, accumulation, steps per generation, generations, passes, epochs, loss
    (7, 2, 2, 2, 4, 1, 2, "dapo"),
    (7, 2, 2, 4, 4, 1, 2, "dapo"),
    (8, 2, 4, 2, 4, 1, 1.5, "dapo"),
    (5, 4, 4, 1, 4, 1, 2, "grpo"),
    (7, 2, 3, 2, 2, 1, 2, "bnpo"),
    (6, 3, 2, 2, 3, 2, 1, "bnpo"),
    (6, 2, 2, 4, 4, 2, 2, "dr_grpo"),
    (6, 2, 3, 4, 4, 1, 2, "dapo"),
    (6, 4, 2, 2, 4, 1, 1, "sapo"),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def run(request, tmp_path_factory):
    prompts, micro, accumulation, steps, generations, passes, epochs, loss = request.param
    settings = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": steps,
        "num_generations": generations,
        "num_iterations": passes,
        "num_train_epochs": epochs,
        "loss_type": loss,
        "seed": 7,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config, recorded = record(tmp_path_factory.mktemp("run"), prompts, settings)
    adapter = TrlAdapter()
    reading = adapter.read(Source(native=config), Context(framework_version=trl.__version__, dataset_size=prompts))
    tokens = {(p, s): response_length(p, s) for p in range(prompts) for s in range(generations)}
    return recorded, list(adapter.native_steps(reading, prompts, tokens)), tokens, loss, reading


def micro_batches(step):
    batches = {}
    for row in step.rows:
        batches.setdefault(row.micro_batch, []).append((row.prompt, row.sample))
    return [batches[index] for index in sorted(batches)]


def test_every_micro_batch_of_every_step_holds_the_predicted_completions(run):
    recorded, predicted, *_ = run
    assert [micro_batches(step) for step in predicted] == [[rows for rows, _ in step] for step in recorded]


def test_the_predicted_token_weights_sum_to_the_loss_of_each_micro_batch(run):
    recorded, predicted, tokens, loss, _ = run
    token_loss = 2 / 1.05 if loss == "sapo" else 1  # 4 sigmoid(0) / sapo_temperature_neg
    for step, micro_steps in zip(predicted, recorded, strict=True):
        for index, (_, value) in enumerate(micro_steps):
            rows = [row for row in step.rows if row.micro_batch == index]
            total = sum((row.weight * tokens[row.prompt, row.sample] for row in rows), Fraction(0))
            assert value == pytest.approx(token_loss * float(total), rel=1e-5)


def test_the_plan_counts_the_steps_that_trl_takes(run):
    recorded, *_, reading = run
    assert reading.derived["total_optimizer_steps"] == len(recorded)


@pytest.mark.parametrize("seed", [0, 42, 2**32 + 5])
def test_permutations_are_torchs(seed):
    theirs, ours = torch.Generator().manual_seed(seed), TorchGenerator(seed)
    for size in (1, 2, 7, 8000, 3):
        assert ours.permutation(size) == torch.randperm(size, generator=theirs).tolist()


def test_the_data_loaders_draw_moves_the_generator_as_predicted():
    theirs, ours = torch.Generator().manual_seed(3), TorchGenerator(3)
    torch.empty((), dtype=torch.int64).random_(generator=theirs)
    ours.draw_int64()
    assert ours.permutation(50) == torch.randperm(50, generator=theirs).tolist()
