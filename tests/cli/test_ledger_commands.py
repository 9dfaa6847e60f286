"""`batchbridge ledger show|diff|export` over ledgers written by the real writer."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge import Spec
from batchbridge.ledger import Header, StepRecord, Writer
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Topology
from batchbridge.meaning.weights import Normaliser

Run = Callable[..., tuple[int, str, str]]

SPEC = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=1, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=2),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(optimizer_steps=2),
)


def write(folder: Path, prompts: tuple[int, int]) -> str:
    """A run of two optimizer steps, each over one prompt's two completions."""
    header = Header(
        framework="toy", framework_version="2.0", mode="verify", spec=SPEC, dataset_size=9, world_size=1, rank=0
    )
    with Writer(folder, header) as writer:
        for step, prompt in enumerate(prompts):
            writer.append(
                StepRecord(
                    step=step,
                    epoch=0,
                    normaliser=Normaliser(aggregation="token_mean", completions=2, tokens=7),
                    learning_rate=0.5,
                    gradient_norm=None,
                    skipped=False,
                    lr_tick=True,
                    rollout=[step, step],
                    pass_index=[0, 0],
                    prompt=[prompt, prompt],
                    sample=[0, 1],
                    prompt_fingerprint=["0" * 16] * 2,
                    completion_fingerprint=["1" * 16, "2" * 16],
                    response_tokens=[3, 4],
                    reward=[float("nan"), 1.0],
                    advantage=[-1.0, 1.0],
                    old_logprobs=[None, None],
                    generated_at_step=[step, step],
                )
            )
    return str(folder)


def test_show_prints_one_line_per_optimizer_step(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("ledger", "show", write(tmp_path / "a", (3, 4)))
    assert out.splitlines()[0] == (
        "step 0  epoch 0  rollout 0  2 completions of 1 prompts  7 response tokens  learning rate 0.5  "
        "gradient norm unset"
    )
    assert (code, len(out.splitlines())) == (0, 2)


def test_show_prints_each_step_on_a_line_of_valid_json(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("ledger", "show", write(tmp_path / "a", (3, 4)), "--step", "1", "--json")
    head, line, tail = out.splitlines()
    record = json.loads(line)
    assert json.loads(f"{head}{tail}")["results"] == []
    assert (record["step"], record["prompt"], record["reward"]) == (1, [4, 4], ["nan", 1.0])
    assert code == 0


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_step_that_is_not_there_is_an_error_of_usage(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, out, err = run("ledger", "show", write(tmp_path / "a", (3, 5)), "--step", "2", *words)
    assert (code, out) == (64, "")
    assert "--step 2: the ledger has the optimizer steps 0 to 2 (exclusive)" in err


def test_show_names_the_code_of_the_last_start(run: Run, tmp_path: Path) -> None:
    """Also where that had fewer ranks: their files end with headers of starts before it."""
    for grade, world_size, at_step in (("measured", 2, 0), ("proven", 1, 1)):
        for rank in range(world_size):
            said = {"framework": "toy", "framework_version": "2.0", "mode": "verify", "spec": SPEC, "dataset_size": 9}
            started = "resumed" if at_step else "fresh"
            evidence = {"grade": grade, "labels": {}}
            Writer(tmp_path / "a", Header(**said, world_size=world_size, rank=rank, started=started, at_step=at_step,
                                          evidence=evidence)).close()  # type: ignore[arg-type]  # as written  # fmt: skip
    assert run("ledger", "show", str(tmp_path / "a"))[1].startswith("code proven")


def test_equal_runs_exit_with_0(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("ledger", "diff", write(tmp_path / "a", (3, 4)), write(tmp_path / "b", (3, 4)))
    assert (code, out.splitlines()[0]) == (0, "equal: 2 optimizer steps")


def test_different_runs_exit_with_3_and_name_the_first_step(run: Run, tmp_path: Path) -> None:
    folders = write(tmp_path / "a", (3, 4)), write(tmp_path / "b", (3, 5))
    assert run("ledger", "diff", *folders)[0] == 3
    code, out, _ = run("ledger", "diff", *folders, "--json")
    assert (code, json.loads(out)["results"][0]["step"]) == (3, 1)


def test_a_ledger_that_is_broken_says_where(run: Run, tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "a", (3, 4)))
    (file,) = folder.iterdir()
    file.write_text("nonsense\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    code, out, err = run("ledger", "show", str(folder))
    assert (code, out) == (2, "")
    assert "rank-00000.jsonl:1" in err


def test_the_summary_is_of_the_whole_run(run: Run, tmp_path: Path) -> None:
    code, out, err = run("ledger", "show", write(tmp_path / "a", (3, 4)), "--summary")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{tmp_path / 'a'}: toy 2.0, verify, world size 1"
    assert lines[1:7] == [
        "  steps: 2: 0 to 1",
        "  completions: 4, of which 0 have no trained token",
        "  response tokens: 14",
        "  skipped steps: 0 (the optimizer did not step)",
        "  drift: not held against a plan: mode verify held it against its framework's own order (`batchbridge ledger "
        "verify`)",
        "  resumed: never",
    ]
    assert "response_tokens  7      7     7      7     tokens in a step" in lines
    assert lines[-1] == "0     4            14"


@pytest.mark.parametrize("words", [("--summary", "--step", "0"), ("--summary", "--json"), ("--html", "x", "--json")])
def test_the_whole_run_is_no_single_step(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, _, err = run("ledger", "show", write(tmp_path / "a", (3, 4)), *words)
    assert code == 64
    assert "--summary and --html are of the whole run" in err


def test_a_ledger_that_cannot_be_read_has_no_summary(run: Run, tmp_path: Path) -> None:
    for words in (("show", "--summary"), ("export", "--csv", str(tmp_path / "x.csv"))):
        code, out, err = run("ledger", words[0], str(tmp_path), *words[1:])
        assert (code, out) == (2, "")
        assert "there is no rank-*.jsonl file" in err


def test_export_writes_a_table_and_says_what_is_in_it(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "run.csv"
    code, out, _ = run("ledger", "export", write(tmp_path / "a", (3, 4)), "--csv", str(file))
    assert (code, out) == (0, f"{file}: 4 completions of 2 optimizer steps\n")
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5
    file.write_text("mine", encoding="utf-8")
    code, _, err = run("ledger", "export", str(tmp_path / "a"), "--csv", str(file))
    assert (code, "--overwrite replaces it" in err, file.read_text(encoding="utf-8")) == (64, True, "mine")
    assert run("ledger", "export", str(tmp_path / "a"), "--csv", str(file), "--overwrite")[0] == 0
    assert len(file.read_text(encoding="utf-8").splitlines()) == 5


@pytest.mark.parametrize("words", [(), ("--csv", "a.csv", "--parquet", "a.parquet")])
def test_export_is_asked_for_one_form(run: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    code, _, err = run("ledger", "export", write(tmp_path / "a", (3, 4)), *words)
    assert code == 64
    assert "give --csv FILE or --parquet FILE" in err


def test_a_table_that_cannot_be_written_is_an_error_of_usage(run: Run, tmp_path: Path) -> None:
    code, _, err = run("ledger", "export", write(tmp_path / "a", (3, 4)), "--csv", str(tmp_path / "absent" / "x.csv"))
    assert code == 64
    assert "No such file or directory" in err


def test_without_pyarrow_export_says_how_to_install_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    file = tmp_path / "run.parquet"
    code, _, err = run("ledger", "export", write(tmp_path / "a", (3, 4)), "--parquet", str(file))
    assert code == 64
    assert "--parquet needs pyarrow: pip install 'batchbridge[parquet]'" in err
    assert not file.exists()


@pytest.mark.parametrize(
    ("words", "label"),
    [
        (("show", "a", "--summary"), "steps read"),
        (("diff", "a", "a"), "steps compared"),
        (("export", "a", "--csv", "a.csv"), "steps written"),
    ],
)
def test_what_reads_a_whole_run_has_a_bar_for_somebody_who_looks(
    words: tuple[str, ...], label: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.chdir(tmp_path)
    write(Path("a"), (3, 4))
    monkeypatch.setattr("batchbridge.cli._progress.PATIENCE_S", 0)
    code, out, err = run("ledger", *words)
    assert (code, err) == (0, "")  # no terminal: no bar
    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    again = ("--overwrite",) if words[0] == "export" else ()
    assert run("ledger", *words, *again)[:2] == (0, out)
    assert label in seen.getvalue()
    assert "100%" in seen.getvalue()
