"""The language server as an editor has it: a process, over standard input and output. pygls' client is the editor."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

RECIPE = """\
# 🧪 is the group
num_generations: 7
per_device_train_batch_size: 6
overwrite_output_dir: true
"""
SCRIPT = """\
trl grpo --num_generations 7 --per_device_train_batch_size 6  # 🧪
"""
PROGRAM = """\
from trl import GRPOConfig, GRPOTrainer
arguments = GRPOConfig(output_dir="🧪", num_generations=7, per_device_train_batch_size=6)
trainer = GRPOTrainer(model="some/model", args=arguments, reward_funcs=[len])
"""
PROJECT = """\
framework_version = "1.16.0"
world_size = 8
"""
LIMIT = 60
"""Seconds within which the server has answered, however slow the machine is."""


class Editor:
    """A client with a text: what the server said of it last, and its edits applied as the protocol has them."""

    def __init__(self, client: LanguageClient, path: Path, language: str) -> None:
        self.client, self.uri, self.text, self.version = client, path.as_uri(), path.read_text(encoding="utf-8"), 0
        self.language = language
        self.told: asyncio.Queue[types.PublishDiagnosticsParams] = asyncio.Queue()

    async def open(self) -> list[types.Diagnostic]:
        item = types.TextDocumentItem(self.uri, self.language, self.version, self.text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.problems()

    async def type(self, text: str) -> list[types.Diagnostic]:
        self.text, self.version = text, self.version + 1
        whole = types.TextDocumentContentChangeWholeDocument(text)
        document = types.VersionedTextDocumentIdentifier(self.version, self.uri)
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(document, [whole]))
        return await self.problems()

    async def problems(self) -> list[types.Diagnostic]:
        while True:
            told = await asyncio.wait_for(self.told.get(), LIMIT)
            if told.version in (None, self.version):
                return list(told.diagnostics)

    def marked(self, place: types.Range) -> str:
        """The text that a range of one line marks; columns are UTF-16's."""
        line = self.text.split("\n")[place.start.line].encode("utf-16-le")
        return line[2 * place.start.character : 2 * place.end.character].decode("utf-16-le")

    async def fixes(self, problem: types.Diagnostic) -> list[types.CodeAction]:
        asked = types.CodeActionParams(
            types.TextDocumentIdentifier(self.uri), problem.range, types.CodeActionContext([problem])
        )
        found = await asyncio.wait_for(self.client.text_document_code_action_async(asked), LIMIT)
        return [one for one in found or () if isinstance(one, types.CodeAction)]

    def with_edits(self, action: types.CodeAction) -> str:
        assert action.edit is not None
        assert action.edit.changes is not None
        text = self.text
        for edit in sorted(action.edit.changes[self.uri], key=lambda one: one.range.start.line, reverse=True):  # type: ignore[attr-defined]
            start, end = (self._offset(text, at) for at in (edit.range.start, edit.range.end))
            text = text[:start] + edit.new_text + text[end:]  # type: ignore[union-attr]
        return text

    @staticmethod
    def _offset(text: str, at: types.Position) -> int:
        lines = text.split("\n")
        before = sum(len(line) + 1 for line in lines[: at.line])
        here = lines[at.line] if at.line < len(lines) else ""
        return before + len(here.encode("utf-16-le")[: 2 * at.character].decode("utf-16-le"))

    async def hover(self, word: str) -> str:
        number = next(number for number, line in enumerate(self.text.split("\n")) if word in line)
        column = self.text.split("\n")[number].index(word)
        units = len(self.text.split("\n")[number][:column].encode("utf-16-le")) // 2
        asked = types.HoverParams(types.TextDocumentIdentifier(self.uri), types.Position(number, units))
        told = await asyncio.wait_for(self.client.text_document_hover_async(asked), LIMIT)
        assert told is None or isinstance(told.contents, types.MarkupContent)
        return "" if told is None else told.contents.value

    async def lenses(self) -> list[str]:
        asked = types.CodeLensParams(types.TextDocumentIdentifier(self.uri))
        found = await asyncio.wait_for(self.client.text_document_code_lens_async(asked), LIMIT)
        return [one.command.title for one in found or () if one.command is not None]


def in_an_editor(path: Path, language: str, body: Callable[[Editor], Awaitable[Any]]) -> None:
    """Runs `body` with a text in an editor whose server is a process of its own."""

    async def run() -> None:
        client = LanguageClient("test", "1")
        editor = Editor(client, path, language)

        @client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def told(said: types.PublishDiagnosticsParams) -> None:
            if said.uri == editor.uri:
                editor.told.put_nowait(said)

        @client.feature(types.WORKSPACE_CODE_LENS_REFRESH)
        def refreshed(_: None) -> None:
            return None

        await client.start_io(sys.executable, "-m", "batchbridge", "language-server", cwd=str(path.parent))
        asked = types.InitializeParams(types.ClientCapabilities(), root_uri=path.parent.as_uri())
        can = (await asyncio.wait_for(client.initialize_async(asked), LIMIT)).capabilities
        assert can.hover_provider
        assert can.code_lens_provider
        client.initialized(types.InitializedParams())
        try:
            await body(editor)
        finally:
            await asyncio.wait_for(client.shutdown_async(None), LIMIT)
            client.exit(None)
            await asyncio.wait_for(client.stop(), LIMIT)

    asyncio.run(run())


@pytest.fixture
def lay(tmp_path: Path) -> Callable[[str, str], Path]:
    (tmp_path / "batchbridge.toml").write_text(PROJECT, encoding="utf-8")

    def lay(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return lay


@pytest.mark.parametrize(
    ("name", "language", "text"),
    [
        ("recipe.yaml", "yaml", RECIPE.replace("overwrite_output_dir: true\n", "")),
        ("run.sh", "shellscript", SCRIPT),
        ("train.py", "python", PROGRAM),
    ],
)
def test_a_torn_group_is_marked_and_each_way_out_mends_it(
    lay: Callable[[str, str], Path], name: str, language: str, text: str
) -> None:
    async def body(editor: Editor) -> None:
        (torn,) = [one for one in await editor.open() if one.code == "BB-TRL-021"]
        assert (torn.severity, torn.source) == (types.DiagnosticSeverity.Error, "batchbridge")
        assert editor.marked(torn.range) == "6"
        assert any("INVALID" in lens for lens in await editor.lenses())
        ways = await editor.fixes(torn)
        assert len(ways) > 3
        before = editor.text
        for way in ways:
            text = editor.with_edits(way)
            assert text != before
            left = await editor.type(text)
            assert not [one for one in left if one.severity == types.DiagnosticSeverity.Error], (way.title, text)
            assert any("completions per rollout" in lens and "VALID" in lens for lens in await editor.lenses())
            assert torn.code in {one.code for one in await editor.type(before)}

    in_an_editor(lay(name, text), language, body)


def test_a_safe_fix_is_preferred_and_takes_its_line(lay: Callable[[str, str], Path]) -> None:
    async def body(editor: Editor) -> None:
        found = await editor.open()
        (gone,) = [one for one in found if "overwrite_output_dir" in one.message]
        (fix,) = await editor.fixes(gone)
        assert fix.is_preferred
        assert editor.with_edits(fix) == RECIPE.replace("overwrite_output_dir: true\n", "").replace(": 7", ": 6")

    in_an_editor(lay("recipe.yaml", RECIPE.replace(": 7", ": 6")), "yaml", body)


def test_what_a_key_means_stands_under_the_pointer(lay: Callable[[str, str], Path]) -> None:
    async def body(editor: Editor) -> None:
        await editor.open()
        told = await editor.hover("num_generations")
        assert told.startswith("**num_generations** = `6` (trl 1.16.0)")
        assert "`rollout.completions_per_prompt`: 6 completions per prompt." in told
        assert "`rollout.prompts_per_rollout`: 8 prompts." in told
        assert await editor.hover("# 🧪") == ""

    in_an_editor(lay("train.py", f"# 🧪\n{PROGRAM.replace('=7', '=6')}"), "python", body)


@pytest.mark.parametrize(
    ("name", "language", "text"),
    [
        ("compose.yaml", "yaml", "services:\n  web:\n    image: nginx\n"),
        ("setup.sh", "shellscript", "apt-get install curl\n"),
        ("util.py", "python", "def add(a, b):\n    return a + b\n"),
        ("broken.yaml", "yaml", "a: [1\n"),
    ],
)
def test_of_other_files_nothing_is_said(lay: Callable[[str, str], Path], name: str, language: str, text: str) -> None:
    async def body(editor: Editor) -> None:
        assert await editor.open() == []
        assert await editor.lenses() == []
        assert await editor.hover(text.split()[0]) == ""

    in_an_editor(lay(name, text), language, body)


def test_a_comment_that_is_not_saved_yet_ignores_a_rule_and_closing_takes_the_marks_away(
    lay: Callable[[str, str], Path],
) -> None:
    async def body(editor: Editor) -> None:
        assert any(one.code == "BB-TRL-003" for one in await editor.open())
        told = await editor.type(f"{RECIPE}# batchbridge: ignore-file BB-TRL-003\n")
        assert not any(one.code == "BB-TRL-003" for one in told)
        editor.client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(editor.uri))
        )
        assert (await asyncio.wait_for(editor.told.get(), LIMIT)).diagnostics == ()

    in_an_editor(lay("recipe.yaml", RECIPE), "yaml", body)


def test_wrong_settings_of_the_project_are_said_at_the_top(lay: Callable[[str, str], Path]) -> None:
    path = lay("recipe.yaml", RECIPE)
    (path.parent / "batchbridge.toml").write_text("world_sizes = 8\n", encoding="utf-8")

    async def body(editor: Editor) -> None:
        (said,) = await editor.open()
        assert (said.range.start.line, "world_sizes" in said.message) == (0, True)

    in_an_editor(path, "yaml", body)
