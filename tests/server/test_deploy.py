# SPDX-License-Identifier: MIT
"""/metrics against what reads it: the Prometheus parser, the dashboard and the rules of deploy/, vLLM's names; and the
request log."""
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serverproc import ROOT, Server

PROMTOOL = shutil.which("promtool")
if PROMTOOL is None:
    print("skip: no promtool here: the rules are read by this test alone")
RULES = os.path.join(ROOT, "deploy", "prometheus-rules.yml")
# Names as in vLLM 0.31; those of features that are not there yet, or that need a flag, are left out.
VLLM = """num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc cache_config_info
prompt_tokens generation_tokens prompt_tokens_cached prompt_tokens_by_source prefix_cache_queries prefix_cache_hits
num_preemptions request_success corrupted_requests time_to_first_token_seconds inter_token_latency_seconds
request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds iteration_tokens_total
request_prompt_tokens request_generation_tokens request_max_num_generation_tokens request_params_n
request_params_max_tokens request_num_preemptions request_prefill_kv_computed_tokens""".split()
OLD = ["gpu_cache_usage_perc", "gpu_prefix_cache_queries", "gpu_prefix_cache_hits", "gpu_prefix_cache_hit_rate",
       "time_per_output_token_seconds"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "requests.jsonl"
    with Server("--threads", "1", "--metrics-aliases", "--request-log", str(log)) as s:
        s.request_log = log
        yield s
        assert s.process.poll() is None, s.log()


def families(server):
    return {f.name: f for f in text_string_to_metric_families(server.request("GET", "/metrics")[2].decode())}


def samples(server):
    """{name: [samples]}; that is what queries ask for."""
    out = {}
    for f in families(server).values():
        for s in f.samples:
            out.setdefault(s.name, []).append(s)
    return out


def names_in(expression):
    """Metric names of a query: words that are followed by neither a bracket of a call nor a label's operator."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    words = re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\w)(?!\s*\()", bare)
    return {w for w in words if w not in ("and", "or", "unless", "offset", "bool", "e6")}


def test_names_in():
    q = 'histogram_quantile(0.9, sum by (le, a) (rate(x:y_bucket{m=~"$model"}[$__rate_interval]))) / z_total * 1e6'
    assert names_in(q) == {"x:y_bucket", "z_total"}


def test_vllm_names(server):
    server.json("POST", "/v1/completions", {"prompt": "One two", "max_tokens": 5})
    have = families(server)
    assert [n for n in VLLM + OLD if "vllm:" + n not in have] == []
    with Server("--threads", "1") as s:
        assert [n for n in OLD if "vllm:" + n in families(s)] == []


def test_new_counters(server):
    def value(name, **labels):
        return sum(s.value for s in samples(server)[name] if labels.items() <= s.labels.items())
    before = {p: value("sluice:step_time_seconds_total", part=p) for p in ("device", "output")}
    n = value("vllm:request_time_per_output_token_seconds_count")
    computed = value("vllm:request_prefill_kv_computed_tokens_sum")
    server.json("POST", "/v1/completions", {"prompt": [5, 6, 7, 8], "max_tokens": 9, "ignore_eos": True})
    for part, seconds in before.items():
        assert value("sluice:step_time_seconds_total", part=part) > seconds
    assert value("vllm:request_time_per_output_token_seconds_count") == n + 1
    assert value("vllm:request_prefill_kv_computed_tokens_sum") == computed + 4
    assert value("sluice:cpu_seconds_per_million_tokens") > 0
    assert value("sluice:kv_evicted_pages_total") == 0 == value("vllm:corrupted_requests_total")


def test_evictions():
    """Prompts that share nothing push each other out of a small pool."""
    with Server("--threads", "1", "--max-num-seqs", "2", "--max-model-len", "256") as s:
        pages = s.metric("sluice:kv_pages_total")
        for i in range(int(pages) // 10):
            s.json("POST", "/v1/completions", {"prompt": [i + 5] * 200, "max_tokens": 1})
        assert s.metric("sluice:kv_evicted_pages_total", cause="prompt") > 0
        assert s.metric("sluice:kv_evicted_pages_total", cause="reset") == 0


def test_dashboard(server):
    with open(os.path.join(ROOT, "deploy", "grafana-dashboard.json"), encoding="utf-8") as f:
        dashboard = json.load(f)
    have = samples(server)
    queries = [t["expr"] for p in dashboard["panels"] for t in p.get("targets", [])]
    assert len(queries) > 40
    for q in queries:
        names = names_in(q)
        assert names and names <= set(have), (q, names - set(have))
    for v in dashboard["templating"]["list"]:
        if v["type"] == "query":
            assert v["query"]["query"].split("(")[1].split(",")[0] in have
    ids = [p["id"] for p in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    boxes = [(p["gridPos"], p["title"]) for p in dashboard["panels"]]
    for i, (a, name) in enumerate(boxes):
        assert 0 <= a["x"] and a["x"] + a["w"] <= 24
        for b, other in boxes[:i]:
            apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] \
                or b["y"] + b["h"] <= a["y"]
            assert apart, (name, other)


def test_every_alert_has_an_entry_in_the_runbook():
    with open(RULES, encoding="utf-8") as f:
        rules = f.read()
    with open(os.path.join(ROOT, "docs", "OPERATIONS.md"), encoding="utf-8") as f:
        entries = {"docs/OPERATIONS.md#" + h.lower() for h in re.findall(r"^### (\w+)$", f.read(), flags=re.M)}
    alerts = re.findall(r"- alert: (\w+)", rules)
    runbooks = re.findall(r"runbook: (\S+)", rules)
    assert len(alerts) == len(runbooks) > 5
    assert set(runbooks) == entries
    assert runbooks == [f"docs/OPERATIONS.md#{a.lower()}" for a in alerts]


def test_rules(server):
    with open(RULES, encoding="utf-8") as f:
        text = f.read()
    have = set(samples(server))
    records = set(re.findall(r"^ *- record: (\S+)$", text, flags=re.M))
    expressions = re.findall(r"^ *expr: (.*)$", text, flags=re.M)
    assert len(expressions) == len(records) + len(re.findall("- alert:", text)) > 10
    for e in expressions:
        assert names_in(e) and names_in(e) <= have | records, (e, names_in(e) - have - records)
    assert not records & have  # a recorded series must not look like one of the server's


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool here")
def test_promtool(server):
    for command in (["check", "rules", RULES], ["test", "rules", RULES.replace(".yml", "-test.yml")]):
        r = subprocess.run([PROMTOOL, *command], capture_output=True, text=True)
        assert r.returncode == 0, r.stdout + r.stderr
    r = subprocess.run([PROMTOOL, "check", "metrics"], input=server.request("GET", "/metrics")[2], capture_output=True)
    # 3: it would like other names (vLLM's have colons and no units), 1: it cannot read them.
    assert r.returncode in (0, 3), r.stderr


# ---- the request log

def log_lines(server):
    with open(server.request_log, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def test_request_log(server):
    n = len(log_lines(server))
    secret = "a sentence nobody else would write"
    body = {"prompt": [1] + [9] * 40, "max_tokens": 6, "ignore_eos": True, "n": 2, "user": secret}
    reply = server.json("POST", "/v1/completions", body, {"X-Request-Id": "mine"})[1]
    server.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": secret}], "stream": True, "max_tokens": 3, "ignore_eos": True})
    a, b = log_lines(server)[n:]
    assert (a["id"], a["path"], a["status"], a["stream"]) == (reply["id"], "/v1/completions", 200, False)
    assert a["id"] == "cmpl-mine" and a["model"] == "storyteller" and a["key"] is None
    assert a["prompt_tokens"] == 41 and a["output_tokens"] == 12 and a["choices"] == 2
    assert a["finish"] == ["length", "length"] and b["finish"] == ["length"]
    assert 0 <= a["queue_s"] <= a["ttft_s"] <= a["e2e_s"] < 60 and a["preemptions"] == 0
    assert b["path"] == "/v1/chat/completions" and b["stream"] is True and b["output_tokens"] == 3
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", a["time"]) and a["time"] < b["time"]
    with open(server.request_log, encoding="utf-8") as f:
        assert secret not in f.read()


def test_request_log_of_a_client_that_leaves(server):
    n = len(log_lines(server))
    body = json.dumps({"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert c.recv(4096)
    server.wait_metric("vllm:num_requests_running", 0.0)
    line, = log_lines(server)[n:]
    assert line["status"] == 499 and line["finish"] == [None] and line["output_tokens"] > 0


def test_request_log_many_at_once(server):
    """Lines of several connections never mix."""
    n = len(log_lines(server))
    threads = [threading.Thread(target=lambda: [server.json("POST", "/v1/completions", {
        "prompt": "a", "max_tokens": 1}) for _ in range(10)]) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len({line["id"] for line in log_lines(server)[n:]}) == 80


def test_request_log_that_cannot_be():
    with pytest.raises(RuntimeError, match="--request-log.*nowhere"):
        Server("--threads", "1", "--request-log", "/nowhere/requests.jsonl")


# ---- the log, the service manager, who asked

def wait_for(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_log_of_a_servers_life():
    """How it started, what it did while busy and nothing while idle, and how it ended."""
    with Server("--threads", "1", "--log-stats-interval", "1") as s:
        start = s.log()
        assert re.search(r"sluice \d+\.\d+\.\d+: llama \(bundled\), 10 layers, context 1024, bf16 weights", start), start
        assert re.search(r"on \S+ with 1 threads: weights [\d.]+ MiB, KV cache [\d.]+ MiB", start), start
        time.sleep(1.3)
        assert "throughput" not in s.log()
        s.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 20, "ignore_eos": True})
        line = r"Avg prompt throughput: [\d.]+ tokens/s, Avg generation throughput: (?!0\.0 )[\d.]+ tokens/s, " \
               r"Running: 0 reqs, Waiting: 0 reqs, KV cache usage: [\d.]+%, Prefix cache hit rate: [\d.]+%"
        wait_for(lambda: re.search(line, s.log()), "no line of throughput")
        s.process.terminate()
        assert s.process.wait(30) == 0
        assert re.search(r"SIGTERM: draining for at most 30 s\n.*stopped [\d.]+ s after the signal", s.log()), s.log()


def test_the_service_manager_is_told(tmp_path):
    """sd_notify's datagrams, as systemd would read them."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(30)
        with Server("--threads", "1", env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "400000"}) as s:
            assert manager.recv(100) == b"READY=1"
            assert [manager.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
            s.process.terminate()
            assert s.process.wait(30) == 0
            rest = []
            manager.settimeout(0.2)
            with pytest.raises(TimeoutError):
                while True:
                    rest.append(manager.recv(100))
        assert b"STOPPING=1" in rest


def test_another_processs_watchdog_is_left_alone(tmp_path):
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(1)
        with Server("--threads", "1", env={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": "1"}):
            assert manager.recv(100) == b"READY=1"
            with pytest.raises(TimeoutError):
                manager.recv(100)


def test_version_and_clients_are_metrics(tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"key": "k1", "name": 'a "team"'}, {"key": "k2", "name": 'a "team"'},
                                         {"key": "k3", "name": "idle"}]}))
    with Server("--threads", "1", "--api-key-file", str(keys)) as s:
        for key, body in (("k1", {"prompt": "a", "max_tokens": 1}), ("k2", {"prompt": "a", "max_tokens": -1}),
                          ("k2", {"prompt": 7})):
            s.json("POST", "/v1/completions", body, {"Authorization": "Bearer " + key})
        found = samples(s)
        counts = {(x.labels["client"], x.labels["status"]): x.value for x in found["sluice:client_requests_total"]}
        assert counts == {('a "team"', "2xx"): 1, ('a "team"', "4xx"): 2}
        build, = found["sluice:build_info"]
        program = subprocess.run([s.process.args[0], "--version"], capture_output=True, text=True, check=True).stdout
        assert build.value == 1 and build.labels["version"] in program
