# SPDX-License-Identifier: MIT
"""`sluice batch`: every line is answered once and in its place, whatever its neighbours are and however often the run was
killed, and as the server answers it."""
import fcntl
import json
import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from serverproc import BINARY, Server  # noqa: E402

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def line(i, url=TEXT, **body):
    body = {"prompt": f"Once upon a time {i}", "max_tokens": 4, "temperature": 0} if not body else body
    return json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body})


def batch(*args, want=0):
    r = subprocess.run([BINARY, "batch", *map(str, args)], capture_output=True, text=True, check=False, timeout=120)
    assert r.returncode == want, r.stderr
    return r.stderr


def read(path):
    return [json.loads(x) for x in path.read_text().rstrip("\n").split("\n")]


def test_every_line_is_answered_in_its_place(tmp_path):
    hi = [{"role": "user", "content": "hi"}]
    lines = [line(0), line(1, CHAT, messages=hi, max_tokens=3, temperature=0), "{", line(3, TEXT, prompt="a", n=-1), "[]", "",
             line(5, "/v1/nothing", a=1), line(6, TEXT, prompt="a", stream=True), '{"custom_id": 7}',
             json.dumps({"custom_id": "r8", "method": "GET", "url": TEXT, "body": {}}), "\xff", "{" * 100000,
             line(11, TEXT, prompt="a" * 20000), line(12, "/v1/responses", input="hi", max_output_tokens=2, temperature=0),
             json.dumps({"custom_id": "\u2028\n\"", "method": "POST", "url": TEXT, "body": {"prompt": "a", "max_tokens": 1}})]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes("\n".join(lines).encode("latin-1"))
    err = batch(source, out, "--threads", "1", want=1)
    assert f"10 of 14 requests failed; {out} says why" in err
    got = read(out)
    assert len(got) == len(lines) - 1  # the empty one asks for nothing
    assert [g["custom_id"] for g in got] == ["r0", "r1", None, "r3", None, "r5", "r6", None, "r8", None, None, "r11",
                                             "r12", "\u2028\n\""]
    status = [g["response"]["status_code"] if g["response"] else None for g in got]
    assert status == [200, 200, None, 400, None, None, None, None, None, None, None, 400, 200, 200]
    assert len({g["id"] for g in got}) == len(got)
    for g in got:
        assert set(g) == {"id", "custom_id", "response", "error"} and (g["response"] is None) == (g["error"] is not None)
        assert g["error"] is None or g["error"]["message"] and g["error"]["code"] == "invalid_request"
    assert got[3]["response"]["body"]["error"]["param"] == "n" and "stream" in got[6]["error"]["message"]
    assert "14 of 14 done, 10 failed" in err and "requests/s" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
    with Server("--threads", "1") as s:
        for i in (0, 1, 12):
            want = s.json("POST", json.loads([x for x in lines if x][i])["url"], json.loads([x for x in lines if x][i])["body"])[1]
            mine = got[i]["response"]["body"]
            assert (mine["choices"] == want["choices"]) if i < 2 else mine["output"][0]["content"] == want["output"][0]["content"]


def test_a_killed_run_goes_on(tmp_path):
    n = 40
    source, out, part = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    bodies = [{"prompt": f"Story {i}: ", "max_tokens": 24, "seed": i, "ignore_eos": True} for i in range(n)]
    source.write_text("\n".join(line(i, TEXT, **b) for i, b in enumerate(bodies)) + "\n")
    args = [BINARY, "batch", str(source), str(out), "--concurrency", "4", "--threads", "1"]
    kept = b""
    for sig in (signal.SIGKILL, signal.SIGTERM):
        with subprocess.Popen(args, stderr=subprocess.DEVNULL) as p:
            deadline = time.monotonic() + 60
            while (not part.exists() or part.stat().st_size <= len(kept) + 1500) and p.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            p.send_signal(sig)
            p.wait()
        assert part.read_bytes().startswith(kept) and not out.exists()  # nothing that was answered is lost
        whole = part.read_bytes()[: part.read_bytes().rfind(b"\n") + 1]
        assert len(whole) > len(kept)
        kept = whole
        if sig == signal.SIGKILL:
            part.write_bytes(whole + b'{"id":"batch_req_')  # as if it had ended within a write
            kept = whole
    err = batch(*args[2:])
    assert "going on after" in err
    got = read(out)
    assert [g["custom_id"] for g in got] == [f"r{i}" for i in range(n)]  # each once, in order
    text = out.read_bytes()
    assert all(x in text for x in kept.splitlines())  # and as it was answered first
    with Server("--threads", "1") as s:
        for i in (0, n - 1):
            assert got[i]["response"]["body"]["choices"] == s.json("POST", TEXT, bodies[i])[1]["choices"]
    assert not part.exists()


def test_what_is_refused(tmp_path):
    source, out, part = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    source.write_text(line(0) + "\n" + line(1) + "\n")
    assert "are needed" in batch(source, want=2)
    assert "in2" in batch(tmp_path / "in2", out, want=2)
    (tmp_path / "empty").write_text("\n \n")
    assert "no lines" in batch(tmp_path / "empty", tmp_path / "o", want=2)
    part.write_text('{"id":"batch_req_00000000000000000000000000000000","custom_id":"r0"}\n')
    assert "another input" in batch(source, out, want=2) and part.exists()
    part.write_text("")
    with open(part, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another run" in batch(source, out, want=1)
    batch(source, out)
    before = out.read_bytes()
    assert "exists already" in batch(source, out, want=2) and out.read_bytes() == before


def test_a_server_that_cannot_start_says_why(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(line(0) + "\n")
    began = time.monotonic()
    r = subprocess.run(["/bin/sh", "-c", 'ulimit -n 8; exec "$0" "$@"', BINARY, "batch", str(source), str(out), "--threads", "1"],
                       capture_output=True, text=True, check=False, timeout=60)
    assert r.returncode == 1 and "sluice batch: eventfd: Too many open files" in r.stderr, r.stderr
    assert time.monotonic() - began < 5


def test_embeddings(tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(line(i, "/v1/embeddings", input=f"text {i}") for i in range(5)))
    batch(source, out, "--runner", "pooling", "--convert", "embed")
    assert [len(g["response"]["body"]["data"]) for g in read(out)] == [1] * 5
