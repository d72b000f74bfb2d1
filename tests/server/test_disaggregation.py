# SPDX-License-Identifier: MIT
"""Prefill and decode in servers of their own: what two give together is, byte for byte, what one gives alone; and
whatever happens to one of them, requests end and are right.

The calls here are those that routers make: vLLM's (the first server's answer is handed to the second) and SGLang's
(both get the request at once, with the number of a room). test_routers.py has the routers themselves."""
import http.client
import json
import os
import random
import socket
import struct
import threading
import time

import pytest

from serverproc import ROOT, Server

MODEL = os.path.join(ROOT, "assets", "storyteller")
ARGS = ["--threads", "1", "--kv-cache-memory-bytes", "64M", "--http-threads", "2"]
PREFILL = [*ARGS, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "-1"]
DECODE = [*ARGS, "--disaggregation-mode", "decode"]
DO_DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
             "remote_block_ids": None, "remote_host": None, "remote_port": None}
WORDS = ("once upon a time there was little girl who lived in big forest with her dog and they liked to play all day "
         "near old red house where sun was warm").split()


def text_of(seed, n_words=300):
    r = random.Random(seed)
    return " ".join(r.choice(WORDS) for _ in range(n_words))


def bootstrap_port(server):
    line = [x for x in server.log().splitlines() if "KV pages are read at" in x][-1]
    return int(line.rsplit(" ", 1)[1])


def what(answer):
    """Of an answer what follows from the request alone."""
    choices = json.loads(json.dumps(answer["choices"]))
    for c in choices:
        c.pop("stop_reason", None)
    return choices


def prefill_leg(server, path, body):
    leg = {**body, "stream": False, "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": DO_DECODE}
    leg.pop("stream_options", None)
    status, answer = server.json("POST", path, leg)
    assert status == 200, answer
    return answer["kv_transfer_params"]


@pytest.fixture(scope="module")
def pair():
    with Server(*PREFILL) as p, Server(*DECODE) as d, Server(*ARGS) as one:
        yield p, d, one
        for s in (p, d, one):
            assert s.process.poll() is None


def pages_read(server):
    return server.metric("sluice:kv_transfer_pages_total", direction="read") or 0


CASES = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.1, "top_p": 0.9, "seed": 7},
    "penalties": {"temperature": 0.8, "seed": 3, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    "logprobs": {"temperature": 0.7, "seed": 11, "logprobs": 3},
    "choices": {"temperature": 0.9, "seed": 5, "n": 3},
    "regex": {"temperature": 0.9, "seed": 5, "structured_outputs": {"regex": "[a-z ]{20,40}\\."}},
    "min_tokens": {"temperature": 0.9, "seed": 9, "min_tokens": 20},
}


@pytest.mark.parametrize("name", CASES)
def test_two_servers_give_what_one_gives(pair, name):
    p, d, one = pair
    body = {"prompt": text_of(name), "max_tokens": 24, **CASES[name]}
    params = prefill_leg(p, "/v1/completions", body)
    assert params["do_remote_prefill"] is True and params["remote_num_tokens"] >= 256
    before = d.json("GET", "/server_info")[1]
    status, answer = d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})
    assert status == 200 and before["disaggregation_mode"] == "decode"
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached == params["remote_num_tokens"]  # all of it came from the first server
    assert what(answer) == what(one.json("POST", "/v1/completions", body)[1])
