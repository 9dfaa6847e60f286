"""What a refusal says of a configuration is what it says of the trainer: every row, on every published command and on a
configuration of each refusal. The trainers are stand-ins with the attributes that the frameworks give theirs; the
frameworks' own are in the `native` folders. A refusal that settings decide says the same of a trainer's own
configuration, as `wrap` reads it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.attachment import Request
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.errors import PlanError
from batchbridge.reading.read import read, read_source
from batchbridge.running.asked import planned
from batchbridge_on_cpu.scripts import module_at

HERE = Path(__file__).parent
PROMPTS = 17398
NEWEST = {"verl": "0.9.1", "easyr1": "0.3.2", "openrlhf": "0.11.2", "open_instruct": "2026.8.20"}


class Group(dict[str, Any]):
    """A group of settings, as OmegaConf has them: keys are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def at(self, path: str) -> Group:
        """The group at a dotted path, made where it is not there."""
        inner = self
        for part in path.split("."):
            if not isinstance(inner.get(part), Group):
                inner[part] = Group()
            inner = inner[part]
        return inner


def nested(flat: Mapping[str, Any]) -> Group:
    out = Group()
    for key, value in flat.items():
        *groups, last = key.split(".")
        inner = out.at(".".join(groups)) if groups else out
        if not isinstance(inner.get(last), Group):
            inner[last] = value
    return out


def said(reading: Reading) -> dict[str, Any]:
    """Every setting that is known: as read, else as given."""
    given = {key: place.value for key, place in reading.given.items() if place.value is not None}
    plain = {key: {"True": True, "False": False}.get(str(value), value) for key, value in given.items()}
    return {**plain, **reading.native}


def verl(reading: Reading) -> Any:
    from batchbridge_verl.composed import defaults_for

    run: Any = reading.run  # type: ignore[attr-defined]
    config = nested({**defaults_for(run.version, run.engine).values, **said(reading)})
    actor = config.at("actor_rollout_ref.actor")
    if run.engine != "fsdp":
        actor["strategy"] = run.engine
    for path in ("policy_loss", "fsdp_config"):
        actor.at(path)
    sampler = config.at("trainer.v1.sampler")
    sampler.at("custom_sampler")
    config.at("algorithm.rollout_correction")
    base = (
        ("PPOTrainer", "verl.trainer.ppo.v1.trainer_base")
        if run.v1
        else ("RayPPOTrainer", "verl.trainer.ppo.ray_trainer")
    )
    trainer: Any = type(base[0], (), {"__module__": base[1]})()
    trainer.config, trainer.use_critic, trainer.use_reference_policy = config, run.critic, run.reference
    trainer.use_teacher_policy = bool((config.get("distillation") or {}).get("enabled"))
    return trainer


def easyr1(reading: Reading) -> Any:
    config = nested(said(reading))
    actor = config.at("worker.actor")
    actor.at("fsdp").setdefault("fsdp_size", -1)
    actor.setdefault("ulysses_size", 1)
    model = actor.at("model")
    model.at("lora").setdefault("rank", 0)
    model.setdefault("freeze_vision_tower", False)
    name = str(model.get("model_path")).lower()
    seen = any(part in name for part in ("vl", "llava"))
    processor = "Qwen2_5_VLProcessor" if "qwen2.5-vl" in name else "Processor"
    return SimpleNamespace(
        config=config,
        use_critic=config.algorithm.adv_estimator == "gae",
        use_reference_policy=not config.algorithm.disable_kl,
        processor=type(processor, (), {})() if seen else None,
        train_dataloader=SimpleNamespace(dataset=[]),  # whose columns no configuration tells
    )


def openrlhf(reading: Reading) -> Any:
    facts: Any = reading.run  # type: ignore[attr-defined]
    args = nested(facts.settings)
    args.ds["packing_samples"] = facts.packs  # the program turns it on, before any trainer
    return args


def open_instruct(reading: Reading) -> Any:
    from batchbridge_open_instruct.refusals import LearnerView

    args, spec = Group(said(reading)), reading.spec
    assert spec is not None
    for name in ("rho_mask_sequence_level", "rho_mask_tv_divergence"):
        args.setdefault(name, False)
    args.setdefault("no_resampling_pass_rate", None)
    args["num_training_steps"] = args.total_episodes // (spec.completions_per_rollout or 1)
    named = str(args.get("model_name_or_path"))
    attention = "sdpa" if args.get("attn_implementation") == "torch" else "flash_attention_2"
    policy = SimpleNamespace(_attn_implementation=attention)
    learner = SimpleNamespace(
        references=bool(args.get("load_ref_policy")),
        strange_layers=any(model in named for model in ("Qwen3.5", "OLMoE")),
        trainer=SimpleNamespace(policy=SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: policy))),
    )
    return LearnerView(args, args, learner)


TRAINERS: dict[str, Callable[[Reading], Any]] = {
    "verl": verl,
    "easyr1": easyr1,
    "openrlhf": openrlhf,
    "open_instruct": open_instruct,
}


def contract_of(framework: str) -> ModuleType:
    file = HERE / framework / f"test_contract_{framework}.py"
    return module_at(file, f"contract_of_{framework}")


def commands(framework: str) -> Iterator[list[str]]:
    for name in ("commands.json", "launch_commands.json"):
        if (file := HERE / framework / name).is_file():
            found = json.loads(file.read_text())
            yield from (one["argv"] for one in found.values()) if isinstance(found, dict) else found


def readings(framework: str) -> Iterator[Reading]:
    """Of every published command, and of a configuration of each refusal."""
    for words in commands(framework):
        yield read(words, framework=framework, version=NEWEST[framework], dataset_size=PROMPTS)
    module, adapter = contract_of(framework), plugins.adapters()[framework]
    for case in module.REFUSED_CASES.values():
        sizes = Context(**{**vars(case.context), "dataset_size": case.context.dataset_size or PROMPTS})
        yield read_source(case.source, adapter, sizes)


def requests(framework: str) -> Iterator[Request]:
    adapter = plugins.adapters()[framework]
    for reading in readings(framework):
        if reading.spec is None:
            continue
        started = adapter._runtime().started(reading)
        plan = None
        with contextlib.suppress(PlanError):
            plan = planned(started.spec, started.dataset_size, fills_places=adapter.fills_places)
        yield Request(spec=started.spec, plan=plan, reading=started, mode="enforce")


@pytest.mark.parametrize("framework", TRAINERS)
def test_a_refusal_says_of_a_configuration_what_it_says_of_its_trainer(framework: str) -> None:
    met: set[str] = set()
    wrong, read_ones = [], 0
    for request in requests(framework):
        read_ones += 1
        trainer = TRAINERS[framework](request.reading)
        for refusal in plugins.adapters()[framework]._runtime().refusals:
            before = refusal.foreseen(request)
            if refusal.name == "script" and before:
                met |= {"script"}
                break  # no trainer of it has what the others look at
            does = refusal.against(trainer, request) is not None
            met |= {refusal.name} if does else set()
            if before is not None and before is not does:
                wrong.append((refusal.name, before, does, request.reading.given))
    assert not wrong, wrong[:5]
    assert not contract_of(framework).REFUSED_CASES.keys() - met, "a case whose trainer is not refused by it"
    assert read_ones >= 7


# ---- what `wrap` reads of a trainer


def plain(group: Any) -> Any:
    return {key: plain(value) for key, value in group.items()} if isinstance(group, Mapping) else group


def attributes(group: Any) -> Any:
    if not isinstance(group, Mapping):
        return group
    return SimpleNamespace(**{key: attributes(value) for key, value in group.items()})


def record(group: Mapping[str, Any]) -> Any:
    """A dataclass with these fields, as EasyR1's configuration is one."""
    values = {key: record(value) if isinstance(value, Group) else value for key, value in group.items()}
    return dataclasses.make_dataclass("Config", values)(**values)


def verl_own(trainer: Any, version: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Context]:
    omegaconf = pytest.importorskip("omegaconf")
    from batchbridge_verl import runtime
    from batchbridge_verl.installed import CheckoutContents

    monkeypatch.setattr(runtime, "installed", lambda: CheckoutContents("verl", version))
    trainer.config, trainer.train_dataset = omegaconf.OmegaConf.create(plain(trainer.config)), range(PROMPTS)
    return runtime.source_of(trainer)


def easyr1_own(trainer: Any, version: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Context]:
    from batchbridge_easyr1 import runtime

    monkeypatch.setattr(runtime, "installed_version", lambda: version)
    loader = SimpleNamespace(dataset=range(PROMPTS))
    return runtime.source_of(SimpleNamespace(config=record(trainer.config), train_dataloader=loader))


def openrlhf_own(trainer: Any, version: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Context]:
    from batchbridge_openrlhf import runtime

    monkeypatch.setattr("batchbridge.kit.versions.version", lambda name: version)
    loader = SimpleNamespace(dataset=range(PROMPTS))
    return runtime.source_of(SimpleNamespace(args=attributes(trainer), prompts_dataloader=loader))


def open_instruct_own(trainer: Any, version: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Context]:
    from batchbridge_open_instruct import runtime, settings

    args = attributes(trainer.args)
    script = trainer.args.get(settings.SCRIPT, settings.GRPO_FAST)
    context = Context(framework_version=version, dataset_size=PROMPTS)
    return Source(values={**runtime.values_of(version, args), settings.SCRIPT: script}), context


OWN = {"verl": verl_own, "easyr1": easyr1_own, "openrlhf": openrlhf_own, "open_instruct": open_instruct_own}
ELSEWHERE = {
    # No trainer of these is wrapped: its class, or the script beside it, says so.
    "verl": {"main_ppo_sync", "own_program", "one_step_off", "fully_async"},
    "open_instruct": {"script"},
}


def request_of(adapter: Any, reading: Reading) -> Request | None:
    if reading.spec is None:
        return None
    started, plan = adapter._runtime().started(reading), None
    with contextlib.suppress(PlanError):
        plan = planned(started.spec, started.dataset_size or PROMPTS, fills_places=adapter.fills_places)
    return Request(spec=started.spec, plan=plan, reading=started, mode="enforce")


@pytest.mark.parametrize("framework", OWN)
def test_a_refusal_of_settings_says_the_same_of_a_file_and_of_a_trainers_own(
    framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = plugins.adapters()[framework]
    rows = [row for row in adapter._runtime().refusals if row.live is None]
    met, compared, wrong = set[str](), 0, []
    for reading in readings(framework):
        asked = request_of(adapter, reading)
        if asked is None or reading.framework_version is None:
            continue
        if any(row.name in ELSEWHERE.get(framework, ()) and row.foreseen(asked) for row in rows):
            continue
        source, context = OWN[framework](TRAINERS[framework](reading), reading.framework_version, monkeypatch)
        sizes = {"world_size": asked.spec.topology.world_size, "dataset_size": reading.dataset_size}
        own = request_of(adapter, adapter.read(source, dataclasses.replace(context, **sizes)))
        if own is None:
            continue
        compared += 1
        for row in rows:
            told, does = row.foreseen(asked), row.foreseen(own)
            met |= {row.name} if does else set()
            if does is None or told not in (None, does):
                wrong.append((row.name, told, does, {key: place.value for key, place in reading.given.items()}))
    assert not wrong, wrong[:3]
    assert compared >= 10, compared
    assert len(met) >= 5, met
