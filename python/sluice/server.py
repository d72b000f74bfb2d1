# SPDX-License-Identifier: MIT
"""`sluice serve` for as long as a `with` block."""
from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import tempfile
import time
import weakref
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ._program import find_program
from .errors import RequestError, ServerError

_LOG_LINES = 20  # of the log's end that an error shows
_POLL_S = 0.02


class Server:
    """A server of its own process, ready when the constructor returns.

    model: as LLM's, or None for the bundled one. port 0: any free one. timeout: seconds until it must be ready.
    args: further arguments; flags: those of `sluice serve --help` with underscores, for example max_model_len=4096;
    True is a flag without a value, a list gives it several times. env: variables besides this process's.
    `url` is where it listens, `base_url` what OpenAI's clients want.

    >>> import json, urllib.request
    >>> from sluice import Server
    >>> with Server(device="cpu", served_model_name="story") as server:
    ...     models = json.load(urllib.request.urlopen(server.base_url + "/models"))
    >>> models["data"][0]["id"]
    'story'
    """

    def __init__(self, model: Optional[str] = None, *, host: str = "127.0.0.1", port: int = 0,
                 timeout: float = 600.0, stop_timeout: float = 40.0, args: Sequence[str] = (),
                 env: Optional[Mapping[str, str]] = None, **flags: Any) -> None:
        self.host, self.port, self.stop_timeout = host, port, stop_timeout
        self._folder = tempfile.TemporaryDirectory(prefix="sluice-server-")
        self._log_path = os.path.join(self._folder.name, "log")
        port_file = os.path.join(self._folder.name, "port")
        self._tls = "ssl_certfile" in flags
        command = [find_program(), "serve", *([model] if model is not None else []), "--host", host,
                   "--port", str(port), "--port-file", port_file, *_flags(flags), *args]
        with open(self._log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env={**os.environ, **(env or {})})
        # If nobody ends it: when this object or the interpreter goes.
        self._finalizer = weakref.finalize(self, _end, self.process, stop_timeout, os.getpid())
        try:
            self._wait_until_ready(port_file, time.monotonic() + timeout, timeout)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def base_url(self) -> str:
        """url + "/v1": `openai.OpenAI(base_url=server.base_url, api_key="-")`."""
        return self.url + "/v1"

    def log(self) -> str:
        """What it has written so far; after its end, what it had."""
        if os.path.exists(self._log_path):
            with open(self._log_path, encoding="utf-8", errors="replace") as f:
                self._log = f.read()
        return self._log

    def stop(self) -> int:
        """Lets what runs end (its --shutdown-timeout), then ends it. Returns its exit status."""
        if self._finalizer.alive:
            self._finalizer()
            self.log()
            self._folder.cleanup()
        return self.process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *unused: object) -> None:
        self.stop()

    def _wait_until_ready(self, port_file: str, deadline: float, timeout: float) -> None:
        while time.monotonic() < deadline:
            code = self.process.poll()
            if code is not None:
                raise ServerError(f"sluice serve ended with status {code} before it was ready", self._tail(), code)
            if self._has_port(port_file) and self._is_healthy():
                return
            time.sleep(_POLL_S)
        raise ServerError(f"sluice serve was not ready after {timeout:g} s", self._tail())

    def _tail(self) -> str:
        return "\n".join(self.log().splitlines()[-_LOG_LINES:])

    def _has_port(self, port_file: str) -> bool:
        try:
            with open(port_file, encoding="ascii") as f:
                self.port = int(f.read())
        except (FileNotFoundError, ValueError):
            return False
        return True

    def _is_healthy(self) -> bool:
        """It may listen before its model is loaded; /health needs no key."""
        host = self.url.rsplit(":", 1)[0].split("//")[1].strip("[]")
        connection = (http.client.HTTPSConnection(host, self.port, timeout=5,
                                                  context=ssl._create_unverified_context())
                      if self._tls else http.client.HTTPConnection(host, self.port, timeout=5))
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def _flags(flags: Dict[str, Any]) -> List[str]:
    out: List[str] = []
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            out.append(flag)
        elif isinstance(value, (list, tuple)):
            for item in value:
                out += [flag, str(item)]
        elif isinstance(value, (str, int, float)) and value is not False:
            out += [flag, str(value)]
        elif value is not None and value is not False:
            raise RequestError(f"{name} must be a string, a number, a list of them or True", name)
    return out


def _end(process: "subprocess.Popen[bytes]", timeout: float, pid: int) -> None:
    if os.getpid() != pid or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
