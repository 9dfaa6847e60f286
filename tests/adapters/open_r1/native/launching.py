"""Starts a recipe as Open-R1's README does, followed, on a CPU: two ranks, a tiny model and prompts of our own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from batchbridge.ledger import read_steps
from batchbridge.ledger.reading import Ledger
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer

TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
"""What Open-R1's rewards look for: without them in the vocabulary every completion would earn the same."""
PROMPTS = 16
REPLACED = {
    # in place of what needs a GPU, a network or minutes
    "model_name_or_path": "model",
    "dataset_name": "data",
    "output_dir": "out",
    "attn_implementation": "eager",
    "use_vllm": "false",
    "use_liger_kernel": "false",
    "use_cpu": "true",
    "push_to_hub": "false",
    "report_to": "none",
    "save_strategy": "no",
    "log_completions": "false",
    "max_completion_length": "8",
}


def prepare(folder: Path, column: str) -> None:
    """A model, its tokenizer with a chat template, and prompts in `column`."""
    tokenizer, policy = tiny_tokenizer(), tiny_policy()
    tokenizer.add_tokens(list(TAGS))
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    policy.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    policy.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "data").mkdir()
    rows = [{column: f"w{number} w{number + 1}", "solution": "$4$"} for number in range(PROMPTS)]
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def started(
    checkout: Path, folder: Path, accelerate_file: str, recipe: str, **replaced: str
) -> subprocess.CompletedProcess[str]:
    """`batchbridge run -- accelerate launch --config_file ... src/open_r1/grpo.py --config RECIPE`, from `checkout`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    paths = {name: str(folder / REPLACED[name]) for name in ("model_name_or_path", "dataset_name", "output_dir")}
    launcher = ["--config_file", accelerate_file, "--num_processes", "2", "--main_process_port", str(port)]
    command = [
        *(sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger"), "--"),
        *(sys.executable, "-m", "accelerate.commands.launch", *launcher, "src/open_r1/grpo.py", "--config", recipe),
        *(word for name, value in (REPLACED | paths | replaced).items() for word in (f"--{name}", *value.split())),
    ]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "TRL_EXPERIMENTAL_SILENCE": "1"}
    # DeepSpeed compiles a part of itself at its first start: not where another release of it does.
    own.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(checkout / "src"), own.get("PYTHONPATH")]))
    return subprocess.run(command, cwd=checkout, env=own, capture_output=True, text=True, check=False, timeout=240)


def steps_followed(folder: Path, ran: subprocess.CompletedProcess[str]) -> int:
    """The optimizer steps of a launch that was followed on both ranks to its end."""
    assert ran.returncode == 0, ran.stderr[-20000:]
    ledger = Ledger(folder / "ledger")
    assert [file.headers[0]["mode"] for file in ledger.files] == ["enforce", "enforce"]
    steps = list(read_steps(folder / "ledger"))
    assert len(steps) == ledger.stop_step
    assert any(step["gradient_norm"] for step in steps), "rewards differ, and so something is trained"
    return len(steps)
