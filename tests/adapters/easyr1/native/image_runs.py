"""Runs on prompts with images, made once and kept in a folder: see image_proofs.py. Their figures are kept by

    python image_runs.py CHECKOUT RUNS

as keep_figures.py keeps the others.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import image_proofs
import proofs
import torch
from keep_figures import FIGURES, bare
from started import outcome, version_of

from batchbridge.testing.oracle import Sample, logprobs, relative_error
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.easyr1 import pictures
from batchbridge_on_cpu.easyr1.scripted import command, environment
from batchbridge_on_cpu.figures import keep

HERE = Path(__file__).parent


def environment_of(checkout: Path, **more: str) -> dict[str, str]:
    paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **more}


def torchrun(ranks: int, *words: str, **options: Any) -> Any:
    head = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False}
    return subprocess.run([*head, *words], **pipes, **options)


def gradients(place: Path, checkout: Path, ranks: int, name: str) -> dict[str, Any]:
    """What images.py measures of a case, unless it was kept."""
    folder = place / f"images-{ranks}-{name.replace(' ', '-')}"
    if not (folder / "images.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        family, settings = {**image_proofs.GRADIENTS, **image_proofs.ONE_RANK}[name]
        words = (str(HERE / "images.py"), str(folder), family, json.dumps(settings))
        ran = torchrun(ranks, *words, env=environment_of(checkout))
        assert ran.returncode == 0, ran.stdout[-20000:]
    found: dict[str, Any] = json.loads((folder / "images.json").read_text(encoding="utf-8"))
    return found


def _prepared(folder: Path) -> Path:
    if not (folder / "policy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        pictures.prepare(folder, image_proofs.MODEL, prompts=proofs.PROMPTS)
    return folder


def fit(place: Path, checkout: Path, ranks: int, *names: str, **env: str) -> Path:
    """Runs scenarios of image_fits.py, see `scenarios`."""
    return scenarios("image_fits.py", _prepared(place / f"image-fits-{ranks}"), checkout, ranks, *names, **env)


def scenarios(script: str, folder: Path, checkout: Path, ranks: int, *names: str, **env: str) -> Path:
    """Runs scenarios of a script of this folder on so many ranks, in one job, unless they were kept; as `started.fit`.
    folder: what it trains."""
    if all((folder / f"{name}.json").exists() for name in names):
        return folder
    ran = torchrun(ranks, str(HERE / script), str(folder), *names, env=environment_of(checkout, **env))
    for name in names:
        if ran.returncode and (folder / name).exists():
            shutil.copytree(folder / name, folder / f"{name}-left")
        (folder / f"{name}.json").write_text(json.dumps([ran.returncode, ran.stdout]), encoding="utf-8")
    return folder


def run(folder: Path, name: str, ranks: int) -> dict[str, Any]:
    """The summary of a scenario that ended well, and the command that it stands for."""
    code, text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert code == 0, text[-20000:]
    words = [*command(folder, ranks)[1:], *pictures.arguments(folder), *image_proofs.FITS[name][1]]
    return {**proofs.summary(folder / image_proofs.CONTINUES.get(name, name)), "argv": bare(words)}


def failed(folder: Path, name: str, why: str) -> dict[str, Any]:
    """Of a scenario that must fail, see `started.outcome`."""
    code, text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return outcome(code, text, why, folder / f"{name}-left")


def stock(place: Path, checkout: Path) -> Path:
    """The stock entry through `batchbridge run` on two ranks; returns its folder."""
    folder = _prepared(place / "i")
    if not (folder / "ran.json").exists():
        words = command(folder, 2, *pictures.arguments(folder), *image_proofs.FITS["enforced"][1])
        launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger"), "--"]
        own = {**environment(folder, checkout, ranks=2), "BATCHBRIDGE_WEIGHTS": str(folder / "weights")}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False}
        ran = subprocess.run([*launcher, *words], env=own, cwd=folder, **pipes)
        (folder / "ran.json").write_text(json.dumps([ran.returncode, ran.stdout, words[1:]]), encoding="utf-8")
    code, text, _ = json.loads((folder / "ran.json").read_text(encoding="utf-8"))
    assert code == 0, text[-20000:]
    return folder


def stock_run(folder: Path) -> dict[str, Any]:
    """The summary of what `stock` ran."""
    _, _, words = json.loads((folder / "ran.json").read_text(encoding="utf-8"))
    return {**proofs.summary(folder / "ledger"), "argv": bare(words)}


# ---- where runs end


def weights(folder: Path, end: str = "last") -> Mapping[str, torch.Tensor]:
    """Kept by name; end: first, last."""
    found: Mapping[str, torch.Tensor] = torch.load(folder / f"{end}.pt", weights_only=True)
    return found


def said(parameters: Mapping[str, torch.Tensor], family: str = image_proofs.MODEL) -> torch.Tensor:
    """The log-probabilities of the script's completions after their prompts and images, float64, in transformers' own
    forward."""
    model, processor, script, found = (
        pictures.policy(family).double(),
        pictures.Qwen2VLProcessor(),
        ScriptedRollouts(),
        [],
    )
    model.load_state_dict({name: value.double() for name, value in parameters.items()})
    model.eval()
    with torch.no_grad():
        for prompt in range(proofs.PROMPTS):
            shown = pictures.pictures_of(prompt)
            text = pictures.SHOWN * len(shown) + script.prompt(prompt)
            given = processor([pictures.picture(one) for one in shown], [text])
            tensors: dict[str, torch.Tensor] = {
                name: given[name] for name in ("pixel_values", "image_grid_thw") if name in given
            }
            for sample in range(proofs.GROUP):
                completion, mask = script.completion(prompt, sample), script.loss_mask(prompt, sample)
                ids = given["input_ids"][0].tolist()
                row = Sample(prompt=ids, completion=completion, loss_mask=mask, group=0, advantage=0.0, inputs=tensors)
                found.append(logprobs(model, row))
    return torch.cat(found)


def everything(place: Path, checkout: Path) -> dict[str, Any]:
    """See `image_proofs`; runs what was not kept."""
    one = fit(place, checkout, 1, "enforced", "penalised, tower frozen")
    fit(place, checkout, 1, "padded")  # EasyR1's forward stays in the classes of a process that had it
    two = fit(place, checkout, 2, "enforced", "penalised, tower frozen", "observed")
    fit(place, checkout, 2, "killed", BATCHBRIDGE_KILL=image_proofs.KILL)
    fit(place, checkout, 2, "resumed")
    fit(place, checkout, 2, "padded")
    folders = {1: one, 2: two}
    named = [name.rpartition(", ") for name in image_proofs.ON_THE_PLAN if name != image_proofs.STOCK]
    runs = {f"{name}, {ranks}": run(folders[int(ranks)], name, int(ranks)) for name, _, ranks in named}
    runs["observed, 2"] = run(two, "observed", 2)
    ray = stock(place, checkout)
    runs[image_proofs.STOCK] = stock_run(ray)
    ends = {name: weights(folders[int(name[-1])] / f"{name[:-3]}-weights") for name in runs if name[-1].isdigit()}
    ends[image_proofs.STOCK] = weights(ray / "weights")
    first = weights(two / "enforced-weights", "first")
    before, told = said(first), {name: said(end) for name, end in ends.items()}
    apart = {}
    for name, end in told.items():
        base = told["penalised, tower frozen, 2" if name.startswith("penalised") else "enforced, 2"]
        apart[name] = relative_error(end - before, base - before)
    moved = {name: (ends["enforced, 2"][name] - first[name]).double().square().sum() for name in first}
    tower = {
        name: not all(torch.equal(ends[name][one], first[one]) for one in first if "visual" in one)
        for name in ("enforced, 2", "penalised, tower frozen, 2")
    }
    return {
        "runs": runs,
        "apart": apart,
        "moved": float((sum(moved.values()) / sum(one.double().square().sum() for one in first.values())) ** 0.5),
        "tower_moved": tower,
        "failed": {
            "killed, 2": failed(two, "killed", "SIGKILL"),
            "padded, 2": failed(two, "padded", "multi_modal: "),
        },
    }


def main(checkout: Path, place: Path) -> None:
    measured = {
        f"{name}, {ranks}": gradients(place, checkout, ranks, name)
        for ranks in (1, 2)
        for name in image_proofs.cases_of(ranks)
    }
    found = {"gradients": measured, **everything(place, checkout)}
    keep(FIGURES, version_of(checkout), "images", image_proofs.figures(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
