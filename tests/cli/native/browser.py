"""A headless Chromium, spoken to over a pipe in its DevTools protocol; no driver, and no port is opened."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FOUND = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""The browser of this machine."""
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--disable-extensions")
"""No sandbox: tests may run as root, where Chromium has none."""
PATIENCE_S = 60.0


class Browser:
    """One page of a running browser. events: what it reported since the last `open`."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, file: Path, *, width: int, dark: bool) -> None:
        """Loads a file in a window of `width` pixels, and waits until it is there."""
        self.visit(file.as_uri(), width=width, dark=dark)

    def visit(self, address: str, *, width: int, dark: bool = False) -> None:
        """Loads an address as `open` loads a file."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.ask("Page.navigate", url=address)
        self._wait("Page.loadEventFired")

    def value(self, expression: str) -> Any:
        """What JavaScript of ours says of the page; a promise is waited for."""
        said = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise AssertionError(f"{expression[:80]}: {said['exceptionDetails']}")
        return said["result"].get("value")

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        said = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(said["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, and uncaught exceptions, since the page was opened."""
        found = []
        for event in self.events:
            if event["method"] == "Log.entryAdded":
                found.append(event["params"]["entry"]["text"])
            elif event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
                found.append(json.dumps(event["params"]))
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        asked = [one for one in self.events if one["method"] == "Network.requestWillBeSent"]
        return [one["params"]["request"]["url"] for one in asked]

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """A command's answer; what is reported meanwhile is kept."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            said = self._message()
            if said.get("id") == number:
                if "error" in said:
                    raise AssertionError(f"{method}: {said['error']}")
                return dict(said["result"])
            self.events.append(said)

    def _wait(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._message())

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            if not select.select([self._reading], [], [], max(until - time.monotonic(), 0))[0]:
                raise AssertionError(f"the browser says nothing for {PATIENCE_S:g} s")
            chunk = os.read(self._reading, 1 << 20)
            if not chunk:
                raise AssertionError("the browser is gone")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(line))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile in `folder`, ended afterwards."""
    assert FOUND is not None
    to_it, ours = os.pipe()
    theirs, from_it = os.pipe()[::-1]
    # The protocol's descriptors are 3 and 4; a shell puts ours there.
    words = [FOUND, *FLAGS, f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
    command = ["bash", "-c", f'exec "$@" 3<&{to_it} 4>&{theirs}', "bash", *words]
    environment = {**os.environ, "HOME": str(folder)}
    with subprocess.Popen(
        command, pass_fds=(to_it, theirs), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(to_it)
        os.close(theirs)
        try:
            yield Browser(from_it, ours)
        finally:
            process.terminate()
            os.close(ours)
            os.close(from_it)
