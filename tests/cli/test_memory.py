"""`explain --memory`: tokens of a micro-batch, logits, and what a model's parameters take, by counting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli.main import main
from batchbridge.kit import memory, model_size
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, MicroBatch, OptimizerStep, Rollout, Spec, Topology
from batchbridge.render import memory as render

Run = Callable[..., tuple[int, str, str]]
RECIPE = "num_generations: 16\nper_device_train_batch_size: 16\nmax_prompt_length: 512\nmax_completion_length: 4096\n"
UNDER = ("--framework", "trl", "--framework-version", "0.18.0", "--world-size", "8")
QWEN_1_5B = {
    "model_type": "qwen2",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
PUBLISHED = {
    "Qwen2.5-1.5B": (QWEN_1_5B, 1_543_714_304),
    "Llama-3.1-8B": (
        {
            **QWEN_1_5B,
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 128256,
            "tie_word_embeddings": False,
        },
        8_030_261_248,
    ),
    "Mistral-7B-v0.1": (
        {
            **QWEN_1_5B,
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
        },
        7_241_732_096,
    ),
    "Qwen3-0.6B": (
        {
            **QWEN_1_5B,
            "model_type": "qwen3",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "head_dim": 128,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
        },
        596_049_920,
    ),
}
"""Numbers that the models' publishers give."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    Path("config.json").write_text(json.dumps(QWEN_1_5B), encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["explain", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def spec(world: int = 8, **micro: object) -> Spec:
    found = Spec(
        topology=Topology(world_size=world),
        rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=8),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
        micro_batch=MicroBatch(**micro),  # type: ignore[arg-type]  # sizes alone
    )
    return found.replace(**{"carried.max_prompt_tokens": 512, "carried.max_completion_tokens": 4096})


def test_explain_says_how_many_tokens_a_micro_batch_has(run: Run) -> None:
    said = run("recipe.yaml", *UNDER)[1]
    assert "A micro-batch has 16 completions: up to 16 x 4,608 = 73,728 tokens per device." in said
    assert "Memory" not in said


def test_prompts_without_a_limit_are_said_to_have_none(run: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE.replace("max_prompt_length: 512\n", ""), encoding="utf-8")
    said = run("recipe.yaml", "--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8")[1]
    assert "up to 16 x 4,096 = 65,536 tokens per device, and their prompts, which have no limit." in said


def test_the_table_has_formulas_and_says_what_it_leaves_out(run: Run) -> None:
    code, said, _ = run("recipe.yaml", *UNDER, "--memory", "--model-config", "config.json")
    assert code == 0
    said = said.partition("Memory per device, an estimate from below\n")[2]
    assert "18.55 GiB" in said
    assert "65,536 completion tokens x 151,936 words x 2 bytes" in said
    assert "1,543,714,304 x (4 + 4 + 8) bytes" in said
    assert "1,543,714,304 x (4/8 + 4/8 + 8/8) bytes" in said
    assert "Left out: activations" in said


def test_json_has_the_same_numbers(run: Run) -> None:
    said = run("recipe.yaml", *UNDER, "--memory", "--parameters", "1.5B", "--json")[1]
    found = {one["what"]: one for one in json.loads(said)["results"][0]["memory"]}
    assert found["not sharded (DDP); float32 weights"]["bytes"] == 16 * 1_500_000_000
    assert found["optimizer state (ZeRO-1); bfloat16 weights, float32 master"]["bytes"] == 1_500_000_000 * 11 // 2
    assert found["and weights (ZeRO-3, FSDP); float32 weights"]["bytes"] == 2 * 1_500_000_000


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_models_parameters_are_those_of_its_publisher(name: str) -> None:
    config, count = PUBLISHED[name]
    assert model_size.parameters(config) == count


def test_parallel_devices_share_parameters_and_sequences() -> None:
    shared = spec(completions_per_device=3).replace(**{"topology.tensor_parallel": 2, "topology.context_parallel": 2})
    micro = memory.micro_batch(shared)
    assert micro is not None
    assert (micro.tokens, micro.completion_tokens) == (3 * 4608 // 2, 3 * 4096 // 2)
    sizes = dict(memory.parameter_bytes(1000, shared.topology))
    assert sizes["not sharded (DDP)"] == (8000, 8000)
    assert sizes["and weights (ZeRO-3, FSDP)"] == (2000, 2000)


def test_a_formula_names_the_sequence_as_it_is_not_as_it_is_rounded() -> None:
    odd = spec(completions_per_device=1).replace(
        **{"topology.context_parallel": 2, "carried.max_completion_tokens": 4097}
    )
    (line,) = render.line(odd)
    assert "1 completion: up to 1 x 4,609 / 2 = 2,305 tokens" in line


@pytest.mark.parametrize(("cap", "tokens"), [("hard", 2048), ("soft", 4608)])
def test_a_token_budget_is_the_most_but_for_one_long_completion(cap: str, tokens: int) -> None:
    micro = memory.micro_batch(spec(tokens_per_device=2048, cap=cap))
    assert micro is not None
    assert (micro.tokens, micro.completions, micro.completion_tokens) == (tokens, None, 0)


def test_what_is_open_is_not_estimated(run: Run) -> None:
    assert memory.micro_batch(spec()) is None
    length = spec(completions_per_device=3).replace(**{"carried.max_completion_tokens": None})
    assert memory.micro_batch(length) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parameters", "1.5B"), "give it, too"),
        (("--memory", "--parameters", "many"), "expected a number of parameters"),
        (("--memory", "--parameters", "0"), "expected a number of parameters"),
        (("--memory", "--parameters", "1.55"), "expected a number of parameters"),
        (("--memory", "--model-config", "gone.json"), "there is no such file"),
        (("--memory", "--model-config", "recipe.yaml"), "--model-config recipe.yaml"),
    ],
)
def test_what_is_no_model_is_a_usage_error(run: Run, options: tuple[str, ...], message: str) -> None:
    code, _, err = run("recipe.yaml", *UNDER, *options)
    assert code == 64
    assert message in " ".join(err.split())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mixtral"}, "mixtral"),
        ({"vocab_size": "x"}, "vocab_size"),
        ({"hidden_size": True}, "hidden_size"),
    ],
)
def test_a_model_that_is_not_counted_is_refused_by_name(run: Run, change: dict[str, object], message: str) -> None:
    Path("config.json").write_text(json.dumps(QWEN_1_5B | change), encoding="utf-8")
    code, _, err = run("recipe.yaml", *UNDER, "--memory", "--model-config", "config.json")
    assert code == 64
    assert message in err
