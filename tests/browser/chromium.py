"""A real headless Chromium, driven over its debugging pipe: JSON, NUL after each message."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium")
_ANSWER = 60.0  # seconds for a command; a loaded machine starts a renderer in many


class Page:
    """One tab. Everything that it asked the network for, and complained of, is kept."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        self.asked: list[str] = []  # URLs
        self.complaints: list[str] = []  # exceptions and errors, refusals of the CSP included
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # Chromium reads from 3 and writes to 4.
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{to_browser} 4>&{from_browser}',
                "bash",
                PROGRAM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--no-first-run",
                "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._rest, self._number, self._session = b"", 0, ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + _ANSWER
        while True:
            told = self._receive(deadline)
            if told.get("id") == self._number:
                assert "error" not in told, (method, told)
                result: dict[str, Any] = told["result"]
                return result
            self._note(told)

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            assert ready, "Chromium does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "Chromium has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        told: dict[str, Any] = json.loads(message)
        return told

    def _note(self, told: dict[str, Any]) -> None:
        params = told.get("params", {})
        match told.get("method"):
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.complaints.append(json.dumps(params["entry"]))

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; promises are awaited."""
        told = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, expression: str, within: float = 60) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + within
        while not self.evaluate(f"Boolean({expression})"):
            seen = "document.documentElement.innerText.slice(0, 4000)"
            assert time.monotonic() < deadline, f"never: {expression}\n{self.evaluate(seen)}"
            select.select([], [], [], 0.1)

    def look_like(self, *, width: int, height: int, dark: bool = False) -> None:
        """Take the size of a window, and the scheme of colours that its user likes."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def screenshot(self, path: Path) -> None:
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        # Its own session: renderers and the zygote are in the same group.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
