# SPDX-License-Identifier: MIT
"""What one client may notice of another: cached prefixes do not cross keys or salts, and nobody overtakes others
unless the server was told to allow it."""
import json
import socket
import threading
import time

import pytest

from serverproc import Server
from wire import events

KEYS = ["key-of-a", "key-of-b", "key-of-c"]


def ask(server, prompt, key=None, **fields):
    headers = {"Authorization": "Bearer " + key} if key else {}
    status, _, data = server.request("POST", "/v1/completions",
                                     {"prompt": prompt, "max_tokens": 1, "temperature": 0} | fields, headers)
    return status, json.loads(data)


def cached(server, prompt, key=None, **fields):
    status, reply = ask(server, prompt, key, **fields)
    assert status == 200, reply
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def prompt_of(name):
    """Some pages long, and of no other test."""
    return f"{name}: " + "Once upon a time there was a small dog and a red ball. " * 6


@pytest.fixture(scope="module")
def keyed():
    with Server("--threads", "1", *[f"--api-key={k}" for k in KEYS]) as s:
        yield s


@pytest.fixture(scope="module")
def plain():
    with Server("--threads", "1") as s:
        yield s


def test_a_key_sees_its_own_prefixes_only(keyed):
    p = prompt_of("keys")
    a, b, c = KEYS
    assert cached(keyed, p, a) == 0
    assert cached(keyed, p, a) >= 64
    assert cached(keyed, p, b) == 0
    assert cached(keyed, p, b) >= 64
    assert cached(keyed, p, c) == 0
    assert cached(keyed, p, a) >= 64


def test_a_salt_does_not_reach_another_key(keyed):
    p = prompt_of("salts of keys")
    a, b, _ = KEYS
    assert cached(keyed, p, a, cache_salt="s") == 0
    assert cached(keyed, p, a, cache_salt="s") >= 64
    assert cached(keyed, p, b, cache_salt="s") == 0
    assert cached(keyed, p, a) == 0
    assert cached(keyed, p, a, cache_salt="other") == 0


def test_streams_and_lists_tell_no_more(keyed):
    p = prompt_of("streams")
    a, b, _ = KEYS
    body = {"prompt": p, "max_tokens": 2, "stream": True, "n": 2,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True}}

    def most_cached(key):
        _, _, data = keyed.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + key})
        usages = [e["usage"] for e in events(data) if e.get("usage")]
        assert usages
        return max(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    assert most_cached(a) == 0
    assert most_cached(a) >= 64
    assert most_cached(b) == 0
    # Both prompts of a list and both choices are the same tenant's.
    fresh = prompt_of("list")
    assert cached(keyed, [fresh, fresh], a, n=2) in (0, *range(64, 200))
    assert cached(keyed, [fresh, fresh], b) in (0, *range(64, 200))
    assert cached(keyed, fresh, KEYS[2]) == 0


def test_chat_and_completions_share_inside_a_key(keyed):
    a, b, _ = KEYS

    def chat(key):
        status, _, data = keyed.request(
            "POST", "/v1/chat/completions",
            {"messages": [{"role": "user", "content": prompt_of("chat")}], "max_tokens": 1},
            {"Authorization": "Bearer " + key})
        assert status == 200
        return json.loads(data)["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert chat(a) == 0 and chat(a) >= 64 and chat(b) == 0


def test_one_connection_may_carry_several_keys(keyed):
    """A proxy's connection is no tenant: the key of each request counts."""
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", keyed.port, timeout=30)

    def on_it(key):
        c.request("POST", "/v1/completions", json.dumps({"prompt": prompt_of("proxy"), "max_tokens": 1}),
                  {"Authorization": "Bearer " + key})
        return json.loads(c.getresponse().read())["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert [on_it(k) > 0 for k in (KEYS[0], KEYS[0], KEYS[1], KEYS[0], KEYS[1])] == [False, True, False, True, True]
    c.close()


def test_keys_can_share(keyed):
    with Server("--threads", "1", "--share-prefixes", *[f"--api-key={k}" for k in KEYS]) as s:
        p = prompt_of("shared")
        assert cached(s, p, KEYS[0]) == 0
        assert cached(s, p, KEYS[1]) >= 64
        assert cached(s, p, KEYS[1], cache_salt="mine") == 0


def test_salts_without_keys(plain):
    p = prompt_of("plain")
    assert cached(plain, p) == 0
    assert cached(plain, p) >= 64
    assert cached(plain, p, cache_salt="a") == 0
    assert cached(plain, p, cache_salt="a") >= 64
    assert cached(plain, p, cache_salt="ab") == 0
    assert cached(plain, p, cache_salt="b") == 0
    assert cached(plain, p, cache_salt=None) >= 64


def test_what_a_salt_may_be(plain):
    p = prompt_of("limits")
    assert ask(plain, p, cache_salt="x" * 64)[0] == 200
    assert cached(plain, p, cache_salt="x" * 64) >= 64
    assert cached(plain, p, cache_salt="x" * 63 + "y") == 0
    assert cached(plain, p, cache_salt="\u00e9" * 32) == 0  # 64 bytes
    for bad in ("x" * 65, "\u00e9" * 33, "", "a\x00b", 5, ["a"], {"a": 1}, True):
        status, reply = ask(plain, p, cache_salt=bad)
        assert (status, reply["error"]["param"]) == (400, "cache_salt"), bad


# ---- priorities

def test_first_come_first_served_takes_no_priority(plain):
    for bad in (1, -1, 2**31 - 1, -2**31):
        status, reply = ask(plain, "a", priority=bad)
        assert (status, reply["error"]["param"]) == (400, "priority"), bad
    assert ask(plain, "a", priority=0)[0] == 200
    assert ask(plain, "a", priority=None)[0] == 200


def test_lower_priority_runs_first(tmp_path):
    log = tmp_path / "log"  # in the order in which they ended: threads of this test may hear of it in another
    with Server("--threads", "1", "--http-threads", "1", "--scheduling-policy", "priority", "--max-num-seqs", "1",
                "--request-log", str(log)) as s:
        body = json.dumps({"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True, "priority": -9})
        first = socket.create_connection(("127.0.0.1", s.port))  # holds the only seat until it leaves
        first.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
                      + body.encode())
        s.wait_metric("vllm:num_requests_running", 1.0)
        priorities, threads = [5, 1, -3, 1, 0], []

        def one(i):
            ask(s, f"{i} is here", ignore_eos=True, max_tokens=4, priority=priorities[i], request_id=f"p{i}")
        for i in range(len(priorities)):
            threads.append(threading.Thread(target=one, args=(i,)))
            threads[-1].start()
            s.wait_metric("vllm:num_requests_waiting", float(i + 1))
        first.close()
        for t in threads:
            t.join()
        ended = [json.loads(line) for line in log.read_text().splitlines()]
        assert [(x["id"], x["status"]) for x in ended if x["status"] != 499] == [(f"cmpl-p{i}", 200) for i in (2, 4, 1, 3, 0)]


def test_nobody_starves():
    """Better requests come without end; a worse one is served all the same, soon after its time."""
    with Server("--threads", "1", "--scheduling-policy", "priority", "--max-num-seqs", "1",
                "--priority-max-wait", "2") as s:
        done, n_better = threading.Event(), [0]

        def flood():
            while not done.is_set():
                assert ask(s, "again", priority=-1, max_tokens=100, ignore_eos=True)[0] == 200
                n_better[0] += 1
        threads = [threading.Thread(target=flood) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(0.3)
        start = time.monotonic()
        assert ask(s, "once", priority=3, max_tokens=8, ignore_eos=True)[0] == 200
        took = time.monotonic() - start
        done.set()
        for t in threads:
            t.join()
        assert 1.9 < took < 30, took
        assert n_better[0] >= 4


def test_flags():
    with pytest.raises(RuntimeError, match="neither fcfs nor priority"):
        Server("--scheduling-policy", "lifo")
