"""What `test_filtered_openrlhf` runs, one process per rank and without Ray's: OpenRLHF's real `PPOTrainer.fit` with
dynamic filtering, wrapped, resumed and tampered with.

    torchrun --nproc_per_node 2 filtered_fits.py FOLDER

What is real and what is replaced: see `fits.py`. Every process has a driver of its own, and they do the same; a call of
a training process is made in that process alone, and its answer handed to all. Scores are the script's rewards, of
which the filter drops half of all groups. What was measured is left in FOLDER/measured.pt.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parents[1]))  # of `orl_proofs`
import fits  # first: it prepares the process
import ray
import torch
from filter_tampering import TAMPERED, none_passes
from orl_proofs import BOUNDS, filled, members_of

from batchbridge import wrap
from batchbridge.errors import BatchBridgeError
from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read
from batchbridge.testing.oracle import Sample, ScriptedRun, advantages, relative_error
from batchbridge.testing.tiny import ScriptedRollouts, tiny_tokenizer
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_policy

FILTERED: dict[str, Any] = {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": list(BOUNDS)}
THREES: dict[str, Any] = {"train.micro_batch_size": 3, "rollout.micro_batch_size": 5}


def rank() -> int:
    return int(os.environ["RANK"])


class OfRank:
    """A training process, of which this one has only its own."""

    def __init__(self, number: int, target: Any) -> None:
        self._number, self._own = number, fits.Handle(target)

    def __getattr__(self, name: str) -> Any:
        return _Call(self._number, getattr(self._own, name))


class _Call:
    def __init__(self, number: int, own: Any) -> None:
        self._number, self._own = number, own

    def remote(self, *given: Any, **options: Any) -> Answer:
        return Answer(self._number, self._own.remote(*given, **options) if self._number == rank() else None)


class Answer:
    """What a training process will have answered."""

    def __init__(self, number: int, own: fits.Ref | None) -> None:
        self.number, self.own = number, own


def get(refs: Any, **options: Any) -> Any:
    """As Ray's, in all processes at once."""
    if isinstance(refs, list):
        return [get(ref) for ref in refs]
    if not isinstance(refs, Answer):
        return fits._get(refs)
    told = [None if refs.own is None else refs.own.value]
    torch.distributed.broadcast_object_list(told, src=refs.number)
    return told[0]


ray.get = get


class Bench(fits.Bench):
    """On every rank the driver, and the training process of that rank."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        super().__init__(folder, **{**FILTERED, **changes})
        group = self.trainer.actor_model_group
        group._actor_handlers = [OfRank(number, self.worker) for number in range(int(os.environ["WORLD_SIZE"]))]

    def wrapped(self, name: str, ledger: Path, like: Spec | None = None, **options: Any) -> Bench:
        """Its drivers are one start of one run."""
        start = mock.Mock(hex=uuid.uuid5(uuid.NAMESPACE_OID, name).hex)
        with mock.patch.object(uuid, "uuid4", return_value=start):
            wrap(self.trainer, like, ledger=ledger, **options)
        return self


def enforced(folder: Path, name: str, spec: Callable[[Spec], Spec] | None = None, **changes: Any) -> Bench:
    bench, like = Bench(folder, **changes), None
    if spec is not None:
        own = read(bench.trainer, framework="openrlhf").spec
        assert own is not None
        like = spec(own)
    bench.wrapped(name, folder / name, like).fit()
    return bench


def plan_of(ledger: Path) -> CandidatePlan:
    header = read_headers(ledger)[0]
    return CandidatePlan(Spec.from_dict(header["spec"]), header["dataset_size"])


def samples_of(run: ScriptedRun, plan: CandidatePlan, step: int, prompts: Sequence[int]) -> list[Sample]:
    """What optimizer step `step` trains where `prompts` fill the places."""
    made = []
    for member in plan.step(step).members:
        prompt = prompts[member.rollout * plan.prompts_per_rollout + member.prompt]
        rewards = [run.script.reward(prompt, other) for other in range(fits.GROUP)]
        value = advantages(rewards, fits.GROUP, plan.spec.advantage)[member.sample]
        generated = plan.rollout(member.rollout).generated_at_step
        made.append(run.sample(prompt, member.sample, value, generated, step))
    return made


def against_the_oracle(bench: Bench, ledger: Path) -> list[dict[str, Any]]:
    """Each step's gradient, membership and tick against the candidates that the filter keeps; and by how much it misses
    the gradient of the first candidates, kept or not."""
    tokenizer, plan = tiny_tokenizer(), plan_of(ledger)
    kept, first = filled(plan), plan.candidates(0, 10 * plan.dataset_size)

    def oracle(*, rough: bool) -> ScriptedRun:
        def policy_at(step: int) -> Any:
            policy = fits.policy_of(bench.weights[step])
            return policy.float() if rough else policy

        def tokenize(text: str) -> Sequence[int]:
            ids: Sequence[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
            return ids

        return ScriptedRun(spec=plan.spec, script=ScriptedRollouts(), tokenize=tokenize, policy_at=policy_at)

    exact, float32, results = oracle(rough=False), oracle(rough=True), []
    for step, gradient in zip(read_steps(ledger), bench.gradients, strict=True):
        index = step["step"]
        planned = plan.step(index)
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        right = exact.gradient(samples_of(exact, plan, index, kept), index)
        rough = float32.gradient(samples_of(float32, plan, index, kept), index)
        other = exact.gradient(samples_of(exact, plan, index, first), index)
        results.append(
            {
                "error": relative_error(gradient, right),
                "floor": relative_error(rough, right),
                "unfiltered": relative_error(gradient, other),
                "norm": float(right.norm()),
                "planned": trained == members_of(plan, index),
                "size": len(trained),
                "ranks": sorted(set(step["rank"])),
                "tick": step["lr_tick"] == planned.lr_tick,
                "generated": set(step["generated_at_step"]) == {plan.rollout(planned.rollouts[0]).generated_at_step},
            }
        )
    return results


def said(call: Callable[[], object]) -> str:
    """What it raises."""
    try:
        call()
    except BatchBridgeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def tampered(folder: Path) -> dict[str, tuple[str, int]]:
    """What ends each run, and the optimizer steps that it applied."""
    found = {}
    for number, (name, tamper) in enumerate(TAMPERED.items()):
        bench = Bench(folder).wrapped(name, folder / f"tampered-{number}")
        tamper(bench)
        found[name] = (said(bench.fit), len(bench.gradients))
    bench = Bench(folder)
    none_passes(bench)
    bench.wrapped("none", folder / "none")
    found["no group can be kept"] = (said(bench.fit), len(bench.gradients))
    return found


def resumed(folder: Path, whole: Bench, checkpoints: Mapping[str, Any]) -> dict[str, Any]:
    """As if the run had been killed after its second rollout."""
    latest = folder / "checkpoints" / "_actor" / "latest"
    if not rank():
        latest.write_text("global_step2", encoding="utf-8")
    torch.distributed.barrier()
    bench = enforced(folder, "resumed", **{**checkpoints, "ckpt.load_enable": True})
    return {
        "steps": [step["step"] for step in read_steps(folder / "resumed")],
        "equal": bool(torch.equal(bench.weights[-1], whole.weights[-1])),
    }


def observed(folder: Path) -> list[list[int]]:
    """The prompts of each step of the unwrapped run."""
    bench = Bench(folder, **{"train.micro_batch_size": 2}).wrapped("observed", folder / "observed", mode="observe")
    bench.fit()
    return [sorted(set(step["prompt"])) for step in read_steps(folder / "observed")]


def main(folder: Path) -> None:
    script = ScriptedRollouts()
    os.environ["BATCHBRIDGE_SCORES"] = "1"
    if not rank():
        save_policy(folder / "policy")
        lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(fits.PROMPTS)]
        (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
        (folder / "ready").touch()
    while not (folder / "ready").exists():
        time.sleep(0.1)
    found: dict[str, Any] = {}
    seeds = folder / f"seeds-{rank()}"
    os.environ["BATCHBRIDGE_SEEDS"] = str(seeds)
    checkpoints = {"ckpt.path": str(folder / "checkpoints"), "ckpt.save_steps": 1, "ckpt.max_num": 9}
    own = enforced(folder, "own", **checkpoints)
    del os.environ["BATCHBRIDGE_SEEDS"]
    found["own"] = against_the_oracle(own, folder / "own")
    found["start"], found["ends"] = own.weights[0], {"own": own.weights[-1]}
    found["seeds"] = [[int(word) for word in line.split()] for line in seeds.read_text(encoding="utf-8").splitlines()]
    found["undecided"] = own.trainer.batchbridge.report()
    found["ends"]["threes"] = enforced(folder, "threes", **THREES).weights[-1]
    passes_ = enforced(folder, "passes", fits.two_passes, **{"ds.zero_stage": 1})
    found["passes"] = against_the_oracle(passes_, folder / "passes")
    print("trained", flush=True)
    found["resumed"] = resumed(folder, own, checkpoints)
    found["tampered"] = tampered(folder)
    if int(os.environ["WORLD_SIZE"]) == 1:
        found["observed"] = observed(folder)
    if not rank():
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
