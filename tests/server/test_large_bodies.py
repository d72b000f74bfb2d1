# SPDX-License-Identifier: MIT
"""Requests with large bodies are prepared by threads of their own: the answers are those of small ones, and
whatever happens to the client or the server meanwhile, nothing is left."""
import json
import signal
import socket
import struct
import threading
import time

import pytest

from serverproc import Server
from wire import events

PAD = "x" * 60000  # in a field that says nothing: makes a small request large


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--http-threads", "2") as s:
        yield s
        s.wait_metric("vllm:num_requests_running", 0.0)
        s.wait_metric("sluice:held_bytes", 0.0)
        assert s.stop() == 0, s.log()


def same(server, path, body, drop=("id", "created")):
    def ask(b):
        status, _, data = server.request("POST", path, b)
        if body.get("stream"):
            return status, [{k: v for k, v in e.items() if k not in drop} for e in events(data)]
        reply = json.loads(data)
        return status, {k: v for k, v in reply.items() if k not in drop}
    small, large = ask(body), ask(body | {"user": PAD, "metadata": {"a": PAD}})
    for _, reply in (small, large):
        for r in reply if isinstance(reply, list) else [reply]:
            (r.get("usage") or {}).pop("prompt_tokens_details", None)
    assert small == large
    return small


@pytest.mark.parametrize("body", [
    {"prompt": "Once upon a time", "max_tokens": 5, "temperature": 0, "logprobs": 3},
    {"prompt": ["Once", "upon", [1, 2, 3]], "max_tokens": 3, "temperature": 0, "n": 2, "seed": 4},
    {"prompt": "Once", "max_tokens": 4, "temperature": 0.9, "seed": 7, "stop": ["dog", "e"], "logit_bias": {"5": 3}},
    {"prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0, "echo": True, "return_token_ids": True}])
def test_completions(server, body):
    assert same(server, "/v1/completions", body)[0] == 200
    status, reply = same(server, "/v1/completions", body | {"cache_salt": "s", "request_id": "r"}, drop=("created",))
    assert status == 200 and reply["id"] == "cmpl-r"


def test_streams(server):
    status, parts = same(server, "/v1/completions", {"prompt": "Once", "max_tokens": 1, "temperature": 0,
                                                     "stream": True})
    assert status == 200 and parts


def test_chat(server):
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "temperature": 0}
    assert same(server, "/v1/chat/completions", body)[0] == 200


@pytest.mark.parametrize("path, body, param", [
    ("/v1/completions", {"prompt": "a", "temperature": -1}, "temperature"),
    ("/v1/completions", {"prompt": "a", "model": "other"}, "model"),
    ("/v1/completions", {"max_tokens": 1}, "prompt"),
    ("/v1/completions", {"prompt": "a", "priority": 5}, "priority"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/detokenize", {"tokens": [10**9]}, "tokens")])
def test_refusals(server, path, body, param):
    status, reply = same(server, path, body)
    assert status in (400, 404) and reply["error"]["param"] == param


def test_bad_json(server):
    for text in (b"[" * 50000, b"{\"prompt\": \"" + b"a" * 50000, b"\xff" * 50000, b" " * 50000, b"1" * 50000):
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
            status, reply = server.json("POST", path, text)
            assert status == 400 and reply["error"]["message"]


def test_long_prompts(server):
    text = "Once upon a time there was a small dog. " * 20000
    status, reply = server.json("POST", "/tokenize", {"prompt": text})
    assert status == 200 and reply["count"] == len(reply["tokens"]) > 100000
    ids = reply["tokens"]
    assert server.json("POST", "/detokenize", {"tokens": ids})[1]["prompt"].endswith(text)
    body = {"max_tokens": 4, "temperature": 0, "truncate_prompt_tokens": 50}
    by_text = server.json("POST", "/v1/completions", {"prompt": text} | body)[1]
    by_ids = server.json("POST", "/v1/completions", {"prompt": ids} | body)[1]
    short = server.json("POST", "/v1/completions", {"prompt": ids[-50:]} | body)[1]
    assert by_text["choices"] == by_ids["choices"] == short["choices"]
    status, reply = server.json("POST", "/v1/completions", {"prompt": text, "max_tokens": 1})
    assert status == 400 and reply["error"]["code"] == "context_length_exceeded"
    status, reply = server.json("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": text}]})
    assert status == 400


def test_pipelined_behind_a_large_one(server):
    large = json.dumps({"prompt": "Once", "max_tokens": 1, "user": PAD}).encode()
    data = (b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(large) + large) * 3
    got = server.raw(data + b"GET /version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", timeout=20)
    assert got.count(b"HTTP/1.1 200 OK") == 4 and got.rstrip().endswith(b"}") and b'"version"' in got


def send_large(server, n_words):
    body = json.dumps({"prompt": "Once upon a time there was a dog. " * n_words, "max_tokens": 2,
                       "truncate_prompt_tokens": 50}).encode()
    s = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
              + body)
    return s


def test_clients_that_leave(server):
    """At any moment of the preparation, in the queue of the workers too."""
    before = server.metric("sluice:client_disconnects_total")
    for wait in (0, 0.001, 0.005, 0.02, 0.05):
        socks = [send_large(server, 20000) for _ in range(4)]
        time.sleep(wait)
        for i, s in enumerate(socks):
            if i % 2:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            s.close()
    server.wait_metric("sluice:held_bytes", 0.0)
    server.wait_metric("vllm:num_requests_running", 0.0)
    assert server.metric("sluice:client_disconnects_total") > before
    assert server.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_many_at_once(server):
    statuses = []

    def one():
        with send_large(server, 3000) as s:
            got = b""
            while part := s.recv(65536):
                got += part
            statuses.append(got.split()[1])
    threads = [threading.Thread(target=one) for _ in range(20)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert statuses == [b"200"] * 20


@pytest.mark.parametrize("n_signals", [1, 2])
def test_stop_while_preparing(n_signals):
    """A drain waits for what is being prepared; a second signal does not, and nothing hangs."""
    with Server("--threads", "1") as s:
        socks = [send_large(s, 100000) for _ in range(3)]
        time.sleep(0.1)
        s.begin_drain()
        for _ in range(n_signals - 1):
            s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(60) == 0, s.log()
        if n_signals == 1:
            assert all(b" 200 OK" in sock.recv(65536) for sock in socks)
        for sock in socks:
            sock.close()


def test_what_a_response_repeats_is_held():
    """What the reply repeats of a request stays here until its end: it counts like a body, while it waits as well."""
    def send(path, body):
        data = json.dumps(body).encode()
        c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
        c.sendall(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
        return c
    with Server("--threads", "1", "--max-num-seqs", "1", "--max-held-bytes", "5000000") as s:
        ahead = [send("/v1/completions", {"prompt": "a", "max_tokens": 900, "ignore_eos": True}) for _ in range(8)]
        large = {"input": "hi", "metadata": {"a": "x" * 1000000}}
        waiting = []
        for n in (1, 2):
            waiting.append(send("/v1/responses", large))
            deadline = time.monotonic() + 20
            while s.metric("sluice:held_bytes") < n * 2000000:  # it is kept for whoever asks for it, too
                assert time.monotonic() < deadline
                time.sleep(0.02)
        status, e = s.json("POST", "/v1/responses", large)
        assert status == 503 and "too many large requests" in e["error"]["message"]
        for c in ahead + waiting:
            c.close()
        s.wait_metric("sluice:held_bytes", 0.0)
