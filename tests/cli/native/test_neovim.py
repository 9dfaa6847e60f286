"""The language server in a real editor: Neovim's own client, headless. Without `nvim` nothing is shown."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """\
local told = {}
local function wait(what)
  assert(vim.wait(60000, what, 50), "the server did not answer")
end
vim.cmd("edit recipe.yaml")
local client = vim.lsp.start_client({
  name = "batchbridge",
  cmd = vim.fn.json_decode(vim.env.SERVER),
  root_dir = vim.fn.getcwd(),
})
vim.lsp.buf_attach_client(0, client)
wait(function() return #vim.diagnostic.get(0) > 0 end)
for _, one in ipairs(vim.diagnostic.get(0)) do
  table.insert(told, { line = one.lnum, column = one.col, code = one.code or one.user_data.lsp.code })
end
local function ask(method, more)
  local place = vim.tbl_extend("force", { textDocument = vim.lsp.util.make_text_document_params() }, more)
  local answer
  vim.lsp.buf_request(0, method, place, function(failed, result) answer = { failed = failed, result = result } end)
  wait(function() return answer ~= nil end)
  return answer.result
end
local hover = ask("textDocument/hover", { position = { line = 0, character = 3 } })
local line = { start = { line = 1, character = 0 }, ["end"] = { line = 1, character = 5 } }
local actions = ask("textDocument/codeAction", { range = line, context = { diagnostics = {} } })
vim.lsp.util.apply_workspace_edit(actions[1].edit, "utf-16")
wait(function() return #vim.diagnostic.get(0, { severity = vim.diagnostic.severity.ERROR }) == 0 end)
local said = { problems = told, hover = hover.contents.value, title = actions[1].title }
said.text = table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, false), "\\n")
vim.fn.writefile({ vim.fn.json_encode(said) }, "said.json")
vim.cmd("qall!")
"""


def test_neovim_shows_the_problem_and_its_way_out_mends_it(tmp_path: Path) -> None:
    if shutil.which("nvim") is None:
        pytest.skip("no nvim on this machine (Debian's package neovim): the server is shown by pygls' client alone")
    (tmp_path / "batchbridge.toml").write_text('framework_version = "1.16.0"\nworld_size = 8\n', encoding="utf-8")
    (tmp_path / "recipe.yaml").write_text("num_generations: 7\nper_device_train_batch_size: 6\n", encoding="utf-8")
    (tmp_path / "drive.lua").write_text(PROGRAM, encoding="utf-8")
    server = json.dumps([sys.executable, "-m", "batchbridge", "language-server"])
    done = subprocess.run(
        ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-n", "-c", "luafile drive.lua", "-c", "qall!"],
        cwd=tmp_path,
        env={**os.environ, "SERVER": server, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    said_file = tmp_path / "said.json"
    assert said_file.exists(), done.stderr[-2000:]
    said = json.loads(said_file.read_text(encoding="utf-8"))
    (torn,) = [one for one in said["problems"] if one["code"] == "BB-TRL-021"]
    assert (torn["line"], torn["column"]) == (1, len("per_device_train_batch_size: "))
    assert said["hover"].startswith("**num_generations** = `7` (trl 1.16.0)")
    assert said["title"].startswith("per_device_train_batch_size = 7 (on 8 devices")
    assert said["text"] == "num_generations: 7\nper_device_train_batch_size: 7"


def test_the_extension_starts_the_command_that_there_is() -> None:
    """Its manifest and its source, and no run of Visual Studio Code, which no package registry has."""
    folder = ROOT / "editors" / "vscode"
    manifest = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    command = manifest["contributes"]["configuration"]["properties"]["batchbridge.command"]["default"]
    words = [sys.executable, "-m", *command, "--help"]
    assert "Language Server Protocol" in subprocess.run(words, capture_output=True, text=True, check=True).stdout
    source = (folder / manifest["main"]).read_text(encoding="utf-8")
    languages = {event.partition(":")[2] for event in manifest["activationEvents"]}
    assert languages == {word for word in ("yaml", "shellscript", "python") if f'"{word}"' in source}
    assert all(f'"{one["command"]}"' in source for one in manifest["contributes"]["commands"])
    if (node := shutil.which("node")) is not None:
        subprocess.run([node, "--check", str(folder / manifest["main"])], check=True)
