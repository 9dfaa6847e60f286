"""Each of the 30 ordered pairs through the command line, from a plain real configuration to the target's own form."""

from __future__ import annotations

import ast
import json
import shlex
from itertools import permutations
from pathlib import Path

import pytest
from real import DATASET, VERSIONS, name_of, text_of
from registered import adapters

from batchbridge.cli.main import main
from batchbridge.comparing.effects import leaves
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.reading import files
from batchbridge.reading.read import read_source

pytestmark = pytest.mark.usefixtures("own_adapters", "empty_folder")
FORM = {
    "trl": "python",
    "open_r1": "into",
    "verl": "hydra",
    "easyr1": "into",
    "openrlhf": "shell",
    "open_instruct": "argv",
}
"""What each target gets here: its own form, or an existing file that is edited."""
EXISTING = {
    "open_r1": "# mine\nmodel_name_or_path: a/b  # small\nlearning_rate: 2.0e-05\nmax_steps: 7\nreport_to: [wandb]\n",
    "easyr1": "# mine\ndata:\n  rollout_batch_size: 64  # prompts\n  prompt_key: problem\n"
    "worker:\n  rollout:\n    n: 4\n"
    "trainer:\n  n_gpus_per_node: 8\n  logger: [file]\n",
}
KEPT = {
    "open_r1": ("# mine", "a/b  # small", "report_to: [wandb]"),
    "easyr1": ("# mine", "# prompts", "logger: [file]"),
}
OUTSIDE = {
    "trl": {"output_dir", "reward_weights"},
    "open_r1": {"output_dir", "reward_weights", "dataset_name"},
    "verl": {"actor_rollout_ref.rollout.name", "trainer.experiment_name"},
    "easyr1": {"trainer.experiment_name"},
    "openrlhf": {"ckpt.output_dir"},
    "open_instruct": {"exp_name"},
}
"""Settings that are in the file and are nothing of a batch."""
CARRIED = {
    "trl": (
        "carried.learning_rate",
        "carried.lr_schedule",
        "carried.max_completion_tokens",
        "objective.kl_coefficient",
    ),
    "open_r1": ("carried.learning_rate", "carried.max_prompt_tokens", "carried.warmup_ratio", "horizon.epochs"),
    "verl": ("carried.learning_rate", "carried.lr_schedule", "objective.kl_coefficient", "objective.clip_high"),
    "easyr1": ("carried.learning_rate", "carried.max_prompt_tokens", "objective.kl_placement", "carried.temperature"),
    "openrlhf": ("carried.learning_rate", "carried.max_prompt_tokens", "objective.kl_estimator", "carried.beta2"),
    "open_instruct": (
        "carried.learning_rate",
        "carried.max_completion_tokens",
        "objective.kl_coefficient",
        "order.seed",
    ),
}
"""No batch settings, and yet in the account of each conversion."""


def read_back(framework: str, path: Path) -> Reading:
    """What the target's adapter makes of the written file."""
    form, text = FORM[framework], path.read_text(encoding="utf-8")
    if form == "python":
        (call,) = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        source = Source(values={word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg})
    elif form == "argv":
        source = files.load_source([word for line in text.splitlines() for word in shlex.split(line)])
    else:
        source = files.load_source(path, framework=framework)
    context = Context(framework_version=VERSIONS[framework], world_size=8, dataset_size=DATASET)
    return read_source(source, adapters()[framework], context)


@pytest.mark.parametrize(("one", "other"), list(permutations(sorted(adapters()), 2)))
def test_a_plain_configuration_becomes_one_of_the_targets_own_form(
    one: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(name_of(one)).write_text(text_of(one), encoding="utf-8")
    world = ("--world-size", "8") if name_of(one) == "recipe.yaml" else ()
    source = ("--framework", one, "--framework-version", VERSIONS[one], *world, "--dataset-size", str(DATASET))
    words = ("convert", name_of(one), *source, "--to", other, "--to-version", VERSIONS[other])

    code = main((*words, "--json", "--dry-run"))
    (account,) = json.loads(capsys.readouterr().out)["results"]
    other_meaning = [field for field in account["fields"] if field["status"] in ("approximate", "inexpressible")]
    lossy = [field for field in other_meaning if not field["rare"]]
    assert (code, account["verdict"]) == ((3, "lossy") if lossy else (0, "complete"))
    assert main((*words, "--dry-run", "--strict")) == (3 if other_meaning else 0)
    capsys.readouterr()
    outside = {key for report in account["outside"] for key in report["keys"]}
    assert outside >= OUTSIDE[one]
    assert {report["keys"][0] for report in account["outside"] if report["status"] == "left"} == set(
        account["left_behind"]
    )
    said = {field["field"]: field for field in account["fields"]}
    assert all(said[path]["source"] is not None for path in CARRIED[one])

    out = Path("out.yaml" if FORM[other] == "into" else "out.sh")
    form: tuple[str, ...] = ("--format", FORM[other])
    if FORM[other] == "into":
        Path("existing.yaml").write_text(EXISTING[other], encoding="utf-8")
        form = ("--into", "existing.yaml")
    refused = main((*words, *form, "-o", str(out)))
    assert (refused, out.exists()) == ((3, False) if lossy else (0, True))
    assert main((*words, *form, "-o", str(out), "--overwrite", "--allow-lossy")) == 0
    capsys.readouterr()
    assert all(line in out.read_text(encoding="utf-8") for line in KEPT.get(other, ()))
    back = read_back(other, out)
    assert back.verdict == "valid", [found.message for found in back.findings if found.severity == "error"]
    assert back.spec is not None
    # What the source leaves open stays as it is in a file that is edited; a loss term that follows the policy has no
    # values of its own in an account.
    skipped = {"filled"} if FORM[other] == "into" else set()
    meant = {
        path: field["target"]
        for path, field in said.items()
        if field["status"] not in skipped and not path.startswith(("loss.kl.", "loss.entropy."))
    }
    found = json.loads(json.dumps(leaves(back.spec)))
    assert {path: found[path] for path in meant} == meant


def test_the_pairs_are_all_of_them() -> None:
    assert sorted(FORM) == sorted(VERSIONS) == sorted(OUTSIDE) == sorted(CARRIED) == sorted(adapters())
