# SPDX-License-Identifier: MIT
"""Ollama's API with Ollama's own client, LangChain's and LiteLLM's, none of them told that this is another server. What
has to be called or to match is certain by constraint: the bundled model was never trained to call any tool."""
import json
import os
import pathlib
import sys
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the network for a list of prices

import litellm  # noqa: E402
import ollama  # noqa: E402
import pytest  # noqa: E402
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM  # noqa: E402

from serverproc import ROOT, Server  # noqa: E402

sys.path.insert(0, os.path.join(ROOT, "tests", "hub"))
from standin import COMMIT, Hub, Repo  # noqa: E402

HI = [{"role": "user", "content": "Tell me a story about a dog."}]
GREEDY = {"num_predict": 8, "temperature": 0}
# A template that shows all it is given: what the model is asked then tells what became of a message.
ALL = "{% for m in messages %}[{{ m | tojson }}]{% endfor %}{{ enable_thinking }}{{ reasoning_effort }}"
THINKS = "{{ messages[0].content }}{% if enable_thinking is not false %}<think>{% else %}<think></think>{% endif %}"
LOOK = {"type": "function", "function": {"name": "look", "description": "Look at something.", "parameters": {
    "type": "object", "properties": {"at": {"enum": ["sun", "moon"]}}, "required": ["at"],
    "additionalProperties": False}}}
ENUM = {"type": "string", "enum": ["red", "green"]}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"function": {"name": "look", "arguments": {"at": "sun"}}}, {"function": {"name": "hear", "arguments": {}}}]}


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--served-model-name", "m", "--served-model-name", "org/base", "--tool-call-parser", "hermes") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return ollama.Client(host=server.url, timeout=60)


def openai_text(server, **fields):
    body = {"model": "m", "messages": HI, "max_tokens": 8, "temperature": 0} | fields
    return server.json("POST", "/v1/chat/completions", body)[1]["choices"][0]["message"]["content"]


# ---- Ollama's client

def test_chat(server, client):
    whole = client.chat("m", HI, options=GREEDY)
    assert whole.message.role == "assistant" and whole.message.content == openai_text(server)
    assert whole.done and whole.done_reason == "length" and whole.eval_count == 8 and whole.prompt_eval_count > 8
    assert 0 < whole.eval_duration < whole.total_duration and 0 < whole.prompt_eval_duration < whole.total_duration
    assert whole.load_duration >= 0 and whole.created_at.startswith("20") and whole.created_at.endswith("Z")
    longer = GREEDY | {"num_predict": 48}  # tokens that come while the reader sleeps share a part
    parts = list(client.chat("m", HI, options=longer, stream=True))
    whole = client.chat("m", HI, options=longer)
    assert "".join(p.message.content for p in parts) == whole.message.content and len(parts) > 4
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == "length" and parts[-1].eval_count == 48 and parts[0].eval_count is None


def test_streams_are_lines_and_the_default(server):
    status, headers, data = server.request("POST", "/api/chat", {"model": "m", "messages": HI, "options": GREEDY})
    assert status == 200 and headers["Content-Type"] == "application/x-ndjson"
    lines = [json.loads(line) for line in data.decode().splitlines()]
    assert data.endswith(b"\n") and lines[-1]["done"] and lines[-1]["message"] == {"role": "assistant", "content": ""}


def test_a_silent_stream_stays_clean(server):
    """An empty line, or a comment as event streams have it, is no JSON and ends Ollama's clients."""
    with Server("--threads", "1", "--sse-ping-interval", "1", "--served-model-name", "m") as s:
        data = s.request("POST", "/api/generate", {"model": "m", "prompt": "a", "raw": True, "options":
                                                   {"num_predict": 900, "seed": 1}})[2]
        assert all(json.loads(line) for line in data.decode().split("\n")[:-1])


@pytest.mark.parametrize("name", ["m", "m:latest", "org/base", "org/base:latest", "hf.co/org/base"])
def test_names(client, name):
    assert client.generate(name, "Once", options=GREEDY).response
    assert client.show(name).details.family == "llama"


def test_generate(server, client):
    whole = client.generate("m", HI[0]["content"], options=GREEDY)
    assert whole.response == openai_text(server) and whole.done_reason == "length"
    assert "".join(p.response for p in client.generate("m", HI[0]["content"], options=GREEDY, stream=True)) == whole.response
    told = client.generate("m", HI[0]["content"], system="Be brief.", options=GREEDY)
    assert told.response == openai_text(server, messages=[{"role": "system", "content": "Be brief."}, *HI])
    assert told.prompt_eval_count > whole.prompt_eval_count
    raw = client.generate("m", "Once upon", raw=True, options=GREEDY)
    same = server.json("POST", "/v1/completions", {"prompt": "Once upon", "max_tokens": 8, "temperature": 0})[1]
    assert raw.response == same["choices"][0]["text"]


def test_options(server, client):
    ends = client.chat("m", HI, options={"temperature": 0, "num_predict": 40, "stop": ["a"]})
    assert ends.done_reason == "stop" and "a" not in ends.message.content
    a, b = ({"temperature": 1.5, "seed": s, "top_k": 50, "top_p": 0.9, "num_predict": 12} for s in (7, 8))
    first = client.chat("m", HI, options=a).message.content
    assert client.chat("m", HI, options=a).message.content == first != client.chat("m", HI, options=b).message.content
    assert first == openai_text(server, temperature=1.5, seed=7, top_k=50, top_p=0.9, max_tokens=12)
    text = client.chat("m", HI, options={"temperature": 0, "repeat_penalty": 1.9, "num_predict": 20}).message.content
    assert text == openai_text(server, repetition_penalty=1.9, max_tokens=20)
    free = client.generate("m", "a", raw=True, options={"num_predict": -1, "seed": 3, "stop": ["."]})
    assert free.eval_count > 16 or free.done_reason == "stop"  # not the default limit of completions
    # How memory is laid out is decided when this server starts.
    assert client.chat("m", HI, options=GREEDY | {"num_ctx": 8192, "num_gpu": 99, "num_thread": 4, "mirostat": 0,
                                                  "repeat_last_n": 64}).message.content == openai_text(server)


@pytest.mark.parametrize("options,word", [
    ({"temperature": -1}, "temperature"), ({"num_predict": "a"}, "options.num_predict"),
    ({"repeat_penalty": 0}, "options.repeat_penalty"), ({"mirostat": 2}, "options.mirostat"),
    ({"typical_p": 0.5}, "options.typical_p"), ({"top_p": 2}, "top_p"), ({"stop": [1]}, "stop"), ([], "options")])
def test_bad_options(server, options, word):
    status, reply = server.json("POST", "/api/chat", {"model": "m", "messages": HI, "options": options})
    assert status == 400 and word in reply["error"]


def test_unknown_options_are_named(server):
    _, headers, _ = server.request("POST", "/api/chat", {"model": "m", "messages": HI, "options": GREEDY | {"zeal": 1}})
    assert headers["X-Ignored-Fields"] == "options.zeal"
    with Server("--threads", "1", "--unknown-fields", "refuse") as s:
        body = {"messages": HI, "options": GREEDY | {"num_ctx": 99}, "keep_alive": "5m", "truncate": True}
        assert s.request("POST", "/api/chat", body)[0] == 200
        assert s.request("POST", "/api/chat", body | {"options": {"zeal": 1}})[0] == 400


def test_format(client):
    for stream in (False, True):
        reply = client.chat("m", HI, format=ENUM, stream=stream, options={"seed": 1})
        text = "".join(p.message.content for p in reply) if stream else reply.message.content
        assert json.loads(text) in ENUM["enum"]
    assert json.loads(client.generate("m", "A colour:", format=ENUM).response) in ENUM["enum"]
    assert client.generate("m", "x", format="json", options={"num_predict": 9, "seed": 1}).response.lstrip()[0] == "{"
    for bad in ("yaml", 1, []):
        with pytest.raises((ollama.ResponseError, ValueError)):
            client.chat("m", HI, format=bad)


@pytest.mark.parametrize("stream", [False, True])
def test_tools(server, stream):
    """tool_choice, which Ollama does not have, is read like all fields of chat completions: it makes the call sure. The
    model likes line ends between the tokens of JSON, which a line of a stream may not have."""
    body = {"model": "m", "messages": HI, "tools": [LOOK], "tool_choice": "required", "stream": stream,
            "options": {"seed": 1, "num_predict": 300}, "parallel_tool_calls": False}
    data = server.request("POST", "/api/chat", body)[2].decode()
    replies = [ollama.ChatResponse(**json.loads(line)) for line in data.splitlines()]
    calls = [c for r in replies for c in r.message.tool_calls or []]
    assert len(calls) == 1 and calls[0].function.name == "look" and calls[0].function.arguments["at"] in ("sun", "moon")
    assert replies[-1].done and replies[-1].done_reason == "stop"
    assert not any(r.message.content for r in replies)


def test_tools_may_be_none(client):
    assert client.chat("m", HI, tools=[], options=GREEDY).message.content
    assert client.chat("m", HI, tools=[LOOK], options=GREEDY).message.tool_calls is None


def prompt_of(server, body):
    """What the model is asked for a body of /api/chat: its answer's prompt by the template that shows all."""
    got = server.json("POST", "/api/chat", {"stream": False, "options": {"num_predict": 1}} | body)
    assert got[0] == 200, got
    return got[1]["prompt_eval_count"]


def test_messages():
    """A conversation with calls asks the model what the same one of chat completions asks it."""
    with Server("--threads", "1", "--chat-template", ALL, "--max-model-len", "1024") as s:
        def same(messages, chat, **fields):
            count = s.json("POST", "/tokenize", {"messages": chat, "add_generation_prompt": True} | fields)[1]["count"]
            assert prompt_of(s, {"messages": messages}) == count

        same(HI, HI)
        same([HI[0], {"role": "user"}], [HI[0], {"role": "user", "content": ""}])
        same([*HI, {"role": "assistant", "content": "a", "thinking": "b"}, *HI],
             [*HI, {"role": "assistant", "content": "a", "reasoning": "b"}, *HI])
        calls = [{"id": f"call{i:05}", "type": "function", "function": c["function"]}
                 for i, c in enumerate(CALL["tool_calls"])]
        asked = [*HI, CALL | {"tool_calls": calls}]
        for results, want in (
                ([{"content": "1"}, {"content": "2"}], [{"content": "1", "tool_call_id": "call00000"},
                                                        {"content": "2", "tool_call_id": "call00001"}]),
                ([{"content": "2", "tool_name": "hear"}, {"content": "1", "tool_name": "look"}],
                 [{"content": "2", "name": "hear", "tool_call_id": "call00001"},
                  {"content": "1", "name": "look", "tool_call_id": "call00000"}])):
            same([*HI, CALL, *({"role": "tool"} | r for r in results)], [*asked, *({"role": "tool"} | r for r in want)])


def test_goes_on(server, client):
    begun = [*HI, {"role": "assistant", "content": "A Fox"}]
    same = openai_text(server, messages=begun, continue_final_message=True, add_generation_prompt=False)
    assert client.chat("m", begun, options=GREEDY).message.content == same


def test_think():
    with Server("--threads", "1", "--served-model-name", "m", "--reasoning-parser", "deepseek_r1",
                "--chat-template", THINKS) as s:
        c = ollama.Client(host=s.url)
        assert c.show("m").capabilities == ["completion", "thinking"]
        fields = {"options": {"seed": 3, "num_predict": 24}}
        thought = c.chat("m", HI, think=True, **fields).message
        assert thought.thinking and not thought.content
        parts = [p.message for p in c.chat("m", HI, think=True, stream=True, **fields)]
        assert "".join(p.thinking or "" for p in parts) == thought.thinking
        assert c.chat("m", HI, think="high", **fields).message.thinking
        plain = c.chat("m", HI, think=False, **fields).message
        assert plain.content and plain.thinking is None
        assert c.generate("m", "Once upon", think=True, **fields).thinking
        parts = list(c.generate("m", "Once upon", think=True, stream=True, **fields))
        assert any(p.thinking for p in parts) and not any(p.response for p in parts)


def test_think_needs_a_model_that_does(client):
    assert client.chat("m", HI, think=False, options=GREEDY).message.content
    with pytest.raises(ollama.ResponseError, match="does not support thinking") as e:
        client.chat("m", HI, think=True)
    assert e.value.status_code == 400


def test_logprobs(client):
    whole = client.chat("m", HI, options=GREEDY, logprobs=True, top_logprobs=2)
    assert len(whole.logprobs) == 8 and all(len(t.top_logprobs) == 2 for t in whole.logprobs)
    assert "".join(t.token for t in whole.logprobs) == whole.message.content
    parts = list(client.chat("m", HI, options=GREEDY, logprobs=True, stream=True))
    assert [t.logprob for p in parts for t in p.logprobs or []] == [t.logprob for t in whole.logprobs]
    raw = client.generate("m", "Once", raw=True, options=GREEDY, logprobs=True, top_logprobs=1)
    assert len(raw.logprobs) == 8 and raw.logprobs[0].top_logprobs[0].token == raw.logprobs[0].token


def test_refusals(server, client):
    for call, word in ((lambda: client.chat("none", HI), "none"), (lambda: client.generate("none", "a"), "none"),
                       (lambda: client.show("none"), "none")):
        with pytest.raises(ollama.ResponseError, match=word) as e:
            call()
        assert e.value.status_code == 404
    picture = [{"role": "user", "content": "What is this?", "images": ["aGVsbG8="]}]
    for call, word in ((lambda: client.chat("m", picture), r"messages\[0\].images"),
                       (lambda: client.generate("m", "a", images=["aGVsbG8="]), "images"),
                       (lambda: client.generate("m", "a", suffix="b"), "suffix"),
                       (lambda: client.generate("m", "a", template="{{ .Prompt }}"), "template"),
                       (lambda: client.generate("m", "a", context=[1, 2]), "context"),
                       (lambda: client.generate("m", "a", raw=True, system="b"), "system"),
                       (lambda: client.chat("m", HI, keep_alive="soon"), "keep_alive"),
                       (lambda: client.embed("m", "a"), "embeddings"),
                       (lambda: client.chat("m", HI * 200), "context")):
        with pytest.raises(ollama.ResponseError, match=word) as e:
            call()
        assert e.value.status_code == 400
    for body in ({"model": "m", "messages": 1}, {"model": "m", "messages": [1]}, {"model": 1, "messages": HI},
                 {"messages": [{"content": "a"}]}, {"messages": HI, "think": 1}, {"messages": HI, "stream": 1},
                 {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, {"messages": HI, "n": 2}):
        status, reply = server.json("POST", "/api/chat", body)
        assert status == 400 and isinstance(reply["error"], str) and reply["error"], body


def test_lists(server, client):
    models = client.list().models
    assert [m.model for m in models] == ["m:latest", "org/base:latest"] and len({m.digest for m in models}) == 2
    assert models[0].size > 1e6 and len(models[0].digest) == 64 and models[0].details.parameter_size.endswith("M")
    running = client.ps().models
    assert len(running) == 1 and running[0].context_length == 1024 and running[0].expires_at.year > 2100
    shown = client.show("m:latest")
    assert shown.capabilities == ["completion", "tools"] and shown.modelinfo["llama.context_length"] == 1024
    assert shown.modelinfo["general.parameter_count"] > 1e6 and "message" in shown.template
    version = server.json("GET", "/api/version")[1]["version"]
    assert [int(n) for n in version.split(".")] >= [0, 6, 4]  # what editors ask for


def test_is_running(server):
    """The page is for browsers; Ollama's clients, which want JSON or say nothing of HTML, get Ollama's sentence."""
    assert server.request("HEAD", "/")[0] == 200
    assert server.request("GET", "/", headers={"Accept": "application/json"})[2] == b"Ollama is running"
    assert b"<html" in server.request("GET", "/", headers={"Accept": "text/html,*/*"})[2].lower()


def test_keep_alive(client):
    """Nothing is unloaded unless the server was started for it, and nobody is told that it was."""
    assert client.generate("m", "").done_reason == "load" and client.chat("m", []).done_reason == "load"
    for keep in (0, "0s", -1, "5m", "1h30m", 300):
        assert client.chat("m", HI, options=GREEDY, keep_alive=keep).done_reason == "length"
    with pytest.raises(ollama.ResponseError, match="--enable-sleep-mode"):
        client.generate("m", "", keep_alive=0)


def test_unload(tmp_path):
    file = tmp_path / "keys"
    file.write_text(json.dumps({"keys": [{"key": "user", "name": "u", "scopes": ["generate"]},
                                         {"key": "ops", "name": "o", "scopes": ["generate", "admin"]}]}))
    with Server("--threads", "1", "--enable-sleep-mode", "--api-key-file", str(file), "--served-model-name", "m") as s:
        user, ops = (ollama.Client(host=s.url, headers={"Authorization": "Bearer " + k}) for k in ("user", "ops"))
        text = ops.chat("m", HI, options=GREEDY).message.content
        with pytest.raises(ollama.ResponseError, match="admin"):
            user.generate("m", "", keep_alive=0)
        assert ops.generate("m", "", keep_alive=0).done_reason == "unload" and not ops.ps().models
        assert s.request("GET", "/readyz")[0] == 503 and s.request("GET", "/livez")[0] == 200
        with pytest.raises(ollama.ResponseError) as e:
            user.chat("m", HI)
        assert e.value.status_code == 503
        assert ops.chat("m", HI, options=GREEDY).message.content == text  # which loads it again
        assert user.chat("m", HI, options=GREEDY).message.content == text and len(ops.ps().models) == 1
        assert ops.chat("m", [], keep_alive="0m").done_reason == "unload"
        assert ops.chat("m", []).done_reason == "load" and s.request("GET", "/readyz")[0] == 200


@pytest.fixture(scope="module")
def vectors():
    with Server("--threads", "1", "--served-model-name", "m", "--runner", "pooling", "--convert", "embed") as s:
        yield s


def test_embed(vectors):
    c = ollama.Client(host=vectors.url)
    texts = ["a dog", "a cat", "the moon " * 2000]
    got = c.embed("m", texts)
    cut = vectors.json("POST", "/v1/embeddings", {"input": texts, "truncate_prompt_tokens": -1})[1]
    assert [list(v) for v in got.embeddings] == [e["embedding"] for e in cut["data"]]
    assert got.prompt_eval_count == cut["usage"]["prompt_tokens"] and got.total_duration > 0
    assert c.embed("m:latest", "a dog").embeddings[0] == got.embeddings[0]
    assert list(c.embeddings("m", "a dog").embedding) == list(got.embeddings[0])
    assert len(c.embed("m", "a dog", dimensions=8).embeddings[0]) == 8
    assert c.embed("m", []).embeddings == []
    assert c.show("m").capabilities == ["embedding"]
    with pytest.raises(ollama.ResponseError) as e:
        c.embed("m", texts, truncate=False)
    assert e.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match="embeddings"):
        c.chat("m", HI)


# ---- downloads

@pytest.fixture
def hub(tmp_path):
    hub = Hub()
    files = {p.name: p.read_bytes() for p in pathlib.Path(ROOT, "assets", "storyteller").iterdir()}
    hub.repos["org/Story"] = Repo(files)
    hub.home = tmp_path / "hf"
    hub.env = {"HF_HOME": str(hub.home), "HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_HUB_OFFLINE": "0"}
    hub.snapshot = hub.home / "hub" / "models--org--Story" / "snapshots" / COMMIT
    yield hub
    hub.go_on.set()


def test_pull(hub, tmp_path):
    file = tmp_path / "keys"
    file.write_text(json.dumps({"keys": [{"key": "user", "name": "u", "scopes": ["generate"]},
                                         {"key": "ops", "name": "o", "scopes": ["generate", "admin"]}]}))
    with Server("--threads", "1", "--allow-pull", "--api-key-file", str(file), "--served-model-name", "m",
                env=hub.env) as s:
        user, ops = (ollama.Client(host=s.url, headers={"Authorization": "Bearer " + k}) for k in ("user", "ops"))
        assert user.pull("m").status == "success"  # it is here
        with pytest.raises(ollama.ResponseError, match="admin"):
            user.pull("org/Story")
        for name in ("llama3.2", "/etc/passwd", "../x/y", "assets/storyteller", "org/none"):
            with pytest.raises(ollama.ResponseError):
                ops.pull(name)
        hub.fault("model.safetensors", "slow", seconds=0.0005)
        parts = list(ops.pull("hf.co/org/Story:latest", stream=True))
        assert parts[0].status == "pulling manifest" and parts[-1].status == "success"
        moves = [p for p in parts if p.total]
        assert moves and all(p.digest == "org/Story" and 0 <= p.completed <= p.total for p in moves)
        assert [p.completed for p in moves] == sorted(p.completed for p in moves)
        assert (hub.snapshot / "model.safetensors").exists()
        assert ops.pull("org/Story").status == "success"
        assert ops.chat("m", HI, options=GREEDY).message.content


def test_pull_is_given_up(hub):
    """With its client, whose place the next one has; and with the server, which does not wait for it."""
    with Server("--threads", "1", "--allow-pull", env=hub.env) as s:
        c = ollama.Client(host=s.url)
        hub.fault("model.safetensors", "stall", times=9, after=4096, seconds=60)
        stream = c.pull("org/Story", stream=True)
        assert next(stream).status == "pulling manifest"
        assert hub.stalled.wait(20)
        with pytest.raises(ollama.ResponseError) as e:
            c.pull("org/Story")
        assert e.value.status_code == 429
        assert s.request("GET", "/readyz")[0] == 200
        stream.close()
        hub.stalled.clear()
        deadline = time.monotonic() + 10
        while True:  # the place is free some moments later
            stream = c.pull("org/Story", stream=True)
            try:
                next(stream)
                break
            except ollama.ResponseError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert hub.stalled.wait(20)
        start = time.monotonic()
        assert s.stop() == 0 and time.monotonic() - start < 5
        with pytest.raises(ollama.ResponseError, match="stopping"):
            list(stream)


def test_pull_needs_the_flag(client):
    assert client.pull("m").status == "success"
    with pytest.raises(ollama.ResponseError, match="--allow-pull") as e:
        client.pull("org/Story")
    assert e.value.status_code == 404


# ---- others' clients of Ollama

def test_langchain(server, vectors):
    chat = ChatOllama(model="m", base_url=server.url, temperature=0, num_predict=8, validate_model_on_init=True)
    reply = chat.invoke(HI[0]["content"])
    assert reply.content == openai_text(server) and reply.usage_metadata["output_tokens"] == 8
    assert reply.response_metadata["done_reason"] == "length"
    assert "".join(p.content for p in chat.stream(HI[0]["content"])) == reply.content
    seen = ChatOllama(model="m", base_url=server.url, seed=1).with_structured_output(
        {"title": "Colour", **ENUM}, method="json_schema", include_raw=True).invoke("A colour?")
    assert json.loads(seen["raw"].content) in ENUM["enum"]
    assert chat.bind_tools([LOOK]).invoke("hi").content
    llm = OllamaLLM(model="m", base_url=server.url, temperature=0, num_predict=8)
    assert llm.invoke(HI[0]["content"]) == openai_text(server)
    found = OllamaEmbeddings(model="m", base_url=vectors.url).embed_documents(["a dog", "a cat"])
    assert len(found) == 2 and found[0] != found[1]


def test_litellm(server, vectors):
    for provider in ("ollama_chat/m", "ollama/m"):
        reply = litellm.completion(provider, HI, api_base=server.url, temperature=0, max_tokens=8)
        assert reply.choices[0].message.content and reply.usage.completion_tokens == 8
        parts = litellm.completion(provider, HI, api_base=server.url, temperature=0, max_tokens=8, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in parts) == reply.choices[0].message.content
    reply = litellm.completion("ollama_chat/m", HI, api_base=server.url, seed=1,
                               response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": ENUM}})
    assert json.loads(reply.choices[0].message.content) in ENUM["enum"]
    found = litellm.embedding("ollama/m", ["a dog", "a cat"], api_base=vectors.url)
    assert len(found.data) == 2
