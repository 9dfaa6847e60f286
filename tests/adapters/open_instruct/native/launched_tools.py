"""What `test_tools_open_instruct` runs: grpo_fast.py itself with `--tools python`, launched by `batchbridge run`. Its
own loop asks for turns, calls the tool and masks what it says; see `batchbridge_on_cpu.open_instruct.engines`.

    BATCHBRIDGE_OPEN_INSTRUCT=CHECKOUT python launched_tools.py FOLDER [NAME...]

Leaves the same as launched.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import launched
from launched import Run

SAID = "w3 w5 w8"
"""What the tool prints, whatever the code."""
SIZES = {"response_length": "48", "pack_length": "64"}
"""A tool's tokens count against the length of the response."""
RUNS: Mapping[str, Run] = {
    "tools, 1": Run(1, settings={"vllm_num_engines": 2}),
    "tools, 2": Run(2),
    "tools trained, 1": Run(1, settings={"mask_tool_use": False}),
}


class Tool(BaseHTTPRequestHandler):
    """The server that Open-Instruct's tool `python` sends code to."""

    def do_POST(self) -> None:
        """Answers as the server that runs code does."""
        self.rfile.read(int(self.headers["Content-Length"]))
        said = json.dumps({"output": SAID, "error": None}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


def main(folder: Path, names: list[str]) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = json.dumps({"api_endpoint": f"http://127.0.0.1:{server.server_port}/execute"}, separators=(",", ":"))
    words = ["--tools", "python", "--tool_configs", config, "--pool_size", "4"]
    words += [word for name, value in SIZES.items() for word in (f"--{name}", value)]
    launched.RUNS = RUNS
    plain = launched.words_of
    launched.words_of = lambda *run: [*plain(*run), *words]  # the last of two words counts
    os.environ["BATCHBRIDGE_TOOLS"] = "python"
    launched.main(folder, names)
    server.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
