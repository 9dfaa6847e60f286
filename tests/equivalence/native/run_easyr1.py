"""One run of EasyR1's stock entry with scripted rollouts: `python run_easyr1.py FOLDER`; the checkout is the one that
BATCHBRIDGE_EASYR1 names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import yaml
from launched import launch
from matrix import Order

from batchbridge.kit.key_table import settings_in
from batchbridge_on_cpu.easyr1 import scripted

STEPS_KEPT = "worker.actor.fsdp.use_orig_params=true"
"""What keeping whole gradients asks for; the same numbers are trained."""
FLOAT32 = ("worker.actor.fsdp.mp_param_dtype=fp32", "worker.ref.fsdp.mp_param_dtype=fp32")
"""Whatever the source trains in: a source that says bfloat16, by default too, is compared in float32."""


def main(folder: Path) -> int:
    order = Order.read(folder)
    case = order.told
    shown = images(folder, case.prompts) if case.images else []
    if not case.images:
        scripted.prepare(folder, prompts=case.prompts)
    native = dict(settings_in(yaml.safe_load(Path(order.native).read_text(encoding="utf-8"))))
    here = [*scripted.arguments(folder, case.ranks), *shown]
    here = [word for word in here if word.partition("=")[0] not in native]
    command = [sys.executable, "-m", "verl.trainer.main", f"config={order.native}", *here, STEPS_KEPT, *FLOAT32]
    optimizer = "sgd" if case.optimizer == "sgd" else "adamw"
    checkout = Path(os.environ["BATCHBRIDGE_EASYR1"]).absolute()
    return launch(folder, order, command, scripted.environment(folder, checkout, ranks=case.ranks, optimizer=optimizer))


def images(folder: Path, prompts: int) -> list[str]:
    """Prepares a policy that reads images, and prompts that show them; what the run is told of them."""
    from batchbridge_on_cpu import seeing
    from batchbridge_on_cpu.easyr1 import pictures

    pictures.prepare(folder, seeing.FAMILY, prompts=prompts)
    seeing.save(folder / "policy")
    return pictures.arguments(folder)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
