// Starts `batchbridge language-server` for the languages that it reads, and starts it again when its command changes.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const LANGUAGES = ["yaml", "shellscript", "python"];

let client;

async function start() {
  const [command, ...args] = vscode.workspace.getConfiguration("batchbridge").get("command");
  const documentSelector = LANGUAGES.map((language) => ({ scheme: "file", language }));
  client = new LanguageClient("batchbridge", "BatchBridge", { command, args }, { documentSelector });
  try {
    await client.start();
  } catch (error) {
    vscode.window.showErrorMessage(
      `BatchBridge: ${command} did not start (${error.message}). Install it with pip install "batchbridge[editor]", ` +
        "or set batchbridge.command.",
    );
  }
}

async function restart() {
  await deactivate();
  await start();
}

async function activate(context) {
  context.subscriptions.push(
    vscode.commands.registerCommand("batchbridge.restart", restart),
    vscode.workspace.onDidChangeConfiguration(async (event) => {
      if (event.affectsConfiguration("batchbridge")) {
        await restart();
      }
    }),
  );
  await start();
}

async function deactivate() {
  const running = client;
  client = undefined;
  if (running !== undefined && running.isRunning()) {
    await running.stop();
  }
}

module.exports = { activate, deactivate };
