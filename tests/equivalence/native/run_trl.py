"""One run of TRL's GRPOTrainer, or of one derived from it, with scripted rollouts: `python run_trl.py FOLDER`, or under
torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import yaml
from launched import spec_of
from matrix import Order
from transformers import TrainerCallback

from batchbridge import wrap
from batchbridge.testing.snapshots import StepKeeper, flat
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_trl.testing import scripted_trainer

FLOAT32 = {"bf16": False, "fp16": False}
"""Injected, whatever the source trains in: the bars are those of float32."""


def main(folder: Path) -> None:
    order = Order.read(folder)
    case = order.told
    settings = yaml.safe_load(Path(order.native).read_text(encoding="utf-8")) | FLOAT32 | dict(order.more)
    made = picture_trainer if case.images else MAKERS[order.target]()
    if case.drawn:
        settings |= drawn_policy(folder, case.environment)
    if case.whole:
        settings["script"] = ScriptedRollouts.of_environment(case.environment)
    spec = spec_of(case)
    if order.target == "ms_swift":  # whose own default is 0.95, where TRL's, which the source leaves out, is 0.999
        settings["adam_beta2"] = spec.carried.beta2
    trainer = made(folder / "out", prompts=case.prompts, **settings)
    wrap(trainer, spec, mode=order.mode, ledger=folder / "ledger")
    keep_steps(trainer, StepKeeper(folder / "steps", writes=trainer.accelerator.is_main_process))
    trainer.train()


def axolotl_s() -> Callable[..., Any]:
    """`scripted_trainer` of axolotl's trainer, with its own configuration."""
    import trl
    from axolotl.core.trainers.grpo.args import AxolotlGRPOConfig
    from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

    trl.GRPOTrainer, trl.GRPOConfig = AxolotlGRPOTrainer, AxolotlGRPOConfig
    return scripted_trainer


def ms_swift_s() -> Callable[..., Any]:
    """The trainer of ms-swift's tests."""
    sys.path.append(str(Path(__file__).parents[2] / "adapters" / "ms_swift" / "native"))
    import scripted

    return scripted.swift_trainer


MAKERS: Mapping[str, Callable[[], Callable[..., Any]]] = {
    "trl": lambda: scripted_trainer,
    "axolotl": axolotl_s,
    "ms_swift": ms_swift_s,
}
"""Target -> what makes its trainer."""


def drawn_policy(folder: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What `scripted_trainer` is given where completions are drawn from the run's own policy."""
    from batchbridge_on_cpu import drawn

    places = {drawn.FOLDER: str(folder / "steps"), drawn.DRAWN: str(folder / "drawn.jsonl")}
    script = ScriptedRollouts.of_environment({**os.environ, **environment, **places})
    return {"script": script, "policy": drawn.start_policy()}


def picture_trainer(folder: Path, **settings: Any) -> Any:
    """As `scripted_trainer`, of prompts with images."""
    sys.path.append(str(Path(__file__).parents[2] / "adapters" / "trl" / "native"))
    import pictures

    from batchbridge_on_cpu import seeing
    from batchbridge_on_cpu.easyr1 import pictures as shown

    def tensors(rows: list[list[int]]) -> dict[str, Any]:
        images = [shown.picture(number) for row in rows for number in row]
        return dict(shown.image_processor()(images=images, return_tensors="pt"))

    family = pictures.FAMILIES[seeing.FAMILY] = pictures.Family(
        seeing.FAMILY,
        seeing.seeing_policy,
        tokens=lambda number: int(tensors([[number]])["image_grid_thw"].prod()) // shown.MERGE**2,
        tensors=tensors,
        types="mm_token_type_ids",
        specials=(shown.START, shown.IMAGE, shown.END),
    )
    return pictures.picture_trainer(folder, family, pictures=shown.pictures_of, **settings)


def keep_steps(trainer: Any, keeper: StepKeeper) -> None:
    """Keeps what the optimizer is given, before it is clipped, and what it makes of it."""
    parameters = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    native_clip, raw = trainer._clip_grad_norm, []

    def clip(model: Any) -> Any:
        raw.append(flat(parameter.grad for parameter in parameters))
        return native_clip(model)

    class AroundStep(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **options: Any) -> None:
            native = optimizer.step

            def step(*arguments: Any, **options: Any) -> Any:
                return keeper.around(
                    lambda: raw.pop() if raw else flat(parameter.grad for parameter in parameters),
                    lambda: flat(parameters),
                    lambda: native(*arguments, **options),
                )

            optimizer.step = step

    trainer._clip_grad_norm = clip
    trainer.add_callback(AroundStep())


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
