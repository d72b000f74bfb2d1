# SPDX-License-Identifier: MIT
"""Drives Chromium over its DevTools protocol, on two pipes: JSON texts, each ended by a NUL. One page."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
KEYS = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    def __init__(self, width=1200, height=800, dark=False, phone=False):
        self.dir = tempfile.TemporaryDirectory()
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        self.log = open(os.path.join(self.dir.name, "log"), "wb")
        # The browser reads descriptor 3 and writes 4.
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&%d 4>&%d' % (to_read, back_write), "-", CHROMIUM, "--headless=new",
             "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
             "--hide-scrollbars", "--remote-debugging-pipe", "--user-data-dir=" + self.dir.name, "about:blank"],
            pass_fds=(to_read, back_write), stdout=self.log, stderr=self.log)
        os.close(to_read)
        os.close(back_write)
        self.buffer, self.n, self.replies, self.session = b"", 0, {}, None
        self.errors, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.colors(dark)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.back)
        self.log.close()
        try:
            self.dir.cleanup()
        except OSError:  # a helper process of the browser was still writing
            shutil.rmtree(self.dir.name, ignore_errors=True)

    def colors(self, dark):
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def pump(self, seconds):
        """Takes what the browser says for at most so long; true if there was something."""
        if not select.select([self.back], [], [], seconds)[0]:
            return False
        data = os.read(self.back, 1 << 20)
        if not data:
            raise RuntimeError("the browser ended: " + open(self.log.name, errors="replace").read()[-2000:])
        *texts, self.buffer = (self.buffer + data).split(b"\0")
        for text in texts:
            self.take(json.loads(text))
        return True

    def take(self, message):
        method, p = message.get("method"), message.get("params", {})
        if "id" in message:
            self.replies[message["id"]] = message
        elif method == "Runtime.exceptionThrown":
            self.errors.append(p["exceptionDetails"].get("exception", {}).get("description", str(p)))
        elif method == "Runtime.consoleAPICalled" and p["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(a.get("value", a)) for a in p["args"]))
        elif method == "Log.entryAdded" and p["entry"]["level"] in ("error", "warning"):
            self.errors.append(p["entry"]["text"] + " " + p["entry"].get("url", ""))
        elif method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])

    def call(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        deadline = time.monotonic() + 60
        while self.n not in self.replies:
            if not self.pump(1) and time.monotonic() > deadline:
                raise TimeoutError(method)
        reply = self.replies.pop(self.n)
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]

    def eval(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True,
                      userGesture=True)
        if "exceptionDetails" in r:
            raise RuntimeError(expression + ": " + r["exceptionDetails"]["exception"].get("description", ""))
        return r["result"].get("value")

    def wait(self, expression, seconds=20.0):
        deadline = time.monotonic() + seconds
        while not (value := self.eval(expression)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{expression} stays {value!r}; errors: {self.errors}")
            self.pump(0.05)
        return value

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, modifiers=0):
        text = {"Enter": "\r"}.get(name, "")
        common = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))
