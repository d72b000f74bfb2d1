# SPDX-License-Identifier: MIT
"""`sluice bench serve`: prompts have as many tokens as asked for, counted by the server, and a second run finds
none of them cached."""
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.request

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../server"))
from serverproc import Server  # noqa: E402

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")


def bench(url: str, *args: str) -> tuple[dict, str]:
    r = subprocess.run([BIN, "bench", "serve", "--url", url, "--json", *args], capture_output=True, timeout=120)
    assert r.returncode == 0, r.stderr.decode()
    return json.loads(r.stdout), r.stderr.decode()


def metric(url: str, name: str) -> float:
    text = urllib.request.urlopen(url + "/metrics").read().decode()
    return sum(float(line.split()[-1]) for line in text.split("\n") if line.startswith(name + "{"))


@pytest.fixture(scope="module")
def server():
    with Server() as s:
        yield s


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_lengths_are_the_servers_tokens(server, endpoint):
    got, err = bench(server.url, "--num-prompts", "20", "--input-len", "150", "--output-len", "4", "--endpoint", endpoint)
    assert got["completed"] == 20 and got["total_input_tokens"] == 20 * 150 and err == ""


def test_a_trace_has_its_own_lengths(server, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({"input_length": n, "output_length": 2, "hash_ids": [1, 2]}) + "\n"
                             for n in (100, 1, 640)))
    got, _ = bench(server.url, "--num-prompts", "3", "--dataset", str(trace))
    # A prompt is at least one word behind the token that begins a text.
    assert got["total_input_tokens"] == 100 + 2 + 640


def test_spec_bench_reports_drafts_by_category(server, tmp_path):
    """Spec-Bench's file; the sums are those of the server's counters. A server without drafts says nothing of them."""
    questions = tmp_path / "question.jsonl"
    copy = "Tom had a red ball. He ran to the park. The ball fell. " * 4
    questions.write_text("".join(json.dumps({"question_id": 81 + i, "category": kind, "turns": [text, "And then?"]}) + "\n"
                                 for i, (kind, text) in enumerate([("rag", copy), ("writing", "Once"), ("rag", copy)])))
    args = ["--dataset", "spec-bench", "--dataset-path", str(questions), "--output-len", "40", "--ignore-eos",
            "--temperature", "0", "--max-concurrency", "1"]
    config = {"method": "suffix", "num_speculative_tokens": 8}
    with Server("--max-itl", "0", "--speculative-config", json.dumps(config)) as s:
        got, _ = bench(s.url, *args)
        count = {n: metric(s.url, f"vllm:spec_decode_num_{n}_total") for n in ("drafts", "draft_tokens", "accepted_tokens")}
    assert got["completed"] == 3 and {k: v["completed"] for k, v in got["categories"].items()} == {"rag": 2, "writing": 1}
    assert count == {n: got["spec_decode_" + ("num_drafts" if n == "drafts" else n)] for n in count}
    assert got["spec_decode_acceptance_length"] == pytest.approx(1 + count["accepted_tokens"] / count["drafts"], abs=1e-3)
    rates = got["spec_decode_per_position_acceptance_rates"]
    assert sum(rates) == pytest.approx(got["spec_decode_acceptance_length"] - 1, abs=1e-2)
    steps = sum(v["total_output_tokens"] / v["tokens_per_step"] for v in got["categories"].values())
    assert steps == pytest.approx(120 - count["accepted_tokens"], abs=0.1) and got["categories"]["rag"]["tokens_per_step"] > 1
    got, _ = bench(server.url, *args)
    assert "spec_decode_num_drafts" not in got and got["categories"]["rag"]["tokens_per_step"] == 1


def test_only_the_same_seed_finds_its_prompts_cached(server):
    args = ["--num-prompts", "8", "--input-len", "200", "--output-len", "2"]
    first, _ = bench(server.url, *args)
    hits = metric(server.url, "vllm:prefix_cache_hits_total")
    second, _ = bench(server.url, *args)
    assert second["seed"] != first["seed"]
    assert metric(server.url, "vllm:prefix_cache_hits_total") == hits
    bench(server.url, *args, "--seed", str(first["seed"]))
    assert metric(server.url, "vllm:prefix_cache_hits_total") > hits


class Letters(http.server.BaseHTTPRequestHandler):
    """Another engine: each letter is a token, as to small vocabularies."""
    protocol_version = "HTTP/1.1"
    tokenizes = True
    lengths: list[int] = []

    def log_message(self, *args):
        pass

    def reply(self, status: int, body: dict) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.reply(200, {"data": [{"id": "letters"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            ids = list(body.get("prompt", "").encode())
            self.reply(200 if self.tokenizes else 404, {"count": len(ids), "tokens": ids})
            return
        prompt = body["prompt"]
        n = len(prompt)
        assert isinstance(prompt, str) or all(chr(i).isalpha() or i == 32 for i in prompt)
        type(self).lengths.append(n)
        self.reply(200, {"choices": [{"text": "x"}], "usage": {"prompt_tokens": n, "completion_tokens": 1}})


def run_against(handler, *args: str) -> tuple[dict, str]:
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=httpd.serve_forever)
    thread.start()
    try:
        return bench(f"http://127.0.0.1:{httpd.server_port}", "--no-stream", "--num-prompts", "5", *args)
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_token_ids_where_words_are_several_tokens():
    class Handler(Letters):
        lengths = []

    got, err = run_against(Handler, "--input-len", "77")
    assert Handler.lengths == [77] * 5 and got["total_input_tokens"] == 5 * 77 and err == ""


def test_a_server_that_cannot_count_is_said_to():
    class Handler(Letters):
        tokenizes = False
        lengths = []

    got, err = run_against(Handler, "--input-len", "9")
    assert "/tokenize" in err and "words, not tokens" in err
    assert all(n > 9 for n in Handler.lengths) and got["completed"] == 5
