"""Runs with LoRA, made once and kept in a folder: see lora_proofs.py. Their figures are kept by

    python lora_runs.py CHECKOUT RUNS

as keep_figures.py keeps the others.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import image_runs
import lora_proofs
import peft
import proofs
import torch
from keep_figures import FIGURES, bare
from lora_proofs import ALPHA, FROZEN, IMAGES, LORA, MODEL, RANK, WITHOUT
from started import version_of

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import relative_error
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.easyr1 import pictures
from batchbridge_on_cpu.easyr1.scripted import command, prepare
from batchbridge_on_cpu.figures import keep
from batchbridge_on_cpu.trajectories import FAULTS, Fault, adamw, distance, reference_run

Weights = Mapping[str, torch.Tensor]


def gradients(place: Path, checkout: Path, ranks: int, name: str) -> dict[str, Any]:
    """What lora.py measures of a case, unless it was kept."""
    folder = place / f"lora-{ranks}-{name.replace(' ', '-')}"
    if not (folder / "lora.json").exists():
        family, settings = lora_proofs.cases_of(ranks)[name]
        folder.mkdir(parents=True, exist_ok=True)
        if not family:
            prepare(folder)
        words = (str(image_runs.HERE / "lora.py"), str(folder), family, json.dumps(settings))
        ran = image_runs.torchrun(ranks, *words, env=image_runs.environment_of(checkout))
        assert ran.returncode == 0, ran.stdout[-20000:]
    found: dict[str, Any] = json.loads((folder / "lora.json").read_text(encoding="utf-8"))
    return found


@contextlib.contextmanager
def every_prompt_shown() -> Iterator[None]:
    """In here no prompt is without a picture."""
    counts = list(pictures.COUNTS)
    pictures.every_prompt_shown()
    try:
        yield
    finally:
        pictures.COUNTS[:] = counts


def _prepared(folder: Path) -> Path:
    if not (folder / "policy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if IMAGES in folder.name:
            with every_prompt_shown() if WITHOUT not in folder.name else contextlib.nullcontext():
                pictures.prepare(folder, MODEL, prompts=proofs.PROMPTS)
        else:
            prepare(folder, prompts=proofs.PROMPTS)
    return folder


def fit(place: Path, checkout: Path, ranks: int, *names: str, **env: str) -> Path:
    """Runs scenarios of lora_fits.py, see `image_runs.scenarios`; that on prompts with images alone."""
    shown = [f"{name}-" for name in names if name.startswith(IMAGES)]
    folder = _prepared(place / f"lora-fits-{''.join(shown)}{ranks}")
    return image_runs.scenarios("lora_fits.py", folder, checkout, ranks, *names, **env)


def run(folder: Path, name: str, ranks: int) -> dict[str, Any]:
    """The summary of a scenario that ended well, and the command that it stands for."""
    code, text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert code == 0, text[-20000:]
    own = pictures.arguments(folder) if name == IMAGES else []
    lora = [f"{key}={value}" for key, value in LORA.items()]
    words = [*command(folder, ranks)[1:], *own, *lora, *lora_proofs.FITS[name][1]]
    return {**proofs.summary(folder / lora_proofs.CONTINUES.get(name, name)), "argv": bare(words)}


# ---- where runs end


def merged(weights: Weights) -> dict[str, torch.Tensor]:
    """The policy that a model with adapters is, float64, by the names of the policy without them."""

    def plain(name: str) -> str:
        return name.removeprefix("base_model.model.").replace(".base_layer.", ".")

    found = {plain(name): value.double() for name, value in weights.items() if ".lora_" not in name}
    for name, down in weights.items():
        if ".lora_A." in name:
            up = weights[name.replace(".lora_A.", ".lora_B.")]
            found[plain(name.replace(".lora_A.default", ""))] += ALPHA / RANK * up.double() @ down.double()
    return found


class Adapters(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A model whose parameters are those of its adapters."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    def parameters(self, recurse: bool = True) -> Any:
        return (one for one in self.model.parameters() if one.requires_grad)


def rounded_policy() -> Any:
    """The tiny policy, rounded as EasyR1 rounds the weights that it freezes."""
    policy = tiny_policy()
    for parameter in policy.parameters():
        parameter.data = parameter.data.bfloat16().float()
    return policy


def plain_torch(
    first: Weights, ran: Mapping[str, Any], *, fault: Fault | None = None, reference: Any = None
) -> dict[str, torch.Tensor]:
    """Where the plan of a run leads in plain torch and peft, float64, at the rates that the ledger says. first: the
    run's weights at its start. reference: of a KL term; by default the policy without its adapters."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=ALPHA, target_modules="all-linear")
    model = peft.get_peft_model(rounded_policy(), config)
    names = [name for name, one in model.named_parameters() if one.requires_grad]
    model.load_state_dict({name: first[name] for name in names}, strict=False)
    plan = Plan(Spec.from_dict(ran["spec"]), ran["dataset_size"])
    rate, norm = plan.spec.carried.learning_rate, plan.spec.carried.max_gradient_norm
    assert rate is not None
    rates = [step["learning_rate"] for step in ran["steps"]]
    _, end = reference_run(
        plan,
        adamw(rate),
        max_norm=norm,
        rates=rates,
        start=Adapters(model),
        reference=rounded_policy() if reference is None else reference,
        fault=fault,
    )
    pieces = end.split([first[name].numel() for name in names])
    ends = {name: piece.view_as(first[name]) for name, piece in zip(names, pieces, strict=True)}
    return merged({**{name: value.double() for name, value in first.items()}, **ends})


def sent(folder: Path, last: Weights) -> dict[str, Any]:
    """What EasyR1's own function gave vLLM after the last step: whether that is the adapters as they are, and others
    than at the start; how many it left out, and how many of a vision tower it gave."""
    given = {end: torch.load(folder / f"{end}.sent.pt", weights_only=True) for end in ("first", "last")}
    adapters = {name.replace(".default.", "."): value for name, value in last.items() if ".lora_" in name}
    return {
        "as trained": all(torch.equal(value, adapters[name]) for name, value in given["last"].items()),
        "changed": not all(torch.equal(value, given["first"][name]) for name, value in given["last"].items()),
        "of the tower": sum("visual" in name for name in given["last"]),
        "left out": len(adapters.keys() - given["last"].keys()),
    }


def everything(place: Path, checkout: Path) -> dict[str, Any]:
    """See `lora_proofs`; runs what was not kept."""
    two = fit(place, checkout, 2, "enforced", "penalised", "observed")
    one = fit(place, checkout, 1, "enforced", "penalised")
    fit(place, checkout, 1, "orderly, tampered with")
    fit(place, checkout, 2, "killed", BATCHBRIDGE_KILL=proofs.KILL)
    fit(place, checkout, 2, "resumed")
    shown = {ranks: fit(place, checkout, ranks, IMAGES) for ranks in (1, 2)}
    broken = {name: fit(place, checkout, 1, name) for name in (WITHOUT, FROZEN)}
    folders = {}
    for name in (*lora_proofs.ON_THE_PLAN, "observed, 2"):
        scenario, _, ranks = name.rpartition(", ")
        folders[name] = shown[int(ranks)] if scenario == IMAGES else {"1": one, "2": two}[ranks]
    runs = {name: run(folder, name[:-3], int(name[-1])) for name, folder in folders.items()}
    places = {name: folder / f"{name[:-3]}-weights" for name, folder in folders.items()}
    firsts = {name: image_runs.weights(folder, "first") for name, folder in places.items()}
    ends = {name: image_runs.weights(folder) for name, folder in places.items()}
    apart, moved = {}, {}
    for name, end in ends.items():
        base = name.replace("resumed", "enforced").replace("observed", "enforced")[:-1] + "2"
        begun = firsts[base]
        if "resumed" not in name and not all(torch.equal(value, begun[one]) for one, value in firsts[name].items()):
            raise SystemExit(f"{name} and {base} start with other weights")
        if name.startswith(IMAGES):
            states = [merged(begun), merged(end), merged(ends[base])]
            with every_prompt_shown():
                told = [image_runs.said(state, MODEL) for state in states]
            apart[name] = relative_error(told[1] - told[0], told[2] - told[0])
            moved[name] = movement(states[0], states[1])
        else:
            apart[name] = distance(merged(begun), merged(end), merged(ends[base])).said
            moved[name] = movement(merged(begun), merged(end))
    plain, faults = {}, {}
    for name in ("enforced", "penalised"):
        where = plain_torch(firsts[f"{name}, 2"], runs[f"{name}, 2"])
        for ranks in (1, 2):
            start, end = merged(firsts[f"{name}, {ranks}"]), merged(ends[f"{name}, {ranks}"])
            plain[f"{name}, {ranks}"] = distance(start, end, where).said
    wrong: list[tuple[str, str, dict[str, Any]]] = [(fault, "enforced", {"fault": fault}) for fault in FAULTS]
    wrong.append(("another reference", "penalised", {"reference": tiny_policy(1)}))
    for said, name, how in wrong:
        where = plain_torch(firsts[f"{name}, 2"], runs[f"{name}, 2"], **how)
        faults[said] = distance(merged(firsts[f"{name}, 2"]), merged(ends[f"{name}, 2"]), where).said
    return {
        "runs": runs,
        "apart": apart,
        "moved": moved,
        "frozen_moved": {
            name: not all(torch.equal(end[one], firsts[name][one]) for one in end if ".lora_" not in one)
            for name, end in ends.items()
        },
        "plain_torch": plain,
        "plain_torch_with_a_fault": faults,
        "sent": {name: sent(places[name], ends[name]) for name in ends},
        "failed": {
            "killed, 2": image_runs.failed(two, "killed", "SIGKILL"),
            f"{WITHOUT}, 1": image_runs.failed(broken[WITHOUT], WITHOUT, "in-place operation"),
            f"{FROZEN}, 1": image_runs.failed(broken[FROZEN], FROZEN, "lora: "),
            "orderly, tampered with, 1": image_runs.failed(one, "orderly, tampered with", "departs from the plan"),
        },
    }


def movement(start: Weights, end: Weights) -> float:
    """Of all weights, relative to their norm at the start."""
    moved = sum(float((end[name] - value).square().sum()) for name, value in start.items())
    return float((moved / sum(float(value.square().sum()) for value in start.values())) ** 0.5)


def main(checkout: Path, place: Path) -> None:
    measured = {f"{name}, {ranks}": gradients(place, checkout, ranks, name) for name, ranks in lora_proofs.CASES}
    found = {"gradients": measured, **everything(place, checkout)}
    keep(FIGURES, version_of(checkout), "lora", lora_proofs.figures(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
