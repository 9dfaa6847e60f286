"""One run of OpenRLHF's command line with scripted rollouts: `python run_openrlhf.py FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from launched import drawn_script, launch, policy_of, words_of
from matrix import Order

from batchbridge_on_cpu.openrlhf import scripted


def main(folder: Path) -> int:
    order = Order.read(folder)
    case = order.told
    scripted.prepare(folder, prompts=case.prompts, script=drawn_script(case))
    policy_of(case, folder / "policy")
    native = words_of(Path(order.native))
    options = scripted.options(folder, case.ranks) | (critic(folder, case.ranks) if case.critic else {})
    here = {name: value for name, value in options.items() if f"--{name}" not in native}
    words = [word for name, value in here.items() for word in (f"--{name}", *value.split())]
    command = [sys.executable, "-m", "openrlhf.cli.train_ppo_ray", *words, *native]
    optimizer = "sgd" if case.optimizer == "sgd" else "adamw"
    return launch(folder, order, command, scripted.environment(folder, case.ranks, optimizer=optimizer))


def critic(folder: Path, ranks: int) -> dict[str, str]:
    """Options of a critic, whose optimizer and schedule the schema has no words for; leaves its model in `folder`."""
    from batchbridge_on_cpu import valuing

    valuing.save(folder / "critic")
    return {
        "critic.model_name_or_path": str(folder / "critic"),
        "critic.num_gpus_per_node": str(ranks),
        "critic.adam.weight_decay": "0",
        "critic.lr_scheduler": "constant",
        "critic.lr_warmup_ratio": "0",
    }


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
