"""The table of launchers: programs that only start another one, what their options take, and whether the environment of
whoever starts them arrives in the program that they start."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class LauncherWords(NamedTuple):
    """The words of one launcher, before the program. options: by name without dashes, `_` for `-`; a flag has "".
    assigned: `NAME=VALUE` words before the program."""

    options: dict[str, str]
    assigned: dict[str, str]

    def has(self, *names: str) -> bool:
        """Whether one of the options is given."""
        return any(name in self.options for name in names)


def _never(why: str) -> Callable[[LauncherWords], str | None]:
    return lambda said: why


def _arrives(said: LauncherWords) -> str | None:
    return None


def _env(said: LauncherWords) -> str | None:
    """coreutils env: a lone dash is -i; what is unset or assigned replaces ours."""
    if said.has("i", "ignore_environment", ""):
        return "`env -i` starts a program without the variables of its caller"
    if "PYTHONPATH" in said.assigned or said.options.get("u", said.options.get("unset")) == "PYTHONPATH":
        return "`env` sets PYTHONPATH itself"
    return None


def _srun(said: LauncherWords) -> str | None:
    """slurm srun: `--export` is ALL unless it is said."""
    asked = said.options.get("export", "ALL")
    return None if "ALL" in asked.split(",") else f"`srun --export={asked}` hands on the variables that it names alone"


def _srun_container(said: LauncherWords) -> str | None:
    return IN_CONTAINER if said.has("container_image", "container_name") else _srun(said)


def _su(said: LauncherWords) -> str | None:
    return "a login shell begins with variables of its own" if said.has("", "l", "login") else None


def _scope(said: LauncherWords) -> str | None:
    return None if said.has("scope") else "systemd starts the program, with variables of its own"


def _several_nodes(said: LauncherWords) -> str | None:
    """deepspeed's launcher hands on variables that begin with PYTHON, NCCL, MV2, UCX, and those of .deepspeed_env."""
    if said.has("hostfile", "H", "force_multi") or said.options.get("num_nodes", "1") != "1":
        return "deepspeed's launcher does not hand BATCHBRIDGE_RUN on to other nodes"
    return None


def _screen(said: LauncherWords) -> str | None:
    """screen: -d -m starts a session and returns; -X and -R go to one that is there. Without them it has our variables
    and stays."""
    letters = {letter for name in said.options if len(name) <= 4 for letter in name}
    if letters & set("XRx"):
        return "a session that runs already has its own variables"
    if {"d", "m"} <= letters:
        return "`screen -dm` returns at once, so BatchBridge could not see whether a trainer was reached"
    return None


def _other_hosts(said: LauncherWords) -> str | None:
    """mpirun (Open MPI, MPICH): to other hosts the variables that it is told alone."""
    if said.has("H", "host", "hosts", "hostfile", "machinefile", "f", "default_hostfile"):
        return "`mpirun` hands variables on to other hosts that it is told by name alone"
    return None


IN_CONTAINER = "a container has its own variables and files"
"""The one reason that words do not help against."""
_INSIDE = "in the container, before the program"


class LaunchWrapper(NamedTuple):
    """One launcher.

    words: what it starts with. values: its options that take a value; pairs: those that take two; flags: the other
    way round, every option but these takes one. bundles: `-it` is `-i -t`. skipped: words between its options and
    the program (`timeout 60`). behind_dashes: the program stands behind `--`. options_anywhere: behind other words,
    too. shell: the program is a shell's text, spelt as words (`ssh HOST 'cd x && python ...'`). text: the option
    that has such a text instead (`sbatch --wrap`). starts: whether it starts a Python script itself. keeps: options
    whose values `Source.launcher` keeps.

    stops: why the environment of whoever starts it does not arrive in the program, for what it is told; None: it does.
    takes_words: variables can be given to the program as words before it (`env NAME=VALUE`), which `batchbridge run`
    does: the program runs on the same files. instead: where `batchbridge run` stands, if not right before the program.
    """

    words: tuple[str, ...]
    source: str
    values: frozenset[str] = frozenset()
    pairs: frozenset[str] = frozenset()
    flags: frozenset[str] | None = None
    bundles: bool = False
    skipped: int = 0
    behind_dashes: bool = False
    options_anywhere: bool = False
    shell: bool = False
    text: tuple[str, ...] = ()
    starts: bool = False
    keeps: tuple[str, ...] = ()
    stops: Callable[[LauncherWords], str | None] = _arrives
    takes_words: bool = False
    instead: str = ""


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
        *(
            "export",
            "gpus",
            "gpus_per_node",
            "gpus_per_task",
            "gres",
            "input",
            "container_name",
            "jobid",
            "job_name",
            "mem",
            "mpi",
        ),
        *("nodelist", "nodes", "ntasks", "ntasks_per_node", "output", "partition", "qos", "time"),
    }
)
_CONTAINER_FLAGS = frozenset(
    {
        *("d", "detach", "i", "interactive", "t", "tty", "P", "publish_all", "q", "quiet", "rm", "init", "privileged"),
        *("read_only", "no_healthcheck", "oom_kill_disable", "sig_proxy", "disable_content_trust", "no_deps", "build"),
        *("service_ports", "use_aliases", "replace", "tls_verify", "rmi", "T", "no_TTY", "help"),
    }
)
_MPI_VALUES = frozenset(
    {
        *("np", "n", "c", "N", "H", "host", "hosts", "hostfile", "machinefile", "default_hostfile", "f", "x", "wdir"),
        *("wd", "path", "prefix", "npernode", "npersocket", "ppn", "ppr", "map_by", "bind_to", "rank_by", "output"),
        *("output_filename", "timeout", "stdin", "tune", "genvlist", "bootstrap", "launcher", "iface", "envlist"),
    }
)
_TMUX_VALUES = frozenset("ceFfnstxylLS")
_APPTAINER_VALUES = frozenset(
    {
        *("B", "bind", "H", "home", "W", "workdir", "pwd", "cwd", "env", "env_file", "o", "overlay", "net", "network"),
        *("S", "scratch", "app", "hostname", "dns", "security", "mount", "apply_cgroups", "add_caps", "drop_caps"),
        *("cpus", "memory", "fusemount", "network_args", "docker_login", "pem_path"),
    }
)
UV = ("uv", "run")
WRAPPERS = (
    LaunchWrapper(("nohup",), "coreutils 9.4"),
    LaunchWrapper(("srun",), "slurm 23.11", _SRUN_VALUES, stops=_srun_container, takes_words=True),
    LaunchWrapper(("setsid",), "util-linux 2.39"),
    LaunchWrapper(("time",), "bash 5.2, time 1.9", frozenset({"o", "f", "output", "format"})),
    LaunchWrapper(("env",), "coreutils 9.4", frozenset({"u", "unset", "C", "chdir"}), stops=_env, takes_words=True),
    LaunchWrapper(  # -E, too, leaves PYTHONPATH out: it stands in sudo's own list of variables to remove
        ("sudo",),
        "sudo 1.9 plugins/sudoers/env.c",
        frozenset({"u", "g", "C", "D", "h", "p", "R", "r", "t", "T", "U", "user", "group", "chdir", "host", "prompt"}),
        stops=_never("`sudo` starts a program without PYTHONPATH and without variables that it does not know"),
        takes_words=True,
    ),
    *(
        LaunchWrapper((program,), "util-linux 2.39", options_anywhere=True, text=("c", "command"), stops=_su)
        for program in ("su", "runuser")
    ),
    LaunchWrapper(
        ("systemd-run",),
        "systemd 255",
        frozenset({"p", "property", "u", "unit", "E", "setenv", "slice", "uid", "gid", "H", "host", "M", "machine"}),
        stops=_scope,
    ),
    LaunchWrapper(
        ("ssh",),
        "openssh 9.6",
        frozenset("bBcDEeFIiJLlmOoPpQRSWw"),
        skipped=1,
        shell=True,
        stops=_never("another machine has its own variables"),
    ),
    *(
        LaunchWrapper(
            (program, *words),
            "docker 27 CLI",
            flags=_CONTAINER_FLAGS,
            bundles=True,
            skipped=1,
            stops=_never(IN_CONTAINER),
        )
        for program in ("docker", "podman", "nerdctl")
        for words in (
            ("run",),
            ("exec",),
            ("container", "run"),
            ("container", "exec"),
            ("compose", "run"),
            ("compose", "exec"),
        )
    ),
    *(
        LaunchWrapper((program, word), "apptainer 1.3", _APPTAINER_VALUES, skipped=1, stops=_never(IN_CONTAINER))
        for program in ("apptainer", "singularity")
        for word in ("exec", "run")
    ),
    *(  # with options of its own before what it does
        LaunchWrapper((program,), "docker 27 CLI", flags=_CONTAINER_FLAGS, stops=_never(IN_CONTAINER), instead=_INSIDE)
        for program in ("docker", "podman", "nerdctl", "apptainer", "singularity")
    ),
    LaunchWrapper(("kubectl",), "kubectl 1.30", behind_dashes=True, stops=_never(IN_CONTAINER)),
    LaunchWrapper(
        ("sbatch",),
        "slurm 23.11",
        _SRUN_VALUES | {"wrap", "array", "a", "dependency", "d", "mail_type", "mail_user", "signal"},
        text=("wrap",),
        stops=_never(
            "`sbatch` returns before its job begins, so BatchBridge could not see whether the job was reached"
        ),
        instead="in the job's script, before the command that trains",
    ),
    LaunchWrapper(
        ("ray", "submit"), "ray 2.60", skipped=1, starts=True, stops=_never("the cluster has its own variables")
    ),
    LaunchWrapper(
        ("ray", "exec"), "ray 2.60", skipped=1, shell=True, stops=_never("the cluster has its own variables")
    ),
    *(
        LaunchWrapper(
            (program,),
            "openmpi 5.0, mpich 4.2",
            _MPI_VALUES,
            frozenset({"mca", "gmca", "pmca", "prtemca", "genv", "env"}),
            stops=_other_hosts,
        )
        for program in ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")
    ),
    *(
        LaunchWrapper(
            ("tmux", word),
            "tmux 3.4",
            _TMUX_VALUES,
            shell=True,
            stops=_never("tmux's server starts the program, with variables of its own, and `tmux` returns at once"),
        )
        for word in ("new-session", "new", "new-window", "neww", "split-window", "splitw", "respawn-pane")
    ),
    *(
        LaunchWrapper(
            ("tmux", word),
            "tmux 3.4",
            _TMUX_VALUES,
            stops=_never("the session that gets the keys has its own variables"),
            instead="in the keys, before the program",
        )
        for word in ("send-keys", "send")
    ),
    LaunchWrapper(
        ("screen",),
        "screen 4.9",
        flags=frozenset("dmDRrxAaLUlqwOi4"),
        bundles=True,
        stops=_screen,
        instead="in the session, before the program",
    ),
    LaunchWrapper(("nice",), "coreutils 9.4", frozenset({"n", "adjustment"})),
    LaunchWrapper(("stdbuf",), "coreutils 9.4", frozenset({"i", "o", "e"})),
    LaunchWrapper(("timeout",), "coreutils 9.4", frozenset({"k", "s", "kill_after", "signal"}), skipped=1),
    LaunchWrapper(("numactl",), "numactl 2.0", frozenset({"N", "m", "C", "cpunodebind", "membind", "physcpubind"})),
    LaunchWrapper(
        UV,
        "uv 0.9",
        frozenset({"with", "python", "p", "extra", "group", "project", "directory", "env_file"}),
    ),
    LaunchWrapper(("poetry", "run"), "poetry 2"),
    LaunchWrapper(("conda", "run"), "conda 25", frozenset({"n", "name", "p", "prefix", "cwd"})),
    LaunchWrapper(
        ("ray", "job", "submit"),
        "ray 2.60 dashboard/modules/job/cli.py",
        flags=frozenset({"no_wait"}),
    ),
    LaunchWrapper(
        ("accelerate", "launch"),
        "accelerate 1.15 commands/launch.py",
        flags=_ACCELERATE_FLAGS,
        starts=True,
        keeps=_ACCELERATE_KEEPS,
    ),
    LaunchWrapper(("torchrun",), "torch 2.13 distributed/run.py", flags=_TORCH_FLAGS, starts=True, keeps=_TORCH_KEEPS),
    *(
        LaunchWrapper((python, "-m", module), source, flags=flags, starts=True, keeps=keeps)
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
    LaunchWrapper(
        ("deepspeed",),
        "deepspeed 0.19 launcher/runner.py",
        flags=frozenset({"module", "no_python", "no_local_rank", "force_multi", "save_pid"}),
        starts=True,
        keeps=("num_gpus", "num_nodes"),
        stops=_several_nodes,
        instead="before `torchrun`, started on every node",
    ),
)
