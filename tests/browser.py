"""Headless Chromium, driven by the DevTools protocol over a pipe: loads a page, presses keys, notes what goes wrong."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, " ": 32}


class Browser:
    """One tab. `problems` fills with console errors, exceptions and requests to anywhere."""

    def __init__(self, send: int, receive: int) -> None:
        self.send, self.receive, self.buffer, self.count = send, receive, b"", 0
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.loaded = False
        self.session = None
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            part = os.read(self.receive, 1 << 20)
            assert part, "chromium ended"
            self.buffer += part
        text, _, self.buffer = self.buffer.partition(b"\0")
        event = json.loads(text)
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown" | "Log.entryAdded":
                self.problems.append(json.dumps(told))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning"):
                self.problems.append(json.dumps(told))
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            case "Page.loadEventFired":
                self.loaded = True
        return event

    def open(self, page: Path | str, *, width: int = 1200, height: int = 900, **media: str) -> None:
        """Load a file or an address at that width, with media features such as prefers_color_scheme="dark"."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        kind = media.pop("media", "")
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self("Emulation.setEmulatedMedia", media=kind, features=features)
        self.loaded = False
        self("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self.loaded:
            self._next()

    def eval(self, code: str) -> Any:
        """The value of an expression in the page."""
        answer = self("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, code: str, seconds: float = 20) -> Any:
        """The value of an expression, once it is true."""
        end = time.monotonic() + seconds
        while not (found := self.eval(code)):
            assert time.monotonic() < end, f"never true: {code}"
            time.sleep(0.05)
        return found

    def upload(self, selector: str, *paths: Path) -> None:
        """Choose files in a file input."""
        root = self("DOM.getDocument")["root"]["nodeId"]
        node = self("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        assert node, f"nothing is {selector}"
        self("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def press(self, key: str) -> None:
        """A real key."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **text)
            text = {}

    def shot(self, path: Path, *, top: int = 0, height: int | None = None) -> None:
        """A picture of the whole page, or a part of it."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "height": height or size["height"] - top, "scale": 1}
        found = self("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is in `folder`."""
    assert CHROMIUM is not None
    from_us, to_us = os.pipe(), os.pipe()
    # chromium reads commands from 3 and writes answers to 4; the shell puts our ends there
    shell = f'exec "$0" "$@" 3<&{from_us[0]} 4>&{to_us[1]}'
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        ["bash", "-c", shell, CHROMIUM, *flags, f"--user-data-dir={folder}"],
        pass_fds=(from_us[0], to_us[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(from_us[0])
    os.close(to_us[1])
    try:
        made = Browser(from_us[1], to_us[0])
        yield made
        made.session = None
        with contextlib.suppress(OSError, AssertionError):
            made("Browser.close")
        for _ in range(50):
            if process.poll() is not None:
                break
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
        os.close(from_us[1])
        os.close(to_us[0])
