"""From a launch script to the training command in it, its launchers, and what is said about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge
from bashread import Argument, read_script
from batchbridge.contract.reading import Source
from batchbridge.reading import files
from batchbridge.reading.launchers import launched_world_size, programs

TRL = "grpo.py --num_generations 8 --steps_per_generation 2 --max_completion_length 64"


def load(folder: Path, text: str, name: str = "run.sh", **options: object) -> Source:
    path = folder / name
    path.write_text(text)
    return files.load_source(path, **options)  # type: ignore[arg-type]  # the tests' own options


def codes(source: Source) -> list[str]:
    return [problem.code for problem in source.problems]


# ---- wrappers


def test_windows_line_ends_are_read_as_lines_and_said(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(
        b"accelerate launch --num_processes 7 \\\r\n"
        b"  grpo.py --num_generations 8 \\\r\n  --max_completion_length 64\r\n"
    )
    source = files.load_source(path, framework="trl")
    assert source.launcher["num_processes"] == "7"
    assert source.values["num_generations"] == 8
    (problem,) = source.problems
    assert (problem.code, problem.severity, problem.where[0].line) == ("BB016", "warning", 1)


@pytest.mark.parametrize(
    ("command", "argv", "launcher"),
    [
        ("python t.py a=1", "python t.py a=1", {}),
        ("nohup python t.py a=1", "python t.py a=1", {}),
        ("env A=1 B=2 python t.py", "python t.py", {}),
        ("A=1 sudo -u me nice -n 5 python t.py", "python t.py", {}),
        ("timeout -k 5 60 python t.py", "python t.py", {}),
        ("uv run --active t.py --a 1", "python t.py --a 1", {}),
        ("uv run --env-file job.env -m m a=1", "python -m m a=1", {}),
        ("srun bash -c 'python t.py \"$@\"' _ --lr 1", "python t.py --lr 1", {}),
        ("srun $MORE bash -c 'python t.py --lr 1'", "python t.py --lr 1", {}),
        ("docker run $MORE image bash -lc 'python t.py --lr 1'", "python t.py --lr 1", {}),
        ("srun /bin/bash -o pipefail -c 'python t.py $1' _ --lr", "python t.py --lr", {}),
        ("srun bash run.sh -c 'python t.py'", "bash run.sh -c python t.py", {}),
        (
            "torchrun --nproc-per-node 8 --no_python bash -c 'python t.py'",
            "python t.py",
            {"launcher": "torchrun", "nproc_per_node": "8"},
        ),
        ("uv run --with x python -m m --a 1", "python -m m --a 1", {}),
        ("ray job submit --address=http://h:1 --no-wait -- python3 -m m --a 1", "python3 -m m --a 1", {}),
        ("ray job submit --working-dir . -- env X=1 python3 -m m", "python3 -m m", {}),
        (
            "accelerate launch --num_processes 4 --multi_gpu t.py --a 1",
            "python t.py --a 1",
            {"launcher": "accelerate launch", "num_processes": "4"},
        ),
        (
            "accelerate launch --config_file=z.yaml -m m --a 1",
            "python -m m --a 1",
            {"launcher": "accelerate launch", "config_file": "z.yaml"},
        ),
        (
            "torchrun --standalone --nproc-per-node 8 --nnodes=2 t.py --a 1",
            "python t.py --a 1",
            {"launcher": "torchrun", "nproc_per_node": "8", "nnodes": "2"},
        ),
        (
            "python -m torch.distributed.run --nproc_per_node=2 -m m",
            "python -m m",
            {"launcher": "python -m torch.distributed.run", "nproc_per_node": "2"},
        ),
        ("deepspeed --num_gpus 4 t.py", "python t.py", {"launcher": "deepspeed", "num_gpus": "4"}),
    ],
)
def test_wrappers_are_taken_off(command: str, argv: str, launcher: dict[str, str]) -> None:
    (program,) = programs(read_script(command).commands[0].words)
    assert (" ".join(program.argv), program.launcher) == (argv, launcher)


def test_an_argument_of_an_inner_shell_that_nothing_decides_stays_unknown() -> None:
    (program,) = programs(read_script("srun bash -c 'python a $1 $B' _ $A").commands[0].words)
    assert [(word.text, [one.names for one in word.unknown]) for word in program.words[2:]] == [
        ("$A", [("A",)]),
        ("$B", [("B",)]),
    ]


def test_what_is_unknown_in_an_inner_shells_text_does_not_open_quotes_there() -> None:
    name = "$(echo $MODEL | tr '/' '_' | tr '[:upper:]' '[:lower:]')"
    script = f'NAME={name}-grpo\nsrun bash -c "set -x\nray status\npython t.py name=$NAME n=16 nodes=$SLURM_NNODES"'
    found = [one for command in read_script(script).commands for one in programs(command.words)]
    program = found[-1]
    assert program.argv[:2] == ("python", "t.py")
    assert program.argv[3] == "n=16"
    assert [bool(word.unknown) for word in program.words] == [False, False, True, False, True]
    assert program.words[4].unknown[0].names == ("SLURM_NNODES",)
    assert "BATCHBRIDGE_HELD" not in " ".join(program.argv)


@pytest.mark.parametrize(
    "shell",
    [
        *("srun --nodes=1 bash", "srun bash -s", "ssh user@host bash -l", "ssh user@host", "sudo /bin/bash"),
        *("docker exec -i name bash", "kubectl exec -i pod -- sh", "singularity exec --nv a.sif bash"),
        "nohup env A=1 bash -",
    ],
)
@pytest.mark.parametrize("behind", ["", " > log 2>&1", " 2>&1 | tee log"])
def test_a_shell_behind_launchers_runs_its_here_document(shell: str, behind: str) -> None:
    script = read_script(f"N=8\n{shell} <<EOF{behind}\ncd /x\npython t.py a=$N b=\\$N c=$M\nEOF\n")
    (command,) = script.commands
    program = programs(command.words, command.document)[-1]
    words = [(word.text, word.line, [one.names for one in word.unknown]) for word in program.words[1:]]
    named = [("t.py", 4, []), ("a=8", 4, []), ("b=$N", 4, [("N",)]), ("c=$M", 4, [("M",)])]
    assert (words, script.remarks) == (named, ())


def test_a_program_that_is_no_shell_does_not_run_its_here_document() -> None:
    (command,) = read_script("srun python t.py <<EOF\npython u.py\nEOF\n").commands
    assert [program.argv for program in programs(command.words, command.document)] == [("python", "t.py")]


@pytest.mark.parametrize(
    ("launcher", "arrives"), [("srun", True), ("env A=1", True), ("ssh host", False), ("sudo", False)]
)
def test_exported_variables_arrive_where_the_launcher_hands_them_on(launcher: str, arrives: bool) -> None:
    (command,) = read_script(f"export N=8\nM=9\n{launcher} bash -c 'python t.py $N $M'").commands
    (program,) = programs(command.words, None, command.assigned)
    assert program.argv[2:] == ("8" if arrives else "$N", "$M")
    (program,) = programs(command.words, None, command.assigned, {"M": "7", "N": "8"})  # --env says it of any machine
    assert program.argv[2:] == ("8", "7")


def test_a_job_given_as_words_is_several_programs() -> None:
    text = r"python mason.py --gpus 8 -- source setup.sh \&\& python open_instruct/grpo_fast.py --beta 0"
    (command,) = read_script(text).commands
    assert [program.argv[0] for program in programs(command.words)] == ["source", "python"]


def test_operators_of_a_job_may_touch_its_words() -> None:
    words = [
        Argument(text, 1) for text in ("python", "mason.py", "--", "source", "a.sh;", "source", "b", "&&python", "c")
    ]
    assert [program.argv for program in programs(words)] == [("source", "a.sh"), ("source", "b"), ("python", "c")]


def test_a_wrapper_without_a_program_is_nothing() -> None:
    assert programs([Argument("torchrun", 1)]) == programs([Argument("nohup", 1), Argument("env", 1)]) == []


@pytest.mark.parametrize(
    ("launcher", "size"),
    [
        ({"num_processes": "4"}, 4),
        ({"nproc_per_node": "8"}, 8),
        ({"nproc_per_node": "8", "nnodes": "2"}, 16),
        ({"nproc_per_node": "8", "nnodes": "1:4"}, None),
        ({"nproc_per_node": "gpu"}, None),
        ({"num_gpus": "2", "num_nodes": "2"}, 4),
        ({}, None),
    ],
)
def test_launchers_say_the_world_size(launcher: dict[str, str], size: int | None) -> None:
    assert launched_world_size(launcher) == size


# ---- the training command


def test_the_training_command_is_found_between_others(tmp_path: Path) -> None:
    text = f"pip install trl\nN=8\naccelerate launch --num_processes 2 \\\n  {TRL} \\\n  --beta $B\n"
    source = load(tmp_path, text, env={"B": "0.1"})
    assert source.argv == ("python", *TRL.split(), "--beta", "0.1")
    assert source.values["num_generations"] == 8
    assert source.lines == {"num_generations": 4, "steps_per_generation": 4, "max_completion_length": 4, "beta": 5}
    assert source.launcher["num_processes"] == "2"
    assert source.env == {"B": "0.1"}


@pytest.mark.parametrize("name", ["run.sh", "run.bash", "run.slurm", "run.sbatch"])
def test_launch_scripts_are_read_by_their_suffix(tmp_path: Path, name: str) -> None:
    assert load(tmp_path, f"python {TRL}", name).values["num_generations"] == 8


def test_a_shell_in_the_first_line_makes_a_launch_script(tmp_path: Path) -> None:
    assert load(tmp_path, f"#!/usr/bin/env bash\npython {TRL}\n", "run").values["num_generations"] == 8


def test_another_program_in_the_first_line_is_refused_by_name(tmp_path: Path) -> None:
    source = load(tmp_path, "#!/usr/bin/env python3\nx = 1\n", "run")
    assert codes(source) == ["BB043"]


def test_a_script_without_training_is_undecided_and_shows_what_it_runs(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, "python prepare_data.py --out x").problems
    assert (problem.code, problem.undecided) == ("BB010", True)
    assert "prepare_data.py" in problem.message


def test_several_commands_are_named_and_one_can_be_chosen(tmp_path: Path) -> None:
    text = f"python {TRL} --seed 1\npython {TRL} --seed 2\n"
    first = load(tmp_path, text)
    assert (codes(first), first.values["seed"]) == (["BB012"], 1)
    assert (first.problems[0].severity, [where.line for where in first.problems[0].where]) == ("warning", [1, 2])
    second = load(tmp_path, text, command=2)
    assert (codes(second), second.values["seed"]) == ([], 2)
    assert codes(load(tmp_path, text, command=3)) == ["BB012"]
    turns = load(tmp_path, f"{text}for seed in 3 4 5; do python {TRL} --seed $seed; done\n").problems[0]
    assert turns.message == (
        "the script runs 5 training commands (1: line 1, 2: line 2, 3 to 5: line 3); command 1 is read"
    )


def test_a_known_program_counts_more_than_names_of_settings(tmp_path: Path) -> None:
    similar = (
        "python reward.py --per_device_train_batch_size 1 --learning_rate 1 --max_steps 1 --beta 1 --num_train_epochs 1"
    )
    source = load(tmp_path, f"{similar} --gradient_accumulation_steps 2\ntrl grpo --num_generations 8\n")
    assert (codes(source), source.argv[0]) == ([], "trl")


def test_commands_of_which_one_runs_are_undecided_until_the_variable_is_given(tmp_path: Path) -> None:
    text = f'if [ "$D" = npu ]; then python {TRL} --seed 1; else python {TRL} --seed 2; fi'
    assert load(tmp_path, text).problems[0].undecided
    decided = load(tmp_path, text, env={"D": "gpu"})
    assert (codes(decided), decided.values["seed"]) == ([], 2)


def test_a_command_that_may_not_run_is_undecided(tmp_path: Path) -> None:
    text = f'if [ "$D" = npu ]; then python {TRL}; fi'
    (problem,) = load(tmp_path, text).problems
    assert (problem.code, problem.undecided, problem.fixes[0].text) == ("BB013", True, "give it: --env D=VALUE")
    assert codes(load(tmp_path, text, command=1)) == []


def test_an_argument_of_the_script_is_named_as_the_script_has_it(tmp_path: Path) -> None:
    (problem,) = load(tmp_path, f'if [ "$2" = npu ]; then python {TRL}; fi').problems
    assert problem.message == "whether this command runs depends on $2"
    assert problem.fixes[0].text == "give it: --env 2=VALUE"
    open_one = load(tmp_path, f"rows=$2\npython {TRL} --per_device_train_batch_size $rows")
    messages = [one.message for one in batchbridge.read(open_one, framework="trl", version="1.16.0").findings]
    assert "per_device_train_batch_size depends on what only running the script would tell: $2" in messages


def test_words_that_may_hold_settings_are_undecided(tmp_path: Path) -> None:
    source = load(tmp_path, f"python {TRL} --seed 1 x $EXTRA")
    (problem,) = source.problems
    assert (problem.code, problem.undecided) == ("BB011", True)
    assert source.argv[-1] == "x"
    assert codes(load(tmp_path, f"python {TRL} --seed 1 x $EXTRA", env={"EXTRA": ""})) == []


def read(folder: Path, text: str, **options: object) -> batchbridge.Reading:
    path = folder / "run.sh"
    path.write_text(text)
    return batchbridge.read(path, framework="trl", version="1.16.0", world_size=2, **options)


def test_an_unknown_value_that_matters_is_undecided_and_no_error(tmp_path: Path) -> None:
    text = f"python {TRL} --per_device_train_batch_size $BS"
    reading = read(tmp_path, text)
    (finding,) = [finding for finding in reading.supposed.findings if finding.undecided]
    assert (finding.code, reading.verdict, finding.where[0].line) == ("BB011", "undecided", 1)
    assert read(tmp_path, text, env={"BS": "8"}).supposed.verdict == "valid"


def test_an_unknown_value_that_does_not_matter_is_a_note(tmp_path: Path) -> None:
    reading = read(tmp_path, f"python {TRL} --per_device_train_batch_size 8 --output_dir $HOME/out")
    assert reading.supposed.verdict == "valid"
    assert [finding.severity for finding in reading.findings if finding.code == "BB017"] == ["note"]


def test_an_override_decides_what_the_script_leaves_open(tmp_path: Path) -> None:
    source = load(tmp_path, f"python {TRL} --beta $B", overrides={"beta": 0.1})
    assert (source.values["beta"], source.unknown) == (0.1, {})


def test_provenance_has_the_line_of_the_argument(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        f"A=(\n --num_generations 8\n)\npython grpo.py --steps_per_generation 2 \\\n {'${A[@]}'} \\\n"
        " --per_device_train_batch_size 8 --max_completion_length 9\n",
    )
    assert reading.provenance["rollout.completions_per_prompt"].line == 2


def test_words_that_nobody_knows_leave_what_they_may_say_open(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python -m verl.trainer.main_ppo data.train_batch_size=64 $MORE\n")
    reading = batchbridge.read(path, version="0.8.0")
    assert reading.verdict == "undecided"
    opened = [one.message for one in reading.findings if one.code == "BB-VERL-012"]
    assert [message.partition(":")[0] for message in opened] == ["unless $MORE says otherwise"]
    assert "right if $MORE says nothing of them" in str(batchbridge.check(path, version="0.8.0"))
    assert batchbridge.read(path, version="0.8.0", env={"MORE": ""}).verdict == "invalid"
    path.write_text("python -m verl.trainer.main_ppo data.train_batch_sizes=64 $MORE\n")  # no word takes it back
    assert batchbridge.read(path, version="0.8.0").verdict == "invalid"


def test_a_value_that_is_left_to_the_reader_is_a_placeholder_and_the_rest_is_read(tmp_path: Path) -> None:
    text = f"DATA=<path_to_data>  # as it was shared\npython {TRL} --output_dir $DATA/out\n"
    source = load(tmp_path, text, framework="trl")
    assert source.values["num_generations"] == 8
    assert source.values["output_dir"] == "<path_to_data>/out"
    assert "BB014" in codes(source)  # bash itself takes it for redirections


def test_the_task_of_srun_that_trains_is_the_one_that_is_read(tmp_path: Path) -> None:
    inner = f'if [ "${{SLURM_PROCID:-0}}" = "1" ]; then python {TRL}; fi'
    source = load(tmp_path, f"srun --ntasks=8 apptainer exec image.sif bash -c '{inner}'\n", framework="trl")
    assert source.values["num_generations"] == 8
    assert "BB019" in codes(source)
    head = inner.replace('"1"', '"0"')
    assert "BB019" not in codes(load(tmp_path, f"srun --ntasks=8 bash -c '{head}'\n", framework="trl"))


def test_a_path_from_above_the_repository_is_found_in_it(tmp_path: Path) -> None:
    (tmp_path / "recipes" / "grpo").mkdir(parents=True)
    (tmp_path / "recipes" / "grpo" / "a.yaml").write_text("num_generations: 4\nmax_completion_length: 8\n")
    path = tmp_path / "run.sh"
    path.write_text("trl grpo --config mine/recipes/grpo/a.yaml --num_processes 4\n")
    assert batchbridge.read(path, version="1.16.0").native["num_generations"] == 4
    path.write_text("trl grpo --config mine/a.yaml --num_processes 4\n")
    assert batchbridge.read(path, version="1.16.0").native.get("num_generations") != 4


def test_a_command_whose_program_trains_by_rewards_is_told_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "start.py").write_text("trainer = DistributedRLTrainer(config)\ntrainer.fit()\n")
    assert codes(load(tmp_path, "python -m mine.start config=a.yaml\n")) == ["BB042"]
    (tmp_path / "mine" / "start.py").write_text("print('a server')\n")
    assert codes(load(tmp_path, "python -m mine.start config=a.yaml\n")) == ["BB010"]


_GRPO = "python -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.rollout.n=4"


@pytest.mark.parametrize(
    ("text", "said", "names"),
    [
        (
            f'MODEL=${{MODEL:-}}\nif [ -z "$MODEL" ]; then\n  exit 1\nfi\n{_GRPO}\n',
            'it ends on line 3, if [ -z "$MODEL" ], before that of line 5',
            ["MODEL"],
        ),
        (
            f"if [ -z $A ]; then exit 1; fi\n[[ -z $B ]] && exit 1\n{_GRPO}\n",
            "it ends on line 1, if [ -z $A ], before that of line 3",
            ["A", "B"],
        ),
        (
            f'RANK=""\nif [ "$RANK" = "0" ]; then\n  {_GRPO}\nfi\n',
            'that of line 3 is not reached: if [ "$RANK" = "0" ]',
            [],
        ),
        (f'X=a\ncase "$X" in\n  b) {_GRPO} ;;\nesac\n', 'that of line 3 is not reached: if "$X" is b', []),
        (f'A=\nif [ -n "$A" ]; then\n  echo x\nelse\n  exit 2\nfi\n{_GRPO}\n', "before that of line 7", []),
    ],
)
def test_a_training_command_that_is_not_reached_is_named_with_what_keeps_it(
    tmp_path: Path, text: str, said: str, names: list[str]
) -> None:
    (found,) = load(tmp_path, text).problems
    assert (found.code, said in found.message) == ("BB042", True), found.message
    fixes = [f"give it: {' '.join(f'--env {name}=VALUE' for name in names)}"] if names else []
    assert [fix.text for fix in found.fixes if fix.text.startswith("give it")] == fixes


def test_what_nothing_keeps_from_running_is_no_unreached_command(tmp_path: Path) -> None:
    assert load(tmp_path, f'if [ "$RANK" = "0" ]; then\n  {_GRPO}\nfi\n').values["data.train_batch_size"] == 64
    (found,) = load(tmp_path, "if [ -z $A ]; then exit 1; fi\necho done\n").problems
    assert (found.code, found.message.endswith("it ends on line 1, if [ -z $A ]")) == ("BB010", True)


@pytest.mark.parametrize("words", ["grep -c x", "cat", "md5sum", "sed -n 1p", "cp -n"])
def test_a_program_that_only_looks_at_a_file_does_not_run_it(tmp_path: Path, words: str) -> None:
    (tmp_path / "train.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer('m', [len], args=GRPOConfig(num_generations=4)).train()\n"
    )
    assert load(tmp_path, "python train.py\n").values["num_generations"] == 4
    assert load(tmp_path, f"{words} train.py\n").values == {}


def test_what_a_script_looks_at_for_its_words_is_no_unreached_command(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from trl import GRPOConfig\nGRPOConfig(num_generations=4)\n")
    (found,) = load(tmp_path, "N=$(grep -c x train.py)\nif false; then\n  grep x train.py\nfi\nexit 1\n").problems
    assert (found.code, "not reached" in found.message, "before" in found.message) == ("BB010", False, False)


# ---- other files of the repository


@pytest.mark.parametrize(
    ("named", "read"),
    [
        ("/scratch/somebody/work/mine/src/grpo.py", True),
        ("/scratch/somebody/grpo.py", False),  # a name alone may be anybody's
        ("/scratch/somebody/other/grpo.py", False),
    ],
)
def test_the_end_of_another_machines_path_is_looked_for(tmp_path: Path, named: str, read: bool) -> None:
    for folder in ("src", "scripts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "src" / "grpo.py").write_text(
        "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer('m', [len], args=GRPOConfig(num_generations=4)).train()\n"
    )
    script = tmp_path / "scripts" / "run.sh"
    script.write_text(f"python {named}\n", encoding="utf-8")
    found = batchbridge.read(script, version="1.16.0", world_size=4)
    assert (found.native.get("num_generations") == 4) == read


def test_settings_of_a_sourced_file_of_the_repository_are_taken(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "small.sh").write_text("N=4\n")
    text = "N=16\nsource configs/${1:-small}.sh\naccelerate launch --num_processes 4 grpo.py --num_generations $N\n"
    source = load(tmp_path, text, framework="trl")
    assert source.values["num_generations"] == 4
    assert "BB015" not in codes(source)


@pytest.mark.parametrize("named", ["${HERE}/configs/small.sh", "$HERE/../scripts/configs/small.sh"])
def test_a_file_that_is_sourced_by_the_script_s_own_place_is_of_the_repository(tmp_path: Path, named: str) -> None:
    folder = tmp_path / "scripts"
    (folder / "configs").mkdir(parents=True)
    (folder / "configs" / "small.sh").write_text("ARGS=(--num_generations 4)\n")
    here = 'HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"'
    source = load(folder, f'{here}\nsource "{named}"\ntrl grpo ${{ARGS[@]}}\n', framework="trl")
    assert source.values["num_generations"] == 4
    assert not {"BB011", "BB015"} & {*codes(source)}


def test_a_file_of_the_script_s_git_repository_is_followed_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "examples"
    folder.mkdir()
    (tmp_path / "small.sh").write_text("N=4\n")
    root = 'ROOT="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)"'
    text = f'N=16\n{root}\nsource "$ROOT/small.sh"\ntrl grpo --num_generations $N\n'
    assert load(folder, text, framework="trl").values["num_generations"] == 16
    (tmp_path / ".git").mkdir()
    assert load(folder, text, framework="trl").values["num_generations"] == 4


def test_no_file_of_the_machine_is_sourced(tmp_path: Path) -> None:
    folder, outside = tmp_path / "scripts", tmp_path / "scripts_outside.sh"
    folder.mkdir()
    outside.write_text("N=4\n")
    source = load(folder, f"N=16\nsource {outside}\ntrl grpo --num_generations $N\n", framework="trl")
    assert source.values["num_generations"] == 16
    assert "BB015" in codes(source)


CALLED = 'accelerate launch --num_processes 4 grpo.py --num_generations ${1:-$N} ${HIDDEN:-} "${@:2}"\nexit 0\n'


@pytest.mark.parametrize(
    "line",
    [
        "bash scripts/train.sh 4",
        "bash -x scripts/train.sh 4",
        "./scripts/train.sh 4",
        "N=4 scripts/train.sh",
        "export N=4\nsh scripts/train.sh",
        "bash /workspace/another-grpo/scripts/train.sh 4",
    ],
)
def test_a_script_of_the_repository_that_a_script_runs_is_read_with_its_arguments(tmp_path: Path, line: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.sh").write_text(CALLED)
    source = load(tmp_path, f"N=16\nHIDDEN='--num_generations 2'\n{line}\n", framework="trl")
    assert source.values["num_generations"] == 4
    assert "BB015" not in codes(source)


@pytest.mark.parametrize("line", ["bash scripts/nowhere.sh", "bash train.sh", "bash ${SCRIPT}"])
def test_a_script_that_is_not_here_is_not_followed(tmp_path: Path, line: str) -> None:
    source = load(tmp_path, f"{line}\ntrl grpo --num_generations 4\n", framework="trl")
    assert "BB015" in codes(source)


def test_a_script_that_runs_itself_is_read_to_an_end(tmp_path: Path) -> None:
    (tmp_path / "self.sh").write_text("bash self.sh\n")
    source = load(tmp_path, "trl grpo --num_generations 4\nbash self.sh\n", framework="trl")
    assert source.values["num_generations"] == 4
    assert "BB014" in codes(source)


def test_a_value_that_is_not_known_and_said_again_does_not_count(tmp_path: Path) -> None:
    words = "trainer.rollout_data_dir=$OUT trainer.rollout_data_dir=x"
    text = f"OUT=/runs/$(date +%s)\npython -m verl.trainer.main_ppo {words}\n"
    source = load(tmp_path, text, framework="verl")
    assert source.argv[-1] == "trainer.rollout_data_dir=x"
    assert "date" not in " ".join(source.argv)
    assert source.loose == ()
    assert "BB011" not in codes(source)


def test_an_options_value_that_looks_like_a_setting_is_not_said_again(tmp_path: Path) -> None:
    text = "python -m openrlhf.cli.train_ppo_ray --name a=$OUT --train_batch_size 8 --other a=1\n"
    assert load(tmp_path, text, framework="openrlhf").argv[-6:-4] == ("--name", "a=$OUT")


@pytest.mark.parametrize(
    ("machine", "world_size", "settled"),
    [
        ("trainer.n_gpus_per_node=$GPU_NUMBER trainer.nnodes=1", 8, (1, 8)),
        ("trainer.n_gpus_per_node=$GPU_NUMBER", 8, (None, 8)),
        ("trainer.n_gpus_per_node=$GPU_NUMBER trainer.nnodes=2", 8, (2, 4)),
        ("trainer.n_gpus_per_node=$GPU_NUMBER trainer.nnodes=$NODE_NUMBER", 8, (1, 8)),
        ("trainer.n_gpus_per_node=4 trainer.nnodes=$NODE_NUMBER", 8, (2, 4)),
        ("trainer.n_gpus_per_node=$GPU_NUMBER trainer.nnodes=3", 8, None),
        ("trainer.n_gpus_per_node=16 trainer.nnodes=$NODE_NUMBER", 8, None),
        ("trainer.n_gpus_per_node=$GPU_NUMBER trainer.nnodes=1", None, None),
    ],
)
def test_devices_that_a_script_leaves_open_are_those_that_are_said(
    tmp_path: Path, machine: str, world_size: int | None, settled: tuple[int | None, int] | None
) -> None:
    text = f"python -m verl.trainer.main_ppo data.train_batch_size=8 {machine}\n"
    source = load(tmp_path, text, framework="verl", world_size=world_size)
    left = {key for key in source.unknown if key.startswith("trainer.")}
    if settled is None:
        assert left
        return
    assert not left
    nodes, devices = settled
    assert int(source.values["trainer.n_gpus_per_node"]) == devices
    assert (source.values.get("trainer.nnodes") or 0) in (nodes or 0, str(nodes or 0))


def test_a_frameworks_file_that_a_program_is_told_to_change_is_not_the_program(tmp_path: Path) -> None:
    main = "/verl/verl/trainer/main_ppo.py"
    told = load(tmp_path, f"python tools/patch.py --main {main}\n")
    assert codes(told) == ["BB010"]
    started = load(tmp_path, f"torchrun --standalone {main} data.train_batch_size=8\n")
    assert started.argv[-1] == "data.train_batch_size=8"


def test_a_text_that_eval_runs_is_read_with_an_unknown_word_in_it(tmp_path: Path) -> None:
    text = 'CMD="trl grpo --num_generations 8"\nCMD+=" --run_name run-$(date +%s)"\neval $CMD\n'
    source = load(tmp_path, text, framework="trl")
    assert source.values["num_generations"] == 8
    assert "BB014" not in codes(source)  # the unknown word stands inside an argument
    source = load(tmp_path, text.replace("eval $CMD", "eval $LAUNCH $CMD"), framework="trl")
    assert "BB014" in codes(source)  # here it may be any command


def test_a_program_is_found_where_the_script_goes_to(tmp_path: Path) -> None:
    from batchbridge.reading.arguments import near_file

    (tmp_path / "src" / "mine").mkdir(parents=True)
    program = tmp_path / "src" / "mine" / "grpo.py"
    program.write_text("")
    script = tmp_path / "run.sh"
    script.write_text("python mine/grpo.py\n")
    assert near_file("mine/grpo.py", script) is None
    script.write_text("cd src\npython mine/grpo.py\n")
    found = near_file("mine/grpo.py", script)
    assert found is not None
    assert found.resolve() == program.resolve()
