"""Chromium without a screen, driven over its debugging pipe: opens a page, asks it, takes pictures of it.

    python3 tests/browser.py page.html pictures/

makes the pictures that somebody should look at after a change of a page: 1280 and 400 pixels wide, light and dark.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
WIDTHS, SCHEMES = (1280, 400), ("light", "dark")
_SECONDS = 120  # for an answer, on a machine that does much else
_OPTIONS = (
    "--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio",
)  # fmt: skip


def find() -> str | None:
    """The browser's program, if there is one."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


@dataclass
class Seen:
    """What a page did: `complaints` of the console, exceptions and the policy; `requests`, by address."""

    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


class Browser:
    """A browser with one page; close it. What a page does is in `seen` until the next `open`."""

    def __init__(self) -> None:
        program = find()
        assert program is not None
        self.seen = Seen()
        self._folder = tempfile.TemporaryDirectory(prefix="kiln-browser-", ignore_cleanup_errors=True)
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        words = [program, *_OPTIONS, f"--user-data-dir={self._folder.name}"]
        words += ["--no-sandbox"] if os.geteuid() == 0 else []
        # The browser reads descriptor 3 and writes descriptor 4.
        script = f'exec "$@" 3<&{orders} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *words], pass_fds=(orders, answers), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | {"HOME": self._folder.name},
        )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self._rest, self._number, self._session = b"", 0, ""
        self._events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._orders, self._answers):
            os.close(descriptor)
        self._folder.cleanup()

    def open(self, page: Path, width: int, scheme: str = "light", height: int = 900) -> None:
        """Opens a file, at this width in pixels, with the colours that the system asks for."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.seen = Seen()
        self.ask("Page.navigate", url=page.absolute().as_uri())
        self._until("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """What an expression of the page's script is."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key: "Tab", 9."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, whole: bool = False) -> None:
        """A picture of what the window shows, or of the whole page, up to 16,000 pixels."""
        more: dict[str, Any] = {}
        if whole:
            size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            area = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
            more = {"captureBeyondViewport": True, "clip": area}
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png", **more)["data"]))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """An order to the browser, and its answer."""
        self._number += 1
        order: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            order["sessionId"] = self._session
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == self._number:
                assert "error" not in message, (method, message["error"])
                return message["result"]
            self._note(message)

    def _until(self, event: str) -> None:
        while not any(one["method"] == event for one in self._events):
            self._note(self._message())
        self._events.clear()

    def _note(self, message: dict[str, Any]) -> None:
        method, facts = message.get("method", ""), message.get("params", {})
        if method == "Page.loadEventFired":
            self._events.append(message)
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.seen.complaints.append(str([one.get("value") for one in facts["args"]]))
        elif method == "Runtime.exceptionThrown":
            self.seen.complaints.append(str(facts["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.seen.complaints.append(facts["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.seen.requests.append(facts["request"]["url"])

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + _SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"the browser did not answer within {_SECONDS} seconds"
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


def main(page: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(Browser()) as browser:
        for width in WIDTHS:
            for scheme in SCHEMES:
                browser.open(page, width, scheme)
                path = folder / f"{page.stem}-{width}-{scheme}.png"
                browser.picture(path, whole=True)
                print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
