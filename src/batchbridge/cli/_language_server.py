"""The language server of `batchbridge language-server` (pygls): problems with ways out, what a key means, and sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from batchbridge import address
from batchbridge.cli._checked_text import CheckedText, EditorFix, EditorProblem, TextRange
from batchbridge.comparing.edit_text import EDITED
from batchbridge.distributions import installed
from batchbridge.meaning.findings import Where

PAUSE = 0.2
"""Seconds without a key pressed before a text is checked."""
READ = EDITED | {".json", ".toml"}
"""Suffixes of files that are checked; of others those that the editor calls shell scripts."""
_SEVERITIES = {
    "error": types.DiagnosticSeverity.Error,
    "undecided": types.DiagnosticSeverity.Warning,
    "warning": types.DiagnosticSeverity.Warning,
    "note": types.DiagnosticSeverity.Hint,
}


class ConfigurationServer:
    """The server for one editor. Nothing is written: an edit is the editor's to make."""

    def __init__(self) -> None:
        self._editor = LanguageServer("batchbridge", installed("batchbridge") or "0")
        self._checked: dict[str, CheckedText] = {}
        self._answers(types.TEXT_DOCUMENT_DID_OPEN, self._opened)
        self._answers(types.TEXT_DOCUMENT_DID_CHANGE, self._changed)
        self._answers(types.TEXT_DOCUMENT_DID_SAVE, self._saved)
        self._answers(types.TEXT_DOCUMENT_DID_CLOSE, self._closed)
        self._answers(types.TEXT_DOCUMENT_HOVER, self._hover)
        self._answers(types.TEXT_DOCUMENT_CODE_LENS, self._lenses)
        quick = types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix])
        self._answers(types.TEXT_DOCUMENT_CODE_ACTION, self._actions, quick)

    def start(self) -> None:
        """Speaks over standard input and output until the editor ends it."""
        self._editor.start_io()

    def _answers(self, feature: str, method: Callable[..., Any], options: Any = None) -> None:
        """Registers a method; pygls marks what it registers, and a bound method takes no mark."""
        self._editor.feature(feature, options)(partial(method))

    def _opened(self, said: types.DidOpenTextDocumentParams) -> None:
        self._check(said.text_document.uri)

    async def _changed(self, said: types.DidChangeTextDocumentParams) -> None:
        uri, version = said.text_document.uri, said.text_document.version
        await asyncio.sleep(PAUSE)
        document = self._editor.workspace.text_documents.get(uri)
        if document is not None and document.version == version:
            self._check(uri)

    def _saved(self, said: types.DidSaveTextDocumentParams) -> None:
        """A script may start what was saved, and a recipe be read with it: every open text is checked again."""
        for uri in (*self._checked,):
            self._check(uri)

    def _closed(self, said: types.DidCloseTextDocumentParams) -> None:
        uri = said.text_document.uri
        if self._checked.pop(uri, None) is not None:
            self._editor.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def _check(self, uri: str) -> None:
        document = self._editor.workspace.get_text_document(uri)
        path = Path(document.path)
        if not uri.startswith("file:") or not (path.suffix.lower() in READ or document.language_id == "shellscript"):
            return
        texts = {one.path: one.source for one in self._editor.workspace.text_documents.values()}
        checked = self._checked[uri] = CheckedText(document.source, path, texts)
        problems = [self._diagnostic(document, one) for one in checked.problems]
        self._editor.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, problems, document.version))
        self._editor.workspace_code_lens_refresh(None)

    def _diagnostic(self, document: TextDocument, problem: EditorProblem) -> types.Diagnostic:
        code = problem.finding.code
        beside = [
            types.DiagnosticRelatedInformation(types.Location(self._uri(where), _line(where)), words)
            for where, words in problem.beside
        ]
        return types.Diagnostic(
            range=_range(document, problem.place),
            message=problem.message,
            severity=_SEVERITIES[problem.kind],
            code=code or None,
            code_description=types.CodeDescription(address.rule_page(code)) if code and address.are_set() else None,
            source="batchbridge",
            related_information=beside or None,
        )

    def _uri(self, where: Where) -> str:
        return Path(where.file or "").absolute().as_uri()

    def _hover(self, said: types.HoverParams) -> types.Hover | None:
        found = self._at(said.text_document.uri)
        if found is None:
            return None
        document, checked = found
        at = document.position_codec.position_from_client_units(document.lines, said.position)
        told = checked.hover(at.line, at.character)
        if told is None:
            return None
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, told[1]), _range(document, told[0]))

    def _lenses(self, said: types.CodeLensParams) -> list[types.CodeLens]:
        found = self._at(said.text_document.uri)
        if found is None or not found[1].headline:
            return []
        top = types.Range(types.Position(0, 0), types.Position(0, 0))
        return [types.CodeLens(top, types.Command(found[1].headline, ""))]

    def _actions(self, said: types.CodeActionParams) -> list[types.CodeAction]:
        found = self._at(said.text_document.uri)
        return [] if found is None else list(self._of(said, *found))

    def _of(
        self, said: types.CodeActionParams, document: TextDocument, checked: CheckedText
    ) -> Iterator[types.CodeAction]:
        for problem in checked.problems:
            shown = self._diagnostic(document, problem)
            if shown.range.start.line > said.range.end.line or shown.range.end.line < said.range.start.line:
                continue
            for fix in checked.fixes(problem.finding):
                edit = types.WorkspaceEdit(changes={said.text_document.uri: _edits(document, fix)})
                yield types.CodeAction(
                    title=fix.title,
                    kind=types.CodeActionKind.QuickFix,
                    diagnostics=[shown],
                    is_preferred=fix.safe,
                    edit=edit,
                )

    def _at(self, uri: str) -> tuple[TextDocument, CheckedText] | None:
        """A text that is checked as it stands now; None: it is none of ours."""
        if uri not in self._checked:
            return None
        document = self._editor.workspace.get_text_document(uri)
        if self._checked[uri].text != document.source:
            self._check(uri)
        return document, self._checked[uri]


def _range(document: TextDocument, place: TextRange) -> types.Range:
    whole = types.Range(types.Position(place.line, place.start), types.Position(place.line, place.end))
    return document.position_codec.range_to_client_units(document.lines, whole)


def _line(where: Where) -> types.Range:
    number = (where.line or 1) - 1
    return types.Range(types.Position(number, 0), types.Position(number, 0))


def _edits(document: TextDocument, fix: EditorFix) -> list[types.TextEdit]:
    """The edits in the protocol's form; behind the last line, which has no end, a position is of its last column."""
    last = len(document.lines)
    made = []
    for one in fix.edits:
        if one.last >= last and document.lines and not document.lines[-1].endswith("\n"):
            end = types.Position(last - 1, document.position_codec.client_num_units(document.lines[-1]))
            new = one.new.removesuffix("\n")
        else:
            end, new = types.Position(one.last, 0), one.new
        made.append(types.TextEdit(types.Range(types.Position(one.first, 0), end), new))
    return made
