# SPDX-License-Identifier: MIT
"""The real binary with the bundled model, asked by OpenAI's own client, by Prometheus's parser and by raw
sockets."""
import json
import math
import os
import signal
import socket
import struct
import subprocess
import threading
import time

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serverproc import ROOT, Server

MKMODEL = os.path.join(ROOT, "build", "release", "tools", "mkmodel")
STORY = "Once upon a time"


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


# ---- models and tokens

def test_models(client, model, server):
    one = client.models.retrieve(model)
    assert one.id == model and one.object == "model"
    assert one.max_model_len > 0
    with pytest.raises(openai.NotFoundError) as e:
        client.models.retrieve("no-such-model")
    assert e.value.code == "model_not_found"


def test_tokenize_round_trip(server):
    status, a = server.json("POST", "/tokenize", {"prompt": STORY, "return_token_strs": True})
    assert status == 200 and a["count"] == len(a["tokens"]) == len(a["token_strs"]) > 0
    assert a["max_model_len"] > 0
    status, plain = server.json("POST", "/tokenize", {"prompt": STORY, "add_special_tokens": False})
    status, b = server.json("POST", "/detokenize", {"tokens": plain["tokens"]})
    assert status == 200 and b["prompt"] == STORY
    status, c = server.json("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    assert status == 200 and c["count"] > 1
    status, e = server.json("POST", "/detokenize", {"tokens": [10**9]})
    assert status == 400 and e["error"]["param"] == "tokens"
    status, e = server.json("POST", "/tokenize", {})
    assert status == 400 and e["error"]["param"] == "prompt"


def test_tokens_of_earlier_calls():
    """A template that prints arguments as they came: the tokens are those of the chat's prompt."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "b"}'}}
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "b"}]
    with Server("--threads", "1", "--chat-template", "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] "
                "%}{{ c.function.arguments }}{% endfor %}{% endfor %}") as s:
        _, a = s.json("POST", "/tokenize", {"messages": talk})
        _, b = s.json("POST", "/v1/chat/completions/render", {"messages": talk})
    assert a["tokens"] == b["token_ids"]


# ---- completions

def test_completion(client, model):
    r = client.completions.create(model=model, prompt=STORY, max_tokens=8, temperature=0)
    assert r.object == "text_completion" and r.id.startswith("cmpl-")
    assert r.choices[0].finish_reason in ("length", "stop") and r.choices[0].text
    assert r.usage.completion_tokens <= 8
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens


def test_stream_equals_whole(client, model):
    args = dict(model=model, prompt=STORY, max_tokens=24, temperature=0, extra_body={"ignore_eos": True})
    whole = client.completions.create(**args)
    parts, usage, finish = [], None, None
    for chunk in client.completions.create(**args, stream=True, stream_options={"include_usage": True}):
        if chunk.choices:
            parts.append(chunk.choices[0].text)
            finish = chunk.choices[0].finish_reason or finish
        usage = chunk.usage or usage
    assert "".join(parts) == whole.choices[0].text
    assert finish == whole.choices[0].finish_reason == "length"
    assert usage.completion_tokens == 24 == whole.usage.completion_tokens


def test_prompt_shapes(client, model, server):
    ids = server.json("POST", "/tokenize", {"prompt": STORY})[1]["tokens"]
    args = dict(model=model, max_tokens=5, temperature=0)
    want = client.completions.create(prompt=STORY, **args).choices[0].text
    assert client.completions.create(prompt=ids, **args).choices[0].text == want
    assert client.completions.create(prompt=[ids], **args).choices[0].text == want
    two = client.completions.create(prompt=[STORY, "The dog"], n=2, **args)
    assert [c.index for c in two.choices] == [0, 1, 2, 3]
    assert two.choices[0].text == two.choices[1].text == want
    assert two.choices[2].text == two.choices[3].text


def test_truncated_prompts(client, model, server):
    for prompt in ("the dog " * 10000, [5] * 10000):
        for given, most in ((3, 3), (-1, 10**9)):
            r = client.completions.create(model=model, prompt=prompt, max_tokens=1,
                                          extra_body={"truncate_prompt_tokens": given})
            assert 0 < r.usage.prompt_tokens <= most


def test_seed(client, model):
    args = dict(model=model, prompt=STORY, max_tokens=12, temperature=1.0)
    a = client.completions.create(seed=7, **args).choices[0].text
    assert client.completions.create(seed=7, **args).choices[0].text == a
    others = {client.completions.create(seed=s, **args).choices[0].text for s in range(8)}
    assert len(others) > 1


def test_stop(client, model):
    args = dict(model=model, prompt=STORY, max_tokens=30, temperature=0, extra_body={"ignore_eos": True})
    text = client.completions.create(**args).choices[0].text
    word = text.split()[3]
    cut = client.completions.create(stop=word, **args).choices[0]
    assert cut.finish_reason == "stop" and cut.text == text[: text.index(word)]
    assert cut.model_extra["stop_reason"] == word
    body = {"ignore_eos": True, "include_stop_str_in_output": True}
    kept = client.completions.create(**{**args, "extra_body": body}, stop=[word]).choices[0]
    assert kept.text == text[: text.index(word)] + word


def test_echo_and_logprobs(client, model):
    r = client.completions.create(model=model, prompt=STORY, max_tokens=4, temperature=0, echo=True, logprobs=3)
    lp = r.choices[0].logprobs
    assert r.choices[0].text.startswith(STORY)
    n = r.usage.prompt_tokens + r.usage.completion_tokens
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == n
    assert lp.token_logprobs[0] is None and lp.top_logprobs[0] is None
    assert all(x <= 0 for x in lp.token_logprobs[1:])
    assert all(3 <= len(t) <= 4 for t in lp.top_logprobs[1:])
    greedy = lp.token_logprobs[-1]
    assert greedy == max(lp.top_logprobs[-1].values())
    zero = client.completions.create(model=model, prompt=STORY, max_tokens=4, temperature=0, echo=True, logprobs=0)
    assert zero.choices[0].logprobs.token_logprobs == lp.token_logprobs  # no alternatives: the token itself, as vLLM
    assert zero.choices[0].logprobs.top_logprobs[1:] == [{t: p} for t, p in zip(lp.tokens[1:], lp.token_logprobs[1:])]
    only = client.completions.create(model=model, prompt=STORY, max_tokens=0, echo=True, logprobs=1)
    assert only.choices[0].text == STORY and only.usage.completion_tokens == 0
    assert len(only.choices[0].logprobs.tokens) == only.usage.prompt_tokens


LLAMA = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u0120"}, "content": " "},
                                          {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}


@pytest.mark.parametrize("decoder", [{"type": "ByteLevel"}, LLAMA])
def test_tokens_of_logprobs_are_whole(tmp_path, decoder):
    """What a decoder takes off the ends of a text, and bytes of a character, belong to their tokens."""
    subprocess.run([MKMODEL, "--vocab", "bytes", "--out", str(tmp_path)], check=True, capture_output=True)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": decoder}))
    text = " a b" if decoder == LLAMA else " \U0001F600 b"
    with Server(str(tmp_path), "--threads", "1") as s:
        status, r = s.json("POST", "/v1/completions", {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0})
    assert status == 200, r
    lp = r["choices"][0]["logprobs"]
    assert lp["tokens"] == [" ", *("a" if decoder == LLAMA else 4 * "\uFFFD"), " ", "b"]
    assert (lp["text_offset"][0], lp["text_offset"][1], *lp["text_offset"][-2:]) == (0, 1, 2, 3)


def test_logit_bias_and_ids(client, model):
    r = client.completions.create(model=model, prompt=STORY, max_tokens=3, temperature=0, logit_bias={"5": 100},
                                  extra_body={"return_token_ids": True})
    assert r.choices[0].model_extra["token_ids"] == [5, 5, 5]
    assert len(r.choices[0].model_extra["prompt_token_ids"]) == r.usage.prompt_tokens


# ---- chat

def test_chat(client, model):
    r = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Tell me a story."}],
                                       max_completion_tokens=8, temperature=0)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-")
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.content is not None
    assert r.usage.prompt_tokens_details.cached_tokens >= 0
    parts = [{"type": "text", "text": "Tell me a story."}]
    same = client.chat.completions.create(model=model, messages=[{"role": "user", "content": parts}],
                                          max_completion_tokens=8, temperature=0)
    assert same.choices[0].message.content == r.choices[0].message.content


def test_chat_stream(client, model):
    args = dict(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=10, temperature=0, n=2)
    whole = client.chat.completions.create(**args)
    text, roles, finish = ["", ""], [None, None], [None, None]
    chunks = list(client.chat.completions.create(**args, stream=True, stream_options={"include_usage": True}))
    for c in chunks:
        for choice in c.choices:
            text[choice.index] += choice.delta.content or ""
            roles[choice.index] = choice.delta.role or roles[choice.index]
            assert finish[choice.index] is None, "news after the end"
            finish[choice.index] = choice.finish_reason
    assert text == [c.message.content for c in whole.choices]
    assert roles == ["assistant"] * 2 and all(finish)
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert len({c.id for c in chunks}) == 1


def test_chat_logprobs(client, model):
    r = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=4,
                                       temperature=0, logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert len(content) == r.usage.completion_tokens
    for item in content:
        assert item.logprob <= 0 and len(item.top_logprobs) == 2
        assert item.top_logprobs[0].logprob >= item.top_logprobs[1].logprob
        assert bytes(item.bytes).decode("utf-8", "replace") == item.token
        assert math.isclose(item.top_logprobs[0].logprob, item.logprob)  # greedy


def test_prefix_cache_is_counted(client, model):
    prompt = "The little girl went to the park with her mother. " * 8
    args = dict(model=model, prompt=prompt, max_tokens=2, temperature=0)
    first = client.completions.create(**args)
    again = client.completions.create(**args)
    assert again.choices[0].text == first.choices[0].text
    assert again.usage.prompt_tokens_details.cached_tokens > 0


# ---- refusals

@pytest.mark.parametrize("path,body,status,param", [
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": 5}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a", 1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [2**31]}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a"] * 65}, 400, "prompt"),
    ("/v1/completions", {"prompt": "a", "model": "nope"}, 404, "model"),
    ("/v1/completions", {"prompt": "a", "n": 129}, 400, "n"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, 400, "suffix"),
    ("/v1/completions", {"prompt": "a", "best_of": 2, "n": 3}, 400, "best_of"),
    ("/v1/completions", {"prompt": "a " * 200000}, 400, None),
    ("/v1/chat/completions", {}, 400, "messages"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
     "messages[0].content"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "tool_choice": "required"}, 400,
     "tool_choice"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}],
                              "response_format": {"type": "xml"}}, 400, "response_format.type"),
])
def test_refusals(server, path, body, status, param):
    got, answer = server.json("POST", path, body)
    assert got == status, answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["param"] == param and answer["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt":NaN}', b'{"prompt":"a","temperature":1e400}',
                                  b'{"prompt":"\\ud800"}', b'{"prompt":"\xff"}', b"[" * 100000, b'{"a":' * 100000,
                                  b'{"prompt":"a"}\0'])
def test_bad_json(server, body):
    status, answer = server.json("POST", "/v1/completions", body)
    assert status == 400 and answer["error"]["type"] == "invalid_request_error"


def test_routes(server):
    for path in ("/health", "/ping", "/version", "/metrics", "/load", "/v1/models"):
        assert server.request("GET", path)[0] == 200, path
        status, _, body = server.request("HEAD", path)
        assert status == 200 and body == b""
    for path in ("//", "//v1/models", "/v1", "/v1/models/../models", "/v1%2fmodels", "/health/", "/V1/models",
                 "/v1/models/", "/health%00"):
        assert server.request("GET", path)[0] == 404, path
    status, headers, _ = server.request("GET", "/v1/completions")
    assert status == 405 and headers["Allow"] == "POST"
    assert server.request("DELETE", "/health")[0] == 405


def test_cors(server):
    status, headers, _ = server.request("OPTIONS", "/v1/completions", headers={
        "Origin": "http://x.example", "Access-Control-Request-Method": "POST"})
    assert status == 204 and headers["Access-Control-Allow-Origin"] == "*"
    _, headers, _ = server.request("GET", "/health", headers={"Origin": "http://x.example"})
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert server.request("OPTIONS", "/v1/completions")[0] == 405


def test_request_id(server):
    _, headers, data = server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1},
                                      {"X-Request-Id": "abc-1"})
    assert headers["X-Request-Id"] == "abc-1" and json.loads(data)["id"] == "cmpl-abc-1"


# ---- raw sockets

HEAD = b"Host: a\r\n"


@pytest.mark.parametrize("data,status", [
    (b"GET / HTTP/1.1\n" + HEAD + b"\r\n", 400),
    (b"GET /health HTTP/1.1\r\n\r\n", 400),
    (b"GET http://a/health HTTP/1.1\r\n" + HEAD + b"\r\n", 400),
    (b"GET /health HTTP/3.0\r\n" + HEAD + b"\r\n", 505),
    (b"GET /health HTTP/1.1\r\n" + HEAD + b"X: y\r\n" * 100 + b"\r\n", 431),
    (b"GET /health HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 70000 + b"\r\n\r\n", 431),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HEAD + b"\r\n", 414),
    (b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 99999999999\r\n\r\n", 413),
    (b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n", 400),
    (b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n", 413),
    (b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", 400),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n", 400),
    (b"GET /health HTTP/1.1\r\n" + HEAD + b"X: a\0b\r\n\r\n", 400),
])
def test_hostile_bytes(server, data, status):
    got = server.raw(data, timeout=20)
    assert got.split(b" ")[1:2] == [str(status).encode()], got[:200]
    assert (b'"invalid_request_error"' in got) == (status < 500) and b"rate_limit" not in got
    assert server.request("GET", "/health")[0] == 200


def test_pipeline_of_1000(server):
    one = b"GET /version HTTP/1.1\r\n" + HEAD + b"\r\n"
    got = server.raw(one * 999 + b"GET /version HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n")
    assert got.count(b"HTTP/1.1 200 OK") == 1000


def test_pipelined_generations_keep_their_order(server):
    def post(i):
        body = json.dumps({"prompt": f"{i}", "max_tokens": 2, "request_id": f"r{i}"}).encode()
        return b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /version HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n"
    got = server.raw(b"".join(post(i) for i in range(5)) + last, timeout=30)
    at = [got.index(b'"id":"cmpl-r%d"' % i) for i in range(5)]
    assert at == sorted(at) and got.count(b"HTTP/1.1 200 OK") == 6


def test_one_byte_at_a_time(server):
    body = b'{"prompt":"a","max_tokens":1}'
    data = b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for b in data + body:
            s.sendall(bytes([b]))
        assert s.recv(65536).startswith(b"HTTP/1.1 200")


def test_expect_continue(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        s.sendall(b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Expect: 100-continue\r\nContent-Length: 29\r\n\r\n")
        assert s.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(b'{"prompt":"a","max_tokens":1}')
        assert s.recv(65536).startswith(b"HTTP/1.1 200")


def test_http_1_0_stream(server):
    body = b'{"prompt":"a","max_tokens":3,"stream":true}'
    got = server.raw(b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body, timeout=20)
    assert b"Transfer-Encoding" not in got and got.endswith(b"data: [DONE]\n\n")


# ---- life of a request

LONG = {"prompt": STORY, "max_tokens": 400, "ignore_eos": True, "stream": True}


def post(body, path=b"/v1/completions", extra=b""):
    data = json.dumps(body).encode()
    return b"POST " + path + b" HTTP/1.1\r\n" + HEAD + extra + b"Content-Length: %d\r\n\r\n" % len(data) + data


def test_disconnect_frees_the_engine(server):
    sockets = []
    for _ in range(4):
        s = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        s.sendall(post({**LONG, "max_tokens": 900}))
        s.recv(100)
        sockets.append(s)
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    for s in sockets:
        s.close()
    server.wait_metric("vllm:num_requests_running", 0.0, 5)
    server.wait_metric("vllm:num_requests_waiting", 0.0, 5)
    assert server.metric("vllm:request_success_total", finished_reason="abort") > aborted
    total, free, cached = (server.metric("sluice:kv_pages_" + k) for k in ("total", "free", "cached"))
    assert free + cached == total


def test_disconnect_before_the_answer(server):
    """Also while input is paused: what the kernel still holds must not hide the end of the client. (More than the
    kernel takes does hide it: TCP says FIN after the data.)"""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as s:
        s.sendall(post({**LONG, "stream": False, "max_tokens": 900, "n": 128}) + b"G" * 100000)
        time.sleep(0.1)
    server.wait_metric("vllm:num_requests_running", 0.0)


def test_reset_while_input_is_paused(server):
    """A reset is heard although nothing is read, and the server does not spin meanwhile."""
    s = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    s.sendall(post({**LONG, "stream": False, "max_tokens": 900, "n": 128}) + b"G" * 200000)
    time.sleep(0.3)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()
    server.wait_metric("vllm:num_requests_running", 0.0)  # long before its end


def test_slow_download_outlives_the_idle_limit():
    """A connection is idle once its reply was taken, not once it was written."""
    with Server("--timeout-keep-alive", "500") as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            c.sendall(post({"prompt": "the dog " * 600000, "return_token_strs": True}, b"/tokenize"))
            head = c.recv(1000)
            assert head.startswith(b"HTTP/1.1 200")
            time.sleep(2)
            want = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]) + head.index(b"\r\n\r\n") + 4
            assert want > 8 << 20, "the reply must be larger than the sockets' buffers"
            got = len(head)
            while part := c.recv(1 << 20):
                got += len(part)
            assert got == want


def test_memory_of_bodies_is_bounded():
    part = b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 3500000\r\n\r\n" + b" " * 3000000
    with Server("--max-held-bytes", "4000000") as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
            c.sendall(part)
            s.wait_metric("sluice:held_bytes", 3000000.0 + part.index(b"\r\n\r\n") + 4)
            got = s.raw(part, timeout=20)
            assert got.startswith(b"HTTP/1.1 503") and b"Retry-After" in got
            assert s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
        s.wait_metric("sluice:held_bytes", 0.0)
        for _ in range(3):  # what was held is given back, whether the request was good or bad
            assert s.request("POST", "/v1/completions", b" " * 3000000)[0] == 400
            assert s.request("POST", "/tokenize", {"prompt": "", "x": "a" * 3000000})[0] == 200


def test_slow_reader_is_served_in_full():
    """A client that does not read for a while gets every token, and others are not held up."""
    with Server("--null-model") as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            c.sendall(post({"prompt": "a", "max_tokens": 8000, "n": 128, "stream": True, "ignore_eos": True,
                            "return_token_ids": True, "stream_options": {"include_usage": True}},
                           extra=b"Connection: close\r\n"))
            time.sleep(1)
            assert s.request("POST", "/v1/completions", {"prompt": "b", "max_tokens": 2})[0] == 200
            got = bytearray()
            while part := c.recv(1 << 20):
                got += part
        assert b"data: [DONE]" in got
        assert b'"completion_tokens":1024000' in got


def test_metrics_parse(server):
    _, headers, data = server.request("GET", "/metrics")
    assert headers["Content-Type"].startswith("text/plain")
    families = {f.name: f for f in text_string_to_metric_families(data.decode())}
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:cache_config_info", "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success",
                 "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
                 "vllm:e2e_request_latency_seconds", "vllm:iteration_tokens_total", "http_requests",
                 "process_resident_memory_bytes"):
        assert name in families, name
    sample = families["vllm:num_requests_running"].samples[0]
    assert sample.labels["engine"] == "0" and sample.labels["model_name"]


def test_metrics_count(server):
    before = server.metric("vllm:generation_tokens_total")
    server.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 5, "ignore_eos": True})
    server.wait_metric("vllm:generation_tokens_total", before + 5)


# ---- keys, sockets, the end

def test_api_keys():
    with Server("--api-key", "one,two", "--api-key", "three") as s:
        routes = [("GET", "/v1/models"), ("GET", "/v1/models/x"), ("POST", "/v1/completions"),
                  ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/detokenize")]
        wrong = [None, "", "Bearer", "Bearer ", "Bearer on", "Bearer onee", "Bearer one,two", "Basic one", "one",
                 "Bearer  one", "Bearer ONE"]
        for method, path in routes:
            for value in wrong:
                headers = {} if value is None else {"Authorization": value}
                status, reply_headers, data = s.request(method, path, b"{}" if method == "POST" else None, headers)
                assert status == 401, (path, value)
                assert json.loads(data)["error"]["code"] == "invalid_api_key"
                assert reply_headers["WWW-Authenticate"] == "Bearer"
            for key in ("one", "two", "three"):
                headers = {"Authorization": "Bearer " + key}
                assert s.request(method, path, b"{}" if method == "POST" else None, headers)[0] in (200, 400, 404)
        for path in ("/health", "/ping", "/version", "/metrics"):
            assert s.request("GET", path)[0] == 200
        assert "three" not in s.log()
        big = b"POST /v1/completions HTTP/1.1\r\n" + HEAD + b"Content-Length: 30000000\r\n\r\n"
        assert s.raw(big, timeout=20).startswith(b"HTTP/1.1 401")  # before the body


def test_unix_socket():
    with Server("--uds", "{uds}", port=False) as s:
        with socket.socket(socket.AF_UNIX) as c:
            c.settimeout(10)
            c.connect(s.uds)
            c.sendall(b"GET /health HTTP/1.1\r\n" + HEAD + b"\r\n")
            assert c.recv(1000).startswith(b"HTTP/1.1 200")
        assert s.stop() == 0
        assert not os.path.exists(s.uds)


def test_unix_socket_that_another_server_has():
    """The one that ends leaves the file of the one that took its place."""
    with Server("--uds", "{uds}", port=False) as old:
        os.unlink(old.uds)
        with Server("--uds", "{uds}", port=False, uds=old.uds) as new:
            assert old.stop() == 0
            with socket.socket(socket.AF_UNIX) as c:
                c.connect(old.uds)
            assert new.stop() == 0
        assert not os.path.exists(old.uds)


def test_served_names():
    with Server("--served-model-name", "a/b", "--served-model-name", "c") as s:
        _, models = s.json("GET", "/v1/models")
        assert [m["id"] for m in models["data"]] == ["a/b", "c"]
        assert s.request("GET", "/v1/models/a%2Fb")[0] == s.request("GET", "/v1/models/a/b")[0] == 200
        assert s.json("POST", "/v1/completions", {"model": "c", "prompt": "x", "max_tokens": 1})[1]["model"] == "c"


def test_drain_finishes_what_runs():
    with Server() as s:
        results = []

        def stream():
            results.append(s.raw(post(LONG, extra=b"Connection: close\r\n"), timeout=60))
        threads = [threading.Thread(target=stream) for _ in range(3)]
        for t in threads:
            t.start()
        deadline = time.monotonic() + 10
        while s.metric("vllm:num_requests_running") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        s.begin_drain()
        if s.process.poll() is None:  # a quick machine may be done already
            try:
                assert s.request("GET", "/health")[0] == 503
                assert s.request("POST", "/v1/completions", {"prompt": "a"})[0] == 503
            except (ConnectionError, OSError):
                pass
        for t in threads:
            t.join()
        assert s.process.wait(60) == 0
        assert all(b"data: [DONE]" in r and b'"finish_reason":"length"' in r for r in results)


def test_second_signal_aborts():
    with Server() as s:
        with socket.create_connection(("127.0.0.1", s.port), timeout=20) as c:
            c.sendall(post({**LONG, "max_tokens": 100, "n": 64}))
            c.recv(100)
            s.begin_drain()
            s.process.send_signal(signal.SIGINT)
            assert s.process.wait(20) == 0


def test_idle_costs_nothing():
    with Server() as s:
        socks = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(50)]
        s.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        assert s.is_idle(0.01)
        for c in socks:
            c.close()


def test_connection_limit():
    with Server("--max-connections", "4") as s:
        held = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(4)]
        assert s.raw(b"", timeout=20).startswith(b"HTTP/1.1 503")
        for c in held:
            c.close()
        deadline = time.monotonic() + 10
        while s.request("GET", "/health")[0] != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_keep_alive_comments():
    """A stream that waits behind others still says that it lives."""
    with Server("--sse-ping-interval", "1", "--max-num-seqs", "1") as s:
        busy = socket.create_connection(("127.0.0.1", s.port))
        busy.sendall(post({**LONG, "max_tokens": 100, "n": 128}))
        time.sleep(0.3)
        with socket.create_connection(("127.0.0.1", s.port), timeout=15) as c:
            c.sendall(post({**LONG, "max_tokens": 2}))
            got = b""
            while b"data:" not in got and b": keep-alive" not in got:
                part = c.recv(4096)
                assert part
                got += part
            assert got.startswith(b"HTTP/1.1 200 OK")
        busy.close()


def test_several_http_threads():
    with Server("--null-model", "--http-threads", "3") as s:
        results = []

        def work():
            for i in range(20):
                results.append(s.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 5})[0])
        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert results == [200] * 160
        assert s.metric("http_requests_total", handler="/v1/completions", status="2xx") == 160.0
        assert s.stop() == 0
