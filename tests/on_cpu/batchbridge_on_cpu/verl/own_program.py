"""A program of a user's own that starts verl's trainer, as recipes and forks have one."""

from __future__ import annotations

from typing import Any

import hydra
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo


@hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)  # type: ignore[untyped-decorator]  # hydra's
def main(config: Any) -> None:
    print("a user's own program")
    run_ppo(config, task_runner_class=TaskRunnerV1)


if __name__ == "__main__":
    main()
