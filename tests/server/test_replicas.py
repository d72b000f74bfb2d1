# SPDX-License-Identifier: MIT
"""Several engines of one model behind one server (--data-parallel-size): answers are those of one engine, work is
divided among them, a conversation goes back to the one that has its beginning, and what concerns the model concerns
all of them."""
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serverproc import BINARY, ROOT, Server

MODEL = os.path.join(ROOT, "assets", "storyteller")
FLAGS = ["--threads", "2", "--kv-cache-memory-bytes", "32M", "--served-model-name", "story", "--enable-sleep-mode"]
N = 2
TEXT = "Once upon a time there was a little girl who lived in a big forest with her dog and her cat. "


@pytest.fixture(scope="module")
def server():
    with Server(MODEL, *FLAGS, "--data-parallel-size", str(N)) as s:
        yield s
        assert counts(s, "sluice:invariant_violations_total") == [0] * N
        assert counts(s, "sluice:step_mallocs_total") == [0] * N
        assert s.stop() == 0


def counts(server, name):
    """Of each engine."""
    text = server.request("GET", "/metrics")[2].decode()
    found = {s.labels["engine"]: s.value for f in text_string_to_metric_families(text) for s in f.samples
             if s.name == name and "model_name" in s.labels}
    return [found[str(k)] for k in range(N)]


def requests(server):
    return counts(server, "vllm:prompt_tokens_total")


def ask(server, prompt, rank=None, **more):
    headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
    body = {"model": "story", "prompt": prompt, "max_tokens": 8, "temperature": 0.9, "seed": 5, "logprobs": 1} | more
    return server.json("POST", "/v1/completions", body, headers)


def choice(reply):
    assert reply[0] == 200, reply
    return reply[1]["choices"][0]


def test_answers_are_those_of_one_engine(server):
    prompts = [TEXT * (1 + k % 3) + str(k) for k in range(24)]
    with Server(MODEL, *FLAGS) as one:
        want = [choice(ask(one, p)) for p in prompts]
    before = requests(server)
    with ThreadPoolExecutor(8) as pool:
        got = [choice(r) for r in pool.map(lambda p: ask(server, p), prompts)]
    assert got == want
    assert all(now > was for now, was in zip(requests(server), before))


@pytest.mark.parametrize("rank", range(N))
def test_a_header_chooses(server, rank):
    before = requests(server)
    choice(ask(server, f"rank {rank}", rank))
    changed = [now > was for now, was in zip(requests(server), before)]
    assert changed == [k == rank for k in range(N)]


@pytest.mark.parametrize("rank", [N, -1, "a", "", 2 ** 70])
def test_a_rank_that_is_not_there(server, rank):
    status, reply = ask(server, "a", rank)
    assert status == 400 and "x-data-parallel-rank" in reply["error"]["message"], reply
    assert f"0 to {N - 1}" in reply["error"]["message"]


def test_a_conversation_goes_back(server):
    """Each turn finds the pages of the turns before it, on whichever engine these were."""
    for k in range(6):
        text = f"{k} " + TEXT * 8
        for turn in range(4):
            status, reply = ask(server, text)
            assert status == 200
            cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert (cached > 0) == (turn > 0) and (turn == 0 or cached >= before - 16), (k, turn, cached)
            before = reply["usage"]["prompt_tokens"]
            text += choice((status, reply))["text"] + " Then " + TEXT


def test_texts_that_begin_alike_are_divided(server):
    """What they have in common is less than half of them."""
    before = requests(server)
    for k in range(8):
        choice(ask(server, TEXT * 4 + f"The {k}. " * 80, max_tokens=1))
    assert all(now > was for now, was in zip(requests(server), before))


def test_one_model_is_listed(server):
    assert [m["id"] for m in server.json("GET", "/v1/models")[1]["data"]] == ["story"]
    assert server.json("GET", "/v1/models/story")[0] == 200
    assert len(server.json("GET", "/api/tags")[1]["models"]) == 1
    assert server.json("GET", "/server_info")[1]["dp_size"] == N
    status, reply = ask(server, "a", model="other")
    assert status == 404 and reply["error"]["message"].count("story") == 1


def test_all_sleep_and_wake(server):
    for query in ("", "&model=story"):
        assert server.request("POST", "/sleep?level=1" + query)[0] == 200
        assert all(ask(server, "a", rank)[0] == 503 for rank in range(N))
        assert json.loads(server.request("GET", "/is_sleeping")[2]) == {"is_sleeping": True}
        assert server.request("POST", "/wake_up?" + query[1:])[0] == 200
        for rank in range(N):
            choice(ask(server, "a", rank))


@pytest.mark.parametrize("flags, word", [
    (["--allow-runtime-lora-updating"], "adapters"),
    (["--allow-weight-updates"], "weights"),
    (["--disaggregation-mode", "decode"], "one engine"),
    (["--nnodes", "2", "--tensor-parallel-size", "2"], "--nnodes"),
    (["other=" + MODEL], "of one model"),
])
def test_what_cannot_be_combined(flags, word):
    first = [] if "=" not in flags[0] else [flags[0]]
    done = subprocess.run([BINARY, "serve", MODEL, *first, "--device", "cpu", "--port", "0", "--data-parallel-size", "2",
                           *(flags if not first else [])], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "data" in done.stderr and word in done.stderr, done.stderr
