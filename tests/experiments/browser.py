"""A headless Chromium, driven over a pipe by the protocol of its developer tools: no package is needed."""

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions", "--hide-scrollbars")
LONGEST_SECONDS = 60
KEYS = {"Tab": 9, " ": 32, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "Home": 36, "End": 35}


def installed():
    """The path of a Chromium; `None` if this machine has none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """A page in a browser, and everything that it complained of."""

    def __init__(self, write, read):
        self._write, self._read, self._rest, self._number = write, read, b"", 0
        self.complaints = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.requests = []

    def call(self, method, **parameters):
        """The answer to a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self._note(found)

    def open(self, path, width, height=900, scheme="light", media=""):
        """Opens a file at a width, and waits until it is there."""
        self.requests.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + LONGEST_SECONDS
        while self.value("document.readyState + location.protocol") != "completefile:":
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def value(self, expression):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key, times=1):
        """Presses a key."""
        text = {" ": " ", "Enter": "\r"}.get(key)
        code = {"key": key, "windowsVirtualKeyCode": KEYS[key], **({"text": text} if text else {})}
        for _ in range(times):
            self.call("Input.dispatchKeyEvent", type="keyDown", **code)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=KEYS[key])

    def picture(self, path):
        """Writes the whole page as a picture."""
        height = self.value("document.documentElement.scrollHeight")
        clip = {"x": 0, "y": 0, "width": self.value("innerWidth"), "height": height, "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self):
        while b"\0" not in self._rest:
            read = os.read(self._read, 1 << 20)
            assert read, "the browser ended"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        method, about = event.get("method"), event.get("params", {})
        if method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(about)
        if method == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])


@contextlib.contextmanager
def opened():
    """Yields a tab of a new browser, which ends with the block."""
    to_browser, write = os.pipe()
    read, from_browser = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        line = [installed(), *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        # The browser reads commands from descriptor 3, and writes answers to 4.
        shell = ["bash", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', *line]
        process = subprocess.Popen(
            shell,
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            yield Tab(write, read)
        finally:
            os.close(write)
            os.close(read)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
