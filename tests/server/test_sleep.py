# SPDX-License-Identifier: MIT
"""Sleeping, waking, and other weights: memory goes and comes back, answers stay the same bits, requests
in flight end cleanly."""
import json
import os
import re
import shutil
import threading
import time

import pytest

from serverproc import ROOT, Server

BODY = {"prompt": "Once upon a time there was", "max_tokens": 12, "temperature": 0, "logprobs": 2}
LONG = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
LONGER = {"prompt": "a", "max_tokens": 900, "n": 16, "ignore_eos": True}  # not over before it is aborted
MODEL = os.path.join(ROOT, "assets", "storyteller")


@pytest.fixture
def server(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    with Server(str(model), "--threads", "1", "--enable-sleep-mode", "--allow-weight-updates",
                "--kv-cache-memory-bytes", "400M", "--max-model-len", "256") as s:
        s.model = model
        yield s
        assert s.process.poll() is None, s.log()
        assert s.metric("sluice:invariant_violations_total") == 0
        assert s.stop() == 0


def answer(server):
    status, reply = server.json("POST", "/v1/completions", BODY)
    assert status == 200, reply
    return reply["choices"][0]["text"], reply["choices"][0]["logprobs"]["token_logprobs"]


def post(server, path, body=None):
    status, _, data = server.request("POST", path, body)
    return status, data


def asleep(server):
    return server.json("GET", "/is_sleeping")[1]["is_sleeping"]


@pytest.mark.parametrize("level", [1, 2])
def test_sleeps_and_wakes(server, level):
    before = answer(server)
    answer(server)
    assert server.metric("sluice:kv_pages_cached") > 0 and not asleep(server)
    assert post(server, f"/sleep?level={level}") == (200, b"") and asleep(server)
    server.wait_metric("sluice:kv_pages_cached", 0.0)
    status, headers, data = server.request("POST", "/v1/completions", BODY)
    assert status == 503 and "Retry-After" in headers and b"/wake_up" in data
    assert server.request("GET", "/health")[0] == 200 and server.request("GET", "/health/ready")[0] == 503
    assert server.json("GET", "/api/state")[1]["info"]["sleep_level"] == level
    if level == 1:
        assert post(server, "/sleep?level=2")[0] == 200  # deeper
    assert post(server, "/sleep?level=1")[0] == 200 and asleep(server)  # as deep as it is
    assert post(server, "/wake_up?tags=weights&tags=kv_cache") == (200, b"") and not asleep(server)
    assert post(server, "/wake_up")[0] == 200  # awake already
    assert server.request("GET", "/health/ready")[0] == 200
    assert answer(server) == before
    assert answer(server) == before  # from the cache


def resident(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024


def test_memory(server):
    """Pages that were written leave memory, and level 2 takes what is left of the weights as well."""
    for k in range(12):
        server.json("POST", "/v1/completions", {"prompt": [3 + (k * 7 + i) % 200 for i in range(240)], "max_tokens": 1})
    full = resident(server)
    post(server, "/sleep?level=1")
    one = resident(server)
    post(server, "/sleep?level=2")
    two = resident(server)
    assert full - one > 10e6 and two < one, (full, one, two)
    post(server, "/wake_up")
    assert answer(server)


def long_request(server, out, body):
    t = threading.Thread(target=lambda: out.append(server.json("POST", "/v1/completions", body)))
    t.start()
    server.wait_metric("vllm:num_requests_running", float(body.get("n", 1)))
    return t


def test_waits_for_what_is_in_flight(server):
    out = []
    t = long_request(server, out, LONG)
    assert post(server, "/sleep?level=2&mode=wait")[0] == 200
    t.join(20)
    assert out[0][0] == 200 and out[0][1]["choices"][0]["finish_reason"] == "length"
    assert asleep(server) and post(server, "/wake_up")[0] == 200
    t = long_request(server, out, LONGER)
    assert post(server, "/sleep?level=1&mode=abort")[0] == 200
    t.join(20)
    assert out[1][1]["choices"][0]["finish_reason"] == "abort"
    assert post(server, "/wake_up")[0] == 200 and answer(server)


def test_under_load(server):
    """Many come while it goes to sleep and wakes: each is answered right or refused, none hangs."""
    want, stop, seen = answer(server), threading.Event(), {200: 0, 503: 0}

    def client():
        while not stop.is_set():
            status, reply = server.json("POST", "/v1/completions", BODY)
            seen[status] += 1
            assert status == 503 or reply["choices"][0]["text"] == want[0]
    threads = [threading.Thread(target=client) for _ in range(4)]
    for t in threads:
        t.start()

    def until_more(status):
        n, deadline = seen[status], time.monotonic() + 20
        while seen[status] == n:
            assert time.monotonic() < deadline, seen
            time.sleep(0.01)
    for k in range(4):
        assert post(server, f"/sleep?level={1 + k % 2}")[0] == 200
        until_more(503)
        assert post(server, "/wake_up")[0] == 200
        until_more(200)
    stop.set()
    for t in threads:
        t.join(20)
        assert not t.is_alive()
    assert answer(server) == want


def test_bad_queries(server):
    for query in ("level=3", "level=", "level=1&mode=keep", "mode=x"):
        status, data = post(server, "/sleep?" + query)
        assert status == (200 if query == "level=" else 400), (query, data)
    post(server, "/wake_up")
    assert server.request("GET", "/sleep")[0] == 405
    assert post(server, "/update_weights_from_disk", {"model_path": 7})[0] == 400
    assert post(server, "/update_weights_from_disk", {"model_path": ""})[0] == 400


def weights_file(server):
    return next(p for p in server.model.iterdir() if p.suffix == ".safetensors")


def test_other_weights(server):
    """New weights give new answers, the old ones the old; what is broken or of another shape changes nothing."""
    before = answer(server)
    path = weights_file(server)
    other = server.model.parent / "other"
    shutil.copytree(server.model, other)
    data = bytearray((other / path.name).read_bytes())
    n_head = 8 + int.from_bytes(data[:8], "little")
    last = json.loads(data[8:n_head])
    name = next(n for n in last if n.endswith("norm.weight") and "layers" not in n)
    begin, end = last[name]["data_offsets"]
    data[n_head + begin:n_head + end] = \
        bytes(data[n_head + begin + 2:n_head + end]) + bytes(data[n_head + begin:n_head + begin + 2])
    (other / path.name).write_bytes(data)
    status, reply = post(server, "/update_weights_from_disk", {"model_path": str(other)})
    assert status == 200 and json.loads(reply)["success"]
    changed = answer(server)
    assert changed != before and not asleep(server)
    for bad, message in [(str(server.model.parent / "nothing"), b"nothing"), (str(path) + "x", b"x")]:
        status, reply = post(server, "/update_weights_from_disk", {"model_path": bad})
        assert status >= 400 and message in reply
        assert answer(server) == changed
    config = json.loads((other / "config.json").read_text())
    config["num_hidden_layers"] -= 1
    (other / "config.json").write_text(json.dumps(config))
    status, reply = post(server, "/update_weights_from_disk", {"model_path": str(other)})
    assert status == 400 and b"shape" in reply, reply
    assert answer(server) == changed
    assert post(server, "/update_weights_from_disk", {"model_path": str(server.model)})[0] == 200
    assert answer(server) == before
    assert post(server, "/update_weights_from_disk", {})[0] == 200  # the same path, read anew
    assert answer(server) == before


def test_not_without_the_flag():
    with Server("--threads", "1") as s:
        for path in ("/sleep", "/wake_up", "/update_weights_from_disk"):
            assert post(s, path, {})[0] == 404
        assert s.request("GET", "/is_sleeping")[0] == 404


def test_scopes(tmp_path):
    file = tmp_path / "keys"
    file.write_text(json.dumps({"keys": [{"key": "user", "name": "u"}, {"key": "ops", "name": "o", "scopes": ["admin"]}]}))
    with Server("--threads", "1", "--enable-sleep-mode", "--api-key-file", str(file)) as s:
        user, ops = {"Authorization": "Bearer user"}, {"Authorization": "Bearer ops"}
        assert s.request("POST", "/sleep", None, {})[0] == 401 and s.request("POST", "/sleep", None, user)[0] == 401
        assert s.request("POST", "/sleep", None, ops)[0] == 200
        assert s.request("POST", "/wake_up", None, user)[0] == 401 and s.request("POST", "/wake_up", None, ops)[0] == 200
