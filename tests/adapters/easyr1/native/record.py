"""What EasyR1 itself says of random configurations, as JSON Lines: python record.py CHECKOUT COUNT SEED

The first line names version, commit and every key with its default; each other line is a configuration with the first
phase that failed, its error, and the numbers that came out before. Run with torch, tensordict, torchdata, ray,
transformers, accelerate and omegaconf below 2.4 installed, for each checkout in a process of its own. The recorded
files are made so:

    python record.py CHECKOUT 150 1 > ../recorded/VERSION.jsonl
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from configurations import configurations
from real import EasyR1


def main(checkout: str, count: str, seed: str) -> None:
    warnings.simplefilter("ignore")
    easyr1 = EasyR1(Path(checkout))
    head = {"version": easyr1.version, "commit": easyr1.commit, "torch": easyr1.torch.__version__}
    print(json.dumps({**head, "defaults": easyr1.keys()}))
    for settings, prompts in itertools.islice(configurations(easyr1.version, int(seed)), int(count)):
        said = easyr1.judge(settings, prompts)
        print(json.dumps({"settings": settings, "prompts": prompts, **said}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
