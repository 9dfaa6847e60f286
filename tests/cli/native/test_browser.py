"""Pages in a real browser: nothing overflows, complains, runs or is asked for, in the dark and on a telephone, and
axe-core finds no fault of accessibility.

Chromium is Debian's package `chromium` or a Chrome; axe-core is npm's package of that name, whose file
BATCHBRIDGE_AXE names. BATCHBRIDGE_PICTURES: a folder that gets a picture of every page.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import batchbridge
from batchbridge.contract.reading import Reading
from batchbridge_on_cpu.scripts import module_at

HERE = Path(__file__).parent
WIDTHS = (1200, 400)
AXE = os.environ.get("BATCHBRIDGE_AXE", "")


chromium = module_at(HERE / "browser.py")
pytestmark = pytest.mark.skipif(chromium.FOUND is None, reason="there is no Chromium here")
for library in ("jinja2", "vl_convert"):
    pytest.importorskip(library, reason="the extra `html` is not installed")

SIZES = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_generations": 8, "seed": 1}
LONG = "a_folder_with_a_name_without_a_blank/" * 8


def pages(folder: Path) -> dict[str, str]:
    """A page of each kind, with long and hostile texts."""
    from batchbridge.ledger.reading import Ledger
    from batchbridge.ledger.summary import summarise
    from batchbridge.render import html

    def read(**more: Any) -> Reading:
        said = {"world_size": 2, "dataset_size": 100, **more}
        settings = {**SIZES, **said.pop("settings", {})}
        return batchbridge.read(settings, framework="trl", version=said.pop("version", "1.16.0"), **said)

    explained = batchbridge.explain({**SIZES, "loss_type": "bnpo"}, framework="trl", world_size=8, dataset_size=100)
    of_a_run = module_at(HERE.parent / "test_ledger_commands.py").write(folder / "run", (3, 4))
    return {
        "explain": html.explanation(
            LONG, explained.reading, explained.enforcement, judged=explained.judged, devices=explained.devices
        ),
        "explain_invalid": html.explanation("<img src=x onerror=alert(1)>", read(world_size=3)),
        "explain_wide": html.explanation(
            "r.yaml", read(world_size=512, settings={"steps_per_generation": 8, "num_iterations": 2})
        ),
        "diff": html.comparison(
            (f"{LONG}a.yaml", f"{LONG}b.yaml"), batchbridge.diff(read(), read(world_size=4, version="0.18.0"))
        ),
        "ledger": html.ledger(summarise(Ledger(of_a_run))),
    }


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    files = {}
    for name, page in pages(folder).items():
        files[name] = folder / f"{name}.html"
        files[name].write_text(page, encoding="utf-8")
    return files


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


NAMES = ("explain", "explain_invalid", "explain_wide", "diff", "ledger")

OVERFLOWING = """
[...document.querySelectorAll("body *")].filter(one => !one.closest(".wide-table") && !one.closest("svg")
  && !one.classList.contains("skip") && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .map(one => one.outerHTML.slice(0, 80))
"""


AUDIT = """
axe.run({elementRef: false}).then(found => [found.passes.length,
  found.violations.map(one => [one.id, one.nodes[0].html, one.nodes[0].failureSummary])])
"""


def test_every_page_is_opened(laid: dict[str, Path]) -> None:
    assert tuple(laid) == NAMES


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_loads_nothing_and_complains_of_nothing(
    laid: dict[str, Path], window: Any, name: str, width: int, dark: bool
) -> None:
    window.open(laid[name], width=width, dark=dark)
    if folder := os.environ.get("BATCHBRIDGE_PICTURES"):
        window.picture(Path(folder) / f"{name}_{width}_{'dark' if dark else 'light'}.png")
    window.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
    assert window.value("document.documentElement.scrollWidth") == width
    assert window.value(OVERFLOWING) == []
    ground = window.value("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, ground.removeprefix("rgb(").removesuffix(")").split(","))) < 60) is dark
    assert window.complaints() == []
    assert window.requests() == [laid[name].as_uri()]


def test_what_a_page_would_load_or_run_is_refused_and_noticed(laid: dict[str, Path], window: Any) -> None:
    """The tampering that the test above must catch."""
    page = laid["explain"].read_text(encoding="utf-8")
    tampered = laid["explain"].with_name("tampered.html")
    added = '<script>console.log("it runs")</script><img src="x.png" alt=""><p style="width: 9999px">wide</p>'
    tampered.write_text(page.replace("</main>", f"{added}<pre>{'x' * 9999}</pre></main>"), encoding="utf-8")
    window.open(tampered, width=400, dark=False)
    assert len([text for text in window.complaints() if "Content Security Policy" in text]) == 3
    assert "it runs" not in "".join(window.complaints())
    assert window.value("document.documentElement.scrollWidth") > 400 or window.value(OVERFLOWING)


def test_the_origin_of_a_field_shows_on_the_pointer_and_on_the_keyboard(laid: dict[str, Path], window: Any) -> None:
    window.open(laid["explain"], width=400, dark=False)
    tip = "document.getElementById('from-rollout.completions_per_prompt')"
    visible = f"getComputedStyle({tip}).visibility"
    assert window.value(visible) == "hidden"
    assert window.value(f"{tip}.previousElementSibling.focus(), {visible}") == "visible"
    assert window.value(f"JSON.stringify([{tip}.getBoundingClientRect().left >= 0, {tip}.getBoundingClientRect().right"
                        " <= 400])") == "[true,true]"  # fmt: skip
    window.open(laid["explain"], width=1200, dark=False)
    assert window.value(visible) == "hidden"
    place = window.value(
        f"(() => {{ const one = {tip}.previousElementSibling;"
        " one.scrollIntoView({block: 'center', behavior: 'instant'});"
        " const box = one.getBoundingClientRect(); return [box.left + 4, box.top + box.height / 2] })()"
    )
    window.ask("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    assert window.value(visible) == "visible"
    window.ask("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert window.value(visible) == "hidden"


def test_a_screen_reader_is_told_names_and_origins(laid: dict[str, Path], window: Any) -> None:
    window.open(laid["explain"], width=1200, dark=False)
    nodes = window.ask("Accessibility.getFullAXTree")["nodes"]

    def said(node: dict[str, Any], what: str) -> str:
        return str(node.get(what, {}).get("value", ""))

    roles = [said(node, "role") for node in nodes if not node.get("ignored")]
    assert {"banner", "navigation", "main", "contentinfo", "table"} <= set(roles)
    pictures = [said(node, "name") for node in nodes if said(node, "role") in ("image", "img")]
    assert len(pictures) == 1  # of the two widths one alone
    assert pictures[0].startswith("rollout: ")
    buttons = [node for node in nodes if said(node, "role") == "button"]
    assert len(buttons) > 40
    assert all("Unit: " in said(node, "description") and said(node, "name") for node in buttons)


@pytest.mark.skipif(not Path(AXE).is_file(), reason="BATCHBRIDGE_AXE names no axe.min.js")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_axe_finds_nothing(laid: dict[str, Path], window: Any, name: str, width: int, dark: bool) -> None:
    window.open(laid[name], width=width, dark=dark)
    window.value("document.querySelectorAll('details').forEach(one => { one.open = true })")
    window.value(Path(AXE).read_text(encoding="utf-8") + "; undefined")
    passed, found = window.value(AUDIT)
    assert found == []
    assert passed > 20


@pytest.mark.skipif(not Path(AXE).is_file(), reason="BATCHBRIDGE_AXE names no axe.min.js")
def test_axe_finds_a_picture_without_a_name(laid: dict[str, Path], window: Any) -> None:
    window.open(laid["explain"], width=1200, dark=False)
    window.value("document.querySelectorAll('svg title').forEach(one => one.remove())")
    window.value(Path(AXE).read_text(encoding="utf-8") + "; undefined")
    assert "svg-img-alt" in [found[0] for found in window.value(AUDIT)[1]]
