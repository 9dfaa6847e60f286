"""The trial of OpenRLHF's adapter, for `batchbridge try openrlhf`; imports no framework.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from pathlib import Path

from batchbridge.kit import Trial, TrialCommand

PROMPTS = 12


def _prepare(folder: Path, beside: Path) -> TrialCommand:
    from batchbridge_openrlhf.on_cpu import launching

    launching.prepare(folder, prompts=PROMPTS)
    # One completion of the script has no token: alone in a micro-batch it ends OpenRLHF's own run (openrlhf-no-token).
    sizes = {"train.micro_batch_size": "2", "train.batch_size": "12"}
    words = launching.words({**launching.options(folder, 1), **sizes})
    return TrialCommand(words=words, environment=launching.environment(folder, 1, ray_folder=beside))


TRIAL = Trial(
    needs=("torch", "openrlhf", "deepspeed", "ray", "transformers", "datasets", "peft"),
    install=(
        "pip install 'batchbridge[try-openrlhf]'",
        "DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation openrlhf==0.11.2 deepspeed==0.19.6",
    ),
    prepare=_prepare,
    real="train_ppo_ray, its trainer on Ray, the loss and DeepSpeed's ZeRO-2 engine, with SGD in float32",
    scripted="vLLM's engines and the rewards; where vllm and flash_attn are not installed their names are empty",
    prompts=PROMPTS,
)
