"""Open-Instruct's specification against Open-Instruct's own functions, and misreadings of its settings, each of which
they tell.

Open-Instruct is on no package index and imports vLLM, Ray and DeepSpeed: where its checkout is on the path
(`PYTHONPATH`) and torch is installed, the functions of its loss are taken out of its file one by one; elsewhere
`evidence.json` has what they answered. The learners' steps, packed rows, groups and orders are replayed by
`upstream_values`, and are no laws here yet.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_open_instruct.config import OpenInstructAdapter

RUN: dict[str, Any] = {
    "num_unique_prompts_rollout": 8,
    "num_samples_per_prompt_rollout": 4,
    "num_learners_per_node": [2],
    "use_rho_correction": False,
}
KL: dict[str, Any] = {"load_ref_policy": True, "beta": 0.05}
FILE, MODEL = "grpo_utils.py", "model_utils.py"
LOSSES = (f"{FILE}: compute_rho_correction", f"{FILE}: compute_grpo_loss")


class OpenInstructsFunctions(EvidenceContract):
    """What Open-Instruct's own code says of a case."""

    adapter_class = OpenInstructAdapter
    package = "open_instruct"
    marker = "grpo_fast.py"
    version = "2026.8.20 (e6c3044)"
    record = Path(__file__).with_name("evidence.json")
    functions: ClassVar[Mapping[str, Sequence[str]]] = {
        "gradients": (*LOSSES, f"{MODEL}: estimate_kl"),
        "ratio": LOSSES,
        "corrections": LOSSES[:1],
    }

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case, [[token] for token in tokens])

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [one / len(tokens) for one in gradients(case, [tokens])]

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        import torch

        factors = []
        for completion in completions:
            old, sampled = torch.tensor(completion, dtype=torch.float64).T[:, None]
            every = torch.ones_like(old)
            factors.append(corrected(configured(case), old, sampled, every.bool(), every)[0].tolist())
        return factors


def taken(file: str, *names: str, **beside: Any) -> dict[str, Any]:
    """Functions of Open-Instruct's by their own code, and what they call besides."""
    folder = OpenInstructsFunctions.package_folder()
    assert folder is not None
    tree = ast.parse((folder / file).read_text("utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    space = dict(beside)
    exec(compile(ast.fix_missing_locations(ast.Module([future, *found], [])), str(folder / file), "exec"), space)
    return space


def configured(case: ValidCase) -> Any:
    """The settings, with the defaults of Open-Instruct's own class."""
    folder = OpenInstructsFunctions.package_folder()
    assert folder is not None
    tree = ast.parse((folder / FILE).read_text("utf-8"))
    (body,) = (
        node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "GRPOExperimentConfig"
    )
    fields = {node.target.id: node.value for node in body if isinstance(node, ast.AnnAssign) if node.value is not None}
    wanted = ("beta", "clip_lower", "clip_higher", "load_ref_policy", "use_rho_correction", "kl_estimator")
    defaults = {
        name: ast.literal_eval(value) for name, value in fields.items() if name in wanted or name.startswith("rho_")
    }
    made = SimpleNamespace(**{**defaults, **case.source.values})
    made.loss_fn = Losses[case.source.values.get("loss_fn", "dapo")]
    return made


class Losses(enum.Enum):
    """Stands for `GRPOLossType`."""

    dapo = "dapo"
    cispo = "cispo"


def corrected(config: Any, old: Any, sampled: Any, mask: Any, advantages: Any) -> Any:
    """The weights of `compute_rho_correction`."""
    import torch

    names = ("compute_rho_correction", "_sequence_level_mean", "_rho_drop_masks")
    correct = taken(FILE, *names, torch=torch, RhoCorrection=SimpleNamespace)["compute_rho_correction"]
    return correct(old, sampled, mask, advantages, config).weights


def gradients(case: ValidCase, rows: Sequence[Sequence[Token]]) -> list[float]:
    """The gradient of each token's loss, as the learners put it together, at the log-probabilities of rows of one
    length."""
    import torch

    config = configured(case)
    new, old, reference, advantages = (
        torch.tensor([[getattr(token, name) for token in row] for row in rows], dtype=torch.float64)
        for name in ("logprob", "old", "reference", "advantage")
    )
    new.requires_grad_()
    weights = corrected(config, old, old, torch.ones_like(old).bool(), advantages)
    estimate = SimpleNamespace(estimate_kl=taken(MODEL, "estimate_kl", torch=torch)["estimate_kl"])
    loss_of = taken(FILE, "compute_grpo_loss", torch=torch, GRPOLossType=Losses, model_utils=estimate)
    given = reference if config.load_ref_policy else None
    loss, _, kl = loss_of["compute_grpo_loss"](new, (new - old).exp(), advantages, given, config, weights)
    (loss + config.beta * kl).sum().backward()
    return [one for row in new.grad.tolist() for one in row]


def case(name: str, **values: Any) -> ValidCase:
    return ValidCase(name=name, source=Source(values={**RUN, **values}), context=Context(framework_version="2026.8.20"))


class TestOpenInstruct(OpenInstructsFunctions):
    """Open-Instruct's adapter against them."""

    valid = (
        case("dapo", load_ref_policy=False),
        case("two bounds", load_ref_policy=False, clip_lower=0.1, clip_higher=0.28),
        case("cispo", load_ref_policy=False, loss_fn="cispo", clip_higher=0.3),
        case("KL 0", **KL, kl_estimator=0),
        case("KL 1", **KL, kl_estimator=1),
        case("KL 2", **KL, kl_estimator=2),
        case("KL 3", **KL, kl_estimator=3),
        case("a cap", load_ref_policy=False, use_rho_correction=True, rho_clamp_upper_bound=2.0),
        case(
            "a mask",
            load_ref_policy=False,
            use_rho_correction=True,
            rho_clamp_upper_bound=0.0,
            rho_mask_lower_bound=0.5,
            rho_mask_upper_bound=2.0,
        ),
    )


MISREADINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # what is misread: (the law that tells, the case that it is told on, the fields as they are misread)
    "clip_higher is clip_lower": ("gradients", "two bounds", {"objective.clip_high": 0.1}),
    "cispo is ppo": ("gradients", "cispo", {"objective.surrogate": "ppo"}),
    "kl_estimator 2 is k2": ("gradients", "KL 2", {"objective.kl_estimator": "k2"}),
    "the ratio weighs no estimate": ("gradients", "KL 3", {"objective.kl_estimator": "k1"}),
    "KL is off": ("gradients", "KL 1", {"objective.kl_placement": "none", "objective.kl_coefficient": 0.0}),
    "the ratio is the sequence's": ("ratio", "dapo", {"objective.ratio_level": "sequence"}),
    "nothing is corrected": ("corrections", "a cap", {"objective.sampler_correction": None}),
    "a mask is a cap": ("corrections", "a mask", {"objective.sampler_correction": "token_truncate [0.5, 2.0]"}),
    "a cap has no bound": ("corrections", "a cap", {"objective.sampler_correction": "token_truncate [-, -]"}),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told_by_open_instructs_own_functions(misread: str) -> None:
    """A misread field that is the specification's alone: written twice, the contract of an adapter cannot see it."""
    law, named, wrong = MISREADINGS[misread]
    if law in ("gradients", "ratio"):
        pytest.importorskip("torch")

    class Misreading(OpenInstructAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            assert {path: reading.spec.values[path] for path in wrong} != wrong, "nothing is misread"
            return dataclasses.replace(reading, spec=reading.spec.replace(**wrong))

    class Held(OpenInstructsFunctions):
        adapter_class = Misreading

    (one,) = (one for one in TestOpenInstruct.valid if one.name == named)
    with pytest.raises(AssertionError, match="nativ"):
        getattr(Held(), LAWS[law].test)(one)
