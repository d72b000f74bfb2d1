# SPDX-License-Identifier: MIT
"""Routers as they are on PyPI, between clients and two servers of which one computes prompts for the other: every answer
is, byte for byte, that of one server, and the prompts' pages are read, not computed again. Without the routers' packages
(requirements-routers.txt) the tests are skipped.

  SLUICE_ROUTER_REQUESTS=1000 pytest tests/server/test_routers.py    more requests of each"""
import http.client
import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from pairs import ANY_PORT, ARGS, DECODE, MODEL, PREFILL, Server, pages_port, pages_read, said, text_of

N = int(os.environ.get("SLUICE_ROUTER_REQUESTS", "60"))


def free_port():
    """One that the kernel gives to no connection meanwhile: servers come back at theirs."""
    for port in random.SystemRandom().sample(range(20000, 32000), 100):
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) == 0:
                continue
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise RuntimeError("no free port")


class Router:
    def __init__(self, module, *args):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"the package {module} is not installed")
        self.port = free_port()
        self.log_path = os.path.join(tempfile.mkdtemp(), "log")
        command = [sys.executable, "-m", f"{module}.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
                   "--prometheus-port", str(free_port()), *args]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self):
        """Until it passes requests on."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log()
            try:
                if self.json("POST", "/v1/completions", {"model": "storyteller", "prompt": "a", "max_tokens": 1})[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.3)
        raise RuntimeError("the router does not serve: " + self.log())

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()[-3000:]

    def json(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            c.request(method, path, json.dumps(body).encode() if body is not None else None,
                      {"content-type": "application/json"})
            r = c.getresponse()
            data = r.read()
            return r.status, json.loads(data) if data else None
        finally:
            c.close()

    def stream(self, body):
        """The text of a streamed completion."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}).encode(),
                  {"content-type": "application/json"})
        r = c.getresponse()
        text = ""
        for line in r:
            if line.startswith(b"data: {"):
                text += "".join(x["text"] for x in json.loads(line[6:])["choices"])
        c.close()
        return r.status, text

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


@pytest.fixture(scope="module")
def servers():
    with Server(MODEL, *PREFILL, *ANY_PORT, "--served-model-name", "storyteller") as p, \
            Server(MODEL, *DECODE, "--served-model-name", "storyteller") as d, \
            Server(MODEL, *ARGS, "--served-model-name", "storyteller") as one:
        yield p, d, one
        for s in (p, d, one):
            assert s.process.poll() is None


def bodies(name):
    for k in range(N):
        yield {"model": "storyteller", "prompt": text_of(f"{name} {k}", 60 + k % 200), "max_tokens": 8 + k % 5,
               "temperature": 0 if k % 3 == 0 else 0.9, "seed": k}


def compare(router, servers, name):
    _, d, one = servers
    before, blocks = pages_read(d), []

    def ask(item):
        k, body = item
        want = one.json("POST", "/v1/completions", body)[1]
        blocks.append((want["usage"]["prompt_tokens"] - 1) // 16)
        if k % 4 == 3:
            status, text = router.stream(body)
            return status == 200 and text == want["choices"][0]["text"]
        status, got = router.json("POST", "/v1/completions", body)
        return status == 200 and said(got) == said(want)

    with ThreadPoolExecutor(6) as pool:
        right = list(pool.map(ask, enumerate(bodies(name))))
    assert all(right), (right.count(False), router.log())
    assert pages_read(d) - before == sum(blocks) > N  # every complete block, once


def url(server):
    return f"http://127.0.0.1:{server.port}"


# Routers look at servers every second, and ask one again a second after it failed.
SOON = ["--health-check-interval-secs", "1", "--health-success-threshold", "1", "--cb-timeout-duration-secs", "1",
        "--cb-success-threshold", "1", "--request-timeout-secs", "30"]


def vllm_router(p, d, *more):
    return Router("vllm_router", "--vllm-pd-disaggregation", "--prefill", url(p), "--decode", url(d), "--kv-connector",
                  "nixl", "--policy", "round_robin", *more).wait()


def sglang_router(p, d, *more):
    return Router("sglang_router", "--pd-disaggregation", "--prefill", url(p), str(pages_port(p)), "--decode", url(d),
                  "--policy", "round_robin", *more).wait()


def smg(p, d, *more):
    router = Router("smg", "--pd-disaggregation", "--policy", "round_robin", *(more or ["--disable-health-check"]))
    deadline = time.monotonic() + 60
    for server, kind in ((p, "prefill"), (d, "decode")):
        worker = {"url": url(server), "worker_type": kind, "kv_connector": "NixlConnector"}
        while True:
            try:
                status, _ = router.json("POST", "/workers", worker)
                if status in (200, 201, 202):
                    break
            except OSError:
                status = 0
            assert time.monotonic() < deadline and router.process.poll() is None, (status, router.log())
            time.sleep(0.3)
    return router.wait()


ROUTERS = [vllm_router, sglang_router, smg]


@pytest.mark.parametrize("start", ROUTERS)
def test_answers(servers, start):
    p, d, _ = servers
    with start(p, d) as router:
        compare(router, servers, start.__name__)


class Slot:
    """A server that is killed now and then, and comes back where it was."""

    def __init__(self, *flags):
        self.flags = [MODEL, *flags, "--served-model-name", "storyteller"]
        self.server = Server(*self.flags, "--port", str(free_port()))

    def kill(self):
        port = self.server.port
        self.server.process.kill()
        self.server.__exit__(None, None, None)
        self.server = Server(*self.flags, "--port", str(port))


@pytest.mark.parametrize("start", ROUTERS)
def test_kills(servers, start):
    one, r = servers[2], random.Random(3)
    slots = [Slot(*PREFILL, "--disaggregation-bootstrap-port", str(free_port())), Slot(*DECODE)]
    right, wrong, refused = [], [], []

    def ask(item):
        k, body = item
        try:
            status, got = router.json("POST", "/v1/completions", body)
        except (OSError, http.client.HTTPException, ValueError):
            status, got = 0, None
        if status != 200:
            refused.append(status)
        elif said(got) == said(one.json("POST", "/v1/completions", body)[1]):
            right.append(k)
        else:
            wrong.append((k, got))

    try:
        with start(slots[0].server, slots[1].server, *SOON) as router, ThreadPoolExecutor(6) as pool:
            items = list(enumerate(bodies(f"kills {start.__name__}")))
            for at in range(0, N, 40):
                asked = [pool.submit(ask, item) for item in items[at:at + 40]]
                time.sleep(r.random() * 0.5)
                r.choice(slots).kill()
                for a in asked:
                    a.result(timeout=60)  # it ended
                n, deadline = len(right), time.monotonic() + 60  # service comes back
                while len(right) == n:
                    assert time.monotonic() < deadline, router.log()
                    ask(items[at])
                    time.sleep(0.1)
        assert not wrong and all(status == 0 or status >= 500 for status in refused), (wrong, refused)
        print(f"{start.__name__}: {len(right)} answers, all right; {len(refused)} requests got none")
        for slot in slots:
            assert slot.server.metric("sluice:invariant_violations_total") == 0
    finally:
        for slot in slots:
            slot.server.__exit__(None, None, None)
