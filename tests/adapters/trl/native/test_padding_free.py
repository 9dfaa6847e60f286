"""`wrap(trainer, padding="free")`: completions end to end behind a prompt that is read once, and the same gradient."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from packable import FAMILIES, of_family, packable
from peft import LoraConfig
from representative import cells
from test_token_budget import BUDGETS, TWO_PASSES, forward_shapes, train

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.kit import packing
from batchbridge.kit.packing import PackedRows
from batchbridge_trl import padding_free
from batchbridge_trl.releases import has_loss
from batchbridge_trl.testing import default_script, gradient_errors

pytestmark = pytest.mark.skipif(
    find_spec("transformers.masking_utils") is None, reason="this transformers makes masks inside of its models"
)
LOSSES = list(filter(has_loss, ["bnpo", "dapo", "grpo", "luspo", "dr_grpo", "cispo"]))
SIZES = {"the trainer's own": None, **BUDGETS}


@pytest.mark.parametrize(("loss_type", "name", "beta"), cells(LOSSES, SIZES, [0.0, 0.1]))
def test_every_step_has_the_oracles_gradient(
    trainer: Callable[..., Any], loss_type: str, name: str, beta: float
) -> None:
    reference = packable(seed=1) if beta else None
    given = {"policy": packable(), "reference": reference, "beta": beta, "num_train_epochs": 2}
    built = wrap(trainer(loss_type=loss_type, **given, **TWO_PASSES), tokens_per_device=SIZES[name], padding="free")
    captured = train(built)
    plan = built.batchbridge.plan
    assert len(captured.gradients) == plan.total_optimizer_steps
    for found in gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4):
        assert found.error <= found.bar, found
        assert captured.gradients[found.step].norm() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_of_every_family(trainer: Callable[..., Any], family: str) -> None:
    policy = of_family(family)
    built = trainer(policy=policy(), num_train_epochs=1, **TWO_PASSES)
    built = wrap(built, tokens_per_device=60, padding="free")
    captured, plan = train(built), built.batchbridge.plan
    for found in gradient_errors(captured, plan.spec, plan=plan, policy=policy, steps=3):
        assert found.error <= found.bar, found
        assert captured.gradients[found.step].norm() > 1e-3


@pytest.mark.parametrize(
    "more",
    [{"gradient_checkpointing": True}, {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"])}],
    ids=["gradient checkpointing", "LoRA"],
)
def test_it_is_the_padded_runs_gradient_with(trainer: Callable[..., Any], more: dict[str, Any]) -> None:
    found = {}
    for padding in ("padded", "free"):
        torch.manual_seed(0)
        built = trainer(folder=padding, policy=packable(), beta=0.1, num_train_epochs=1, **more, **TWO_PASSES)
        found[padding] = train(wrap(built, tokens_per_device=60, padding=padding)).gradients[0]
    assert found["padded"].norm() > 1e-4
    assert (found["free"] - found["padded"]).norm() <= 3e-6 * found["padded"].norm()


def test_each_prompt_is_read_once_and_nothing_is_padded(trainer: Callable[..., Any]) -> None:
    built = trainer(policy=packable(), reference=packable(seed=1), beta=0.1, num_train_epochs=1, **TWO_PASSES)
    wrap(built, tokens_per_device=100_000, padding="free")
    with forward_shapes(built.model) as shapes, forward_shapes(built.ref_model) as of_reference:
        train(built)
    script, plan = default_script(), built.batchbridge.plan
    tokenizer = built.processing_class
    wanted = []
    for step in range(plan.total_optimizer_steps):
        members = plan.step(step).members
        prompts = {member.prompt: len(tokenizer(script.prompt(member.prompt))["input_ids"]) for member in members}
        completions = sum(len(script.completion(member.prompt, member.sample)) for member in members)
        wanted.append(completions + sum(prompts.values()))
    trained = [rows * width for gradients, rows, width in shapes if gradients]
    assert trained == wanted
    scored = [(rows, width) for gradients, rows, width in shapes if not gradients]
    assert [rows for rows, _ in scored if rows > 1] == [4], "the first micro-batch is held against a padded pass, once"
    whole = []
    for prompts in (plan.rollout(rollout).prompts for rollout in range(plan.total_rollouts)):
        tokens = sum(len(tokenizer(script.prompt(prompt))["input_ids"]) for prompt in prompts)
        whole.append(tokens + sum(len(script.completion(prompt, k)) for prompt in prompts for k in range(4)))
    assert [rows * width for _, rows, width in of_reference] == whole
    old = Counter(width for rows, width in scored if rows == 1)
    assert not Counter(whole) - old
    assert (old - Counter(whole)).total() == 1, "the packed pass of that comparison"


TAMPERING: dict[str, Callable[[Any], tuple[int, int]]] = {
    # what a segment's tokens see beside their own: from where, to where
    "everything that lies before": lambda segment: (0, segment.first),
    "the completions of its prompt before it": lambda segment: (segment.prompt_first, segment.first),
    "its prompt but for the first token": lambda segment: (segment.prompt_first + 1, segment.prompt_end),
    "nothing of its prompt": lambda segment: (0, 0),
}


def tampered(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Attention in which completions see something else."""
    seen = TAMPERING[how]

    def attention(rows: Any, query: Any, key: Any, value: Any, scale: Any, dropout: Any) -> Any:
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
        mask = torch.zeros(query.shape[2], query.shape[2], dtype=torch.bool)
        for segment in rows.segments:
            own = slice(segment.first, segment.end)
            mask[own, own] = torch.ones_like(mask[own, own]).tril()
            if segment.prompt_end > segment.prompt_first or how.startswith("everything"):
                mask[own, slice(*seen(segment))] = True
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
        return out.transpose(1, 2)

    monkeypatch.setattr(packing, "_by_segment", attention)


@pytest.mark.parametrize("budget", [None, 100_000])
@pytest.mark.parametrize("how", TAMPERING)
def test_attention_that_sees_something_else_is_seen_before_the_first_update(
    trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, how: str, budget: int | None
) -> None:
    tampered(monkeypatch, how)
    built = trainer(policy=packable(), num_train_epochs=1, **TWO_PASSES)
    built = wrap(built, tokens_per_device=budget, padding="free")
    before = [weight.detach().clone() for weight in built.model.parameters()]
    with pytest.raises(BatchDrift, match=r'in its padding: .* wrap with padding="padded"'):
        built.train()
    assert all(torch.equal(a, b) for a, b in zip(before, built.model.parameters(), strict=True))


@pytest.mark.parametrize("how", TAMPERING)
def test_and_its_gradient_fails_the_bar(trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    tampered(monkeypatch, how)
    monkeypatch.setattr(padding_free.PaddingFree, "_compare", lambda *_: None)
    built = wrap(trainer(policy=packable(), num_train_epochs=1, **TWO_PASSES), padding="free")
    captured, plan = train(built), built.batchbridge.plan
    (found, *_) = gradient_errors(captured, plan.spec, plan=plan, steps=1)
    assert found.error > 100 * found.bar


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "another family": (of_family("StableLm"), {}, "of the family stablelm"),
    "eager attention": (of_family("Llama", attn_implementation="eager"), {}, "attention is eager"),
    "a sliding window": (of_family("Mistral", sliding_window=8), {}, "sliding window"),
    "windows in some layers": (
        of_family("Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1),
        {},
        "sliding window",
    ),
    "positions that depend on the longest row": (
        of_family("Llama", rope_scaling={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        {},
        "kind dynamic",
    ),
    "a compiled model": (packable, {"torch_compile": True, "torch_compile_backend": "eager"}, "compiled"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proven_is_refused_by_name_and_auto_pads(
    trainer: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("ACCELERATE_DYNAMO_BACKEND", "ACCELERATE_DYNAMO_MODE"):  # which TRL sets and leaves set
        monkeypatch.setenv(variable, "no")
    policy, more, said = REFUSED[name]
    built = trainer(policy=policy(), **more)
    with pytest.raises(CannotAttach) as refused:
        wrap(built, padding="free")
    assert list(refused.value.reasons) == ["padding_free"]
    assert said in refused.value.reasons["padding_free"]
    attachment = wrap(built, padding="auto").batchbridge
    assert [note for note in attachment.notes if note.startswith("completions are padded") and said in note]


def test_auto_lays_end_to_end_what_is_proven(trainer: Callable[..., Any]) -> None:
    built = wrap(trainer(policy=packable(), num_train_epochs=1), padding="auto")
    assert "completions lie end to end" in built.batchbridge.notes
    with forward_shapes(built.model) as shapes:
        train(built)
    assert {rows for gradients, rows, _ in shapes if gradients} == {1}


def test_only_enforcing_changes_how_completions_lie(trainer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="padding"):
        wrap(trainer(), mode="observe", padding="free")
    with pytest.raises(ValueError, match="must be one of padded, free, auto"):
        wrap(trainer(), padding="none")


def test_the_padding_that_is_saved_is_logged(trainer: Callable[..., Any]) -> None:
    built = trainer(policy=packable(), num_train_epochs=1, logging_strategy="steps", logging_steps=1, **TWO_PASSES)
    wrap(built, tokens_per_device=100_000, padding="free", report_to="trainer")
    with forward_shapes(built.model) as shapes:
        train(built)
    saved = [line["batchbridge/padding_saved"] for line in built.state.log_history if "batchbridge/drift" in line]
    read = [rows * width for gradients, rows, width in shapes if gradients]
    script, tokenizer, plan = default_script(), built.processing_class, built.batchbridge.plan
    for step, (found, tokens) in enumerate(zip(saved, read, strict=True)):
        members = plan.step(step).members
        prompts = [len(tokenizer(script.prompt(member.prompt))["input_ids"]) for member in members]
        completions = [len(script.completion(member.prompt, member.sample)) for member in members]
        assert found == pytest.approx(1 - tokens / (len(members) * (max(prompts) + max(completions))))


def test_a_run_that_goes_on_with_padding_holds_its_budget_at_once(trainer: Callable[..., Any], tmp_path: Path) -> None:
    """What was cut without padding would take more with it."""
    run = {"policy": packable(), "num_train_epochs": 1, "save_strategy": "steps", "save_steps": 1, **TWO_PASSES}
    began = wrap(trainer(folder="began", **run), tokens_per_device=40, padding="free")
    began.train()
    checkpoint = str(tmp_path / "began" / "checkpoint-1")
    shares = torch.load(f"{checkpoint}/batchbridge/rank-00000.pt", weights_only=True)["shares"]
    assert shares["steps"], "the rollout is still trained on"
    resumed = wrap(trainer(folder="resumed", **run), tokens_per_device=40)
    with forward_shapes(resumed.model) as shapes:
        resumed.train(resume_from_checkpoint=checkpoint)
    trained = [(rows, width) for gradients, rows, width in shapes if gradients]
    assert any(rows > 1 for rows, _ in trained)
    assert all(rows * width <= 40 or rows == 1 for rows, width in trained), trained


IDS = torch.tensor([[0, 5, 6, 7, 8, 0], [4, 5, 6, 9, 0, 0], [0, 5, 6, 0, 0, 0]])
MASK = torch.tensor([[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0], [0, 1, 1, 0, 0, 0]])


def test_rows_of_one_prompt_lie_behind_it() -> None:
    rows = PackedRows.of(IDS, MASK, 3)
    assert rows.token_ids.tolist() == [[5, 6, 7, 8, 0, 4, 5, 6, 9]]  # a completion of which nothing is read keeps one
    assert rows.position_ids.tolist() == [[0, 1, 2, 3, 2, 0, 1, 2, 3]]
    assert rows.predictors.tolist() == [1, 2, 1, 7]
    assert rows.targets.tolist() == [[7, 8, 0, 9]]
    placed = rows.padded(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 3, 3)
    assert placed.tolist() == [[1.0, 2.0, 0.0], [4.0, 0.0, 0.0], [3.0, 0.0, 0.0]]


def test_a_mask_with_a_hole_is_refused() -> None:
    holed = MASK.clone()
    holed[0, 3] = 0
    with pytest.raises(ValueError, match="hole"):
        PackedRows.of(IDS, holed, 3)


def test_a_pass_that_no_attention_reads_is_refused() -> None:
    seen = packing.PackedModel(packable(), PackedRows.of(IDS, MASK, 3))
    with pytest.raises(RuntimeError, match="attending"):
        seen(input_ids=seen.token_ids)


def varlen(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **told: Any) -> Any:
    """What flash attention's varlen kernels are documented to do, a sequence at a time, in torch; a stand-in."""
    assert attention_mask is None
    key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], 1) for each in (key, value))
    queries, keys = told["cu_seq_lens_q"].tolist(), told["cu_seq_lens_k"].tolist()
    assert max(b - a for a, b in pairwise(queries)) == told["max_length_q"]
    assert max(b - a for a, b in pairwise(keys)) == told["max_length_k"]
    made = []
    for (q, q_end), (k, k_end) in zip(pairwise(queries), pairwise(keys), strict=True):
        scores = query[:, :, q:q_end] @ key[:, :, k:k_end].transpose(2, 3) / math.sqrt(query.shape[-1])
        seen = torch.ones(q_end - q, k_end - k, dtype=torch.bool).tril((k_end - k) - (q_end - q))
        made.append(scores.masked_fill(~seen, -math.inf).softmax(-1) @ value[:, :, k:k_end])
    return torch.cat(made, 2).transpose(1, 2), None


def test_what_flash_attention_is_told_gives_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mock of the kernel, by its documentation: no GPU ran it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    logits = {}
    for implementation in ("sdpa", "flash_attention_2"):
        model = packable()
        if implementation != "sdpa":
            monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, implementation, varlen)
            model.config._attn_implementation = implementation
        seen = packing.PackedModel(model, PackedRows.of(IDS, MASK, 3))
        with packing.attending(implementation), torch.no_grad():
            logits[implementation] = seen(input_ids=seen.token_ids).logits
    torch.testing.assert_close(logits["flash_attention_2"], logits["sdpa"])


@pytest.mark.parametrize("autocast", [False, True])
def test_torch_s_varlen_kernel_is_told_the_same(monkeypatch: pytest.MonkeyPatch, autocast: bool) -> None:
    """A mock of the kernel, by its documentation: benchmarks/gpu.py runs torch's own on a GPU."""
    calls = []

    def kernel(query: Any, key: Any, value: Any, *told: Any, scale: float, window_size: tuple[int, int]) -> Any:
        assert window_size == (-1, 0)
        assert query.dtype == key.dtype == value.dtype == torch.bfloat16
        names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
        calls.append(query.shape)
        assert scale == pytest.approx(query.shape[-1] ** -0.5)
        heads_first = (each.transpose(0, 1)[None] for each in (query, key, value))
        return varlen(None, *heads_first, None, **dict(zip(names, told, strict=True)))[0][0]

    logits = {}
    for name in ("by segment", "at once"):
        model = packable() if autocast else packable().bfloat16()
        seen = packing.PackedModel(model, PackedRows.of(IDS, MASK, 3))
        if name == "at once":
            monkeypatch.setattr(packing, "varlen_attn", kernel)
            monkeypatch.setattr(packing, "_half", lambda query: torch.bfloat16)  # which asks for a GPU
        with packing.attending("sdpa"), torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            logits[name] = seen(input_ids=seen.token_ids).logits
    assert len(calls) == 2  # a call for each layer
    torch.testing.assert_close(logits["at once"].float(), logits["by segment"].float(), atol=0.05, rtol=0.0)
    assert not torch.equal(logits["at once"], torch.zeros_like(logits["at once"]))
