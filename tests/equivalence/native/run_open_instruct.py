"""One run of Open-Instruct's grpo_fast.py with scripted rollouts: `python run_open_instruct.py FOLDER`; the checkout is
the one that BATCHBRIDGE_OPEN_INSTRUCT names."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from launched import launch, words_of
from matrix import Order

from batchbridge_on_cpu.open_instruct import scripted

MACHINE = ("--fused_optimizer", "False", "--deepspeed_zpg", "1", "--deepspeed_stage", "2")
"""What one CPU without compiled kernels has. The script asks for a gradient norm, which DeepSpeed's stage 0 has not in
float32."""


def main(folder: Path) -> int:
    order = Order.read(folder)
    case = order.told
    scripted.prepare(folder, prompts=case.prompts)
    checkout = Path(os.environ["BATCHBRIDGE_OPEN_INSTRUCT"]).absolute()
    native = words_of(Path(order.native))
    command = [*scripted.command(checkout, folder, {}), *MACHINE, *native]
    with tempfile.TemporaryDirectory(prefix="o") as short:
        return launch(
            folder, order, command, scripted.environment(checkout, Path(short), BATCHBRIDGE_OPTIMIZER=case.optimizer)
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
