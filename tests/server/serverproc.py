# SPDX-License-Identifier: MIT
"""Starts the real binary on a free port and talks to it, for the client tests and the soak."""
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
BINARY = os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build", "release", "sluice"))


def listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(path) == 0  # the file is there a moment before it takes connections


class Stream:
    """The events of one streamed request, parsed; the connection is closed at the end of the block."""

    def __init__(self, port, path, body):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.request("POST", path, json.dumps(body).encode())

    def __iter__(self):
        reply = self.connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{reply.status}: {reply.read()}")
        for line in reply:
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                yield json.loads(line[6:])

    def first(self):
        return next(iter(self))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.connection.close()


class Server:
    def __init__(self, *args, port=True, env=None, n_descriptors=None, uds=None):
        self.dir = tempfile.TemporaryDirectory()
        self.port_file = os.path.join(self.dir.name, "port")
        self.uds = uds or os.path.join(self.dir.name, "socket")
        self.log_path = os.path.join(self.dir.name, "log")
        device = [] if "--device" in args else ["--device", "cpu"]  # also where there is a GPU
        listen = ["--port", "0", "--port-file", self.port_file] if port else []
        command = [BINARY, "serve", *device, *listen, *[a.replace("{uds}", self.uds) for a in args]]
        if n_descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {n_descriptors}; exec "$0" "$@"', *command]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | (env or {}))
        self.port = 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"server ended with {self.process.returncode}: {self.log()}")
            if port and os.path.exists(self.port_file):
                with open(self.port_file, encoding="ascii") as f:
                    self.port = int(f.read())
                return
            if not port and "listening on unix:" in self.log():  # the file is there before the model is
                return
            time.sleep(0.02)
        raise RuntimeError("server did not start: " + self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def raw(self, data, timeout=5.0, close_write=False):
        """Sends bytes, returns everything until the server closes or is silent for `timeout`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as s:
            s.sendall(data)
            if close_write:
                s.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while part := s.recv(65536):
                    got += part
            except TimeoutError:
                pass
            except ConnectionResetError:
                pass
            return got

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request on a connection of its own."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            c.request(method, path, data, headers or {})
            r = c.getresponse()
            return r.status, dict(r.getheaders()), r.read()
        finally:
            c.close()

    def json(self, method, path, body=None, headers=None):
        status, _, data = self.request(method, path, body, headers)
        return status, json.loads(data)

    def stream(self, path, body):
        """A streamed reply, opened at once: `with server.stream(...) as s` reads s, and hangs up."""
        return Stream(self.port, path, body | {"stream": True})

    def metric(self, name, **labels):
        """The value of one sample of /metrics; None if there is none."""
        _, _, text = self.request("GET", "/metrics")
        for line in text.decode().splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                if all(f'{k}="{v}"' in line for k, v in labels.items()):
                    return float(line.rsplit(" ", 1)[1])
        return None

    def wait_metric(self, name, value, seconds=10.0, **labels):
        deadline = time.monotonic() + seconds
        while (got := self.metric(name, **labels)) != value:
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} is {got}, not {value}")
            time.sleep(0.05)

    def begin_drain(self):
        """SIGTERM, and back when it was seen: a second signal that came before would be one with it."""
        self.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 20
        while "draining" not in self.log() and self.process.poll() is None:
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)

    def is_idle(self, share):
        """Whether it uses at most this share of a processor in one of some seconds: what ran before may take a while
        to settle on a loaded machine, what spins does not settle."""
        def used():
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        for _ in range(6):
            before = used()
            time.sleep(1)
            if used() - before <= share:
                return True
        return False

    def stop(self, sig=signal.SIGTERM, timeout=40):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(timeout)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.dir.cleanup()
