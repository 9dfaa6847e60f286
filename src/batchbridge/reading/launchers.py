"""The removal of programs that only start another one: `nohup`, `ray job submit ... --`, `accelerate launch`,
`torchrun`.

What such a launcher says about the number of processes is kept as `Source.launcher`. The table knows for each wrapper
which of its options take a value; an option with `=` is one word anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple

from batchbridge.frozen import dataclass

if TYPE_CHECKING:
    from bashread import Argument


@dataclass(frozen=True)
class Program:
    """A program with its arguments, and what its launchers said (see `Source.launcher`)."""

    words: tuple[Argument, ...]
    launcher: Mapping[str, str] = field(default_factory=dict)

    @property
    def argv(self) -> tuple[str, ...]:
        """The words' text."""
        return tuple(word.text for word in self.words)


class Wrapper(NamedTuple):
    """The form of one wrapper. words: what it starts with. values: its options that take a value; flags: the other way
    round, every option but these takes one. skipped: words between its options and the program (`timeout 60`). starts:
    whether it starts a Python script itself. keeps: options whose values `Source.launcher` keeps."""

    words: tuple[str, ...]
    source: str
    values: frozenset[str] = frozenset()
    flags: frozenset[str] | None = None
    skipped: int = 0
    starts: bool = False
    keeps: tuple[str, ...] = ()


_TORCH_FLAGS = frozenset({"standalone", "m", "module", "no_python", "run_path", "use_env", "no_use_env"})
_TORCH_KEEPS = ("nproc_per_node", "nnodes")
_ACCELERATE_FLAGS = frozenset(
    {
        *("multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_xpu", "debug", "quiet", "q"),
        *("m", "module", "no_python", "tpu_cluster", "no_tpu_cluster", "tpu_use_sudo", "ipex", "enable_cpu_affinity"),
        *("dynamo_use_fullgraph", "dynamo_use_dynamic", "dynamo_use_regional_compilation", "use_parallelism_config"),
        *("same_network", "downcast_bf16", "fp8_use_autocast_during_eval", "h", "help"),
    }
)
_ACCELERATE_KEEPS = (
    *("num_processes", "num_machines", "config_file", "mixed_precision"),
    *("use_deepspeed", "zero_stage", "deepspeed_config_file", "use_fsdp", "fsdp_version"),
)
_SRUN_VALUES = frozenset(
    {
        *("A", "c", "C", "D", "e", "G", "i", "J", "m", "n", "N", "o", "p", "q", "r", "t", "w", "x"),
        *("account", "chdir", "constraint", "container_image", "container_mounts", "cpus_per_task", "error", "exclude"),
        *("export", "gpus", "gpus_per_node", "gpus_per_task", "gres", "input", "jobid", "job_name", "mem", "mpi"),
        *("nodelist", "nodes", "ntasks", "ntasks_per_node", "output", "partition", "qos", "time"),
    }
)
_UV = ("uv", "run")
WRAPPERS = (
    Wrapper(("nohup",), "coreutils 9.4"),
    Wrapper(("srun",), "slurm 23.11", _SRUN_VALUES),
    Wrapper(("setsid",), "util-linux 2.39"),
    Wrapper(("time",), "bash 5.2, time 1.9", frozenset({"o", "f", "output", "format"})),
    Wrapper(("env",), "coreutils 9.4", frozenset({"u", "unset", "C", "chdir"})),
    Wrapper(("sudo",), "sudo 1.9", frozenset({"u", "g", "user", "group"})),
    Wrapper(("nice",), "coreutils 9.4", frozenset({"n", "adjustment"})),
    Wrapper(("stdbuf",), "coreutils 9.4", frozenset({"i", "o", "e"})),
    Wrapper(("timeout",), "coreutils 9.4", frozenset({"k", "s", "kill_after", "signal"}), skipped=1),
    Wrapper(("numactl",), "numactl 2.0", frozenset({"N", "m", "C", "cpunodebind", "membind", "physcpubind"})),
    Wrapper(
        _UV,
        "uv 0.9",
        frozenset({"with", "python", "p", "extra", "group", "project", "directory", "env_file"}),
    ),
    Wrapper(("poetry", "run"), "poetry 2"),
    Wrapper(("conda", "run"), "conda 25", frozenset({"n", "name", "p", "prefix", "cwd"})),
    Wrapper(
        ("ray", "job", "submit"),
        "ray 2.60 dashboard/modules/job/cli.py",
        flags=frozenset({"no_wait"}),
    ),
    Wrapper(
        ("accelerate", "launch"),
        "accelerate 1.15 commands/launch.py",
        flags=_ACCELERATE_FLAGS,
        starts=True,
        keeps=_ACCELERATE_KEEPS,
    ),
    Wrapper(("torchrun",), "torch 2.13 distributed/run.py", flags=_TORCH_FLAGS, starts=True, keeps=_TORCH_KEEPS),
    *(
        Wrapper((python, "-m", module), source, flags=flags, starts=True, keeps=keeps)
        for python in ("python", "python3")
        for module, source, flags, keeps in (
            ("torch.distributed.run", "torch 2.13 distributed/run.py", _TORCH_FLAGS, _TORCH_KEEPS),
            ("torch.distributed.launch", "torch 2.13 distributed/launch.py", _TORCH_FLAGS, _TORCH_KEEPS),
            (
                "accelerate.commands.launch",
                "accelerate 1.15 commands/launch.py",
                _ACCELERATE_FLAGS,
                _ACCELERATE_KEEPS,
            ),
        )
    ),
    Wrapper(
        ("deepspeed",),
        "deepspeed 0.19 launcher/runner.py",
        flags=frozenset({"module", "no_python", "no_local_rank", "force_multi", "save_pid"}),
        starts=True,
        keeps=("num_gpus", "num_nodes"),
    ),
)
_DEEPEST = 20


def programs(words: Sequence[Argument]) -> list[Program]:
    """The programs that the command `words` ends up running: one, or several where a job's text has `&&`."""
    return list(_unwrapped(list(words), {}, 0))


def launched_world_size(launcher: Mapping[str, str]) -> int | None:
    """The processes that a launcher was told to start; None where it was not told, or not in whole numbers."""
    total = _count(launcher, "num_processes")
    for per_node, nodes in (("nproc_per_node", "nnodes"), ("num_gpus", "num_nodes")):
        if total is None and (local := _count(launcher, per_node)) is not None:
            count = _count(launcher, nodes) if nodes in launcher else 1
            total = None if count is None else local * count
    return total


def _count(launcher: Mapping[str, str], key: str) -> int | None:
    text = launcher.get(key, "")
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,8}", text) else None


def _unwrapped(words: list[Argument], launcher: dict[str, str], depth: int) -> Iterator[Program]:
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0].text, re.DOTALL):
        words = words[1:]  # FOO=1 program, in a job's text or after `env`
    wrapper = next((row for row in WRAPPERS if _starts(words, row)), None)
    if not words or depth > _DEEPEST:
        return
    if wrapper is not None:
        yield from _unwrapped(*_inside(words, wrapper, launcher), depth + 1)
    elif (job := _mason(words)) is not None:
        # Open-Instruct's mason.py: everything after -- is a shell line that runs on the cluster.
        for part in _parts(job):
            yield from _unwrapped(part, dict(launcher), depth + 1)
    elif (inner := _inner(words)) is not None:
        for part in inner:
            yield from _unwrapped(part, dict(launcher), depth + 1)
    else:
        yield Program(tuple(words), launcher)


def _starts(words: list[Argument], wrapper: Wrapper) -> bool:
    texts = [word.text for word in words[: len(wrapper.words)]]
    return len(texts) == len(wrapper.words) and [texts[0].rpartition("/")[2], *texts[1:]] == list(wrapper.words)


def _inside(words: list[Argument], wrapper: Wrapper, launcher: dict[str, str]) -> tuple[list[Argument], dict[str, str]]:
    """The program inside a wrapper, and the facts with the wrapper's own."""
    place, module, starts, facts = len(wrapper.words), False, wrapper.starts, dict(launcher)
    python = words[0]._replace(text="python", unknown=())
    while place < len(words) and words[place].text.startswith("-") and words[place].text != "-":
        text = words[place].text
        place += 1
        if text == "--":
            break
        dashed, equals, value = text.partition("=")
        name = dashed.lstrip("-").replace("-", "_")
        takes = name not in wrapper.flags if wrapper.flags is not None else name in wrapper.values
        if wrapper.flags is None and re.fullmatch(r"-[A-Za-z]\S+", dashed) and dashed[1] in wrapper.values:
            takes = False  # -n10
        module = module or ((wrapper.starts or wrapper.words == _UV) and name in ("m", "module"))
        starts = starts and name != "no_python"
        if not equals and takes and place < len(words):
            value = words[place].text
            place += 1
        if name in wrapper.keeps:
            facts[name] = value
    rest = words[place + wrapper.skipped :]
    if wrapper.starts:
        facts["launcher"] = " ".join(wrapper.words)
        starts = starts and bool(rest)
    elif wrapper.words == _UV and rest and (module or rest[0].text.endswith(".py")):
        starts = True  # uv runs a script with its own Python
    if starts:
        rest = [python, *([python._replace(text="-m")] if module else []), *rest]
    return rest, facts


def _inner(words: list[Argument]) -> list[list[Argument]] | None:
    """The commands of `bash -c TEXT`: what is unknown in it is spelt as the script spells it, and so unknown again."""
    texts = [words[0].text.rpartition("/")[2], *(word.text for word in words[1:])]
    if texts[0] not in ("bash", "sh"):
        return None
    import shlex

    from bashread import read_script

    commands = read_script(shlex.join(texts)).commands
    if [list(command.argv) for command in commands] == [texts]:
        return None  # a script, which is not opened
    outside, line = [one for word in words for one in word.unknown], max(word.line for word in words[:3])

    def told(word: Argument) -> Argument:
        again = word.unknown or tuple(one for one in outside if one.shown in word.text)
        return word._replace(line=line, unknown=again)

    return [[told(word) for word in command.words] for command in commands]


def _mason(words: list[Argument]) -> list[Argument] | None:
    texts = [word.text for word in words]
    script = next((place for place, text in enumerate(texts[:3]) if text.rpartition("/")[2] == "mason.py"), None)
    if script is None or "--" not in texts[script:]:
        return None
    return words[texts.index("--", script) + 1 :]


def _parts(words: list[Argument]) -> Iterator[list[Argument]]:
    """The commands of a shell line that was given as words; an operator may touch a word (`&&python`, `setup.sh;`)."""
    part: list[Argument] = []
    for word in words:
        for piece in re.findall(r"&&|\|\||;$|\|$|^\||(?:(?!&&|\|\||;$|\|$).)+", word.text, re.DOTALL) or [""]:
            if piece in ("&&", "||", ";", "|", "--"):
                yield part
                part = []
            else:
                part.append(word._replace(text=piece))
    yield part
