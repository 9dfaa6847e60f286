"""One run of verl's stock entry with scripted rollouts: `python run_verl.py FOLDER`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from launched import drawn_script, launch, policy_of, words_of
from matrix import Order

from batchbridge_on_cpu.verl import scripted

PRECISION = tuple(f"actor_rollout_ref.{role}.fsdp_config.mixed_precision" for role in ("actor", "ref"))
MACHINE = ("actor_rollout_ref.rollout.name", *PRECISION)
"""What the machine says whatever the configuration says: there is no engine here, and the bars are those of float32."""


def main(folder: Path) -> int:
    order = Order.read(folder)
    scripted.prepare(folder, prompts=order.told.prompts, script=drawn_script(order.told))
    policy_of(order.told, folder / "policy")
    fixed = (*MACHINE, *order.more)
    native = [word for word in words_of(Path(order.native)) if not belongs(key_of(word), fixed)]
    native += [f"{name}={value}" for name, value in order.more.items()]
    own = scripted.overrides(folder, order.told.ranks, optimizer=())  # the configuration names its optimizer
    own += [*(scripted.LEGACY if order.target == "verl_071" else ()), *critic(folder, order)]
    here = [word for word in own if not said(key_of(word), native)]
    variant = ["trainer.use_v1=False"] if order.variant == "v0" else []
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *here, *native, *variant]
    modules = ",".join((*scripted.MODULES, "batchbridge_on_cpu.verl.steps", *images(folder, order)))
    modules += ",batchbridge_on_cpu.verl.critic" * order.told.critic
    return launch(folder, order, command, {**scripted.environment(os.environ), "VERL_USE_EXTERNAL_MODULES": modules})


def images(folder: Path, order: Order) -> list[str]:
    """Of a case with images: puts a policy that reads them in the other's place; what processes import beside. Which
    images a prompt has, the agent knows."""
    if not order.told.images:
        return []
    from batchbridge_on_cpu import seeing

    seeing.save(folder / "policy")
    return ["batchbridge_on_cpu.verl.pictures"]


def critic(folder: Path, order: Order) -> list[str]:
    """Of a case with a critic: overrides for its model and its optimizer, which the schema has no words for."""
    if not order.told.critic:
        return []
    from batchbridge_on_cpu import valuing
    from batchbridge_on_cpu.verl.critic import OVERRIDES

    valuing.save(folder / "critic")
    return [*OVERRIDES, f"critic.model.path={folder}/critic", "critic.optim.optimizer=SGD"]


def key_of(override: str) -> str:
    """The key of a hydra override."""
    return override.partition("=")[0].lstrip("+")


def belongs(key: str, groups: Sequence[str]) -> bool:
    """Whether `key` is one of `groups`, or a part of one."""
    return any(f"{key}.".startswith(f"{group}.") for group in groups)


def said(key: str, overrides: Sequence[str]) -> bool:
    """Whether `overrides` say something of `key`, or of a part of it."""
    return any(f"{key_of(override)}.".startswith(f"{key}.") for override in overrides)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
