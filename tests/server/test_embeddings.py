# SPDX-License-Identifier: MIT
"""Embeddings, scores and rerankings over HTTP with small random models (tools/mkmodel): shapes, both encodings, the
openai client unmodified, the same bits alone and in a crowd, and what is refused."""
import base64
import json
import math
import os
import shutil
import signal
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from colbert import make_colbert
from serverproc import ROOT, Server

MKMODEL = os.path.join(ROOT, "build", "release", "tools", "mkmodel")
TEXTS = ["", "a", "the quick brown fox", "jumps over the lazy dog " * 3, "ÄÖÜ ß 漢字"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for family in ("bert", "bert-classifier", "qwen3"):
        subprocess.run([MKMODEL, "--family", family, "--vocab", "bytes", "--seed", "7", "--out", str(folder / family)],
                       check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def bert(models):
    s = Server(str(models / "bert"), "--served-model-name", "bert")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def reranker(models):
    s = Server(str(models / "bert-classifier"))
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def decoder(models):
    s = Server(str(models / "qwen3"), "--runner", "pooling", "--chat-template",
               "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    yield s
    assert s.stop() == 0


@pytest.fixture(scope="module")
def colbert(models):
    s = Server(str(make_colbert(models / "bert", models / "colbert", 12)))
    yield s
    assert s.stop() == 0


def embed(server, body):
    status, reply = server.json("POST", "/v1/embeddings", {"input": TEXTS[2], **body})
    assert status == 200, reply
    return reply


def refused(server, path, body, word, status=400):
    got, reply = server.json("POST", path, body)
    assert got == status and word in reply["error"]["message"], reply
    return reply["error"]


def test_shape(bert):
    r = embed(bert, {"input": TEXTS[1:], "model": "bert", "user": "me"})
    assert r["object"] == "list" and r["model"] == "bert" and r["id"].startswith("embd-")
    assert [d["index"] for d in r["data"]] == [0, 1, 2, 3]
    assert all(d["object"] == "embedding" and len(d["embedding"]) == 48 for d in r["data"])
    assert all(abs(math.hypot(*d["embedding"]) - 1) < 1e-5 for d in r["data"])
    n = sum(len(t.encode()) for t in TEXTS[1:])  # a token is a byte
    assert r["usage"] == {"prompt_tokens": n, "total_tokens": n}


def test_encodings_agree(bert):
    plain = embed(bert, {})["data"][0]["embedding"]
    coded = embed(bert, {"encoding_format": "base64"})["data"][0]["embedding"]
    assert struct.unpack("<48f", base64.b64decode(coded)) == struct.unpack("<48f", struct.pack("<48f", *plain))


def test_token_ids(bert):
    ids = list(TEXTS[2].encode())
    text = embed(bert, {})["data"][0]["embedding"]
    assert embed(bert, {"input": ids})["data"][0]["embedding"] == text
    assert [d["embedding"] for d in embed(bert, {"input": [ids, ids]})["data"]] == [text, text]


def test_dimensions(bert):
    whole = embed(bert, {})["data"][0]["embedding"]
    short = embed(bert, {"dimensions": 7})["data"][0]["embedding"]
    length = math.hypot(*whole[:7])
    assert len(short) == 7 and all(abs(a - b / length) < 1e-6 for a, b in zip(short, whole))
    assert embed(bert, {"dimensions": 48})["data"][0]["embedding"] == whole
    assert refused(bert, "/v1/embeddings", {"input": "a", "dimensions": 49}, "dimensions")["param"] == "dimensions"


@pytest.mark.parametrize("server", ["bert", "decoder"])
def test_same_bits_in_a_crowd(server, request):
    """A text alone, among many of one request, and among requests of others."""
    server = request.getfixturevalue(server)
    texts = [TEXTS[i % 4 + 1][: 1 + 7 * i % 60] for i in range(40)]
    alone = [embed(server, {"input": t})["data"][0]["embedding"] for t in texts]
    assert [d["embedding"] for d in embed(server, {"input": texts})["data"]] == alone
    with ThreadPoolExecutor(8) as pool:
        crowd = list(pool.map(lambda t: embed(server, {"input": [t, t[::-1]]})["data"][0]["embedding"], texts))
    assert crowd == alone


def test_openai_client(bert):
    client = openai.OpenAI(base_url=bert.url + "/v1", api_key="none")
    r = client.embeddings.create(model="bert", input=TEXTS[1:])  # asks for base64 by itself
    want = [d["embedding"] for d in embed(bert, {"input": TEXTS[1:]})["data"]]
    assert len(r.data) == 4 and r.usage.prompt_tokens > 0
    assert all(abs(a - b) < 1e-7 for d, w in zip(r.data, want) for a, b in zip(d.embedding, w))
    r = client.embeddings.create(model="bert", input="a", dimensions=3, encoding_format="float")
    assert len(r.data[0].embedding) == 3
    with pytest.raises(openai.BadRequestError):
        client.embeddings.create(model="bert", input=[])


def test_too_long(bert):
    text = "x" * 100  # the model takes 80
    e = refused(bert, "/v1/embeddings", {"input": text}, "maximum context length is 80")
    assert e["code"] == "context_length_exceeded"
    cut = embed(bert, {"input": text, "truncate_prompt_tokens": -1})
    assert cut["usage"]["prompt_tokens"] == 80
    assert cut["data"][0]["embedding"] == embed(bert, {"input": "x" * 80})["data"][0]["embedding"]
    assert embed(bert, {"input": text, "truncate_prompt_tokens": 5})["usage"]["prompt_tokens"] == 5
    refused(bert, "/v1/embeddings", {"input": text, "truncate_prompt_tokens": 81}, "truncate_prompt_tokens")
    assert embed(bert, {"input": "y" * 80})["usage"]["prompt_tokens"] == 80


@pytest.mark.parametrize("body,word", [
    ({}, "input is missing"), ({"input": []}, "must not be empty"), ({"input": 3}, "input must be"),
    ({"input": [[]]}, "must not be empty"), ({"input": ["a", 3]}, "must be a string"), ({"input": [1, "a"]}, "input"),
    ({"input": [-1]}, "input"), ({"input": [320]}, "input"), ({"input": [True]}, "must be a string"),
    ({"input": ["a"] * 2049}, "more than 2048"), ({"input": "a", "encoding_format": "hex"}, "float or base64"),
    ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": "x"}, "dimensions"),
    ({"input": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"), ({"input": ""}, "at least one token"),
])
def test_bad_requests(bert, body, word):
    refused(bert, "/v1/embeddings", body, word)
    assert bert.json("POST", "/v1/embeddings", {"input": "still there"})[0] == 200


def test_wrong_routes(bert, reranker, models):
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [
            {"role": "user", "content": "a"}]}), ("/v1/messages", {"max_tokens": 3, "messages": [
                {"role": "user", "content": "a"}]})):
        refused(bert, path, body, "does not generate text")
        refused(reranker, path, body, "does not generate text")
    refused(reranker, "/v1/embeddings", {"input": "a"}, "scores, not embeddings")
    refused(bert, "/v1/embeddings", {"input": "a", "model": "other"}, "does not exist", 404)
    generates = Server(str(models / "qwen3"))
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/rerank", {"query": "a", "documents": ["b"]}),
                       ("/score", {"text_1": "a", "text_2": "b"}), ("/pooling", {"input": "a"})):
        refused(generates, path, body, "generates text")
    assert generates.stop() == 0


def test_rerank(reranker):
    docs = ["first text", {"text": "second one"}, "third", "fourth"]
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        status, r = reranker.json("POST", path, {"query": "what", "documents": docs, "top_n": 3})
        assert status == 200, r
        scores = [x["relevance_score"] for x in r["results"]]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        for x in r["results"]:
            d = docs[x["index"]]
            assert x["document"]["text"] == (d["text"] if isinstance(d, dict) else d)
    status, r = reranker.json("POST", "/rerank", {"query": "what", "documents": docs, "return_documents": False})
    assert status == 200 and len(r["results"]) == 4 and "document" not in r["results"][0]
    _, s = reranker.json("POST", "/score", {"text_1": "what", "text_2": ["first text", "second one"]})
    by_index = {x["index"]: x["relevance_score"] for x in r["results"]}
    assert [d["score"] for d in s["data"]] == [by_index[0], by_index[1]]
    assert s["data"][0]["object"] == "score"


def test_segments_matter(reranker):
    """The same tokens with another border between the two texts are another pair."""
    _, a = reranker.json("POST", "/score", {"text_1": "ab", "text_2": "cdef"})
    _, b = reranker.json("POST", "/score", {"text_1": "abcd", "text_2": "ef"})
    assert a["data"][0]["score"] != b["data"][0]["score"]


def test_score_pairs(reranker):
    many = {"text_1": ["a", "b"], "text_2": ["c", "d"]}
    _, r = reranker.json("POST", "/v1/score", many)
    one = [reranker.json("POST", "/score", {"queries": a, "documents": b})[1]["data"][0]["score"]
           for a, b in zip(*many.values())]
    assert [d["score"] for d in r["data"]] == one
    refused(reranker, "/score", {"text_1": ["a", "b"], "text_2": "c"}, "as many as")
    refused(reranker, "/score", {"text_1": "a"}, "text_2 is missing")
    assert refused(reranker, "/score", {"text_1": None, "text_2": "a"}, "must be a string")["param"] == "text_1"
    assert refused(reranker, "/score", {"text_1": ["a", 3], "text_2": ["a", "b"]}, "an integer")["param"] == "text_1"
    assert refused(reranker, "/score", {"text_1": "a", "text_2": 3}, "an integer")["param"] == "text_2"
    refused(reranker, "/score", {}, "text_1 is missing")
    refused(reranker, "/rerank", {"documents": ["a"]}, "query must be a string")
    refused(reranker, "/rerank", {"query": "a", "documents": "b"}, "documents must be a list")
    refused(reranker, "/rerank", {"query": "a", "documents": []}, "must not be empty")
    refused(reranker, "/rerank", {"query": "a", "documents": [3]}, "must be a string")
    refused(reranker, "/rerank", {"query": "a", "documents": ["x" * 90]}, "maximum context length is 80")
    status, r = reranker.json("POST", "/rerank", {"query": "a", "documents": ["x" * 90], "truncate_prompt_tokens": -1})
    assert status == 200 and r["usage"]["total_tokens"] == 80


def test_scores_of_vectors(bert):
    """With a model of embeddings a score is a cosine."""
    a, b, c = (embed(bert, {"input": t})["data"][0]["embedding"] for t in ("one", "two", "three"))
    _, r = bert.json("POST", "/score", {"text_1": "one", "text_2": ["two", "three"]})
    assert all(abs(d["score"] - sum(x * y for x, y in zip(a, v))) < 1e-5 for d, v in zip(r["data"], (b, c)))
    _, r = bert.json("POST", "/score", {"text_1": ["one", "two"], "text_2": ["one", "two"]})
    assert all(abs(d["score"] - 1) < 1e-6 for d in r["data"])


def test_pooling_route(bert, reranker):
    _, r = bert.json("POST", "/pooling", {"input": TEXTS[2]})
    assert r["data"][0]["object"] == "pooling" and r["data"][0]["data"] == embed(bert, {})["data"][0]["embedding"]
    _, r = reranker.json("POST", "/pooling", {"input": TEXTS[2]})
    assert len(r["data"][0]["data"]) == 3 and abs(sum(r["data"][0]["data"]) - 1) < 1e-6


def token_vectors(server, text, **more):
    status, r = server.json("POST", "/pooling", {"input": text, **more})
    assert status == 200, r
    assert r["data"][0]["object"] == "pooling"
    return r["data"][0]["data"], r["usage"]["prompt_tokens"]


def test_vectors_of_tokens(colbert):
    """A vector of length 1 for each token; as base64 they follow one another."""
    rows, n = token_vectors(colbert, TEXTS[2], task="token_embed", encoding_format="float")
    assert len(rows) == n > 10 and {len(v) for v in rows} == {12}
    assert all(abs(math.hypot(*v) - 1) < 1e-5 for v in rows) and rows[3] != rows[4]
    data, _ = token_vectors(colbert, TEXTS[2], encoding_format="base64")
    assert list(struct.unpack(f"<{12 * n}f", base64.b64decode(data))) == [
        struct.unpack("<f", struct.pack("<f", x))[0] for v in rows for x in v]
    short, _ = token_vectors(colbert, TEXTS[2], dimensions=5)
    assert {len(v) for v in short} == {5} and all(abs(math.hypot(*v) - 1) < 1e-5 for v in short)
    status, r = colbert.json("POST", "/pooling", {"input": TEXTS[1:3] * 3})  # the same bits in a crowd
    assert status == 200 and [d["data"] for d in r["data"]].count(rows) == 3
    with ThreadPoolExecutor(8) as pool:
        assert all(x[0] == rows for x in pool.map(lambda _: token_vectors(colbert, TEXTS[2]), range(16)))


def test_late_interaction(colbert):
    """With vectors of tokens a score is MaxSim: over the query's tokens, the sum of the best product of each."""
    docs = [TEXTS[2], "lazy dog", "Ä"]
    query, *of_docs = (token_vectors(colbert, t)[0] for t in ["a fox", *docs])
    want = [sum(max(sum(x * y for x, y in zip(q, d)) for d in doc) for q in query) for doc in of_docs]
    assert len({round(x, 3) for x in want}) == len(docs)
    _, r = colbert.json("POST", "/score", {"text_1": "a fox", "text_2": docs})
    assert all(abs(d["score"] - x) < 1e-4 for d, x in zip(r["data"], want))
    _, r = colbert.json("POST", "/score", {"text_1": ["a fox"] * 3, "text_2": docs})
    assert all(abs(d["score"] - x) < 1e-4 for d, x in zip(r["data"], want))
    _, r = colbert.json("POST", "/v1/rerank", {"query": "a fox", "documents": docs})
    best = sorted(range(len(docs)), key=lambda i: -want[i])
    assert [x["index"] for x in r["results"]] == best
    assert all(abs(x["relevance_score"] - want[x["index"]]) < 1e-4 for x in r["results"])


def test_vectors_of_tokens_refused(colbert, bert):
    refused(colbert, "/v1/embeddings", {"input": "a"}, "a vector for each token: use /pooling")
    refused(colbert, "/v1/completions", {"prompt": "a"}, "a vector for each token")
    assert refused(colbert, "/pooling", {"input": "a", "task": "embed"}, "must be token_embed")["param"] == "task"
    assert refused(bert, "/pooling", {"input": "a", "task": "token_embed"}, "must be embed")["param"] == "task"
    refused(colbert, "/pooling", {"input": "a", "task": 3}, "task must be a string")
    refused(colbert, "/pooling", {"input": "a", "dimensions": 13}, "dimensions")


def test_yes_no(models):
    """A decoder that answers: the pair goes through the template, the score is yes against no."""
    flags = ["--classifier-from-token", "n,y", "--chat-template"]
    s = Server(str(models / "qwen3"), *flags, "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}")
    g = Server(str(models / "qwen3"), "--runner", "generate")
    status, r = s.json("POST", "/rerank", {"query": "q", "documents": ["long document", "d"]})
    assert status == 200, r
    for x in r["results"]:
        prompt = "[query]q[document]" + x["document"]["text"]
        likely = []
        for word in "ny":
            _, c = g.json("POST", "/v1/completions", {"prompt": prompt + word, "max_tokens": 0, "echo": True, "logprobs": 0})
            likely.append(c["choices"][0]["logprobs"]["token_logprobs"][len(prompt)])
        assert abs(x["relevance_score"] - 1 / (1 + math.exp(likely[0] - likely[1]))) < 2e-2  # BF16 pages there too
    assert s.stop() == 0
    config = models / "qwen3" / "tokenizer_config.json"
    shutil.copytree(models / "qwen3", models / "plain")
    (models / "plain" / config.name).write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": None}))
    s = Server(str(models / "plain"), *flags[:2])  # without a template one stands behind the other, NUL or not
    counts = [s.json("POST", "/score", {"text_1": "q", "text_2": t})[1]["usage"]["prompt_tokens"] for t in ("a", "a\0bc")]
    assert counts == [2, 5] and s.stop() == 0
    s = Server(str(models / "qwen3"), *flags, "{{ bos_token }}nothing")
    refused(s, "/rerank", {"query": "q", "documents": ["d"]}, "roles query and document")
    assert s.stop() == 0 and g.stop() == 0


@pytest.mark.parametrize("path,field", [("/v1/embeddings", "input"), ("/score", "text_2")])
def test_what_is_broken_off_is_no_reply(models, path, field):
    """A score of 0 for what was never computed would pass for a score."""
    body = {"text_1": "a", field: [f"{i:04}" * 120 for i in range(2000)]}
    with Server(str(models / "qwen3"), "--runner", "pooling", "--threads", "1") as s, ThreadPoolExecutor(1) as pool:
        reply = pool.submit(s.json, "POST", path, body)
        deadline = time.monotonic() + 10
        while s.metric("vllm:num_requests_running") == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        s.begin_drain()
        s.process.send_signal(signal.SIGTERM)
        status, r = reply.result()
        assert status == 503 and "stopped" in r["error"]["message"], str(r)[-200:]


def test_other_routes(bert):
    assert bert.json("GET", "/v1/models")[1]["data"][0]["id"] == "bert"
    assert bert.json("POST", "/tokenize", {"prompt": "ab"})[1]["tokens"] == [97, 98]
    _, _, metrics = bert.request("GET", "/metrics")
    assert b"vllm:prompt_tokens_total" in metrics
    assert b'vllm:request_success_total{' in metrics
