# SPDX-License-Identifier: MIT
"""What routers, evaluators, front ends and Kubernetes ask about a server: the members that each of them reads, what
stays inside, and what is said while the server sleeps, drains or is busy."""
import json
import signal
import time

import pytest

from serverproc import Server

KEY = "sk-of-the-test-4711"
AUTH = {"Authorization": "Bearer " + KEY}
INFO = ("/props", "/slots", "/tokenizer_info", "/server_info", "/get_server_info", "/model_info", "/get_model_info")
LONG = {"prompt": "a", "max_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--served-model-name", "m", "--max-num-seqs", "2", "--enable-sleep-mode",
                "--max-model-len", "1024") as s:
        yield s
        assert s.process.poll() is None, s.log()


def get(s, path):
    status, reply = s.json("GET", path)
    assert status == 200, reply
    return reply


def test_props_and_slots(server):
    props = get(server, "/props")
    made = props["default_generation_settings"]
    assert made["n_ctx"] == 1024 and props["total_slots"] == 2 and props["model_alias"] == "m"
    assert made["params"]["temperature"] == 0.7 and made["params"]["top_p"] == 0.9  # not 0.69999998807907104
    assert "messages" in props["chat_template"] and props["eos_token"] == "<|endoftext|>"
    assert props["modalities"] == {"vision": False, "audio": False} and not props["is_sleeping"]
    assert [s["is_processing"] for s in get(server, "/slots")] == [False, False]
    with server.stream("/v1/completions", LONG) as a, server.stream("/v1/completions", LONG) as b:
        a.first(), b.first()
        assert [s["is_processing"] for s in get(server, "/slots")] == [True, True]
        assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 503
        info = get(server, "/server_info")
        assert info["num_running_reqs"] == 2
    server.wait_metric("vllm:num_requests_running", 0.0)
    assert server.request("GET", "/slots?fail_on_no_slot=1")[0] == 200


def test_tokenizer_info(server):
    """lm-eval's remote tokenizer takes the tokens from here and their ids from /tokenize."""
    info = get(server, "/tokenizer_info")
    assert info["tokenizer_class"] and info["model_max_length"] == 1024 and "messages" in info["chat_template"]
    for name in ("bos_token", "eos_token"):
        ids = server.json("POST", "/tokenize", {"prompt": info[name], "add_special_tokens": False})[1]["tokens"]
        assert len(ids) == 1
        assert server.json("POST", "/detokenize", {"tokens": ids})[1]["prompt"] == info[name]


def test_model_and_server_info(server):
    model, info = get(server, "/model_info"), get(server, "/server_info")
    assert model == get(server, "/get_model_info") and model["is_generation"] and model["architectures"] == ["llama"]
    assert set(info) == set(get(server, "/get_server_info"))
    assert info["served_model_name"] == "m" and info["version"] == get(server, "/version")["version"]
    assert info["tp_size"] == info["dp_size"] == 1 and info["max_running_requests"] == 2
    assert info["context_length"] == 1024 and info["max_total_num_tokens"] >= 1024 and not info["is_embedding"]


def test_model_by_name(server):
    for path in INFO:
        assert server.request("GET", path + "?model=m")[0] == 200
        status, reply = server.json("GET", path + "?model=x")
        assert status == 404 and reply["error"]["code"] == "model_not_found"


def test_nothing_secret(tmp_path):
    """With every secret that a server can be started with, none is in a reply; and no reply without a key."""
    keys = tmp_path / "keys-secret"
    keys.write_text(json.dumps({"keys": [{"key": KEY, "name": "team-secret", "scopes": ["generate", "admin"]}]}))
    files = tmp_path / "files-secret"
    files.mkdir()
    with Server("--threads", "1", "--api-key-file", str(keys), "--file-storage-path", str(files), "--request-log",
                str(tmp_path / "log-secret"), env={"HF_TOKEN": "hf_secret"}) as s:
        for path in (*INFO, "/api/tags", "/api/ps"):
            assert s.request("GET", path)[0] == 401, path
            status, _, body = s.request("GET", path, headers=AUTH)
            assert status == 200 and b"secret" not in body and KEY.encode() not in body and b"/tmp" not in body, body
        for path in ("/livez", "/readyz", "/api/version", "/"):
            assert s.request("GET", path)[0] == 200


def test_probes_of_a_sleeping_server(server):
    assert server.request("GET", "/livez")[0] == 200 and server.request("GET", "/readyz")[0] == 200
    assert server.request("POST", "/sleep?level=1")[0] == 200
    assert server.request("GET", "/livez")[0] == 200 and server.request("GET", "/readyz")[0] == 503
    assert get(server, "/props")["is_sleeping"] and get(server, "/server_info")["status"] == "asleep"
    assert server.request("POST", "/wake_up")[0] == 200 and server.request("GET", "/readyz")[0] == 200


def test_probes_of_a_draining_server():
    """It gets no more requests, and is not killed for that."""
    with Server("--threads", "1", "--max-model-len", "1024") as s:
        with s.stream("/v1/completions", LONG) as running:
            running.first()
            s.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 5
            while (ready := s.request("GET", "/readyz")[0]) == 200 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert ready == 503 and s.request("GET", "/livez")[0] == 200
        assert s.process.wait(40) == 0
