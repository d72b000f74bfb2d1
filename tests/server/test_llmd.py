# SPDX-License-Identifier: MIT
"""What llm-d's router and its simulator expect of a model server: metrics, headers, cache_hit_threshold."""
import http.client
import json
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serverproc import Server

# The simulator's list of vLLM's metrics.
METRICS = """num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info prompt_tokens
generation_tokens request_success request_prompt_tokens request_generation_tokens
request_max_num_generation_tokens request_params_max_tokens e2e_request_latency_seconds
request_inference_time_seconds request_queue_time_seconds request_prefill_time_seconds
request_decode_time_seconds request_time_per_output_token_seconds time_to_first_token_seconds
time_per_output_token_seconds inter_token_latency_seconds prefix_cache_hits prefix_cache_queries""".split()
PROMPT = [3 + i % 200 for i in range(64)]


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--block-size", "16", "--metrics-aliases", "--trust-request-chat-template") as s:
        yield s
        assert s.process.poll() is None, s.log()


def complete(server, prompt, threshold=None, **more):
    body = {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, **more}
    if threshold is not None:
        body["cache_hit_threshold"] = threshold
    status, reply = server.json("POST", "/v1/completions", body)
    assert status == 200, reply
    return reply


def test_metrics(server):
    complete(server, PROMPT)
    _, _, text = server.request("GET", "/metrics")
    families = {f.name: f for f in text_string_to_metric_families(text.decode())}
    missing = [m for m in METRICS if "vllm:" + m not in families]
    assert not missing
    config = families["vllm:cache_config_info"].samples[0]
    assert config.value == 1 and config.labels["block_size"] == "16" and int(config.labels["num_gpu_blocks"]) > 0
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert families["vllm:" + name].type == "gauge" and len(families["vllm:" + name].samples) == 1


def test_threshold(server):
    prompt = [5 + i % 190 for i in range(64)]
    steps = server.metric("vllm:prompt_tokens_total")
    reply = complete(server, prompt, 0.5, n=2)
    assert [c["finish_reason"] for c in reply["choices"]] == ["cache_threshold"] * 2
    assert reply["usage"]["completion_tokens"] == 0 and reply["choices"][0]["text"] == ""
    assert server.metric("vllm:prompt_tokens_total") == steps  # nothing was computed
    complete(server, prompt[:32])
    for threshold, want in [(0, "length"), (0.5, "length")]:
        assert complete(server, prompt, threshold)["choices"][0]["finish_reason"] == want
    longer = prompt + [9] * 36  # 64 of 100 are cached now
    assert complete(server, longer, 0.65)["choices"][0]["finish_reason"] == "cache_threshold"
    assert complete(server, longer, 0.65)["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert complete(server, longer, 0.64)["choices"][0]["finish_reason"] == "length"
    assert complete(server, prompt, 1)["choices"][0]["finish_reason"] == "length"  # whole pages, all cached
    assert complete(server, prompt, 0.1, cache_salt="x")["choices"][0]["finish_reason"] == "cache_threshold"
    assert server.metric("vllm:request_success_total", finished_reason="cache_threshold") >= 4
    for bad in (-0.1, 1.1, "1"):
        status, reply = server.json("POST", "/v1/completions", {"prompt": prompt, "cache_hit_threshold": bad})
        assert status == 400 and reply["error"]["param"] == "cache_hit_threshold"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_threshold_in_the_first_write(server, path):
    """The sidecar looks at what came first, and nowhere else."""
    body = {"stream": True, "cache_hit_threshold": 0.9, "max_tokens": 5}
    body |= {"prompt": "never seen " * 40} if path == "/v1/completions" else \
        {"messages": [{"role": "user", "content": "never seen " * 40}], "chat_template": "{{ messages[0].content }}"}
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    c.request("POST", path, json.dumps(body))
    r = c.getresponse()
    if r.status == 400 and b"chat_template" in (text := r.read()):
        pytest.skip("skip: the bundled model has no chat template: " + text.decode()[:80])
    assert r.status == 200 and b'"finish_reason":"cache_threshold"' in r.read1(65536)
    c.close()


def test_headers(server):
    headers = {"x-request-id": "abc-1", "x-prefiller-host-port": "10.0.0.1:8000", "x-data-parallel-rank": "0",
               "x-llm-d-inference-objective": "o", "x-session-token": "t", "traceparent": "00-" + "1" * 32}
    status, _, data = server.request("POST", "/v1/completions", {"prompt": PROMPT, "max_tokens": 1}, headers)
    assert status == 200 and json.loads(data)["id"] == "cmpl-abc-1"
    status, reply = server.json("POST", "/v1/completions", {"prompt": PROMPT, "kv_transfer_params": {"do_remote_decode": True}})
    assert status == 400 and reply["error"]["param"] == "kv_transfer_params"


def test_scrapes_are_cheap(server):
    """A router asks every 50 ms."""
    done = threading.Event()
    worker = threading.Thread(target=lambda: (complete(server, PROMPT, max_tokens=150), done.set()))
    worker.start()
    n = 0
    while not done.is_set():
        assert server.request("GET", "/metrics")[0] == 200
        n += 1
    worker.join()
    assert n > 1
