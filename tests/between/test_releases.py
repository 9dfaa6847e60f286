"""No version named: the repository's pin, else every known release, and the numbers of devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from registered import adapters

import batchbridge
from batchbridge.cli.main import main
from batchbridge.comparing.releases import settled
from batchbridge.contract import plugins
from batchbridge.reading.pins import pinned
from batchbridge.reading.read import read

RECIPE = """\
model_name_or_path: m
torch_dtype: bfloat16
dataset_prompt_column: problem
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
num_generations: 16
warmup_ratio: 0.1
overwrite_output_dir: true
max_prompt_length: 512
"""
"""As Open-R1's published recipes: written for trl 0.18."""
EVERYWHERE = "num_generations: 16\ndataset_prompt_column: problem\nper_device_train_batch_size: 16\n"


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("batchbridge.kit.frame.installed", lambda distribution: None)
    path = Path("recipes/demo.yaml")
    path.parent.mkdir()
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize("framework", ["trl", "open_r1", "verl", "easyr1", "openrlhf", "open_instruct"])
def test_an_adapters_releases_are_known_to_it_and_in_order(framework: str) -> None:
    adapter = adapters()[framework]
    assert adapter.releases
    assert sorted(adapter.releases, key=Version) == list(adapter.releases)
    assert adapter.releases[-1] == adapter.newest_version
    assert all(adapter.knows(release) for release in adapter.releases)


def test_a_recipe_is_judged_under_every_release(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(recipe), "--world-size", "8", "-v"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("recipes/demo.yaml  open_r1 0.26.2  8 devices  VALID")
    (told,) = (line for line in lines if line.startswith("  no version was named: 0.15.0 to 0.15.2 valid; "))
    assert "; 0.28.0 invalid (BB-TRL-003); " in told
    assert "0.26.2, the newest in which it is valid, is shown (--framework-version names one)" in told
    assert "    0.15.0 to 0.15.2  valid" in lines
    (off,) = (line for line in lines if line.startswith("    0.19.0 to 0.21.0  valid"))
    assert "kl_coefficient: 0.04 before, 0 now" in off
    assert "    0.28.0            invalid    BB-TRL-003 torch_dtype, max_prompt_length" in lines


@pytest.mark.parametrize(
    ("text", "code"),
    [(EVERYWHERE, 0), (RECIPE, 4), (f"{EVERYWHERE}colour: green\n", 4), (f"{EVERYWHERE}bf16: many\n", 2)],
)
def test_the_exit_code_says_whether_all_some_or_none_are_valid(recipe: Path, text: str, code: int) -> None:
    recipe.write_text(text)
    assert main(["check", str(recipe), "--world-size", "8"]) == code


def test_the_same_is_an_object(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = batchbridge.check(recipe, world_size=8)
    assert found.judged is not None
    assert (found.verdict, found.reading.framework_version) == ("undecided", "0.26.2")
    main(["check", str(recipe), "--world-size", "8", "--json"])
    shown = json.loads(capsys.readouterr().out)["results"][0]["releases"]
    assert [span["first"] for span in shown] == [span.first for span in found.judged.spans]
    assert batchbridge.check(recipe, world_size=8, version="0.18.0").judged is None


def test_without_devices_the_numbers_on_which_it_is_valid_are_said(recipe: Path) -> None:
    recipe.write_text(RECIPE.replace("num_generations: 16", "num_generations: 14"))
    text = str(batchbridge.explain(recipe))
    valid = "\n  valid on 7, 14, 21, 28, 35, 42, 49, 56, 63 of 1 to 64 devices (say --world-size)\n"
    assert valid in text
    assert valid in f"{batchbridge.check(recipe, version='0.18.0')}\n"
    recipe.write_text(RECIPE)
    assert "valid on every number of 1 to 64 devices" in str(batchbridge.check(recipe, version="0.18.0"))
    whole = batchbridge.check(recipe).text(verbose=True)
    assert "    in every version: BB-TRL-005 the world size is missing" in whole
    assert "; 0.26.2, the newest without an error, is shown (" in text


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("setup.py", 'deps = [\n    "trl[vllm]==0.18.0",\n]\n', "setup.py:2"),
        ("requirements-dev.txt", "torch==2.6.0\ntrl == 0.18.0  # as published\n", "requirements-dev.txt:2"),
        ("pyproject.toml", 'dependencies = ["x", "trl==0.18.0"]\n', "pyproject.toml:1"),
        ("uv.lock", '[[package]]\nname = "trl"\nversion = "0.18.0"\n', "uv.lock:3"),
        ("poetry.lock", '[[package]]\nname = "trl"\nversion = "0.18.0"\n', "poetry.lock:3"),
        ("Dockerfile", "RUN pip install --no-cache trl==0.18.0\n", "Dockerfile:1"),
    ],
)
def test_the_repositorys_pin_is_taken_and_named(recipe: Path, file: str, text: str, place: str) -> None:
    Path(file).write_text(text)
    found = batchbridge.check(recipe, world_size=8)
    assert (found.verdict, found.reading.framework_version, found.judged) == ("valid", "0.18.0", None)
    (note,) = (finding for finding in found.findings if finding.code == "BB024")
    assert note.message == f"no version of trl was named: {place} pins 0.18.0, which is taken"
    assert batchbridge.check(recipe, world_size=8, version="0.19.0").reading.framework_version == "0.19.0"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("setup.py", '"trl>=0.18.0"'),
        ("setup.py", '# "trl==0.18.0"'),
        ("setup.py", '"my-trl==0.18.0"'),
        ("requirements.txt", "trl==0.18.0\ntrl==0.19.0\n"),
        ("requirements.txt", "\0trl"),
        ("uv.lock", 'name = "trl-x"\nversion = "0.18.0"\n'),
    ],
)
def test_what_is_no_exact_pin_decides_nothing(recipe: Path, file: str, text: str) -> None:
    Path(file).write_text(text)
    assert pinned(recipe, "trl") is None


@pytest.mark.parametrize(
    ("file", "text", "versions", "first"),
    [
        ("requirements.txt", "torch>=2.6\ntrl>=1.0.0  # trl<1\n", ">=1.0.0", "1.0.0"),
        ("setup.py", 'x = [\n    "trl[vllm] >= 0.18, < 0.22",\n]\n', ">=0.18,<0.22", "0.18.0"),
        ("pyproject.toml", 'dependencies = [\n"trl (~=0.20.0)"]\n', "~=0.20.0", "0.20.0"),
        (
            "pyproject.toml",
            "dependencies = [\n\"trl!=0.15.*,>0.15; python_version > '3.9'\"]\n",
            "!=0.15.*,>0.15",
            "0.16.0",
        ),
    ],
)
def test_a_range_that_the_repository_asks_for_leaves_other_releases_out(
    recipe: Path, file: str, text: str, versions: str, first: str
) -> None:
    Path(file).write_text(text)
    found = batchbridge.check(recipe, world_size=8)
    assert found.judged is not None
    assert found.judged.spans[0].first == first
    known = [one for one in adapters()["open_r1"].releases if SpecifierSet(versions).contains(one)]
    assert (found.judged.spans[0].first, found.judged.spans[-1].last) == (known[0], known[-1])
    assert found.reading.framework_version in known
    assert f"no version was named, and {file}:2 asks for open_r1 {versions}: " in str(found)


def test_a_range_that_a_notebook_installs_comes_before_its_repositorys_pin(tmp_path: Path, recipe: Path) -> None:
    Path("requirements.txt").write_text("trl==0.18.0\n")
    built = "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(per_device_train_batch_size=8, bf16=False)\n"
    trained = f"{built}GRPOTrainer(model='m', args=args).train()\n"
    for asked, first in (('!pip install "trl>=1.0.0,<1.2"\n', "1.0.0"), ("", None)):
        made = {"cells": [{"cell_type": "code", "source": asked + trained}], "nbformat": 4}
        Path("n.ipynb").write_text(json.dumps(made))
        found = batchbridge.check("n.ipynb", world_size=1)
        assert (found.judged and found.judged.spans[0].first) == first, str(found)
        if first is None:
            assert found.reading.framework_version == "0.18.0"
        else:
            assert "a cell of n.ipynb asks for trl >=1.0.0,<1.2: " in str(found)


def test_a_range_that_no_known_release_lies_in_leaves_none_out(recipe: Path) -> None:
    Path("requirements.txt").write_text("trl<=0.9.6\n")
    found = batchbridge.check(recipe, world_size=8)
    assert found.judged is not None
    assert found.judged.spans[0].first == "0.15.0"
    assert "no version was named: 0.15.0 to 0.15.2 valid" in str(found)


def test_a_key_of_a_release_that_is_left_out_is_still_one_of_the_framework(recipe: Path) -> None:
    """The control of where ranges apply: behind what no release declares, which is said of all of them."""
    Path("requirements.txt").write_text("trl>=1.0.0\n")
    said = str(batchbridge.check(recipe, world_size=8))
    assert "no release of" not in said
    assert "nor has any other release" not in said


def test_a_pin_above_the_repository_is_another_ones(recipe: Path) -> None:
    mine = Path("mine")
    (mine / ".git").mkdir(parents=True)
    Path("requirements.txt").write_text("trl==0.18.0\n")
    inside = mine / "recipe.yaml"
    inside.write_text(recipe.read_text())
    assert pinned(inside, "trl") is None
    (mine / ".git").rmdir()
    assert pinned(inside, "trl") == ("0.18.0", "requirements.txt:1")


@pytest.mark.parametrize(
    ("said", "version"), [("0.8.0\n", "0.8.0"), ("0.10.0.dev\n", None), ("0.8.0.dev0", None), ("main", None)]
)
def test_a_checkout_of_the_framework_says_its_version(recipe: Path, said: str, version: str | None) -> None:
    """A state between two releases, or after the last, decides nothing."""
    Path("verl", "version").mkdir(parents=True)
    Path("verl", "version", "version").write_text(said)
    Path("run.yaml").write_text("data.train_batch_size: 64\nactor_rollout_ref.rollout.n: 4\n")
    found = batchbridge.check(Path("run.yaml").absolute(), framework="verl", world_size=8)
    assert (found.judged is None) is (version is not None)
    if version is not None:
        assert found.reading.framework_version == version
        (note,) = (finding for finding in found.findings if finding.code == "BB024")
        assert f"verl/version/version:1 pins {said.strip()}, which is taken" in note.message


@pytest.mark.parametrize(
    ("framework", "file", "said", "beside", "version", "place"),
    [
        (
            *("easyr1", "verl/__init__.py", '"""x"""\n__version__ = "0.3.3.dev0"\n'),
            *(("examples/config.yaml", "verl/trainer/main.py"), "0.3.3.dev0", "verl/__init__.py:2"),
        ),
        ("openrlhf", "version.txt", "0.11.0\n", ("openrlhf/cli/train_ppo_ray.py",), "0.11.0", "version.txt:1"),
        ("openrlhf", "version.txt", "0.11.0\n", (), None, ""),
        ("openrlhf", "version.txt", "a text\n", ("openrlhf/cli/train_ppo_ray.py",), None, ""),
    ],
    ids=["a known state", "a release", "someone else's version.txt", "no version"],
)
def test_a_checkout_is_known_by_its_files(
    recipe: Path, framework: str, file: str, said: str, beside: tuple[str, ...], version: str | None, place: str
) -> None:
    for name, text in ((file, said), *((name, "") for name in beside)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    adapter = plugins.adapters()[framework]
    found = pinned(recipe, adapter.distribution, adapter.checkout, adapter.releases)
    assert found == (None if version is None else (version, place))


@pytest.mark.parametrize(
    ("framework", "version"),
    [
        *(("verl", version) for version in ("0.8.0.dev0", "0.8.0.dev", "0.3.0")),
        *(("easyr1", "0.2.0"), ("openrlhf", "0.6.2"), ("trl", "0.13.0"), ("open_instruct", "0.3.3.dev0")),
    ],
)
def test_the_text_of_a_version_alone_makes_nothing_invalid(recipe: Path, framework: str, version: str) -> None:
    run = "python open_instruct/grpo_fast.py" if framework == "open_instruct" else {}
    Path("run.sh").write_text(f"{run}\n")
    found = batchbridge.check("run.sh" if run else {}, framework=framework, version=version, world_size=8)
    assert found.verdict == "undecided"


def test_a_version_before_a_tag_of_open_instruct_is_read_as_it_with_a_warning(recipe: Path) -> None:
    Path("run.sh").write_text("python open_instruct/grpo_fast.py\n")
    before, tag = (batchbridge.read("run.sh", version=version) for version in ("0.2.0.dev0", "0.2.0"))
    assert before.spec == tag.spec is not None
    assert [one.severity for one in before.findings if one.code == "BB-OI-002"] == ["warning"]


def test_a_pin_that_nobody_knows_decides_nothing(recipe: Path) -> None:
    Path("setup.py").write_text('"trl==0.2.0"')
    assert batchbridge.check(recipe, world_size=8).judged is not None


# ---- pins of git's

COMMIT = "0123456789abcdef0123456789abcdef01234567"
GIT = "git+https://github.com/huggingface/trl"


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("requirements.txt", f"torch\ntrl @ {GIT}@{{}}\n", 2),
        ("requirements.txt", f"trl[vllm] @ {GIT}.git@{{}}  # new\n", 1),
        ("requirements.txt", f"{GIT}.git@{{}}#egg=trl\n", 1),
        ("requirements.txt", "-e git+ssh://git@github.com/huggingface/trl.git@{}#egg=trl\n", 1),
        ("pyproject.toml", f'[project]\ndependencies = [\n  "trl @ {GIT}@{{}}",\n]\n', 3),
        (
            "pyproject.toml",
            '[tool.uv.sources]\ntrl = {{ git = "https://github.com/huggingface/trl", rev = "{}" }}\n',
            2,
        ),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\ntrl = {{rev = "{}", git = "https://github.com/a/trl.git"}}\n',
            2,
        ),
        ("setup.py", f'install_requires=["x", "trl @ {GIT}.git@{{}}"]\n', 1),
        ("Dockerfile", f"RUN pip install {GIT}@{{}}\n", 1),
    ],
)
def test_a_pin_of_gits_is_its_tags_release_and_a_commit_is_none(
    recipe: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, line: int
) -> None:
    Path(file).write_text(text.format("v0.18.0"))
    found = batchbridge.check(recipe, world_size=8)
    assert (found.verdict, found.reading.framework_version, found.judged) == ("valid", "0.18.0", None)
    Path(file).write_text(text.format(COMMIT))
    found = batchbridge.check(recipe, world_size=8)
    assert found.judged is not None
    assert found.verdict == "undecided"  # releases differ, and nothing says between which the commit lies
    first = f"{file}:{line} takes trl from git at 0123456789ab, which is no release: 0.15.0"
    assert first in str(found)
    recipe.write_text(EVERYWHERE)
    found = batchbridge.check(recipe, world_size=8)
    assert found.verdict == "valid"
    assert "which is no release: valid under every known open_r1" in str(found)


def test_a_notebooks_cell_installs_from_git(tmp_path: Path) -> None:
    code = "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer('m', [len], args=GRPOConfig(output_dir='o')).train()\n"
    for reference, version in (("v0.18.0", "0.18.0"), (COMMIT, None)):
        cells = [f"!pip install -q {GIT}.git@{reference}\n", code]
        made = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
        (tmp_path / "n.ipynb").write_text(json.dumps(made))
        reading = batchbridge.read(tmp_path / "n.ipynb", world_size=8)
        assert reading.framework_version == version
    assert any("takes trl from git at 0123456789ab" in one.message for one in reading.findings)


def test_a_commit_that_open_r1_pinned_is_read_as_the_version_of_its_code(recipe: Path) -> None:
    pin = f"trl @ {GIT}@69ad852e5654a77f1695eb4c608906fe0c7e8624\n"
    Path("requirements.txt").write_text(pin)
    column, steps = "dataset_prompt_column: problem\n", "gradient_accumulation_steps: 8\n"
    recipe.write_text(f"num_generations: 8\nper_device_train_batch_size: 2\n{column}{steps}")
    found = batchbridge.check(recipe, world_size=2)
    assert found.verdict == "invalid"  # 0.15 and 0.16 refuse 2 x 2 rows of groups of 8, which 0.17 and later take
    assert "pins 0.16.0.dev0 at 69ad852e5654 of git's, which is taken" in str(found)
    Path("requirements.txt").write_text(pin.replace("69ad852e5654", "0123456789ab"))
    assert batchbridge.check(recipe, world_size=2).verdict != "invalid"


@pytest.mark.parametrize("version", [COMMIT, COMMIT[:12], f"{GIT}@{COMMIT}", f"{GIT}@feature/x", GIT])
def test_a_commit_that_the_user_names_is_judged_by_all_releases(recipe: Path, version: str) -> None:
    recipe.write_text(EVERYWHERE)
    found = batchbridge.check(recipe, world_size=8, version=version)
    assert found.verdict == "valid"
    assert " is named, a git commit and not a release: valid under every known open_r1" in str(found)
    recipe.write_text(RECIPE)
    assert batchbridge.check(recipe, world_size=8, version=version).verdict == "undecided"
    tagged = batchbridge.check(recipe, world_size=8, version=f"{GIT}@v0.18.0")
    assert (tagged.verdict, tagged.reading.framework_version) == ("valid", "0.18.0")


@pytest.mark.parametrize("name", [7, 12, 40])
def test_a_known_commit_that_the_user_names_is_the_version_of_its_code(recipe: Path, name: int) -> None:
    commit = "69ad852e5654a77f1695eb4c608906fe0c7e8624"[:name]
    recipe.write_text("num_generations: 8\nper_device_train_batch_size: 2\ngradient_accumulation_steps: 8\n")
    for said in (commit, f"{GIT}.git@{commit}"):
        found = batchbridge.check(recipe, framework="trl", world_size=2, version=said)
        assert (found.verdict, found.judged) == ("invalid", None)  # as the pin of the same commit
        assert f"\n  {commit[:12]} is trl 0.16.0.dev0, which is taken\n" in str(found)
    assert batchbridge.check(recipe, framework="trl", world_size=2, version=commit[:6]).verdict == "undecided"


def test_a_branch_may_take_what_releases_refuse(recipe: Path) -> None:
    """The older ones lack the first key, the newer ones the second: no release is right, and the branch is none."""
    program, size = recipe.with_name("train.py"), "per_device_train_batch_size=8, num_generations=8"
    args = f"args=GRPOConfig('o', {size}, KEYS)"
    text = f"from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer('m', [len], {args}).train()\n"
    program.write_text(text.replace("KEYS", "log_multimodal=True, max_prompt_length=512"))
    assert batchbridge.check(program, world_size=2).verdict == "invalid"
    Path("requirements.txt").write_text(f"trl @ {GIT}.git@main\n")
    found = batchbridge.check(program, world_size=2)
    assert found.judged is not None
    assert (found.judged.verdict, found.verdict) == ("invalid", "undecided")
    assert "as 1.16.0 would, and not every release: max_prompt_length is gone" in str(found)
    assert "1.16.0, the newest, is shown" in str(found)
    (taken,) = settled(program, read(program, world_size=2), world_size=2).wrong
    assert taken.undecided
    program.write_text(text.replace("num_generations=8, KEYS", "num_generations=7"))
    found = batchbridge.check(program, world_size=2)
    assert found.verdict == "undecided"  # the branch may be older than all that are known, or newer
    assert "as 1.16.0 would, and every other known release: per_device_train_batch_size 8" in str(found)
    Path("requirements.txt").unlink()
    assert batchbridge.check(program, world_size=2).verdict == "invalid"


def test_a_version_between_two_releases_that_differ_is_undecided(recipe: Path) -> None:
    verdicts = {
        version: batchbridge.check(recipe, world_size=8, version=version).verdict
        for version in ("0.26.2", "0.27.0", "0.27.0.dev0", "0.18.0", "0.18.0.dev0")
    }
    assert verdicts["0.26.2"] != verdicts["0.27.0"]
    assert verdicts["0.27.0.dev0"] == "undecided"
    found = batchbridge.check(recipe, world_size=8, version="0.27.0.dev0").findings
    assert any("0.27.0" in one.message and "0.26.2" in one.message for one in found if one.severity == "error")
    assert (verdicts["0.18.0"], verdicts["0.18.0.dev0"]) == ("valid", "valid")
    Path("requirements.txt").write_text("trl==0.27.0.dev0\n")
    assert batchbridge.check(recipe, world_size=8).verdict == "undecided"
