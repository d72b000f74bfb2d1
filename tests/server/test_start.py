# SPDX-License-Identifier: MIT
"""Starting a server: the port is taken before a model is loaded, and says so meanwhile."""
import os
import signal
import socket
import subprocess
import threading
import time

import pytest
from serverproc import BINARY, Server, listens

READY = b"HTTP/1.1 200"


def ask(path: str, request: bytes, wait: float = 10) -> bytes:
    with socket.socket(socket.AF_UNIX) as s:
        s.settimeout(wait)
        s.connect(path)
        s.sendall(request)
        reply = b""
        while part := s.recv(65536):
            reply += part
    return reply


def get(path: str, target: str, method: str = "GET") -> bytes:
    return ask(path, f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())


@pytest.fixture
def loading(tmp_path):
    """A server whose loading waits for somebody to write its chat template."""
    template, uds = str(tmp_path / "template"), str(tmp_path / "socket")
    os.mkfifo(template)
    with subprocess.Popen([BINARY, "serve", "--uds", uds, "--chat-template", template, "--threads", "1"],
                          stderr=subprocess.PIPE) as p:
        end = time.monotonic() + 10
        while not listens(uds):
            assert time.monotonic() < end and p.poll() is None
            time.sleep(0.01)
        yield p, template, uds
        p.kill()


def test_while_a_model_is_loaded_probes_get_an_answer(loading):
    p, template, uds = loading
    for method, target in (("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/livezz")):
        head, body = get(uds, target, method).split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: 1" in head, target
        assert b'"message":"Loading model"' in body and f"Content-Length: {len(body)}\r\n".encode() in head
    assert get(uds, "/livez").startswith(READY) and get(uds, "/livez?x=1").startswith(READY)
    assert get(uds, "/health", "HEAD").endswith(b"\r\n\r\n")
    large = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 400000\r\n\r\n" + b"x" * 400000
    assert ask(uds, large).startswith(b"HTTP/1.1 503 ")
    assert ask(uds, b"A" * 5000).startswith(b"HTTP/1.1 503 ")  # no end of its headers
    silent = [socket.socket(socket.AF_UNIX) for _ in range(64)]
    for s in silent:
        s.connect(uds)
    replies = []  # beyond the limit a client waits for its turn: here for the server
    late = threading.Thread(target=lambda: replies.append(get(uds, "/health")))
    late.start()
    with open(template, "w", encoding="ascii") as f:
        f.write("{{ messages }}")
    end = time.monotonic() + 20
    while not get(uds, "/health").startswith(READY):
        assert time.monotonic() < end
        time.sleep(0.02)
    late.join()
    assert replies[0].startswith((READY, b"HTTP/1.1 503 "))
    for s in silent:
        s.close()
    p.send_signal(signal.SIGTERM)
    assert p.wait(20) == 0 and not os.path.exists(uds)


def test_a_server_that_is_loading_can_be_stopped(loading):
    p, _, _ = loading
    p.send_signal(signal.SIGTERM)
    assert p.wait(5) == -signal.SIGTERM


def test_a_port_that_is_taken_is_found_out_before_the_model(tmp_path):
    template = str(tmp_path / "template")
    os.mkfifo(template)  # nobody writes it: loading would never end
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        for model in ([], ["/nonexistent/model"]):
            r = subprocess.run([BINARY, "serve", *model, "--port", str(port), "--chat-template", template],
                               capture_output=True, text=True, timeout=10, check=False)
            assert r.returncode == 1 and r.stderr == (f"sluice serve: cannot listen on 127.0.0.1 port {port}: Address already "
                                                      "in use by another process; --port chooses another\n")


@pytest.mark.parametrize("flags, message", [
    (["--tool-call-parser", "zz"], 'unknown tool call parser "zz"'),
    (["--reasoning-parser", "zz"], 'unknown reasoning parser "zz"'),
    (["--request-log", "/nonexistent/log"], "--request-log: /nonexistent/log: No such file"),
    (["--file-storage-path", "/dev/null/x"], "--file-storage-path: /dev/null"),
    (["--port-file", "/nonexistent/port"], "--port-file: /nonexistent/port.tmp: No such file"),
    (["--ssl-certfile", "/nonexistent/cert"], "--ssl-certfile /nonexistent/cert: No such file"),
    (["--ssl-certfile", "/dev/null"], "--ssl-certfile /dev/null: no start line"),
    (["--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "x://y"}'], "x://y is neither tcp:// nor ipc://"),
    (["--lora-modules", "x"], "--lora-modules: 'x' is not NAME=DIR"),
    (["--lora-modules", "x=/nonexistent/x"], "--lora-modules: /nonexistent/x: No such file"),
    (["a=/nonexistent/a", "b=/nonexistent/b", "--served-model-name", "x"], "--served-model-name is for one model"),
])
def test_flags_are_refused_before_the_model_is_loaded(tmp_path, flags, message):
    template = str(tmp_path / "template")
    os.mkfifo(template)  # nobody writes it: loading would never end
    r = subprocess.run([BINARY, "serve", *flags, "--port", "0", "--chat-template", template], capture_output=True, text=True,
                       timeout=10, check=False)
    assert r.returncode in (1, 2) and message in r.stderr and r.stderr.count("\n") == 1, (r.returncode, r.stderr)


def test_a_model_that_cannot_be_loaded_leaves_no_socket(tmp_path):
    uds = str(tmp_path / "socket")
    r = subprocess.run([BINARY, "serve", "/nonexistent/model", "--uds", uds], capture_output=True, timeout=10, check=False)
    assert r.returncode == 2 and b"/nonexistent/model" in r.stderr and not os.path.exists(uds)


def test_starting_takes_no_longer_than_the_model():
    with Server("--threads", "1") as s:
        assert s.request("GET", "/health")[0] == 200


def test_signals_until_the_process_ends():
    """No signal ends the process in its own way, not even one that comes after the server has stopped."""
    for sig in (signal.SIGTERM, signal.SIGINT):
        with Server("--null-model") as s:
            while s.process.poll() is None:
                s.process.send_signal(sig)
                time.sleep(0.0005)
            assert s.process.returncode == 0, s.log()
