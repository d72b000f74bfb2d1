# SPDX-License-Identifier: MIT
"""Drafts over HTTP: predicted outputs and past outputs are accepted without changing an answer, usage and timings say
how many were, and nobody drafts from another cache_salt's outputs."""
import json

import pytest

from serverproc import Server

HI = [{"role": "user", "content": "Tell me a story about a dog."}]
SUFFIX = json.dumps({"method": "suffix", "num_speculative_tokens": 16})


@pytest.fixture(scope="module")
def server():
    # all drafts are tried, whatever a step takes
    with Server("--threads", "1", "--no-webui", "--max-itl", "0", "--timings", "--speculative-config", SUFFIX) as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def chat(server, want=200, **fields):
    status, r = server.json("POST", "/v1/chat/completions", {
        "messages": HI, "max_tokens": 60, "temperature": 0.8, "seed": 7, "ignore_eos": True} | fields)
    assert status == want, r
    return r


def text(r):
    return r["choices"][0]["message"]["content"]


def drafts(r):
    """Accepted and rejected ones, which usage and timings must agree on."""
    details, timings = r["usage"].get("completion_tokens_details", {}), r["timings"]
    accepted, rejected = (details.get(f"{k}_prediction_tokens", 0) for k in ("accepted", "rejected"))
    assert (timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)) == (accepted + rejected, accepted)
    return accepted, rejected


def test_prediction(server):
    plain = chat(server, cache_salt="a")
    said = text(plain)
    for content in (said, [{"type": "text", "text": said[:20]}, {"type": "text", "text": said[20:]}]):
        r = chat(server, cache_salt="b" + str(type(content)), prediction={"type": "content", "content": content})
        assert text(r) == said
        assert drafts(r)[0] >= 40 and drafts(r)[0] > 2 * drafts(plain)[0]
    wrong = chat(server, cache_salt="c", prediction={"type": "content", "content": said[::-1]})
    assert text(wrong) == said and drafts(wrong)[0] < 30


@pytest.mark.parametrize("prediction", [{"type": "content"}, {"content": "x"}, {"type": "content", "content": [1]}, "x"])
def test_a_prediction_that_is_none(server, prediction):
    assert chat(server, want=400, prediction=prediction)["error"]["param"] == "prediction"


def test_past_outputs_of_the_same_salt(server):
    first = chat(server, cache_salt="x")
    again, other = chat(server, cache_salt="x"), chat(server, cache_salt="y")
    assert text(first) == text(again) == text(other)
    assert drafts(again)[0] >= 40
    assert drafts(other) == drafts(first)  # as if nobody had asked before


def test_a_stream_counts_too(server):
    body = {"messages": HI, "max_tokens": 60, "temperature": 0.8, "seed": 7, "ignore_eos": True, "cache_salt": "x",
            "stream": True, "stream_options": {"include_usage": True}}
    with server.stream("/v1/chat/completions", body) as chunks:
        last = list(chunks)[-1]
    assert last["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] >= 40


def test_metrics_add_up(server):
    def metric(name):
        return sum(float(line.rsplit(" ", 1)[1]) for line in server.request("GET", "/metrics")[2].decode().splitlines()
                   if line.startswith(f"vllm:spec_decode_num_{name}_total{{"))
    before = [metric(n) for n in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")]
    accepted, rejected = drafts(chat(server, cache_salt="z"))
    accepted2, rejected2 = drafts(chat(server, cache_salt="z"))
    after = [metric(n) for n in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")]
    made = [a - b for a, b in zip(after, before)]
    assert made[1:] == [accepted + rejected + accepted2 + rejected2, accepted + accepted2, accepted + accepted2]
    assert 0 < made[0] <= made[1]
