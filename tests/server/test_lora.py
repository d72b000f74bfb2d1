# SPDX-License-Identifier: MIT
"""Adapters over HTTP with OpenAI's own client: the request's model names them, they are loaded and unloaded while
others are served, and what is wrong with one is said."""
import json
import os
import shutil
import subprocess
import threading

import openai
import pytest

from serverproc import BINARY, Server

MKMODEL = os.path.join(os.path.dirname(BINARY), "tools", "mkmodel")
PROMPT = "Once upon a time there was a fox"


def mkmodel(*args):
    subprocess.run([MKMODEL, "--quiet", *args], check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("lora")
    mkmodel("--family", "qwen3", "--vocab", "bytes", "--out", str(path / "base"))
    for i in range(4):
        mkmodel("--adapter-of", str(path / "base"), "--rank", str(4 * i + 4), "--seed", str(i), "--out", str(path / f"a{i}"))
    return path


@pytest.fixture(scope="module")
def server(folder):
    with Server(str(folder / "base"), "--served-model-name", "base", "--lora-modules", f"a0={folder}/a0",
                json.dumps({"name": "a=1", "path": f"{folder}/a1", "base_model_name": "base"}), "--max-loras", "2",
                "--max-cpu-loras", "2", "--allow-runtime-lora-updating", "--threads", "2") as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def ask(client, model, **fields):
    args = {"model": model, "prompt": PROMPT, "max_tokens": 16, "temperature": 0} | fields
    return client.completions.create(**args)


def text(client, model, **fields):
    return ask(client, model, **fields).choices[0].text


def load(server, name, path, **fields):
    return server.request("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)} | fields)


def unload(server, name):
    return server.request("POST", "/v1/unload_lora_adapter", {"lora_name": name})


def error(reply):
    status, _, body = reply
    return status, json.loads(body)["error"]["message"]


def test_models_are_listed(client, folder):
    cards = {m.id: m for m in client.models.list().data}
    assert set(cards) == {"base", "a0", "a=1"}
    assert cards["base"].parent is None and cards["a0"].parent == "base"
    assert cards["a0"].root == f"{folder}/a0"
    assert client.models.retrieve("a=1").parent == "base"


def test_model_names_the_adapter(client):
    plain, first, second = (text(client, m) for m in ("base", "a0", "a=1"))
    assert len({plain, first, second}) == 3
    reply = ask(client, "a0")
    assert reply.model == "a0" and reply.choices[0].text == first
    assert text(client, "a0", extra_body={"lora_scale": 0}) == plain
    assert text(client, "a0", extra_body={"lora_scale": 0.25}) not in (plain, first)
    streamed = "".join(e.choices[0].text for e in ask(client, "a0", stream=True) if e.choices)
    assert streamed == first


def test_many_at_once(client):
    want = {m: text(client, m) for m in ("base", "a0", "a=1")}
    got = []
    threads = [threading.Thread(target=lambda m=m: got.append((m, text(client, m)))) for m in list(want) * 6]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got) == 18 and all(want[m] == t for m, t in got)


def test_load_and_unload(server, client, folder):
    status, _, body = load(server, "a2", folder / "a2")
    assert (status, body) == (200, b"Success: LoRA adapter 'a2' added successfully.")
    first = text(client, "a2")
    assert error(load(server, "a2", folder / "a3")) == (400, "The lora adapter 'a2' has already been loaded. If you want to "
                                                             "load the adapter in place, set 'load_inplace' to True.")
    assert load(server, "a2", folder / "a3", load_inplace=True)[0] == 200
    assert text(client, "a2") != first
    assert text(client, "a0") != text(client, "base")  # gave way in memory, is read again
    status, _, body = unload(server, "a2")
    assert (status, body) == (200, b"Success: LoRA adapter 'a2' removed successfully.")
    assert error(unload(server, "a2")) == (404, "The lora adapter 'a2' cannot be found.")
    with pytest.raises(openai.NotFoundError):
        text(client, "a2")


def test_metrics(server, client):
    seen = None
    for _ in range(50):  # on a busy machine an answer may be over before anybody looks
        stream = ask(client, "a0", max_tokens=200, stream=True)
        next(stream)
        seen = server.metric("vllm:lora_requests_info", max_lora="2", running_lora_adapters="a0")
        for _ in stream:
            pass
        if seen is not None:
            break
    assert seen > 1e9
    assert server.metric("sluice:adapters") == 2 and server.metric("sluice:adapters_resident") <= 2
    assert server.metric("sluice:adapter_loads_total") >= 2


def test_unloaded_while_running(server, client, folder):
    assert load(server, "gone", folder / "a2")[0] == 200
    want = text(client, "gone", max_tokens=200)
    stream = ask(client, "gone", max_tokens=200, stream=True)
    got = next(stream).choices[0].text
    assert unload(server, "gone")[0] == 200
    assert got + "".join(e.choices[0].text for e in stream if e.choices) == want


@pytest.mark.parametrize("body,message", [
    ({}, "Both 'lora_name' and 'lora_path' must be provided."),
    ({"lora_name": "x"}, "Both 'lora_name' and 'lora_path' must be provided."),
    ({"lora_name": "x", "lora_path": 3}, "lora_path"),
    ({"lora_name": "base", "lora_path": "/"}, "conflicts with a served base model"),
    ({"lora_name": "x", "lora_path": "/nowhere"}, "/nowhere"),
    ({"lora_name": "x" * 300, "lora_path": "{a2}"}, "1 to 256 bytes"),
])
def test_refused(server, folder, body, message):
    body = {k: v.replace("{a2}", f"{folder}/a2") if isinstance(v, str) else v for k, v in body.items()}
    status, got = error(server.request("POST", "/v1/load_lora_adapter", body))
    assert status in (400, 404) and message in got


def test_bad_adapters(server, folder, tmp_path):
    """Each is refused with the name of what is wrong, and nothing else changes."""
    def variant(name, **config):
        path = tmp_path / name
        shutil.copytree(folder / "a0", path)
        c = json.loads((path / "adapter_config.json").read_text()) | config
        (path / "adapter_config.json").write_text(json.dumps(c))
        return path
    cases = [(variant("dora", use_dora=True), "use_dora"),
             (variant("bias", bias="all"), "bias"),
             (variant("save", modules_to_save=["lm_head"]), "modules_to_save"),
             (variant("ia3", peft_type="IA3"), "IA3"),
             (variant("rank", r=5), "rank 4"),
             (variant("pattern", rank_pattern={"(": 4}), "regular expression")]
    short = variant("short")
    data = (short / "adapter_model.safetensors").read_bytes()
    (short / "adapter_model.safetensors").write_bytes(data[:-4])
    cases.append((short, "adapter_model.safetensors"))
    for path, word in cases:
        status, message = error(load(server, "bad", path))
        assert status == 400 and word in message, message
    assert "bad" not in [m["id"] for m in server.json("GET", "/v1/models")[1]["data"]]


def test_scale_needs_an_adapter(server, client):
    with pytest.raises(openai.BadRequestError, match="not an adapter"):
        text(client, "base", extra_body={"lora_scale": 0.5})
    with pytest.raises(openai.BadRequestError, match="lora_scale"):
        text(client, "a0", extra_body={"lora_scale": 1e9})


def test_tokenize_knows_adapters(server):
    assert server.json("POST", "/tokenize", {"model": "a0", "prompt": "x"})[0] == 200
    assert server.json("POST", "/tokenize", {"model": "nobody", "prompt": "x"})[0] == 404


def test_off_by_default(folder):
    with Server(str(folder / "base"), "--served-model-name", "base", "--enable-lora") as s:
        status, message = error(load(s, "a0", folder / "a0"))
        assert status == 400 and "--allow-runtime-lora-updating" in message


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-q"]))
