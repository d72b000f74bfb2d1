# SPDX-License-Identifier: MIT
"""A store of KV pages that servers share: two servers find each other's prefixes, with the bits that one alone gives;
other weights find nothing; a store that hangs, is killed or was never there costs time only; the password is shown
nowhere."""
import os
import shutil
import signal
import socket
import subprocess
import time

import pytest

from serverproc import ROOT, Server
from test_kv_tiers import ARGS, MODEL, ask, train_a_little, well

PASSWORD = "sesame-4711"
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Redis:
    def __init__(self, *args, port=None):
        self.port = port or free_port()
        self.proc = subprocess.Popen(["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
                                      "--requirepass", PASSWORD, *args], stdout=subprocess.DEVNULL)
        for _ in range(200):
            try:
                if self.command("PING") == b"+PONG\r\n":
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise RuntimeError("redis-server does not answer")

    def command(self, *words):
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as s:
            for text in (["AUTH", PASSWORD], list(words)):
                s.sendall(b"".join([b"*%d\r\n" % len(text)] +
                                   [b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in text]))
                reply = s.recv(65536)
            return reply

    def n_keys(self):
        return int(self.command("DBSIZE")[1:])

    def kill(self, sig=signal.SIGKILL):
        self.proc.send_signal(sig)
        if sig == signal.SIGKILL:
            self.proc.wait()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.proc.kill()
        self.proc.wait()


def args(redis, load="always"):
    return [*ARGS, "--kv-remote-url", f"redis://:{PASSWORD}@127.0.0.1:{redis.port}", "--kv-remote-load", load]


def settle(server):
    server.wait_metric("vllm:num_requests_running", 0.0)
    for _ in range(100):
        stored = server.metric("sluice:kv_tier_stored_total", tier="remote")
        if stored >= server.metric("sluice:kv_tier_stored_total", tier="host"):
            return stored
        time.sleep(0.05)
    raise AssertionError("pages are not written to the remote store")


def depth(answer):
    return (answer[3] - 1) // 16 * 16


@needs_redis
def test_servers_share_prefixes():
    with Server(MODEL, *ARGS) as alone:
        right = [ask(alone, k) for k in range(6)]
    with Redis() as redis:
        with Server(MODEL, *args(redis)) as a, Server(MODEL, *args(redis)) as b:
            assert [ask(a, k)[:2] for k in range(6)] == [r[:2] for r in right]
            assert settle(a) > 0 and redis.n_keys() > 0
            again = [ask(b, k) for k in range(6)]
            assert [x[:2] for x in again] == [r[:2] for r in right]
            assert all(x[2] == depth(x) for x in again)
            assert b.metric("sluice:kv_tier_hits_total", tier="remote") > 0
            assert b.metric("sluice:kv_tier_up", tier="remote") == 1
            well(a)
            well(b)
        with Server(MODEL, *args(redis)) as c:  # they ended, their pages are there
            x = ask(c, 3)
            assert x[:2] == right[3][:2] and x[2] == depth(x)
            assert PASSWORD not in c.log()
            well(c)


@needs_redis
def test_other_weights_find_nothing(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    with Redis() as redis:
        with Server(str(model), *args(redis)) as s:
            ask(s, 1)
            settle(s)
            well(s)
        train_a_little(model)
        with Server(str(model), *args(redis)) as s:
            assert ask(s, 1)[2] == 0
            assert s.metric("sluice:kv_tier_hits_total", tier="remote") == 0
            well(s)


@needs_redis
@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_store_that_goes_costs_time_only(sig):
    with Server(MODEL, *ARGS) as alone:
        right = [ask(alone, k) for k in range(8)]
    with Redis() as redis:
        with Server(MODEL, *args(redis)) as s:
            assert ask(s, 0)[:2] == right[0][:2]
            settle(s)
            redis.kill(sig)
            start = time.monotonic()
            for k in range(1, 8):
                assert ask(s, k)[:2] == right[k][:2]
            assert time.monotonic() - start < 20
            assert s.metric("sluice:kv_tier_up", tier="remote") == 0
            assert s.metric("sluice:kv_tier_io_errors_total", tier="remote") > 0
            redis.kill(signal.SIGCONT if sig == signal.SIGSTOP else sig)
            well(s)


@needs_redis
def test_a_small_store_evicts_or_refuses():
    for policy in ("noeviction", "allkeys-lru"):
        with Redis("--maxmemory", "3mb", "--maxmemory-policy", policy) as redis:
            with Server(MODEL, *args(redis)) as a, Server(MODEL, *args(redis)) as b:
                first = [ask(a, k) for k in range(30)]
                a.wait_metric("vllm:num_requests_running", 0.0)
                assert [ask(b, k)[:2] for k in range(30)] == [x[:2] for x in first]
                if policy == "noeviction":
                    assert a.metric("sluice:kv_tier_dropped_total", tier="remote") > 0
                assert a.metric("sluice:kv_tier_up", tier="remote") == 1
                well(a)
                well(b)


def test_a_store_that_is_not_there():
    with Server(MODEL, *ARGS, "--kv-remote-url", f"redis://u:{PASSWORD}@127.0.0.1:{free_port()}") as s:
        first, again = ask(s, 1), ask(s, 1)
        assert first[:2] == again[:2]
        assert s.metric("sluice:kv_tier_up", tier="remote") == 0
        assert "cannot connect" in s.log() and PASSWORD not in s.log()
        well(s)


@pytest.mark.parametrize("flags, named", [
    (["--kv-remote-url", f"redis://u:{PASSWORD}@h:x"], "port"),
    (["--kv-remote-url", f"http://u:{PASSWORD}@h"], "kv-remote-url"),
    (["--kv-remote-url", f"rediss://u:{PASSWORD}@h"], "TLS"),
    (["--kv-remote-ttl", "5"], "--kv-remote-url"),
    (["--kv-remote-url", "redis://h", "--kv-remote-load", "never"], "kv-remote-load"),
    (["--kv-remote-url", "redis://h", "--no-enable-prefix-caching"], "prefix caching"),
])
def test_what_cannot_work_is_refused_by_name(flags, named):
    with pytest.raises(RuntimeError, match=named) as e:
        Server(MODEL, *ARGS, *flags)
    assert PASSWORD not in str(e.value)
