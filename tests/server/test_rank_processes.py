# SPDX-License-Identifier: MIT
"""Ranks in processes as a user starts them: `sluice serve` with --nnodes, a rank that dies under streams, what
clients, probes and logs then say, and exit codes. engine/test_rank_processes.c has the bits and many kills, and
test_rank_spared.c those of ranks that are done without."""
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest

from serverproc import BINARY, Server

BODY = {"prompt": "Once upon a time there was", "max_tokens": 12, "temperature": 0, "logprobs": 2}
LONG = {"prompt": "a", "max_tokens": 900, "ignore_eos": True, "stream": True}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Follower:
    def __init__(self, path, port, *args, parts="--tensor-parallel-size", model=()):
        self.log_path = path
        with open(path, "wb") as log:
            self.process = subprocess.Popen([BINARY, "serve", *model, "--device", "cpu", "--threads", "1",
                                             parts, "2", "--nnodes", "2", "--node-rank", "1",
                                             "--master-port", str(port), *args], stdout=log, stderr=log)

    def log(self):
        with open(self.log_path, encoding="utf-8") as f:
            return f.read()

    def end(self, timeout=10):
        return self.process.wait(timeout)


def flags(port, parts="--tensor-parallel-size"):
    return ["--threads", "1", "--max-model-len", "1024", parts, "2", "--nnodes", "2", "--master-port", str(port)]


def answer(server):
    status, reply = server.json("POST", "/v1/completions", BODY)
    assert status == 200, reply
    return reply["choices"][0]["text"], reply["choices"][0]["logprobs"]


def until(what, seconds=20):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def health(server, path="/health"):
    status, _, body = server.request("GET", path)
    return status, body.decode()


@pytest.mark.parametrize("transport,parts", [("auto", "--tensor-parallel-size"), ("tcp", "--tensor-parallel-size"),
                                             ("tcp", "--pipeline-parallel-size")])
def test_dies_and_comes_back(tmp_path, transport, parts):
    with Server("--threads", "1") as alone:
        want = answer(alone)
        assert alone.stop() == 0
    port, ends = free_port(), []
    follower = Follower(tmp_path / "1", port, parts=parts)
    with Server(*flags(port, parts), "--rank-transport", transport, "--enable-sleep-mode") as server:
        until(lambda: health(server)[0] == 200)
        assert answer(server) == want

        def read_stream():
            errors = 0
            try:
                with server.stream("/v1/completions", LONG) as events:
                    errors = sum("error" in e for e in events)
            except OSError as e:
                errors = str(e)
            ends.append(errors)
        threads = [threading.Thread(target=read_stream) for _ in range(3)]
        for t in threads:
            t.start()
        time.sleep(0.5)
        os.kill(follower.process.pid, signal.SIGKILL)
        t0 = time.monotonic()
        for t in threads:
            t.join(10)
        assert time.monotonic() - t0 < 5
        assert ends == [1, 1, 1]  # one error each
        assert health(server) == (503, "waiting for all ranks: rank 1: the connection was closed\n")
        assert health(server, "/livez")[0] == 200  # a restart would not help
        status, reply = server.json("POST", "/v1/completions", BODY)
        assert status == 503 and "waiting for all ranks" in reply["error"]["message"]
        assert follower.end() == -signal.SIGKILL

        follower = Follower(tmp_path / "2", port, parts=parts)
        until(lambda: health(server)[0] == 200)
        assert answer(server) == want
        assert server.request("POST", "/sleep")[0] == 400  # refused, and nothing happens
        assert answer(server) == want
        assert server.stop() == 0
    assert follower.end() == 0
    assert ("in shared memory" in follower.log()) == (transport == "auto")


def test_goes_on_without(tmp_path):
    """What /health, /metrics and clients are told when the others have the experts of the one that dies."""
    model, port = str(tmp_path / "m"), free_port()
    mkmodel = os.path.join(os.path.dirname(BINARY), "tools", "mkmodel")
    subprocess.run([mkmodel, "--quiet", "--family", "qwen3moe", "--vocab", "bytes", "--context", "1024",
                    "--experts", "8", "--top-experts", "2", "--out", model], check=True)
    only = ["--enable-expert-parallel", "--enable-eplb", "--divide-only-experts",
            "--eplb-config", '{"num_redundant_experts": 8}']
    follower = Follower(tmp_path / "1", port, *only, model=(model,))

    def ranks(server):
        text = server.request("GET", "/metrics")[2].decode()
        return [int(float(re.search(r"^sluice:ranks%s(?:{.*})? (\S+)$" % name, text, re.M).group(1)))
                for name in ("", "_alive", "_done_without")]
    with Server(model, *flags(port), *only) as server:
        until(lambda: health(server) == (200, ""))
        want = answer(server)
        assert ranks(server) == [2, 2, 0]
        os.kill(follower.process.pid, signal.SIGKILL)
        assert follower.end() == -signal.SIGKILL
        until(lambda: health(server)[1].startswith("degraded: "), 5)
        assert health(server) == (200, "degraded: steps do without 1 of 2 ranks: rank 1: the connection was closed\n")
        assert health(server, "/readyz")[0] == health(server, "/livez")[0] == 200
        assert answer(server) == want
        assert ranks(server) == [2, 1, 1]
        follower = Follower(tmp_path / "2", port, *only, model=(model,))
        until(lambda: health(server) == (200, ""))
        assert answer(server) == want
        assert ranks(server) == [2, 2, 0]
        assert server.stop() == 0
    assert follower.end() == 0


def test_refused(tmp_path):
    """What differs is named on both sides, and does no harm."""
    port = free_port()
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef\n")
    other = tmp_path / "other"
    other.write_text("another one, as long\n")
    follower = Follower(tmp_path / "1", port, "--rank-secret-file", str(secret))
    with Server(*flags(port), "--rank-secret-file", str(secret)) as server:
        until(lambda: health(server)[0] == 200)
        late = Follower(tmp_path / "2", port, "--rank-secret-file", str(other))
        assert late.end() == 1 and "does not have the secret" in late.log()
        late = Follower(tmp_path / "3", port, "--rank-secret-file", str(secret), "--cpu-isa", "c")
        assert late.end() == 2 and "instruction set (--cpu-isa): rank 0 has " in late.log()
        assert "instruction set (--cpu-isa): rank 0 has " in server.log()
        answer(server)
        assert server.stop() == 0
    assert follower.end() == 0


def test_alone(tmp_path):
    """Nobody there: an error in time, and no port opened meanwhile by another rank than 0."""
    port = free_port()
    follower = Follower(tmp_path / "1", port, "--rank-start-timeout", "1")
    assert follower.end() == 1 and f"rank 0 at 127.0.0.1 port {port}: Connection refused" in follower.log()
    r = subprocess.run([BINARY, "serve", "--device", "cpu", "--port", "0", *flags(port), "--rank-start-timeout", "1"],
                       capture_output=True, text=True, timeout=30)
    assert r.returncode == 1 and "waiting for all ranks: not all have come yet" in r.stderr
    r = subprocess.run([BINARY, "serve", "--device", "cpu", "--port", "0", *flags(port), "--master-addr", "0.0.0.0"],
                       capture_output=True, text=True, timeout=30)
    assert r.returncode == 2 and "--rank-secret-file" in r.stderr
