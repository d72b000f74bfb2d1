# SPDX-License-Identifier: MIT
"""Fields that shape what is generated and what is told about it, each against what its definition says of the answer:
those of vLLM that OpenAI's API does not have, and llama.cpp's timings."""
import json
import math
import re

import pytest

from serverproc import Server

STORY = "Once upon a time"
HI = [{"role": "user", "content": "Tell me a story about a dog."}]


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--no-webui") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


def post(server, path="/v1/completions", want=200, **fields):
    body = {"prompt": STORY} if path == "/v1/completions" else {"messages": HI}
    status, r = server.json("POST", path, body | {"max_tokens": 12, "temperature": 0, "ignore_eos": True} | fields)
    assert status == want, r
    return r


def ids(server, **fields):
    return post(server, return_token_ids=True, **fields)["choices"][0]["token_ids"]


def chat(server, **fields):
    return post(server, "/v1/chat/completions", **fields)


def tokens(server, text):
    return server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]


def test_integers_beyond_64_bits(server):
    """They are no reason to refuse a request; a field of integers names its range; a schema's bound is exact."""
    wide = 2**64 + 13
    status, headers, data = server.request("POST", "/v1/completions", {
        "prompt": "a", "max_tokens": 1, "metadata": {"id": wide, "n": [-wide, 10**40]}, "unheard_of": wide,
        "seed": 2**63 - 1})
    assert status == 200 and headers["X-Ignored-Fields"] == "unheard_of", data
    for field, value in (("seed", 2**63), ("seed", -2**64), ("max_tokens", wide), ("top_k", 10**30), ("n", wide)):
        error = post(server, want=400, **{field: value})["error"]
        assert error["param"] == field
        assert re.match(rf"{field} must be between -?\d+ and \d+, got -?\d", error["message"]), error
    for fields in ({"prompt": [wide]}, {"prompt": [[1, wide]]}, {"temperature": wide}, {"logit_bias": {"1": wide}}):
        post(server, want=400, **fields)
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"n": {"maximum": wide, "type": "integer"}}}}}
    r = chat(server, tools=[tool], tool_choice="none")
    assert r["choices"][0]["message"]["content"]


# ---- what may come

def test_allowed_token_ids(server):
    allowed = list(range(300, 340))
    got = ids(server, allowed_token_ids=allowed)
    assert set(got) <= set(allowed) and got == ids(server, allowed_token_ids=allowed[::-1] + allowed)
    sampled = [t for s in range(3) for t in ids(server, allowed_token_ids=allowed, temperature=1, seed=s)]
    assert set(sampled) <= set(allowed) and len(set(sampled)) > 5
    free = ids(server)
    assert ids(server, allowed_token_ids=sorted(set(free) | {5})) == free  # the others were not wanted
    # The best of the allowed, by what the model says of every one of them.
    top = post(server, max_tokens=1, logprobs=0, logprob_token_ids=allowed)["choices"][0]["logprobs"]["top_logprobs"][0]
    best = max((p, t) for t, p in top.items() if t != post(server, max_tokens=1)["choices"][0]["text"])
    assert tokens(server, best[1])[-1:] == got[:1] or best[1] == post(
        server, max_tokens=1, allowed_token_ids=allowed)["choices"][0]["text"]


def test_allowed_token_ids_with_a_constraint(server):
    both = {t for word in ("yes", "no") for t in tokens(server, word)}
    only = tokens(server, "no")
    want = {"guided_choice": ["yes", "no"], "ignore_eos": False}
    assert post(server, allowed_token_ids=sorted(both), **want)["choices"][0]["text"] in ("yes", "no")
    assert post(server, allowed_token_ids=sorted(only), **want)["choices"][0]["text"] == "no"
    e = post(server, allowed_token_ids=[7], want=400, **want)["error"]
    assert e["param"] == "allowed_token_ids" and "no" in e["message"]


def test_nothing_may_come(server):
    before = server.metric("vllm:corrupted_requests_total")
    e = post(server, allowed_token_ids=[0], min_tokens=2, ignore_eos=False, want=400)["error"]
    assert e["param"] == "allowed_token_ids"
    assert server.metric("vllm:corrupted_requests_total") == before


def test_bad_words(server):
    text = post(server, max_tokens=40)["choices"][0]["text"]
    words = [w for w in text.replace(".", " ").replace(",", " ").replace("\"", " ").split() if w.isalpha()]
    banned = []
    for word in words[:4]:  # each makes the model go another way, of which the next word is banned too
        banned.append(word)
        new = post(server, max_tokens=40, bad_words=banned)["choices"][0]["text"]
        assert not set(banned) & set(new.replace(".", " ").replace(",", " ").split()), (banned, new)
    long = " ".join(text.split()[2:5])  # several tokens: only that sequence is
    assert len(tokens(server, " " + long)) > 1 and long in text
    new = post(server, max_tokens=40, bad_words=[long])["choices"][0]["text"]
    assert long not in new and text.split()[2] in new
    assert post(server, max_tokens=40, bad_words=[])["choices"][0]["text"] == text
    for wrong in ([""], ["  "], "a", [1], ["a" * 300]):
        assert post(server, bad_words=wrong, want=400)["error"]["param"] == "bad_words"


def test_bad_words_are_the_same_in_any_batch(server):
    args = {"max_tokens": 30, "bad_words": ["there was", "girl"], "temperature": 1, "seed": 4}
    alone = ids(server, **args)
    several = post(server, n=8, return_token_ids=True, **args)["choices"]
    assert several[0]["token_ids"] == alone and len({str(c["token_ids"]) for c in several}) > 4


def test_repetition_detection(server):
    same = {"logit_bias": {"300": 100}, "max_tokens": 50}
    c = post(server, repetition_detection={"max_pattern_size": 3, "min_count": 4}, **same)["choices"][0]
    assert c["finish_reason"] == "stop" and c["stop_reason"] == "repetition_detected"
    assert len(ids(server, repetition_detection={"max_pattern_size": 3, "min_count": 4}, **same)) == 4
    assert len(ids(server, repetition_detection={"min_pattern_size": 3, "max_pattern_size": 5, "min_count": 3},
                   **same)) == 9
    assert len(ids(server, repetition_detection={"max_pattern_size": 3, "min_count": 4}, min_tokens=11, **same)) == 11
    assert len(ids(server, repetition_detection={"max_pattern_size": 0}, **same)) == 50
    plain = ids(server, max_tokens=40)
    watched = ids(server, max_tokens=40, repetition_detection={"max_pattern_size": 20, "min_count": 2})
    assert watched == plain[:len(watched)]

    def repeats(seen):  # the definition, by hand
        return any(seen[-2 * k:-k] == seen[-k:] for k in range(1, 21) if len(seen) >= 2 * k)
    assert [repeats(plain[:n]) for n in range(1, len(watched) + 1)][:-1] == [False] * (len(watched) - 1)
    assert repeats(watched) or watched == plain


# ---- what is told

def test_logprob_token_ids(server):
    asked = [5, 300, 301, 300]
    lp = post(server, logprobs=1, logprob_token_ids=asked, max_tokens=3)["choices"][0]["logprobs"]
    whole = post(server, logprobs=20, max_tokens=3)["choices"][0]["logprobs"]
    assert lp["token_logprobs"] == whole["token_logprobs"]
    assert all(len(t) == 4 for t in lp["top_logprobs"])  # three, and the one that was chosen
    content = chat(server, logprobs=True, logprob_token_ids=asked, max_tokens=2)["choices"][0]["logprobs"]["content"]
    assert [len(t["top_logprobs"]) for t in content] == [4, 4]
    best = ids(server, max_tokens=1)[0]
    lp = post(server, logprobs=0, logprob_token_ids=[best], max_tokens=1)["choices"][0]["logprobs"]
    assert list(lp["top_logprobs"][0].values()) == lp["token_logprobs"]
    assert post(server, logprob_token_ids=[5], want=400)["error"]["param"] == "logprob_token_ids"


def test_best_of(server):
    args = {"temperature": 1, "seed": 3, "max_tokens": 6, "logprobs": 0}
    mean = [math.fsum(c["logprobs"]["token_logprobs"]) / 6 for c in post(server, n=8, **args)["choices"]]
    texts = [c["text"] for c in post(server, n=8, **args)["choices"]]
    order = sorted(range(8), key=lambda i: -mean[i])
    r = post(server, best_of=8, n=3, **args)
    assert [c["text"] for c in r["choices"]] == [texts[i] for i in order[:3]]
    assert [c["index"] for c in r["choices"]] == [0, 1, 2] and r["usage"]["completion_tokens"] == 48
    two = post(server, prompt=[STORY, "The dog"], best_of=4, n=1, **args)
    assert [c["index"] for c in two["choices"]] == [0, 1]
    assert post(server, best_of=2, n=3, want=400)["error"]["param"] == "best_of"
    assert post(server, best_of=2, stream=True, want=400)["error"]["param"] == "best_of"


def test_chat_echo_and_prompt_text(server):
    talk = [*HI, {"role": "assistant", "content": "Once upon a time \"a\""}]
    args = {"messages": talk, "add_generation_prompt": False, "continue_final_message": True, "max_tokens": 6}
    plain = chat(server, **args)["choices"][0]["message"]["content"]
    r = chat(server, echo=True, return_prompt_text=True, return_token_ids=True, **args)
    assert r["choices"][0]["message"]["content"] == talk[1]["content"] + plain
    assert r["prompt_text"].endswith(talk[1]["content"])
    assert tokens(server, r["prompt_text"]) == r["prompt_token_ids"]
    body = {**args, "echo": True, "return_prompt_text": True, "temperature": 0, "ignore_eos": True}
    with server.stream("/v1/chat/completions", body) as chunks:
        events = list(chunks)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in events) == talk[1]["content"] + plain
    assert [("prompt_text" in c) for c in events] == [True] + [False] * (len(events) - 1)
    assert chat(server, echo=True)["choices"][0]["message"]["content"] == chat(server)["choices"][0]["message"]["content"]


def test_a_final_message_ends_where_it_ends(server):
    """Not where the same letters stand in what the template puts behind it."""
    for final in ("<", "e", "im_end", "|>", "a\u0000b", "Sure, ", "a b\nc"):
        talk = [*HI, {"role": "assistant", "content": final}]
        r = server.json("POST", "/apply-template", {"messages": talk, "add_generation_prompt": False,
                                                    "continue_final_message": True})[1]
        whole = server.json("POST", "/apply-template", {"messages": talk, "add_generation_prompt": False})[1]["prompt"]
        open_ = server.json("POST", "/apply-template", {"messages": HI})[1]["prompt"]
        assert r["prompt"] == open_ + final.strip() and whole.startswith(r["prompt"]) and len(whole) > len(r["prompt"])
    for final in ("", " \n"):
        e = server.json("POST", "/apply-template", {"messages": [*HI, {"role": "assistant", "content": final}],
                                                    "add_generation_prompt": False, "continue_final_message": True})
        assert e[0] == 400 and e[1]["error"]["param"] == "continue_final_message"


def test_truncation_side(server):
    prompt = list(range(300, 340))
    for side, want in (("left", prompt[-5:]), ("right", prompt[:5]), (None, prompt[-5:])):
        r = post(server, prompt=prompt, truncate_prompt_tokens=5, truncation_side=side, return_token_ids=True)
        assert r["choices"][0]["prompt_token_ids"] == want
    assert post(server, truncation_side="middle", want=400)["error"]["param"] == "truncation_side"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_stream_interval(server, path):
    body = {"prompt": STORY, "messages": HI, "max_tokens": 40, "temperature": 0, "ignore_eos": True, "n": 2,
            "return_token_ids": True, "seed": 1}
    whole = post(server, path, **{k: v for k, v in body.items() if k not in ("prompt", "messages")})
    with server.stream(path, body | {"stream_interval": 16, "stream_options": {"include_usage": True}}) as chunks:
        events = list(chunks)
    for i in range(2):
        mine = [c["choices"][0] for c in events if c["choices"] and c["choices"][0]["index"] == i]
        sizes = [len(c["token_ids"]) for c in mine if c.get("token_ids")]
        assert [t for c in mine for t in c.get("token_ids", [])] == whole["choices"][i]["token_ids"]
        assert all(n >= 16 for n in sizes[1:-1]) and len(sizes) <= 5 and mine[-1]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 80


TIMINGS = {f"{a}_{b}" for a in ("prompt", "predicted") for b in ("n", "ms", "per_token_ms", "per_second")} | {"cache_n"}


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_timings(server, path):
    assert "timings" not in post(server, path)
    r = post(server, path, timings_per_token=True)
    t, u = r["timings"], r["usage"]
    assert set(t) == TIMINGS and t["predicted_n"] == u["completion_tokens"] == 12
    assert t["prompt_n"] + t["cache_n"] == u["prompt_tokens"]
    assert t["predicted_per_second"] == pytest.approx(12e3 / t["predicted_ms"], rel=1e-2)
    body = {"prompt": STORY, "messages": HI, "max_tokens": 6, "ignore_eos": True, "timings_per_token": True}
    with server.stream(path, body) as chunks:
        counts = [c["timings"]["predicted_n"] for c in chunks if "timings" in c]
    assert counts == sorted(counts) and counts[-1] == 6 and len(counts) > 1


# ---- flags

def test_flags():
    with Server("--null-model", "--timings", "--stream-interval", "8", "--unknown-fields", "refuse") as s:
        assert set(post(s)["timings"]) == TIMINGS
        with s.stream("/v1/completions", {"prompt": STORY, "max_tokens": 30, "return_token_ids": True}) as chunks:
            events = list(chunks)
        assert [c["choices"][0]["finish_reason"] for c in events if "timings" in c] == ["length"]
        assert all(len(c["choices"][0]["token_ids"]) >= 8 for c in events[1:-1])
        e = post(s, never_heard_of=1, want=400)["error"]
        assert e["param"] == "never_heard_of" and "never_heard_of" in e["message"]
        assert chat(s, prompt="x", want=400)["error"]["param"] == "prompt"
        status, r = s.json("POST", "/tokenize", {"messages": HI, "return_token_strs": True})
        assert status == 200 and r["token_strs"]


def test_unknown_fields_are_named(server):
    body = {"prompt": STORY, "max_tokens": 1}
    status, headers, _ = server.request("POST", "/v1/completions", body | {"min_tokens": 1})
    assert status == 200 and "X-Ignored-Fields" not in headers
    status, headers, _ = server.request("POST", "/v1/completions", body | {"never_heard_of": 1, "messages": []})
    assert status == 200 and headers["X-Ignored-Fields"] == "never_heard_of, messages"
    hostile = {"a\r\nX: y": 1, "": 1, "é": 1, "x" * 500: 1, "a,b": 1, "ok": 1}
    status, headers, _ = server.request("POST", "/v1/completions", body | hostile)
    assert status == 200 and headers["X-Ignored-Fields"] == "ok" and "X" not in headers
    status, headers, data = server.request("POST", "/v1/completions", body | {"never": 1, "n": -1})
    assert status == 400 and headers["X-Ignored-Fields"] == "never" and json.loads(data)["error"]["param"] == "n"
    assert "X-Ignored-Fields" not in server.request("GET", "/health")[1]


# ---- without generating

def test_render(server):
    r = server.json("POST", "/v1/chat/completions/render", {"messages": HI, "temperature": 0.5, "stop": "x", "seed": 3,
                                                            "return_prompt_text": True, "max_tokens": 7})[1]
    want = chat(server, return_token_ids=True, return_prompt_text=True)
    assert r["token_ids"] == want["prompt_token_ids"] and r["prompt_text"] == want["prompt_text"]
    assert r["request_id"].startswith("chatcmpl-") and r["model"] == want["model"] and r["features"] is None
    s = r["sampling_params"]
    assert (s["temperature"], s["stop"], s["seed"], s["max_tokens"], s["n"]) == (0.5, ["x"], 3, 7, 1)
    status, many = server.json("POST", "/v1/completions/render", {"prompt": [STORY, [5, 6]], "truncate_prompt_tokens": 2})
    assert status == 200 and [len(x["token_ids"]) for x in many] == [2, 2] and many[1]["token_ids"] == [5, 6]
    assert many[0]["request_id"].startswith("cmpl-") and many[0]["sampling_params"]["max_tokens"] == 16
    status, one = server.json("POST", "/v1/completions/render", {"prompt": STORY})
    assert [x["token_ids"] for x in one] == [server.json("POST", "/tokenize", {"prompt": STORY})[1]["tokens"]]
    assert server.json("POST", "/apply-template", {"messages": HI})[1] == {"prompt": want["prompt_text"]}
    for path, body, param in (("/v1/chat/completions/render", {}, "messages"), ("/v1/completions/render", {}, "prompt"),
                              ("/v1/completions/render", {"prompt": "a", "n": 0}, "n"),
                              ("/apply-template", {"messages": [{}]}, "messages[0].role")):
        status, e = server.json("POST", path, body)
        assert status == 400 and e["error"]["param"] == param


def test_render_generates_nothing(server):
    before = server.metric("vllm:generation_tokens_total")
    for _ in range(3):
        server.json("POST", "/v1/completions/render", {"prompt": STORY, "max_tokens": 100})
    assert server.metric("vllm:generation_tokens_total") == before
