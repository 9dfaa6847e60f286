// The Python of the page: the package as it is, in WebAssembly. A question comes in as JSON, its answer goes out.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const here = (name) => new URL(name, import.meta.url).href;

async function start() {
  const [python, packages] = await Promise.all([
    loadPyodide({ indexURL: here("./pyodide/") }),
    fetch(here("./packages.zip")).then((found) => {
      if (!found.ok) throw new Error(`packages.zip: ${found.status}`);
      return found.arrayBuffer();
    }),
  ]);
  python.unpackArchive(packages, "zip", { extractDir: "/packages" });
  python.runPython("import sys; sys.path.insert(0, '/packages'); from batchbridge.playground import answer_json");
  python.runPython("from batchbridge.playground.browser_bash import has_shell, install");
  return python;
}

// Commands and scripts are parsed by tree-sitter's own grammar of bash, which is loaded when one is pasted.
async function loadBash(python) {
  const { Parser, Language } = await import("./bash/tree-sitter.js");
  await Parser.init({ locateFile: () => here("./bash/tree-sitter.wasm") });
  const parser = new Parser();
  parser.setLanguage(await Language.load(here("./bash/tree-sitter-bash.wasm")));
  const install = python.globals.get("install");
  install((text) => {
    const tree = parser.parse(text);
    const told = JSON.stringify(nodeOf(tree.walk()));
    tree.delete();
    return told;
  });
}

function nodeOf(cursor) {
  const node = cursor.currentNode;
  const from = node.startPosition, to = node.endPosition;
  const flags = (node.isNamed ? 1 : 0) | (node.isMissing ? 2 : 0) | (node.hasError ? 4 : 0);
  const children = [];
  if (cursor.gotoFirstChild()) {
    do children.push([cursor.currentFieldName ?? "", nodeOf(cursor)]); while (cursor.gotoNextSibling());
    cursor.gotoParent();
  }
  return [node.type, node.startIndex, node.endIndex, from.row, from.column, to.row, to.column, flags, children];
}

const starting = start();
let bash;
self.onmessage = async ({ data: { number, question } }) => {
  try {
    const python = await starting;
    if (python.globals.get("has_shell")(question)) await (bash ??= loadBash(python));
    self.postMessage({ number, answer: python.globals.get("answer_json")(question) });
  } catch (error) {
    self.postMessage({ number, problem: String(error.message ?? error) });
  }
};
