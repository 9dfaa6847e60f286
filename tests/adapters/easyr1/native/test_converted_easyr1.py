"""What `convert` writes for EasyR1 starts: its own code takes the values, to the end of the first rollout's steps.

`real.EasyR1.judge` merges the settings, builds the trainer and a worker, deals a rollout out and trains on it (its
docstring says what is real of that); in a process of its own, since
it stands empty modules in for those that are not there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from batchbridge_on_cpu.converted import PROMPTS, converted

WRITTEN = converted("easyr1")
ASKED = """
import json, sys
from pathlib import Path
from real import EasyR1
easyr1 = EasyR1(Path(sys.argv[1]))
for settings in json.load(sys.stdin):
    print("said", json.dumps(easyr1.judge(settings, int(sys.argv[2]))))
"""


def test_easyr1_takes_converted_configurations_to_their_first_steps(checkout: Path) -> None:
    asked = json.dumps([dict(written.values) for written in WRITTEN.values()])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{ASKED}", str(checkout), str(PROMPTS)],
        input=asked,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("said ")]
    assert len(said) == len(WRITTEN), done.stderr[-2000:]
    assert {name: one for name, one in zip(WRITTEN, said, strict=True) if one["phase"] is not None} == {}
    for written, one in zip(WRITTEN.values(), said, strict=True):
        steps = written.values["data.rollout_batch_size"] // written.values["worker.actor.global_batch_size"]
        passes = written.values["worker.actor.ppo_epochs"]
        assert one["numbers"]["optimizer_steps_per_rollout"] == steps * passes


def test_every_framework_gives_configurations() -> None:
    assert {name.partition(",")[0] for name in WRITTEN} == {"trl", "verl", "openrlhf", "open_instruct"}
