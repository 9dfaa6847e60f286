"""docs/equivalence.md is what the whole matrix said, of the sources as they are now; what it said meets every bar."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

HERE = Path(__file__).parent
RUNS = {"trl", "verl v0", "verl v1", "openrlhf", "easyr1", "open_instruct"}
"""Of every case, but those that it leaves out, and those that cannot say it."""


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite's modules are scripts of one folder."""
    monkeypatch.syspath_prepend(str(HERE / "native"))


@pytest.fixture
def suite(importable: None) -> ModuleType:
    return importlib.import_module("suite")


@pytest.fixture
def results() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "recorded.json").read_text(encoding="utf-8"))
    return found


def test_the_page_is_written_from_the_recorded_run(results: dict[str, Any], repository: Path) -> None:
    report = importlib.import_module("report")
    assert (repository / "docs" / "equivalence.md").read_text(encoding="utf-8") == report.page(results)


def test_every_case_is_recorded_as_it_is_now(suite: ModuleType, results: dict[str, Any]) -> None:
    assert {name: result["told"] for name, result in results.items()} == {
        name: suite.told(case) for name, case in suite.CASES.items()
    }


def test_no_framework_s_code_has_changed_since_its_runs_were_recorded(
    suite: ModuleType, results: dict[str, Any]
) -> None:
    digests = importlib.import_module("digests")
    stale = {
        framework: changed
        for name, result in results.items()
        for framework, recorded in result["code"].items()
        if (changed := digests.changed(recorded, digests.digests(framework, **told(suite.CASES[name]))))
    }
    assert not stale, message(stale)


def told(case: Any) -> dict[str, bool]:
    """What a case's digests are asked with."""
    return {"filtered": bool(case.flat), "critic": case.critic}


def message(stale: dict[str, list[str]]) -> str:
    """What to do about runs whose code has changed."""
    parts = [f"{framework} ({', '.join(changed)})" for framework, changed in stale.items()]
    away = [f"BATCHBRIDGE_{name.upper()}" for name in ("easyr1", "open_instruct")]
    return (
        f"stale: recorded.json has runs of other code of {'; '.join(parts)}: run `nox -s equivalence_full`, with"
        f" {' and '.join(away)} naming checkouts (docs/easyr1.md, docs/open_instruct.md)"
    )


def test_every_framework_s_digest_has_the_core_and_its_own_engine() -> None:
    digests = importlib.import_module("digests")
    for framework in digests.FRAMEWORKS:
        names = set(digests.files(framework))
        assert {f"batchbridge.{name}" for name in digests.CORE} < names
        assert f"batchbridge_{framework}.runtime" in names
        assert any(name.partition(".")[2] in ("engine", "enforce") for name in names)


@pytest.mark.parametrize("framework", ["verl", "openrlhf"])
def test_the_digest_of_a_run_with_a_critic_has_its_engine(importable: None, framework: str) -> None:
    digests = importlib.import_module("digests")
    more = set(digests.files(framework, critic=True)) - set(digests.files(framework))
    assert more >= {
        "batchbridge.critic_run",
        f"batchbridge_{framework}.critic",
        f"batchbridge_{framework}.critic_engine",
    }


def test_a_module_and_its_companions_have_one_digest(tmp_path: Path) -> None:
    digests = importlib.import_module("digests")
    helper, user = "def helper(x):\n    return 2 * x\n", "def f(x):\n    return helper(x)\n"
    (whole := tmp_path / "whole").mkdir()
    (whole / "runtime.py").write_text(f"{user}\n\n{helper}")
    (parted := tmp_path / "parted").mkdir()
    (parted / "runtime.py").write_text(f"from parted.refusals import helper\n\n\n{user}")
    (parted / "refusals.py").write_text(helper)
    assert digests.digest_of(whole / "runtime.py") == digests.digest_of(parted / "runtime.py")
    (parted / "refusals.py").write_text(helper.replace("2", "3"))
    assert digests.digest_of(whole / "runtime.py") != digests.digest_of(parted / "runtime.py")


def test_a_digest_is_of_the_code_and_not_of_its_words() -> None:
    digests = importlib.import_module("digests")
    plain = digests.digest("def f(x):\n    return x + 1\n")
    assert plain == digests.digest('"""Words."""\n# why\ndef f(x):\n    """More."""\n\n    return (x + 1)\n')
    assert plain != digests.digest("def f(x):\n    return x + 2\n")
    lines = ["from a.c import f", "from b import g", "from b import h"]
    one, moved, other = ("\n".join(chosen) for chosen in (lines[:2], (lines[1], "from b import f"), lines[1:]))
    assert digests.digest(one) == digests.digest(moved) != digests.digest(other)
    own = 'class Short(ValueError):\n    pass\n\n\nclass A:\n    x = 1\n\n    def __repr__(self):\n        return "A"\n'
    own += '\n    def _repr_html_(self):\n        import notebook\n\n        return notebook.bold("A")\n'
    elsewhere = "from errors import Short\n\n\nclass A:\n    x = 1\n"
    assert digests.digest(own) == digests.digest(elsewhere) != digests.digest(elsewhere.replace("1", "2"))
    one, two = (
        "import a.b\nfrom a.b import g\nf = lambda: a.b.h(g)\n",
        "import c\nfrom d import g, h\nf = lambda: h(g)\n",
    )
    assert digests.digest(one) == digests.digest(two.replace("import c\n", "")) != digests.digest(two)
    assert digests.digest(one) != digests.digest(one.replace(".h(", ".i("))
    assert digests.digest("class A(B):\n    x = 1\n") != digests.digest("class A(B):\n    x = 2\n")
    run = "from kit import Refusal\n\n\ndef patch(x):\n    return near(x)\n\n\ndef near(x):\n    return x\n"
    asking = "from kit import on\n\n\ndef far(x):\n    return on(x)\n\n\nREFUSALS = (Refusal('a', far, near),)\n"
    assert digests.digest(run) == digests.digest(run + asking.replace("Refusal", "tuple")), "it decides what starts"
    assert digests.digest(run) != digests.digest(run.replace("return x", "return 2 * x") + asking)
    ordered = "def f(x):\n    return _g(x)\n\n\ndef _g(x):\n    return x\n"
    turned = "def g(x):\n    return x\n\n\ndef f(x):\n    return g(x)\n"
    assert digests.digest(ordered) == digests.digest(turned), "the order and an underscore decide nothing"
    assert digests.digest(ordered) != digests.digest(turned.replace("return g", "return h"))
    assert digests.digest("class A:\n    x: int\n    y: int\n") != digests.digest("class A:\n    y: int\n    x: int\n")
    both = "class A:\n    def f(self):\n        return self.g()\n\n    def g(self):\n        return 1\n"
    base = "class B:\n    def g(self):\n        return 1\n"
    user = "from here import B\n\n\nclass A(B):\n    def f(self):\n        return self.g()\n"
    assert digests.digest(both) == digests.digest(base, user), "a base of its own is a part of the class"
    assert digests.digest(both) != digests.digest(base.replace("1", "2"), user)
    assert digests.digest(both) != digests.digest(base, f"{user}\n\nb = B()\n"), "the base is used by itself"
    hiding = user.replace("return self.g()", "return super().g()") + "\n    def g(self):\n        return 2\n"
    hidden = base.replace("return 1", "return 2"), hiding.replace("return 2", "return 1")
    assert digests.digest(base, hiding) != digests.digest(*hidden), "which of two methods counts"
    assert digests.digest("x = 1\nx = 2\n") != digests.digest("x = 2\nx = 1\n"), "the last one counts"
    recorded = {"batchbridge.meaning.plan": plain}
    assert digests.changed(recorded, recorded) == []
    now = {"batchbridge.meaning.plan": "other", "batchbridge_trl.rows": plain}
    assert digests.changed(recorded, now) == ["batchbridge.meaning.plan", "batchbridge_trl.rows"]
    said = message({"trl": digests.changed(recorded, now)})
    assert said.startswith(
        "stale: recorded.json has runs of other code of trl (batchbridge.meaning.plan, batchbridge_trl.rows)"
    )


def test_every_framework_ran_every_case_that_it_can_say(suite: ModuleType, results: dict[str, Any]) -> None:
    for name, result in results.items():
        case = suite.CASES[name]
        assert set(result["runs"]) == RUNS - case.cannot.keys() - case.left_out.keys()


def judged(folder: Path, results: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """The suite's own tests over `results`, in a process of their own."""
    (folder / "result.json").write_text(json.dumps(results), encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "native" / "test_equivalence.py")],
        env={**os.environ, "BATCHBRIDGE_EQUIVALENCE": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_recorded_run_meets_every_bar_of_the_suite(results: dict[str, Any], tmp_path: Path) -> None:
    done = judged(tmp_path, results)
    assert done.returncode == 0, done.stdout


def test_a_run_that_misses_one_bar_fails(results: dict[str, Any], tmp_path: Path) -> None:
    pairs = results["token_mean"]["pairs"]["enforce"]
    next(iter(pairs.values()))["trajectory"] = 1.1e-5
    done = judged(tmp_path, results)
    assert done.returncode == 1
    assert "1 failed" in done.stdout


MISSED: dict[str, tuple[tuple[str, ...], float]] = {
    "the critic's end": (("pairs", "enforce", "verl v1 / openrlhf", "trajectory"), 1.1e-5),
    "the critic's gradient": (("oracle", "openrlhf", "of_the_bar"), 1.1),
    "the critic's weights": (("weights", "verl v0", "off"), 1.1e-4),
    "a critic that agrees unwrapped": (("pairs", "observe", "verl v1 / openrlhf", "trajectory"), 9e-5),
    "a fault that does not show": (("plain_torch", "verl v1", "weight"), 9e-5),
    "another factor of advantages": (("whitening", "verl v1 / openrlhf", "expected"), 4e-3),
    "a gradient that is not clipped": (("least_over_its_clip", "verl v1"), 0.9),
}
"""What a critic misses -> where the result has it, and what it has then."""


@pytest.mark.parametrize("what", MISSED)
def test_a_run_whose_critic_misses_one_bar_fails(results: dict[str, Any], tmp_path: Path, what: str) -> None:
    (*groups, name), value = MISSED[what]
    place = results["critic"]["critic"]
    for group in groups:
        place = place[group]
    assert name in place
    place[name] = value
    done = judged(tmp_path, {"critic": results["critic"]})
    assert done.returncode == 1
    assert "1 failed" in done.stdout, done.stdout
