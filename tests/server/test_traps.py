# SPDX-License-Identifier: MIT
"""Where clients of other servers stumble: the compatibility traps of docs/API.md, a test each, by its number there."""
import json
import os
import subprocess
import threading
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serverproc import BINARY, Server

MKMODEL = os.path.join(os.path.dirname(BINARY), "tools", "mkmodel")
STORY = "Once upon a time there was a little dog who lived in a house"
LONG = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True}  # keeps the engine busy for a second
HI = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server():
    with Server("--metrics-aliases", "--no-webui") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def complete(server, **fields):
    status, r = server.json("POST", "/v1/completions", {"prompt": STORY, "temperature": 0, "max_tokens": 8} | fields)
    return status, r


def families(server):
    _, _, data = server.request("GET", "/metrics")
    return {f.name: f for f in text_string_to_metric_families(data.decode())}


def test_01_priority_lower_runs_first_and_is_refused_under_fcfs(server, tmp_path):
    status, r = complete(server, priority=1)
    assert status == 400 and r["error"]["param"] == "priority"
    assert complete(server, priority=0)[0] == 200
    log = tmp_path / "log"  # in the order in which they ended: threads of this test may hear of it in another
    with Server("--scheduling-policy", "priority", "--max-num-seqs", "1", "--http-threads", "1", "--request-log", str(log)) as s:
        def ask(priority):
            s.json("POST", "/v1/completions", {"prompt": STORY, "max_tokens": 50, "priority": priority,
                                               "request_id": str(priority)})
        for _ in range(10):  # until all were seen to wait together: the busy one does not last long
            threads = [threading.Thread(target=ask, args=(p,)) for p in (5, 0, -5)]
            with s.stream("/v1/completions", LONG) as busy:
                busy.first()
                for t in threads:
                    t.start()
                    time.sleep(0.02)
                waiting = s.metric("vllm:num_requests_waiting")
            for t in threads:
                t.join()
            if waiting == 3.0:
                break
        ended = [json.loads(line)["id"] for line in log.read_text().splitlines()]
        assert waiting == 3.0 and [i for i in ended if i in ("cmpl--5", "cmpl-0", "cmpl-5")][-3:] == ["cmpl--5", "cmpl-0", "cmpl-5"]


def test_02_reasoning_goes_by_both_names(server):
    del server
    echo = "{% for m in messages %}[{{ m.reasoning }}|{{ m.reasoning_content }}]{% endfor %}"
    with Server("--reasoning-parser", "deepseek_r1", "--chat-template", echo) as s:
        _, r = s.json("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 8, "ignore_eos": True})
        m = r["choices"][0]["message"]
        assert m["reasoning"] and m["reasoning"] == m["reasoning_content"]
        body = {"messages": HI, "max_tokens": 8, "ignore_eos": True, "stream": True}
        with s.stream("/v1/chat/completions", body) as chunks:
            deltas = [c["choices"][0]["delta"] for c in chunks]
        said = [d for d in deltas if "reasoning" in d]
        assert said and all(d["reasoning"] == d["reasoning_content"] for d in said)
        ids = [s.json("POST", "/tokenize", {"messages": [{"role": "assistant", name: "T"}]})[1]["tokens"]
               for name in ("reasoning", "reasoning_content")]
        want = s.json("POST", "/tokenize", {"prompt": "[T|T]", "add_special_tokens": False})[1]["tokens"]
        assert ids == [want, want]


def test_03_prefix_cache_counts_tokens(server):
    before = [server.metric(f"vllm:prefix_cache_{what}_total") for what in ("queries", "hits")]
    usages = [complete(server, prompt=STORY * 4, max_tokens=1)[1]["usage"] for _ in range(2)]
    queries, hits = [server.metric(f"vllm:prefix_cache_{what}_total") for what in ("queries", "hits")]
    assert queries - before[0] == 2 * usages[0]["prompt_tokens"]
    assert hits - before[1] == sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages) > 16


def test_04_iteration_tokens_total_is_a_histogram(server):
    family = families(server)["vllm:iteration_tokens_total"]
    assert family.type == "histogram"
    assert {s.name.removeprefix("vllm:iteration_tokens_total") for s in family.samples} >= {"_bucket", "_sum", "_count"}


def test_05_num_requests_waiting_counts_all_and_tells_why(server):
    def waiting(s):  # of one scrape
        f = families(s)
        by_reason = {x.labels["reason"]: x.value for x in f["vllm:num_requests_waiting_by_reason"].samples}
        return f["vllm:num_requests_waiting"].samples[0].value, by_reason
    with Server("--max-num-seqs", "1") as s:
        for _ in range(10):  # until both were seen together: the busy one does not last long
            with s.stream("/v1/completions", LONG) as busy:
                busy.first()
                with s.stream("/v1/completions", {"prompt": "b", "max_tokens": 1}):
                    if (seen := waiting(s))[0] > 0:
                        break
    assert seen == (1.0, {"capacity": 1.0, "deferred": 0.0})
    assert waiting(server) == (0.0, {"capacity": 0.0, "deferred": 0.0})


def test_06_generation_config_is_applied_unless_told_otherwise(tmp_path):
    model = tmp_path / "model"
    subprocess.run([MKMODEL, "--quiet", "--vocab", "bytes", "--out", str(model)], check=True)
    config = model / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"temperature": 0.0}))

    def texts(*flags):
        with Server(str(model), *flags, "--threads", "1") as s:
            body = {"prompt": "a", "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
            return {str(s.json("POST", "/v1/completions", body | {"seed": i})[1]["choices"][0]["token_ids"])
                    for i in range(4)}
    assert len(texts()) == 1  # greedy, as the file says
    assert len(texts("--generation-config", "vllm")) > 1
    r = subprocess.run([BINARY, "serve", "--generation-config", "/x"], capture_output=True, text=True, check=False)
    assert r.returncode != 0 and "generation-config" in r.stderr


def test_07_logprobs_is_a_number_of_completions_and_a_switch_of_chats(server):
    status, r = complete(server, logprobs=2)
    assert status == 200 and len(r["choices"][0]["logprobs"]["top_logprobs"][0]) >= 2
    assert complete(server, logprobs=True)[0] == 400
    chat = {"messages": HI, "max_tokens": 2}
    status, r = server.json("POST", "/v1/chat/completions", chat | {"logprobs": True, "top_logprobs": 2})
    assert status == 200 and len(r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 2
    for wrong in ({"logprobs": 2}, {"top_logprobs": 2}, {"logprobs": False, "top_logprobs": 2}):
        assert server.json("POST", "/v1/chat/completions", chat | wrong)[0] == 400


def test_08_top_k_of_0_and_of_minus_1_is_off(server):
    def text(**fields):
        return complete(server, temperature=1, seed=5, max_tokens=16, **fields)[1]["choices"][0]["text"]
    assert text(top_k=0) == text(top_k=-1) == text()
    assert complete(server, temperature=0, max_tokens=16)[1]["choices"][0]["text"] == text(top_k=1) != text()
    assert complete(server, top_k=-2)[0] == 400


def test_09_tool_choice_is_none_without_tools(server):
    chat = {"messages": HI, "max_tokens": 2}
    for fields in ({}, {"tools": None}, {"tools": []}, {"tool_choice": "none"}, {"tools": [], "tool_choice": "none"}):
        status, r = server.json("POST", "/v1/chat/completions", chat | fields)
        assert status == 200 and "tool_calls" not in r["choices"][0]["message"], fields
    status, r = server.json("POST", "/v1/chat/completions", chat | {"tool_choice": "required"})
    assert status == 400 and r["error"]["param"] == "tool_choice"


def test_10_inter_token_latency_counts_tokens(server):
    name = "vllm:inter_token_latency_seconds_count"
    before = server.metric(name)
    complete(server, max_tokens=20, ignore_eos=True)
    server.wait_metric(name, before + 19)


def test_11_completion_of_llama_cpp_is_another_endpoint(server):
    for path in ("/completion", "/completions", "/infill"):
        status, r = server.json("POST", path, {"prompt": STORY, "n_predict": 2})
        assert status == 404 and path in r["error"]["message"], path


def test_12_what_is_put_back_is_one_counter_of_vllm(server):
    of_sglang = [name for name in families(server) if name.startswith("sglang:") or "retracted" in name]
    assert of_sglang == []
    assert families(server)["vllm:num_preemptions"].type == "counter"


def test_13_what_benchmarks_send_and_look_for(server):
    _, r = complete(server, ignore_eos=True, min_tokens=12, max_tokens=12)
    assert r["usage"]["completion_tokens"] == 12
    always_ends = {"logit_bias": {"0": 100}, "max_tokens": 12}
    assert complete(server, **always_ends)[1]["usage"]["completion_tokens"] == 1
    assert complete(server, **always_ends, min_tokens=7)[1]["usage"]["completion_tokens"] == 8
    assert complete(server, **always_ends, ignore_eos=True)[1]["usage"]["completion_tokens"] == 12
    line = next(x for x in server.log().splitlines() if "GPU KV cache size: " in x)
    n = int(line.split("GPU KV cache size: ")[1].split(" tokens")[0].replace(",", ""))
    info = families(server)["vllm:cache_config_info"].samples[0].labels
    assert n == int(info["block_size"]) * int(info["num_gpu_blocks"])
    assert f"max_total_num_tokens={n}" in line


def test_14_usage_called_percent_is_a_share(server):
    with server.stream("/v1/completions", {"prompt": STORY * 20, "max_tokens": 300, "ignore_eos": True}) as busy:
        busy.first()
        names = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
        got = [server.metric(name) for name in names]
        pages = int(families(server)["vllm:cache_config_info"].samples[0].labels["num_gpu_blocks"])
    assert all(1 / pages <= x <= 1 for x in got)
    assert all(x * pages == pytest.approx(round(x * pages), abs=1e-3) for x in got)
