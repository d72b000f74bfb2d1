# SPDX-License-Identifier: MIT
"""sluice ps, top and stop. Other servers of this machine may run beside the tests: they are not touched."""
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "server"))
from serverproc import BINARY, Server  # noqa: E402


def sluice(*args: str, status: int = 0) -> subprocess.CompletedProcess:
    r = subprocess.run([BINARY, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert r.returncode == status, (args, r)
    return r


def mine(pid: int) -> dict | None:
    rows = [json.loads(line) for line in sluice("ps", "--json").stdout.splitlines()]
    return next((r for r in rows if r["pid"] == pid), None)


@pytest.fixture
def server():
    with Server("--threads", "1") as s:
        yield s


def test_ps_lists_a_server_and_stop_ends_it(server):
    pid = server.process.pid
    got = mine(pid)
    assert got["url"] == f"http://127.0.0.1:{server.port}" and got["status"] == "ready"
    assert got["models"] == ["storyteller"] and got["running"] == got["waiting"] == 0
    assert 1e6 < got["memory_bytes"] < 4e9 and 0 <= got["up_s"] < 60
    lines = sluice("ps").stdout.splitlines()
    assert lines[0].split() == ["PID", "URL", "STATUS", "RUNNING", "WAITING", "MEMORY", "UP", "MODEL"]
    assert any(re.match(rf"{pid} +http://127.0.0.1:{server.port} +ready ", line) for line in lines)
    assert sluice("stop", str(server.port)).stdout == f"stopped {pid} (http://127.0.0.1:{server.port})\n"
    assert server.process.wait(1) == 0 and mine(pid) is None
    assert f"'{server.port}' is no server's" in sluice("stop", str(server.port), status=2).stderr or not mine(pid)


@pytest.mark.parametrize("host, url", [("0.0.0.0", "http://127.0.0.1:"), ("::1", "http://[::1]:"), (None, "unix:")])
def test_ps_knows_where_a_server_listens(host, url, tmp_path):
    where = ["--host", host] if host else ["--uds", str(tmp_path / "socket")]
    with subprocess.Popen([BINARY, "serve", *where, "--port", "0", "--threads", "1"], stderr=subprocess.DEVNULL) as p:
        end = time.monotonic() + 10
        while (got := mine(p.pid)) is None or got["status"] != "ready":
            assert time.monotonic() < end and p.poll() is None, got
            time.sleep(0.05)
        assert got["url"].startswith(url)
        assert sluice("stop", got["url"]).stdout.startswith(f"stopped {p.pid} ")
        assert p.wait(5) == 0


def test_a_server_that_loads_is_listed(tmp_path):
    os.mkfifo(tmp_path / "template")
    with subprocess.Popen([BINARY, "serve", "--port", "0", "--chat-template", str(tmp_path / "template")],
                          stderr=subprocess.DEVNULL) as p:
        end = time.monotonic() + 10
        while (got := mine(p.pid)) is None or got["status"] != "loading":
            assert time.monotonic() < end and p.poll() is None, got
            time.sleep(0.05)
        assert "is being loaded" in sluice("top", str(p.pid), "--once", status=1).stderr
        p.kill()


def test_stop_waits_for_requests_unless_told_not_to(server):
    body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True}
    done = []
    t = threading.Thread(target=lambda: done.append(server.json("POST", "/v1/completions", body)[0]))
    t.start()
    server.wait_metric("vllm:num_requests_running", 1)
    server.process.send_signal(signal.SIGSTOP)  # so that it cannot be quick
    r = sluice("stop", str(server.process.pid), "--timeout", "0", status=1)
    assert "still finishes its requests; --now aborts them" in r.stderr and not done
    server.process.send_signal(signal.SIGCONT)
    sluice("stop", str(server.process.pid))
    t.join()
    assert done == [200] and server.process.wait(1) == 0


def test_top_shows_what_a_server_does(server):
    url = f"http://127.0.0.1:{server.port}"
    stop = threading.Event()

    def load():
        while not stop.is_set():
            server.json("POST", "/v1/completions", {"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": True})
    t = threading.Thread(target=load)
    t.start()
    try:
        head, row = sluice("top", url, "--once", "--interval", "1.5").stdout.splitlines()
        piped = subprocess.run(f"timeout -s INT 3 {BINARY} top {url} -i 0.5 | head -n 3", shell=True, capture_output=True,
                               text=True, timeout=20, check=False)
    finally:
        stop.set()
        t.join()
    assert head.startswith("MODEL ") and "TTFT" in head and len(head) <= 100
    m = re.fullmatch(r"storyteller +([01]) +[01] +[0-9.]+% +([0-9.]+) +([0-9.]+) +(\d+%|-) +([0-9.]+)  (\S+) \(<=\S+\) +(\S+) \(<=\S+\)", row)
    assert m, row
    out, into, requests = float(m[2]), float(m[3]), float(m[5])
    assert requests > 0 and out > 4 and into > 0 and 4 < out / requests < 16  # 8 tokens for each request
    assert piped.stderr == "" and piped.stdout.count("storyteller") == 2
    assert "cannot connect" in sluice("top", "http://127.0.0.1:1", "--once", status=1).stderr
    assert "no TLS" in sluice("top", "https://127.0.0.1:1", status=2).stderr


def vllm_page(step):
    """/metrics as vLLM writes it, of two engines (--data-parallel-size 2), after so many seconds."""
    lines = []
    for engine in "01":
        labels = f'engine="{engine}",model_name="org/some-8B"'
        values = {"num_requests_running": 3, "num_requests_waiting": 1, "kv_cache_usage_perc": 0.25 + 0.5 * int(engine),
                  "prompt_tokens_total": 1000 * step, "prompt_tokens_created": 1.7e9, "generation_tokens_total": 200 * step,
                  "prefix_cache_queries_total": 1000 * step, "prefix_cache_hits_total": 250 * step}
        for name, value in values.items():
            lines += [f"# HELP vllm:{name} Some text.", f"# TYPE vllm:{name} gauge", f"vllm:{name}{{{labels}}} {float(value)}"]
        for reason in ("stop", "length", "abort"):
            lines.append(f'vllm:request_success_total{{engine="{engine}",finished_reason="{reason}",model_name="org/some-8B"}} '
                         f"{float(step if reason == 'stop' else 0)}")
        for name, at in (("time_to_first_token_seconds", "0.1"), ("inter_token_latency_seconds", "0.025")):
            for le in ("0.001", at, "+Inf"):
                lines.append(f'vllm:{name}_bucket{{engine="{engine}",le="{le}",model_name="org/some-8B"}} '
                             f"{0.0 if le == '0.001' else 10.0 * step}")
            lines += [f"vllm:{name}_count{{{labels}}} {10.0 * step}", f"vllm:{name}_sum{{{labels}}} {0.2 * step}"]
    return "\n".join(lines) + "\n"


def test_top_of_vllm():
    class Page(http.server.BaseHTTPRequestHandler):
        n = 0

        def do_GET(self):
            assert self.path == "/metrics"
            Page.n += 1
            body = vllm_page(Page.n).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *unused):
            pass
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as s:
        threading.Thread(target=s.serve_forever).start()
        row = sluice("top", f"http://127.0.0.1:{s.server_port}", "--once", "--interval", "0.5").stdout.splitlines()[1]
        s.shutdown()
    m = re.fullmatch(r"org/some-8B +6 +2 +50\.0% +(\S+) +(\S+) +25% +(\S+)  20\.0 \(<=100\) +20\.0 \(<=25\)", row)
    assert m and 0.15 < float(m[1]) / float(m[2]) < 0.25 and float(m[3]) > 1, row
