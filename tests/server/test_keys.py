# SPDX-License-Identifier: MIT
"""Keys from a file: names, scopes and limits, and files that are refused."""
import json
import threading
import time

import pytest

from serverproc import Server

KEYS = [{"key": "key-all", "name": "team", "max_running": 2},
        {"key": "key-slow", "name": "batch", "scopes": ["generate"], "requests_per_minute": 3},
        {"key": "key-ops", "name": "operator", "scopes": ["admin"]}]
LONG = {"prompt": "a", "max_tokens": 1000, "n": 16, "ignore_eos": True}  # not over before it is cancelled


def bearer(key):
    return {"Authorization": "Bearer " + key}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    file = folder / "keys.json"
    file.write_text(json.dumps({"keys": KEYS}))
    with Server("--threads", "1", "--api-key-file", str(file), "--request-log", str(folder / "log")) as s:
        s.request_log = folder / "log"
        yield s
        assert s.process.poll() is None, s.log()


def ask(server, key, body=None):
    return server.json("POST", "/v1/completions", body or {"prompt": "a", "max_tokens": 1}, bearer(key))


def test_scopes(server):
    assert ask(server, "key-all")[0] == 200
    status, reply = ask(server, "key-ops")
    assert status == 401 and reply["error"]["code"] == "insufficient_scope"
    assert server.json("GET", "/v1/models", None, bearer("key-ops"))[0] == 200
    status, reply = ask(server, "key-none")
    assert status == 401 and reply["error"]["code"] == "invalid_api_key"


def test_max_running_and_admin(server):
    """The third at a time is refused; the operator sees the others and ends them, a third key does not."""
    out = []
    threads = [threading.Thread(target=lambda: out.append(ask(server, "key-all", LONG))) for _ in range(2)]
    for t in threads:
        t.start()
    deadline = time.monotonic() + 20
    while len(rows := server.json("GET", "/api/state", None, bearer("key-ops"))[1]["requests"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    status, reply = ask(server, "key-all")
    assert status == 429 and "2 requests at a time" in reply["error"]["message"]
    assert server.json("GET", "/api/state", None, bearer("key-slow"))[1]["requests"] == []
    for row in rows:
        assert server.json("POST", "/api/cancel", {"id": row["id"]}, bearer("key-slow"))[0] == 404
        assert server.json("POST", "/api/cancel", {"id": row["id"]}, bearer("key-ops"))[0] == 200
    for t in threads:
        t.join(20)
    assert [r[1]["choices"][0]["finish_reason"] for r in out] == ["abort", "abort"]
    assert ask(server, "key-all")[0] == 200  # what ended does not count any more
    assert ask(server, "key-all", {"prompt": 7})[0] == 400 and ask(server, "key-all")[0] == 200


def test_requests_per_minute(server):
    got = [server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1}, bearer("key-slow"))
           for _ in range(5)]
    assert [g[0] for g in got] == [200, 200, 200, 429, 429]
    assert "Retry-After" in got[3][1] and b"3 requests per minute" in got[3][2]
    assert server.json("GET", "/v1/models", None, bearer("key-slow"))[0] == 200  # only work counts
    assert ask(server, "key-all")[0] == 200


def test_names_in_the_log(server):
    ask(server, "key-all")
    text = server.request_log.read_text()
    assert json.loads(text.splitlines()[-1])["key"] == "team"
    assert not any(k["key"] in text + server.log() for k in KEYS)


@pytest.mark.parametrize("text, message", [
    ("", "--api-key-file"), ("[]", "object"), ("{}", "keys must be an array"), ('{"keys": []}', "1 to 1024"),
    ('{"keys": [1]}', "keys[0]: each must be an object"), ('{"keys": [{"key": "a"}]}', "with key and name"),
    ('{"keys": [{"key": "", "name": "n"}]}', "key is empty"),
    ('{"keys": [{"key": 1, "name": "n"}]}', "must be a string"),
    ('{"keys": [{"key": "a", "name": "n", "scopes": "admin"}]}', "scopes must be an array"),
    ('{"keys": [{"key": "a", "name": "n", "scopes": ["root"]}]}', "'root' is neither"),
    ('{"keys": [{"key": "a", "name": "n", "max_runing": 1}]}', "unknown member 'max_runing'"),
    ('{"keys": [{"key": "a", "name": "n", "max_running": 0}]}', "max_running"),
    ('{"keys": [{"key": "a", "name": "n", "requests_per_minute": "9"}]}', "requests_per_minute"),
    ('{"keys": [{"key": "a", "name": "n"}, {"key": "a", "name": "m"}]}', "keys[1]: its key is already used by 'n'"),
])
def test_bad_files(tmp_path, text, message):
    file = tmp_path / "keys.json"
    file.write_text(text)
    with pytest.raises(RuntimeError) as e:
        Server("--threads", "1", "--api-key-file", str(file))
    assert message in str(e.value) and str(file) in str(e.value) and '"key"' not in str(e.value)


def test_no_file(tmp_path):
    with pytest.raises(RuntimeError, match="--api-key-file.*nothing"):
        Server("--threads", "1", "--api-key-file", str(tmp_path / "nothing"))
    with pytest.raises(RuntimeError, match="only one of them"):
        Server("--threads", "1", "--api-key-file", "x", "--api-key", "y")
