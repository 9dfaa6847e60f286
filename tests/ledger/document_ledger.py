"""Writes the generated parts of docs/ledger.md: `python tests/ledger/document_ledger.py`; a test holds them."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path

from scripted_ledger import SCHEDULED, header, record, rows_of, sound_rows

from batchbridge.ledger import BESIDE, COLUMNS, EVENTS, SCALARS, TIMES, Writer, diff
from batchbridge.ledger.reading import Ledger
from batchbridge.ledger.summary import FIGURES, summarise
from batchbridge.ledger.verifying import verify
from batchbridge.render.ledger import summary, verification

PAGE = Path(__file__).parent.parent.parent / "docs" / "ledger.md"


def parts() -> dict[str, str]:
    """The text between `<!-- NAME -->` and `<!-- end -->`, by name; examples come out of a real ledger."""
    with tempfile.TemporaryDirectory() as place:
        for name, rate in (("a", 1e-3), ("b", 2e-3)):
            with Writer(Path(place) / name, header()) as writer:
                writer.append(record(0, rows_of(0)))
                writer.append(record(1, rows_of(1), learning_rate=rate))
        written = (Path(place) / "a" / "rank-00000.jsonl").read_text().splitlines()
        text = diff(Path(place) / "a", Path(place) / "b").text().replace(place + "/", "")
        for rank in range(2):
            with Writer(Path(place) / "c", header(rank, 2, spec=SCHEDULED)) as writer:
                for index in range(4):
                    writer.append(record(index, sound_rows(index)[rank::2]))
        verified = verification(verify(Path(place) / "c")).replace(place + "/", "")
        whole = summary(summarise(Ledger(Path(place) / "a"))).replace(place + "/", "")
    first, step = json.loads(written[0]), json.loads(written[1])
    first["spec"] = first["spec_digest"] = "..."  # they change with every field that the schema gains
    return {
        "header": _code("json", "{\n" + ",\n".join(_entries(first)) + "\n}"),
        "step": _code("json", "{\n" + ",\n".join(_entries(step)) + "\n}"),
        "scalars": _table("scalar", SCALARS),
        "columns": _table("column", COLUMNS),
        "beside": _table("number", BESIDE),
        "events": _table("event", EVENTS),
        "times": _table("time", TIMES),
        "diff": _code("text", text),
        "summary": _code("text", whole),
        "figures": _table("figure", {name: f"{one.title}: {one.unit}" for name, one in FIGURES.items()}),
        "verify": _code("text", verified),
    }


def filled(page: str) -> str:
    """`page` with its generated parts written anew."""
    for name, text in parts().items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        page, count = pattern.subn(lambda match, text=text: match[1] + text + "\n" + match[2], page)
        if count != 1:
            raise ValueError(f"docs/ledger.md has {count} parts named {name}")
    return page


def _entries(record: dict[str, object]) -> list[str]:
    return [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in record.items()]


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def _table(kind: str, rows: dict[str, str]) -> str:
    return f"| {kind} | meaning |\n|---|---|\n" + "\n".join(f"| `{name}` | {text} |" for name, text in rows.items())


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
