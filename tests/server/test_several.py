# SPDX-License-Identifier: MIT
"""Several models in one server: which one a request means, what is listed and counted for each, and one budget of
KV pages that a busy model takes from an idle one. Answers are those of a server with that model alone, bit for bit."""
import json
import os
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from serverproc import BINARY, ROOT, Server

MKMODEL = os.path.join(ROOT, "build", "release", "tools", "mkmodel")
STORY = os.path.join(ROOT, "assets", "storyteller")
PROMPT = {"prompt": "Once upon a time there was", "max_tokens": 12, "temperature": 0, "logprobs": 2}
FLAGS = ["--threads", "1", "--enable-lora", "--allow-runtime-lora-updating", "--enable-sleep-mode"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family in ("bert", "llama"):
        subprocess.run([MKMODEL, "--family", family, "--vocab", "bytes", "--seed", "7", "--out", str(folder / family)],
                       check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def three(models):
    with Server("story=" + STORY, str(models / "bert"), "tiny/llama=" + str(models / "llama"), *FLAGS,
                "--kv-cache-memory-bytes", "64M", "--for", "story", "--max-model-len", "256") as s:
        s.bert = "bert"  # its folder's name
        yield s
        assert s.metric("sluice:invariant_violations_total") == 0
        assert s.stop() == 0


def alone(path, body):
    with Server(path, "--threads", "1") as s:
        status, reply = s.json("POST", "/v1/completions", body)
        assert status == 200, reply
        return reply["choices"][0]


def ask(server, model, **fields):
    return server.json("POST", "/v1/completions", PROMPT | {"model": model} | fields)


def error(reply, status, word):
    assert reply[0] == status and word in reply[1]["error"]["message"], reply
    return reply[1]["error"]


def test_each_answers_as_alone(three, models):
    for name, path in (("story", STORY), ("tiny/llama", str(models / "llama"))):
        status, reply = ask(three, name)
        assert status == 200 and reply["model"] == name, reply
        expected = alone(path, PROMPT)
        assert reply["choices"][0]["text"] == expected["text"]
        assert reply["choices"][0]["logprobs"] == expected["logprobs"]


def test_which_model(three):
    e = error(ask(three, "nobody"), 404, "`nobody`")
    assert e["code"] == "model_not_found" and e["param"] == "model"
    missing = three.json("POST", "/v1/completions", PROMPT)
    assert error(missing, 400, "`story`, ")["param"] == "model"
    error(three.json("POST", "/v1/completions", PROMPT | {"model": 3}), 400, "model")
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}),
                       ("/v1/responses", {"input": "hi"}), ("/v1/embeddings", {"input": "hi"}),
                       ("/rerank", {"query": "a", "documents": ["b"]}), ("/tokenize", {"prompt": "hi"}),
                       ("/detokenize", {"tokens": [1]}), ("/apply-template", {"messages": []})):
        status, reply = three.json("POST", path, body)
        assert status == 400 and "several models" in json.dumps(reply), (path, reply)
        status, reply = three.json("POST", path, body | {"model": "nobody"})
        assert status == 404, (path, reply)


def test_what_each_can(three):
    error(ask(three, three.bert), 400, "does not generate")
    status, reply = three.json("POST", "/v1/embeddings", {"model": three.bert, "input": "hello"})
    assert status == 200 and len(reply["data"][0]["embedding"]) > 8 and reply["model"] == three.bert
    error(three.json("POST", "/v1/embeddings", {"model": "story", "input": "hello"}), 400, "no embeddings")
    counts = [three.json("POST", "/tokenize", {"model": m, "prompt": "hello there"})[1]["count"]
              for m in ("story", "tiny/llama")]
    assert counts[0] < counts[1]  # words and bytes
    error(ask(three, "story", prompt="a " * 400), 400, "256")  # --for story
    assert ask(three, "tiny/llama", prompt="a " * 200)[0] == 200


def test_models_are_listed(three):
    client = openai.OpenAI(base_url=three.url + "/v1", api_key="x")
    assert [m.id for m in client.models.list().data] == ["story", three.bert, "tiny/llama"]
    assert client.models.retrieve("tiny/llama").id == "tiny/llama"
    assert three.json("GET", "/v1/models/tiny%2Fllama")[1]["id"] == "tiny/llama"
    assert three.json("GET", "/v1/models/nobody")[0] == 404
    lengths = {m["id"]: m["max_model_len"] for m in three.json("GET", "/v1/models")[1]["data"]}
    assert lengths["story"] == 256 < lengths["tiny/llama"]
    both = three.json("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})[1]
    assert both["first_id"] == "story" and both["last_id"] == "tiny/llama"


def test_names(three, models):
    """What a path and a name are called besides, and what is said about a name that nobody has."""
    path = str(models / "bert")
    parent = os.path.basename(models)
    cards = {m["id"]: m for m in three.json("GET", "/v1/models")[1]["data"]}
    assert cards["bert"]["root"] == path and cards["bert"]["aliases"] == [path]
    assert cards["tiny/llama"]["aliases"] == ["llama"] and cards["story"]["aliases"] == []
    for name, shown in ((path, "bert"), (f"{parent}/bert", "bert"), ("bert.gguf", "bert"), ("llama", "tiny/llama")):
        body = {"model": name, "prompt": "hello"}
        assert three.json("POST", "/tokenize", body)[0] == 200, name
        assert three.json("GET", "/v1/models/" + name.replace("/", "%2F"))[1]["id"] == shown
    for name in ("ert", "lama", "/bert", "x/bert", "", "../bert", path[1:]):
        message = error(three.json("POST", "/tokenize", {"model": name, "prompt": "a"}), 404, f"`{name}`")["message"]
        assert "this server has `story`, `bert`, `tiny/llama`" in message


def test_one_model_by_its_folder(models, tmp_path):
    """As a README has it: served from ./NAME, asked for as NAME and ORG/NAME."""
    home, commit = tmp_path / "Qwen" / "Qwen3-0.6B", tmp_path / "models--Qwen--Qwen3-4B" / "snapshots" / "abc"
    for link in (home, commit):
        link.parent.mkdir(parents=True)
        os.symlink(models / "llama", link)
    for given, shown, others in ((str(home) + "/", "Qwen3-0.6B", ["Qwen/Qwen3-0.6B", str(models / "llama")]),
                                 (str(commit), "Qwen/Qwen3-4B", ["Qwen3-4B"])):
        with Server(given, "--threads", "1") as s:
            assert [m["id"] for m in s.json("GET", "/v1/models")[1]["data"]] == [shown]
            for name in (shown, given, *others):
                assert ask(s, name)[1]["model"] == shown
            assert s.metric("vllm:num_requests_running", model_name=shown) == 0
            error(ask(s, "gpt-4"), 404, f"the model `gpt-4` does not exist; this server has `{shown}`")


def test_metrics_have_a_label(three):
    text = three.request("GET", "/metrics")[2].decode()
    assert len(re.findall("^# TYPE (.*)$", text, re.M)) == len(set(re.findall("^# TYPE (.*)$", text, re.M)))
    families = {f.name: f for f in text_string_to_metric_families(text)}
    for name in ("vllm:num_requests_running", "vllm:prompt_tokens", "vllm:time_to_first_token_seconds",
                 "sluice:kv_held_bytes"):
        names = {s.labels["model_name"] for s in families[name].samples}
        assert names == {"story", three.bert, "tiny/llama"}, name
    held = {s.labels["model_name"]: s.value for s in families["sluice:kv_held_bytes"].samples}
    floors = {s.labels["model_name"]: s.value for s in families["sluice:kv_floor_bytes"].samples}
    left = families["sluice:kv_left_bytes"].samples[0].value
    total = families["sluice:kv_shared_bytes"].samples[0].value
    assert sum(max(held[m], floors[m]) for m in held) + left == total


def test_state_of_each(three):
    state = three.json("GET", "/api/state?model=tiny%2Fllama")[1]
    assert state["model"] == "tiny/llama" and state["info"]["architecture"] == "llama"
    assert [m["id"] for m in state["models"]] == ["story", three.bert, "tiny/llama"]
    assert three.json("GET", "/api/state")[1]["model"] == "story"
    assert three.json("GET", "/api/state?model=nobody")[0] == 404


def test_sleep_one_or_all(three):
    def sleeping(model=""):
        return three.json("GET", "/is_sleeping" + model)[1]["is_sleeping"]
    before = [ask(three, m)[1]["choices"] for m in ("story", "tiny/llama")]
    assert three.request("POST", "/sleep?level=2&model=nobody")[0] == 404
    status, _, data = three.request("POST", "/sleep?level=1&model=story")
    assert status == 200, data
    assert sleeping("?model=story") and not sleeping("?model=tiny/llama") and not sleeping()
    assert three.metric("sluice:kv_held_bytes", model_name="story") == 0
    error(ask(three, "story"), 503, "/wake_up")
    assert ask(three, "tiny/llama")[1]["choices"] == before[1]
    assert three.request("GET", "/health/ready")[0] == 200
    assert three.request("POST", "/sleep?level=1")[0] == 200 and sleeping()
    assert three.request("GET", "/health/ready")[0] == 503
    assert three.request("POST", "/wake_up")[0] == 200
    assert [ask(three, m)[1]["choices"] for m in ("story", "tiny/llama")] == before


def test_adapters_are_of_one_model(three, tmp_path):
    status, _, data = three.request("POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": str(tmp_path)})
    assert status == 400 and b"base_model_name is missing" in data
    status, _, data = three.request("POST", "/v1/load_lora_adapter",
                                    {"lora_name": "tiny/llama", "lora_path": "/x", "base_model_name": "story"})
    assert status == 400 and b"conflicts" in data
    assert three.request("POST", "/v1/unload_lora_adapter", {"lora_name": "x"})[0] == 404


# ---- one budget

def burst(server, model, n, tokens=50):
    """Many long requests at once; all must end well. Returns their texts, by prompt."""
    def one(i):
        status, reply = ask(server, model, prompt=f"{i} " * 30, max_tokens=tokens, ignore_eos=True)
        assert status == 200 and reply["usage"]["completion_tokens"] == tokens, reply
        return reply["choices"][0]["text"]
    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


@pytest.fixture
def two():
    with Server("a=" + STORY, "b=" + STORY, "--threads", "2", "--max-model-len", "256",
                "--kv-cache-memory-bytes", "7M") as s:
        yield s
        assert s.process.poll() is None, s.log()
        assert s.metric("sluice:invariant_violations_total") == 0
        for name in "ab":
            assert s.metric("vllm:num_requests_running", model_name=name) == 0
        assert s.stop() == 0


def test_pages_go_to_who_is_busy(two):
    def held(name):
        return two.metric("sluice:kv_held_bytes", model_name=name)
    floor, total = two.metric("sluice:kv_floor_bytes"), two.metric("sluice:kv_shared_bytes")
    first = burst(two, "a", 8)
    assert held("a") > total / 2 and held("b") == 0  # a's prefixes stay where nobody else wants to be
    assert burst(two, "b", 8) == first
    assert held("b") > total / 3 and held("a") < total / 2
    assert two.metric("sluice:kv_given_pages_total", model_name="a") > 0
    assert burst(two, "a", 8) == first
    assert max(held("a"), floor) + max(held("b"), floor) <= total


def test_both_busy_at_once(two):
    texts = {}
    threads = [threading.Thread(target=lambda m=m: texts.update({m: burst(two, m, 6)})) for m in "ab"]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    assert texts["a"] == texts["b"]
    with Server("c=" + STORY, "--threads", "2", "--max-model-len", "256") as s:
        assert burst(s, "c", 6) == texts["a"]


def test_idle_server_uses_no_time(two):
    burst(two, "a", 4, 20)
    assert two.is_idle(0.05)


# ---- what goes wrong at the start

def fails(*args):
    r = subprocess.run([BINARY, "serve", "--port", "0", "--device", "cpu", *args], capture_output=True, text=True,
                       timeout=60)
    assert r.returncode != 0
    return r.stderr


def test_errors_name_the_model(models, tmp_path):
    tiny = str(models / "llama")
    assert "second" in fails("first=" + STORY, "second=" + str(tmp_path))
    assert "two models have the name 'a'" in fails("a=" + STORY, "a=" + tiny)
    few = fails("a=" + STORY, "b=" + STORY, "--kv-cache-memory-bytes", "6M", "--max-model-len", "900")
    assert "b: kv_cache_memory_bytes" in few and "leave" in few
    assert "no model is called 'c'" in fails("a=" + STORY, "b=" + tiny, "--for", "c", "--max-model-len", "9")
    assert "for all models together" in fails("a=" + STORY, "b=" + tiny, "--for", "a", "--kv-cache-memory-bytes", "9M")
    assert "--for a: unexpected" in fails("a=" + STORY, "b=" + tiny, "--for", "a", "word")
    assert "write NAME=MODEL" in fails("a=" + STORY, "b=" + tiny, "--served-model-name", "x")
