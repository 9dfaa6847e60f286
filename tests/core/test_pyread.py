"""Python programs are read, never run: what is decided has its value, and what is not is unknown, never guessed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pyread import Call, NotPython, Program, UnknownValue, read_python, unknown_in

CALL = "from trl import GRPOConfig\n"
DATACLASS = "from dataclasses import dataclass, field\n@dataclass\n"


def read(text: str, **options: Any) -> Program:
    return read_python(text, "train.py", **options)


def built(text: str, **options: Any) -> Call:
    """The one configuration that a program builds."""
    (found,) = (call for call in read(CALL + text, **options).calls if call.is_a("GRPOConfig"))
    return found


def value(expression: str, before: str = "", **options: Any) -> Any:
    return built(f"{before}\nGRPOConfig(x={expression})\n", **options).arguments["x"]


@pytest.mark.parametrize(
    ("before", "expression", "expected"),
    [
        ("", "8", 8),
        ("G = 4", "G * 2 + 1", 9),
        ("", "-1", -1),
        ("", "2 ** 5 // 3", 10),
        ("", "1e-6", 1e-6),
        ("A = 'a'", "f'{A}-{3:02d}'", "a-03"),
        ("C = {'lr': 1e-5, 'n': {'g': 8}}", "C['n']['g']", 8),
        ("C = dict(g=3)", "C.get('g', 1)", 3),
        ("C = dict(g=3)", "C.get('h', 1)", 1),
        ("", "[1, *[2, 3]]", [1, 2, 3]),
        ("", "{**{'a': 1}, 'b': 2}", {"a": 1, "b": 2}),
        ("", "{k: v for k, v in {'a': 1, 'b': None}.items() if v is not None}", {"a": 1}),
        ("", "8 if True and not False else 4", 8),
        ("", "int('8')", 8),
        ("", "max(3, 7)", 7),
        ("from math import ceil", "ceil(10 / 4)", 3),
        ("import os", "int(os.environ.get('G', '6'))", 6),
        ("import os", "os.getenv('G', 7)", 7),
        ("from pathlib import Path\nR = Path('runs')", "str(R / 'a')", "runs/a"),
        ("def f(a, b=2):\n    return a * b", "f(3)", 6),
        ("f = None\ndef f(*a, **k):\n    return len(a) + len(k)", "f(1, 2, x=3)", 3),
        ("class C:\n    G = 5", "C.G", 5),
        ("class C:\n    def __init__(self, g=6):\n        self.g = g\nc = C(g=9)", "c.g", 9),
        ("class C:\n    g = 4\n    @property\n    def h(self):\n        return self.g * 2\nc = C()", "c.h", 8),
        (
            f"{DATACLASS}class C:\n    g: int = 4\n    t: list = field(default_factory=list)",
            "C().g",
            4,
        ),
        (
            f"{DATACLASS}class B:\n    g: int = 4\n@dataclass\nclass C(B):\n    h: int = 2",
            "C(h=3).g",
            4,
        ),
        (f"{DATACLASS}class C:\n    g: int = 4\nc = C(g=3)", "(c or C()).g", 3),
        ("class C:\n    def __init__(self):\n        self.g = 3\nc = C()", "1 if c else 2", 1),
        ("def f():\n    pass", "f and 1", 1),
        ("from types import SimpleNamespace\ns = SimpleNamespace(g=3)", "s.g", 3),
        ("x = 1\nx += 3", "x", 4),
        ("a, (b, c) = 1, (2, 3)", "c", 3),
        ("for i in range(3):\n    last = i", "last", 2),
        ("d = {}\nfor k in ('a', 'b'):\n    d[k] = 1", "d", {"a": 1, "b": 1}),
        ("if 3 > 2:\n    g = 1\nelse:\n    g = 2", "g", 1),
        ("try:\n    g = 1\nexcept Exception:\n    raise", "g", 1),
        ("match 'a':\n    case 'b':\n        g = 1\n    case _:\n        g = 2", "g", 2),
    ],
)
def test_what_the_text_decides_has_its_value(before: str, expression: str, expected: object) -> None:
    found = value(expression, before)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("before", "expression", "name"),
    [
        ("import os", "os.environ['G']", "G"),
        ("import os", "int(os.environ.get('WORLD_SIZE', 1))", "WORLD_SIZE"),
        ("import torch", "torch.cuda.device_count()", "torch.cuda.device_count()"),
        ("import os\ng = 1\nif os.path.exists('x'):\n    g = 2", "g", "os.path.exists('x')"),
        ("import os\nwhile os.path.exists('x'):\n    g = 2", "g", "os.path.exists('x')"),
        ("g = 1\nfor _ in somewhere():\n    g += 1", "g", "somewhere()"),
        ("import os\nd = {'g': 1}\nif os.path.exists('x'):\n    d['g'] = 2", "d['g']", "os.path.exists('x')"),
        ("import os\ndef f():\n    if os.path.exists('x'):\n        return 1\n    return 2", "f()", "f(...)"),
        ("try:\n    import a\n    g = 1\nexcept ImportError:\n    g = 2", "g", "an exception of the lines above"),
        ("def f(n):\n    return f(n)", "f(1)", "f(...)"),
        ("import random", "random.randint(1, 8)", "random.randint(1, 8)"),
        ("class C:\n    def __len__(self):\n        return 0\nc = C()", "c or 1", "c"),
        ("from elsewhere import B\nclass C(B):\n    pass\nc = C()", "c or 1", "c"),
        ("", "undefined", "undefined"),
        ("", "2 ** 10 ** 9", "2 ** 10 ** 9"),
        ("", "f'{1:1000000000}'", "f'{1:1000000000}'"),
        ("", "'a' * 10 ** 12", "'a' * 10 ** 12"),
    ],
)
def test_what_only_running_would_tell_is_unknown_by_its_name(before: str, expression: str, name: str) -> None:
    found = unknown_in(value(expression, before))
    assert isinstance(found, UnknownValue)
    assert found.names == (name,)


def test_both_branches_that_agree_decide() -> None:
    assert value("g", "import os\nif os.path.exists('x'):\n    g = 2\nelse:\n    g = 2") == 2


def test_a_branch_that_ends_the_program_has_no_say() -> None:
    assert value("g", "import os\ng = 1\nif os.path.exists('x'):\n    g = 2\n    raise SystemExit") == 1


def test_environment_variables_that_were_given_decide() -> None:
    assert value("int(os.environ['G'])", "import os", env={"G": "5"}) == 5


def test_argparse_defaults_hold_until_the_command_says_otherwise() -> None:
    text = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--num-gens', '-n', type=int, default=8)\n"
        "p.add_argument('--fast', action='store_true')\np.add_argument('--lr', type=float, default='1e-5')\n"
        "p.add_argument('--need', required=True)\na = p.parse_args()\n"
        "GRPOConfig(g=a.num_gens, f=a.fast, lr=a.lr, need=a.need)\n"
    )
    alone = built(text).arguments
    assert (alone["g"], alone["f"], alone["lr"]) == (8, False, 1e-5)
    assert unknown_in(alone["need"]) == UnknownValue("a.need", ("--need",))
    said = built(text, words=["--num-gens=4", "--fast", "--need", "x", "--lr", "1e-6"]).arguments
    assert said == {"g": 4, "f": True, "lr": 1e-6, "need": "x"}
    assert built(text, words=["-n", "2", "--need", "x"]).arguments["g"] == 2
    assert built(text, words=["--num", "3", "--need", "x"]).arguments["g"] == 3  # argparse takes beginnings


def test_a_settings_file_that_the_program_opens_is_followed() -> None:
    text = "import yaml\nwith open('c.yaml') as f:\n    c = yaml.safe_load(f)\nGRPOConfig(**c['grpo'])\n"
    call = built(text, load_file=lambda path: {"grpo": {"beta": 0.1}} if path == "c.yaml" else None)
    assert call.arguments == {"beta": 0.1}
    lost = built(text)
    assert lost.arguments == {}
    assert [one.names for one in lost.loose] == [("c.yaml",)]


def test_a_settings_file_that_an_option_names_leaves_that_option_open() -> None:
    text = (
        "import argparse, yaml\nfrom pathlib import Path\np = argparse.ArgumentParser()\n"
        "p.add_argument('--config', required=True)\na = p.parse_args()\n"
        "def load(path):\n    with open(path) as f:\n        return yaml.safe_load(f)\n"
        "GRPOConfig(beta=load({path})['beta'])\n"
    )
    for path in ("a.config", "Path(a.config)"):
        program = text.replace("{path}", path)
        open_beta = unknown_in(built(program).arguments["beta"])
        assert open_beta is not None
        assert open_beta.names == ("--config",)
    said = built(
        text.replace("{path}", "a.config"), words=["--config", "c.yaml"], load_file={"c.yaml": {"beta": 0.1}}.get
    )
    assert said.arguments == {"beta": 0.1}


HYDRA = "import hydra\n@hydra.main(version_base=None, config_path='conf', config_name='train')\ndef main(cfg):\n"


def test_hydra_s_own_file_and_the_groups_that_it_names_are_followed() -> None:
    files = {
        "conf/train.yaml": {"defaults": [{"grpo": "small"}, "_self_"], "lr": 0.1, "grpo": {"beta": 0.2}},
        "conf/grpo/small.yaml": {"g": 4, "beta": 0.3},
    }
    text = f"{HYDRA}    GRPOConfig(lr=cfg.lr, g=cfg.grpo.g, beta=cfg['grpo']['beta'])\nmain()\n"
    assert built(text, load_file=lambda path: files.get(path)).arguments == {"lr": 0.1, "g": 4, "beta": 0.2}
    del files["conf/grpo/small.yaml"]  # a group that is not here may hold anything
    assert unknown_in(built(text, load_file=lambda path: files.get(path)).arguments["lr"]) is not None
    assert unknown_in(built(text, load_file=lambda path: files.get(path), words=["lr=1"]).arguments["lr"]) is not None


def test_modules_of_the_program_are_followed_and_others_are_not() -> None:
    def find(name: str, beside: str) -> tuple[str, str] | None:
        return ("G = 6\n", "conf.py") if name == "conf" else None

    assert value("G", "from conf import G", find_module=find) == 6
    assert value("conf.G", "import conf", find_module=find) == 6
    assert unknown_in(value("H", "from elsewhere import H", find_module=find)) == UnknownValue(
        "elsewhere.H", ("elsewhere.H",)
    )


def test_a_subclass_hands_its_defaults_on_and_names_its_own_fields() -> None:
    text = f"{DATACLASS}class Mine(GRPOConfig):\n    beta: float = 0.1\n    own: int = 3\nMine(num_generations=4)\n"
    call = built(text)
    assert call.bases == ("trl.GRPOConfig",)
    assert call.arguments == {"beta": 0.1, "own": 3, "num_generations": 4}
    assert call.fields == {"beta", "own"}


def test_settings_that_are_changed_afterwards_count() -> None:
    call = built("c = GRPOConfig(beta=0.1)\nc.beta = 0.2\n")
    assert call.arguments == {"beta": 0.2}
    assert call.places["beta"].line == 3


def test_a_loop_over_known_items_builds_each() -> None:
    calls = read(CALL + "for b in (0.1, 0.2):\n    GRPOConfig(beta=b)\n").calls
    assert [call.arguments["beta"] for call in calls] == [0.1, 0.2]


def test_a_function_that_nothing_calls_is_read_with_its_parameters_open() -> None:
    call = built("def train(lr, g=4):\n    GRPOConfig(learning_rate=lr, num_generations=g)\n")
    assert call.arguments["num_generations"] == 4
    assert unknown_in(call.arguments["learning_rate"]) == UnknownValue("lr", ("lr",))


def test_settings_that_a_command_line_parser_makes_are_marked() -> None:
    text = "from trl import TrlParser\np = TrlParser((GRPOConfig,))\n(c,) = p.parse_args_and_config()\n"
    assert built(text).parsed


def test_a_notebook_has_cells_with_lines_of_their_own() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["!pip install --upgrade \\\n", "  trl==0.14.0 \\\n", "  vllm\n", "G = 4"]},
        {"cell_type": "code", "source": "%%bash\nls"},
        {"cell_type": "code", "source": "if True: broken("},
        {"cell_type": "code", "source": ["from trl import GRPOConfig\n", "GRPOConfig(\n", "  num_generations=G)"]},
    ]
    program = read_python(json.dumps({"cells": cells}), "nb.ipynb")
    (call,) = program.calls
    assert call.arguments == {"num_generations": 4}
    assert str(call.place) == "nb.ipynb[cell 5]:2"
    assert call.places["num_generations"][1:] == (3, 5)
    assert program.pins == {"trl": "0.14.0"}
    assert program.unread == (4,)


@pytest.mark.parametrize(
    ("lines", "pins", "ranges"),
    [
        (['!pip install "trl[vllm] >= 1.0, <2" peft'], {}, {"trl": ">=1.0,<2"}),
        (["%pip install -U 'Torch_X~=2.1'"], {}, {"torch-x": "~=2.1"}),
        (["!pip install trl>=1.0"], {}, {}),  # a shell writes a file `=1.0`, and pip installs the newest
        (['!echo "trl>=1.0"'], {}, {}),
        (['!pip install "trl>=1.0"', "!pip install trl==0.18.0"], {"trl": "0.18.0"}, {}),
        (["!pip install trl==0.18.0", '!pip install -U "trl>=1.0"'], {}, {"trl": ">=1.0"}),
        (['!pip install "trl==0.18.0" "peft!=0.1"'], {"trl": "0.18.0"}, {"peft": "!=0.1"}),
    ],
)
def test_a_notebooks_cells_install_versions_and_ranges(
    lines: list[str], pins: dict[str, str], ranges: dict[str, str]
) -> None:
    program = read_python(json.dumps({"cells": [{"cell_type": "code", "source": "\n".join(lines)}]}), "nb.ipynb")
    assert (program.pins, program.ranges) == (pins, ranges)


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', "[" * 100_000])
def test_a_broken_notebook_is_no_python(text: str) -> None:
    with pytest.raises(NotPython):
        read_python(text, "nb.ipynb")


def test_a_broken_program_is_no_python_and_says_where() -> None:
    with pytest.raises(NotPython) as caught:
        read("a = 1\nb = (\n")
    assert caught.value.line == 2


def test_nothing_of_a_program_runs(tmp_path: Any) -> None:
    trap = tmp_path / "trap"
    read(
        f"open({str(trap)!r}, 'w').write('x')\nimport os\nos.system('touch {trap}')\n"
        f"__import__('os').mkdir({str(trap)!r})\n"
    )
    assert not trap.exists()


def test_a_program_without_an_end_is_read_within_bounds() -> None:
    text = "def f(n):\n    f(n + 1)\n    f(n + 2)\nf(1)\nGRPOConfig(beta=0.1)\n"
    assert not read(CALL + text).whole


def test_a_list_that_holds_itself_ends() -> None:
    assert isinstance(value("a", "a = []\na.append(a)\na.append(a)\na.append(os)"), list)


@pytest.mark.parametrize(
    "names",
    [
        "set(inspect.signature(GRPOConfig.__init__).parameters)",
        "inspect.signature(GRPOConfig).parameters.keys()",
        "{f.name for f in dataclasses.fields(GRPOConfig)}",
        "GRPOConfig.__dataclass_fields__",
    ],
)
def test_what_a_class_that_is_not_read_takes_is_all_that_it_is_given(names: str) -> None:
    text = f"import inspect, dataclasses\nnames = {names}\nall_of_it = dict(x=4, y=5)\n"
    program = read(f"{CALL}{text}GRPOConfig(**{{k: v for k, v in all_of_it.items() if k in names}})\n")
    (call,) = program.calls
    assert (call.arguments, call.loose, program.filters) == ({"x": 4, "y": 5}, [], True)
    assert not read(f"{CALL}GRPOConfig(x=4)\n").filters


def test_one_of_two_classes_is_called_whichever_it_is() -> None:
    choice = "from mine import ATrainer, BTrainer\n"
    for chosen in ("t = ATrainer if flag() else BTrainer\n", "if flag():\n    t = ATrainer\nelse:\n    t = BTrainer\n"):
        program = read(f"from other import flag\n{choice}{chosen}t(args=1)\n")
        assert [(call.name, bool(call.only_if)) for call in program.calls] == [
            ("mine.ATrainer", True),
            ("mine.BTrainer", True),
        ]


def test_what_is_no_class_stays_unknown() -> None:
    (call,) = read(f"{CALL}from other import flag\nn = 4 if flag() else 8\nGRPOConfig(x=n)\n").calls
    assert unknown_in(call.arguments["x"]) is not None


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.run(command, env=env)",
        "raise SystemExit(subprocess.call(command, env=env))",
        "subprocess.Popen(command, env=env)",
    ],
)
def test_a_command_that_a_program_starts_is_kept_and_not_started(start: str) -> None:
    text = (
        "import os, subprocess, sys\nfrom pathlib import Path\nroot = Path(__file__).resolve().parents[0]\n"
        "env = dict(os.environ)\nenv['ROOT'] = str(root)\n"
        "command = [sys.executable, '-m', 'a.b', f'c={4}', *sys.argv[1:]]\n" + start
    )
    (found,) = read(text).started
    assert found.words[:4] == ("python", "-m", "a.b", "c=4")
    assert unknown_in(found.words[4]) is not None
    assert found.env == {"ROOT": "."}


def test_a_line_that_a_program_starts_is_its_words() -> None:
    (found,) = read("import os\nos.system('python -m a.b c=\"d e\"')\n").started
    assert found.words == ("python", "-m", "a.b", "c=d e")


def test_a_parsers_file_is_the_object_and_what_other_classes_take_is_theirs() -> None:
    text = (
        f"{CALL}import sys\nfrom transformers import HfArgumentParser\n{DATACLASS}class Data:\n    path: str = ''\n"
        "parser = HfArgumentParser((Data, GRPOConfig))\n"
        "data, args = parser.parse_yaml_file(sys.argv[1], allow_extra_keys=True)\n"
    )
    files = {"a.yaml": {"path": "p", "x": 3}}
    program = read(text, words=["a.yaml"], load_file=files.get)
    assert [(call.name, call.arguments, call.parsed) for call in program.calls] == [
        ("Data", {"path": "p"}, False),
        ("trl.GRPOConfig", {"x": 3}, False),
    ]
    assert program.filters
    assert all(call.parsed or not call.is_a("GRPOConfig") for call in read(text).calls)


def test_words_that_argparse_gathers_are_none_where_none_are_given() -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('rest', nargs={nargs})\na = p.parse_args()\n"
    for nargs in ("argparse.REMAINDER", "'*'"):
        assert value("[1, *a.rest]", text.format(nargs=nargs)) == [1]
    assert isinstance(value("a.rest", text.format(nargs="'+'")), UnknownValue)


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["m"], [("trl.GRPOConfig", False)]), (["m", "--beta", "0.1"], [("trl.GRPOConfig", True)])],
)
def test_a_branch_on_the_number_of_words_is_decided_by_the_command_line(
    words: list[str], expected: list[tuple[str, bool]]
) -> None:
    text = (
        f"{CALL}import sys\nfrom transformers import HfArgumentParser\nparser = HfArgumentParser(GRPOConfig)\n"
        "if len(sys.argv) > 2:\n    args = parser.parse_args_into_dataclasses(args=sys.argv[2:])[0]\n"
        "else:\n    args = GRPOConfig(beta=0.2)\n"
    )
    assert [(call.name, call.parsed) for call in read(text, words=words).calls] == expected
    assert len(read(text).calls) == 2  # no command line is known


def test_a_simulation_that_is_asked_in_loops_leaves_the_configuration_behind_it_to_be_read() -> None:
    def find(name: str, beside: str) -> tuple[str, str] | None:
        steps = "".join(f"    x{n} = {n}\n" for n in range(30))
        turns = "def play():\n    for turn in range(60):\n        step()\n"
        return (f"def step():\n{steps}    return 1\n{turns}", "env.py") if name == "env" else None

    games = "for game in range(60):\n    play()\n    seen = step()\n"
    text = f"{CALL}from env import play, step\n{games}GRPOConfig(beta=0.3)\n"
    program = read(text, find_module=find)
    assert [call.arguments for call in program.calls] == [{"beta": 0.3}]
    assert not program.whole
    unknown = value("seen", "from env import play, step\nplay()\nplay()\nseen = step()", find_module=find)
    assert unknown_in(unknown) == UnknownValue("seen", ("step(...)",))
