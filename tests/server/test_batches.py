# SPDX-License-Identifier: MIT
"""/v1/files and /v1/batches by OpenAI's own client, its replies against OpenAI's own description, and servers that are
killed, stopped or busy in between: every line is answered once."""
import json
import os
import signal
import threading
import time

import openai
import pydantic
import pytest
from openai.types import Batch, FileDeleted, FileObject

from serverproc import Server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def line(i, url=TEXT, **body):
    body = {"prompt": f"Once upon a time {i}", "max_tokens": 4, "temperature": 0} if not body else body
    return json.dumps({"custom_id": f"r{i}", "method": "POST", "url": url, "body": body})


def serve(folder, *args, **more):
    return Server("--threads", "1", "--file-storage-path", str(folder), *args, **more)


def client_of(server, key="unused"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(tmp_path_factory.mktemp("files")) as s:
        yield s
        assert s.process.poll() is None, "the server ended during the tests: " + s.log()


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def upload(client, lines, name="in.jsonl"):
    data = lines if isinstance(lines, bytes) else "\n".join(lines).encode()
    return client.files.create(file=(name, data), purpose="batch")


def create(client, lines, endpoint=TEXT, window="24h", **more):
    return client.batches.create(input_file_id=upload(client, lines).id, endpoint=endpoint, completion_window=window, **more)


def wait(client, batch, until=lambda b: b.status in ENDED, seconds=60):
    deadline = time.monotonic() + seconds
    while not until(b := client.batches.retrieve(batch.id)):
        assert time.monotonic() < deadline, b
        time.sleep(0.02)
    return b


def lines_of(client, file_id):
    return [json.loads(x) for x in client.files.content(file_id).text.splitlines()] if file_id else []


def strict(server, model, path, method="GET", body=None):
    """The reply, if it is what OpenAI's description says and has nothing besides."""
    status, data = server.json(method, path, body)
    assert status == 200, data
    value = pydantic.TypeAdapter(model).validate_json(json.dumps(data), strict=True)
    assert not value.model_extra
    return data


# ---- one life

def test_a_batch(server, client):
    hi = [{"role": "user", "content": "hi"}]
    source = [line(i, CHAT, messages=hi, max_tokens=4, seed=i) for i in range(12)] + [line(12, CHAT, messages=hi, n=-1), "", " "]
    given = upload(client, source, 'a "name" \\ with ü.jsonl')
    assert given.filename == 'a "name" \\ with ü.jsonl' and given.bytes == len("\n".join(source)) and given.purpose == "batch"
    batch = client.batches.create(input_file_id=given.id, endpoint=CHAT, completion_window="24h", metadata={"a": "b"})
    assert batch.status == "validating" and batch.metadata == {"a": "b"} and batch.expires_at == batch.created_at + 86400
    done = wait(client, batch)
    counts = done.request_counts
    assert done.status == "completed" and (counts.total, counts.completed, counts.failed) == (13, 12, 1), done
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at and done.errors is None
    good, bad = lines_of(client, done.output_file_id), lines_of(client, done.error_file_id)
    assert [g["custom_id"] for g in good] == [f"r{i}" for i in range(12)] and [b["custom_id"] for b in bad] == ["r12"]
    assert all(g["response"]["status_code"] == 200 and g["error"] is None for g in good)
    assert bad[0]["response"]["status_code"] == 400 and bad[0]["response"]["body"]["error"]["param"] == "n"
    assert len({g["id"] for g in good + bad}) == 13
    want = server.json("POST", CHAT, {"messages": hi, "max_tokens": 4, "seed": 3})[1]["choices"]
    assert good[3]["response"]["body"]["choices"] == want
    # by OpenAI's description, field for field
    strict(server, Batch, "/v1/batches/" + done.id)
    one = strict(server, FileObject, "/v1/files/" + done.output_file_id)
    assert one["purpose"] == "batch_output" and one["bytes"] == len(client.files.content(done.output_file_id).content)
    status, headers, body = server.request("HEAD", f"/v1/files/{given.id}/content")
    assert status == 200 and int(headers["Content-Length"]) == given.bytes and body == b""
    # what goes, is gone
    deleted = strict(server, FileDeleted, "/v1/files/" + given.id, "DELETE")
    assert deleted["deleted"] is True
    for path in (given.id, given.id + "/content"):
        assert server.json("GET", "/v1/files/" + path)[0] == 404
    assert client.batches.retrieve(done.id).input_file_id == given.id


@pytest.mark.parametrize("url,body", [
    (TEXT, {"prompt": ["a", "b"], "max_tokens": 2}), ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2})])
def test_endpoints(client, url, body):
    done = wait(client, create(client, [line(0, url, **body)], url))
    assert done.status == "completed" and done.request_counts.completed == 1 and done.error_file_id is None


def test_embeddings(tmp_path):
    with serve(tmp_path, "--runner", "pooling", "--convert", "embed") as s:
        c = client_of(s)
        done = wait(c, create(c, [line(i, "/v1/embeddings", input=f"text {i}") for i in range(5)], "/v1/embeddings"))
        assert [len(g["response"]["body"]["data"]) for g in lines_of(c, done.output_file_id)] == [1] * 5


def test_lists(tmp_path):
    with serve(tmp_path) as s:
        c = client_of(s)
        files = [upload(c, [line(i)], f"{i}").id for i in range(5)]
        assert [f.id for f in c.files.list(order="asc")] == files and [f.id for f in c.files.list(limit=2)] == files[::-1]
        assert c.files.list(purpose="batch_output").data == [] and len(c.files.list(purpose="batch").data) == 5
        assert [f.id for f in c.files.list(after=files[2], order="asc", limit=1).data] == [files[3]]
        assert [f.id for f in c.files.list(after=files[2]).data] == files[1::-1]
        batches = [c.batches.create(input_file_id=f, endpoint=TEXT, completion_window="1h").id for f in files]
        assert [b.id for b in c.batches.list(limit=2)] == batches[::-1]  # page after page
        page = c.batches.list(limit=2, after=batches[4])
        assert [b.id for b in page.data] == [batches[3], batches[2]] and page.has_more
        for path in ("/v1/files?limit=0", "/v1/files?limit=10001", "/v1/files?limit=x", "/v1/batches?limit=101",
                     "/v1/files?order=up", "/v1/files?after=file-0", "/v1/batches?after=b"):
            status, e = s.json("GET", path)
            assert status == 400 and e["error"]["param"] == path.split("?")[1].split("=")[0], path


# ---- what is refused

def test_without_a_folder():
    with Server("--threads", "1") as s:
        for method, path in (("GET", "/v1/files"), ("POST", "/v1/files"), ("POST", "/v1/batches"), ("GET", "/v1/batches/x"),
                             ("GET", "/v1/files/x/content"), ("DELETE", "/v1/files/x")):
            status, e = s.json(method, path)
            assert status == 404 and "--file-storage-path" in e["error"]["message"]


def test_refused_files(server, client):
    files = client.files
    for fields, param in ((dict(file=("a", b"x"), purpose="vision"), "purpose"), (dict(file=("a", b""), purpose="batch"), "file"),
                          (dict(file=("a", b"x"), purpose="nothing"), "purpose"),
                          (dict(file=("a", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}),
                           "expires_after")):
        with pytest.raises(openai.BadRequestError) as e:
            files.create(**fields)
        assert e.value.param == param
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="%s"\r\n\r\nbatch\r\n'
    for body, headers, word in ((b"{}", {}, "multipart"), (b"", kind, "boundary"), (part % b"purpose" + b"--b--", kind, "file"),
                                (part % b"file" + b"--b--\r\n", kind, "purpose"), (part % b"file", kind, "no end"),
                                (part % b"file" + b"--b--\r\n\r\n", kind, "behind")):
        status, e = server.json("POST", "/v1/files", body, headers)
        assert status == 400 and word in e["error"]["message"], e
    status, e = server.json("POST", "/v1/files", part % b"file" + part % b"purpose" + b"--b--", kind)
    assert status == 200 and e["filename"] == "upload" and e["bytes"] == 5
    for path in ("x", "file-" + "0" * 32, "file-..%2f", "../batches", e["id"] + "/", e["id"] + "/other", "/content"):
        assert server.json("GET", "/v1/files/" + path)[0] == 404 and server.json("DELETE", "/v1/files/" + path)[0] == 404


def test_refused_batches(server, client):
    good = upload(client, [line(0)]).id
    fields = {"input_file_id": good, "endpoint": TEXT, "completion_window": "24h"}
    for change, param in (({"input_file_id": "file-" + "0" * 32}, "input_file_id"), ({"endpoint": "/v1/nothing"}, "endpoint"),
                          ({"completion_window": "31d"}, "completion_window"), ({"completion_window": "0s"}, "completion_window"),
                          ({"completion_window": 24}, "completion_window"), ({"endpoint": None}, "endpoint"),
                          ({"metadata": {"a": 1}}, "metadata"), ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
                          ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after")):
        status, e = server.json("POST", "/v1/batches", fields | change)
        assert (status, e["error"]["param"]) == (404 if param == "input_file_id" else 400, param), e
    done = wait(client, create(client, [line(0)]))
    assert server.json("POST", f"/v1/batches/{done.id}/cancel")[0] == 400  # it has ended
    status, e = server.json("POST", "/v1/batches", fields | {"input_file_id": done.output_file_id})
    assert status == 400 and "batch_output" in e["error"]["message"]
    for method, path in (("GET", "x"), ("POST", "x/cancel"), ("GET", done.id + "/cancel"), ("POST", done.id)):
        assert server.json(method, "/v1/batches/" + path)[0] == 404


def test_a_file_that_is_no_batch(server, client):
    """Nothing of it is run; the errors name the lines."""
    text = [line(0), "", "{", line(3, CHAT, messages=[]), line(0), '{"custom_id": 7}', line(6, TEXT, prompt="a", stream=True),
            json.dumps({"custom_id": "x", "method": "GET", "url": TEXT, "body": {}})]
    failed = wait(client, create(client, text))
    assert failed.status == "failed" and failed.failed_at and failed.output_file_id is None and failed.in_progress_at is None
    assert [(e.line, e.code, e.param) for e in failed.errors.data] == [
        (3, "invalid_json_line", None), (4, "mismatched_url", "url"), (5, "duplicate_custom_id", "custom_id"),
        (6, "invalid_request", "custom_id"), (7, "invalid_request", "body"), (8, "invalid_request", "method")]
    strict(server, Batch, "/v1/batches/" + failed.id)
    blank = wait(client, create(client, b" \n\n"))
    assert blank.status == "failed" and blank.errors.data[0].code == "empty_file"
    many = wait(client, create(client, ["{"] * 100))
    assert many.status == "failed" and len(many.errors.data) == 20
    lots = wait(client, create(client, b"{}\n" * 50001))
    assert lots.status == "failed" and lots.errors.data[0].code == "too_many_requests"


def test_limits(tmp_path):
    with serve(tmp_path, "--max-file-storage-bytes", "20000") as s:
        c = client_of(s)
        with pytest.raises(openai.BadRequestError) as e:
            upload(c, b"x" * 20001)
        assert e.value.code == "storage_limit_exceeded"
        first = upload(c, b"x" * 15000)
        with pytest.raises(openai.BadRequestError):
            upload(c, b"x" * 6000)
        c.files.delete(first.id)
        # the replies have no room: it fails, and says so
        given = upload(c, [line(i, TEXT, prompt="a" * 100, max_tokens=50, logprobs=5, ignore_eos=True) for i in range(40)]).id
        for _ in range(2):
            failed = wait(c, c.batches.create(input_file_id=given, endpoint=TEXT, completion_window="1h"))
            assert failed.status == "failed" and "--max-file-storage-bytes" in failed.errors.data[0].message
            assert 0 < len(lines_of(c, failed.output_file_id)) == answered(failed) < 40
            on_disk = sum(p.stat().st_size for p in tmp_path.rglob("file-*") if p.suffix != ".json")
            assert on_disk < 20500 and not list(tmp_path.rglob("*.part"))
            c.files.delete(failed.output_file_id)
    big = os.urandom(1 << 20) * 40
    with serve(tmp_path / "big") as s:
        c = client_of(s)
        f = upload(c, big)
        assert f.bytes == len(big) and c.files.content(f.id).content == big
        status, _, _ = s.request("POST", "/v1/files", None, {"Content-Length": str(300 << 20), "Content-Type": "multipart/form-data; boundary=b"})
        assert status == 413
        with pytest.raises(RuntimeError, match="another server uses"):
            serve(tmp_path / "big")


def test_keys(tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{"key": "one", "name": "one", "max_running": 1, "requests_per_minute": 2},
                                         {"key": "two", "name": "two"},
                                         {"key": "ops", "name": "ops", "scopes": ["admin"]}]}))
    with serve(tmp_path / "files", "--api-key-file", str(keys)) as s:
        one, two, ops = (client_of(s, k) for k in ("one", "two", "ops"))
        batch = create(one, [line(i) for i in range(8)])
        done = wait(one, batch)  # neither limit of the key is one of its batches
        assert done.request_counts.completed == 8
        for other in (two, ops):
            assert other.files.list().data == [] and other.batches.list().data == []
            for ask in (lambda: other.batches.retrieve(done.id), lambda: other.files.content(done.output_file_id),
                        lambda: other.files.delete(done.input_file_id), lambda: other.batches.cancel(done.id),
                        lambda: other.batches.create(input_file_id=done.input_file_id, endpoint=TEXT, completion_window="1h")):
                with pytest.raises((openai.NotFoundError, openai.AuthenticationError)):
                    ask()
        with pytest.raises(openai.AuthenticationError, match="lacks the scope generate"):
            create(ops, [line(0)])


# ---- a life that is cut

LONG = {"max_tokens": 200, "ignore_eos": True}


def answered(b):
    return b.request_counts.completed


def test_cancel(tmp_path):
    with serve(tmp_path, "--max-num-seqs", "2") as s:
        c = client_of(s)
        batch = create(c, [line(i, TEXT, prompt=f"{i}", **LONG) for i in range(400)])
        wait(c, batch, lambda b: answered(b) >= 3)
        with pytest.raises(openai.BadRequestError, match="cancel that first"):
            c.files.delete(batch.input_file_id)
        assert c.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        end = wait(c, batch, seconds=10)
        assert end.status == "cancelled" and end.cancelling_at <= end.cancelled_at and 3 <= answered(end) < 400
        assert len(lines_of(c, end.output_file_id)) == answered(end) and end.error_file_id is None
        s.wait_metric("vllm:num_requests_running", 0)  # what was under way was given up
        c.files.delete(batch.input_file_id)


def test_lines_cut_off_by_a_sleep_are_asked_again(tmp_path):
    """No reply of a batch ends by "abort": what a sleep broke off is asked again when the server is awake."""
    with serve(tmp_path, "--max-num-seqs", "2", "--enable-sleep-mode") as s:
        c = client_of(s)
        batch = create(c, [line(i, TEXT, prompt=f"{i}", max_tokens=300, ignore_eos=True) for i in range(12)])
        wait(c, batch, lambda b: answered(b) >= 1)
        s.wait_metric("vllm:num_requests_running", 2)
        assert s.request("POST", "/sleep?level=1&mode=abort")[0] == 200
        before = answered(c.batches.retrieve(batch.id))
        assert before < 12
        assert s.request("POST", "/wake_up")[0] == 200
        end = wait(c, batch, seconds=60)
        assert end.status == "completed" and end.request_counts.completed == 12, end
        choices = [x["response"]["body"]["choices"][0] for x in lines_of(c, end.output_file_id)]
        assert [x["finish_reason"] for x in choices] == ["length"] * 12


def test_expiry(tmp_path):
    with serve(tmp_path, "--max-num-seqs", "2") as s:
        c = client_of(s)
        end = wait(c, create(c, [line(i, TEXT, prompt=f"{i}", **LONG) for i in range(600)], window="1s"), seconds=20)
        assert end.status == "expired" and end.expired_at >= end.expires_at and answered(end) < 600, end
        assert len(lines_of(c, end.output_file_id)) == answered(end)
        late = lines_of(c, end.error_file_id)
        assert len(late) + answered(end) == 600 == end.request_counts.failed + answered(end)
        assert all(x["response"] is None and x["error"]["code"] == "batch_expired" for x in late)


def test_a_killed_server_goes_on(tmp_path):
    """Nothing that had a reply is asked again: the replies are those of before, and the engine makes no more tokens than the
    rest takes."""
    n = 36
    source = [line(i, TEXT, prompt=f"Story {i}", max_tokens=40, ignore_eos=True, seed=i) for i in range(n)]
    kept, folder = [], tmp_path / "files"
    batch = None
    for sig in (signal.SIGKILL, signal.SIGTERM):
        with serve(folder, "--max-num-seqs", "4") as s:
            c = client_of(s)
            if batch is None:
                batch = create(c, source)
            wait(c, batch, lambda b: answered(b) >= len(kept) + 8)
            t = time.monotonic()
            s.stop(sig)
            assert time.monotonic() - t < 5  # a batch is not waited for
        part = (folder / "batches" / (batch.id + ".part")).read_bytes()
        whole = part[: part.rfind(b"\n") + 1].splitlines()
        assert whole[: len(kept)] == kept and len(whole) >= len(kept) + 8 and len(whole) < n
        kept = whole
    with serve(folder, "--max-num-seqs", "4") as s:
        c = client_of(s)
        assert answered(c.batches.retrieve(batch.id)) >= len(kept) - 4
        done = wait(c, batch)
        out = c.files.content(done.output_file_id).content
        assert done.status == "completed" and answered(done) == n
        assert [json.loads(x)["custom_id"] for x in out.splitlines()] == [f"r{i}" for i in range(n)]
        assert all(x in out for x in kept)
        assert s.metric("vllm:generation_tokens_total") == 40 * (n - len(kept))
        with pytest.raises(openai.BadRequestError):
            c.batches.cancel(batch.id)
    assert sorted(p.name for p in (folder / "batches").iterdir()) == [batch.id + ".json"]
    with serve(folder) as s:  # and what has ended stays
        c = client_of(s)
        assert c.batches.retrieve(batch.id) == done and c.files.content(done.output_file_id).content == out
        assert [f.id for f in c.files.list(order="asc")] == [batch.input_file_id, done.output_file_id]


def test_somebody_who_waits_comes_first(tmp_path):
    with serve(tmp_path, "--max-num-seqs", "2") as s:
        c = client_of(s)
        batch = create(c, [line(i, TEXT, prompt=f"{i}", max_tokens=900, ignore_eos=True) for i in range(40)])
        wait(c, batch, lambda b: b.status == "in_progress")
        s.wait_metric("vllm:num_requests_running", 2)
        before = answered(c.batches.retrieve(batch.id))
        for _ in range(4):
            assert s.json("POST", TEXT, {"prompt": "a", "max_tokens": 2})[0] == 200
        assert answered(c.batches.retrieve(batch.id)) <= before + 2  # none of them waited for one of 900 tokens
        assert s.metric("vllm:num_preemptions_total") >= 1
        c.batches.cancel(batch.id)
        wait(c, batch)


def test_connections_of_batches(tmp_path):
    """They take no client's place, and there are not more of them than descriptors for both of their ends."""
    with serve(tmp_path, "--max-num-seqs", "256", "--max-connections", "4", n_descriptors=200) as s:
        c = client_of(s)
        batch = create(c, [line(i, TEXT, prompt=f"{i}", max_tokens=60, ignore_eos=True) for i in range(100)])
        wait(c, batch, lambda b: s.metric("vllm:num_requests_running") >= 8)
        assert [s.request("GET", "/health")[0] for _ in range(8)] == [200] * 8
        assert s.metric("sluice:connections") <= 4
        assert wait(c, batch).request_counts.completed == 100


def test_several_take_turns(tmp_path):
    with serve(tmp_path, "--max-num-seqs", "2") as s:
        c = client_of(s)
        long = create(c, [line(i, TEXT, prompt=f"{i}", **LONG) for i in range(300)])
        wait(c, long, lambda b: answered(b) >= 1)
        short = wait(c, create(c, [line(i) for i in range(4)]))
        assert short.status == "completed" and c.batches.retrieve(long.id).status == "in_progress"
        c.batches.cancel(long.id)
        threads = [threading.Thread(target=lambda: wait(c, create(c, [line(i) for i in range(3)]))) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert all(b.status in ("completed", "cancelled") for b in c.batches.list())


def test_a_damaged_folder(tmp_path):
    """What is not the server's, or half written, harms nobody."""
    with serve(tmp_path) as s:
        c = client_of(s)
        done = wait(c, create(c, [line(0)]))
    (tmp_path / "files" / ("file-" + "a" * 32)).write_text("no description")
    (tmp_path / "files" / ("file-" + "b" * 32 + ".json")).write_text("{}")
    (tmp_path / "files" / "notes").write_text("mine")
    (tmp_path / "batches" / ("batch_" + "c" * 32 + ".json")).write_text('{"id": "batch_../../x"}')
    (tmp_path / "files" / (done.output_file_id + ".json")).write_text("{")
    with serve(tmp_path) as s:
        c = client_of(s)
        assert [f.id for f in c.files.list()] == [done.input_file_id] and [b.id for b in c.batches.list()] == [done.id]
        assert wait(c, create(c, [line(1)])).status == "completed"
    assert (tmp_path / "files" / "notes").exists() and not (tmp_path / "files" / ("file-" + "a" * 32)).exists()
