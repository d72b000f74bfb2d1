# SPDX-License-Identifier: MIT
"""Pairs of servers, one of which computes prompts for the other, for the tests of that and of routers."""
import json
import os
import random

from serverproc import ROOT, Server

MODEL = os.path.join(ROOT, "assets", "storyteller")
ARGS = ["--threads", "1", "--kv-cache-memory-bytes", "64M", "--http-threads", "2"]
PREFILL = [*ARGS, "--disaggregation-mode", "prefill"]
DECODE = [*ARGS, "--disaggregation-mode", "decode"]
ANY_PORT = ["--disaggregation-bootstrap-port", "-1"]
DO_DECODE = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None,
             "remote_block_ids": None, "remote_host": None, "remote_port": None}
WORDS = ("once upon a time there was little girl who lived in big forest with her dog and they liked to play all day "
         "near old red house where sun was warm").split()


def text_of(seed, n_words=300):
    r = random.Random(str(seed))
    return " ".join(r.choice(WORDS) for _ in range(n_words))


def pages_port(server):
    """Where its pages are read."""
    line = [x for x in server.log().splitlines() if "KV pages are read at" in x][-1]
    return int(line.rsplit(" ", 1)[1])


def pages_read(server):
    return server.metric("sluice:kv_transfer_pages_total", direction="read") or 0


def prefill_leg(server, path, body):
    """As vllm-router has it; what the answer says about the pages."""
    name = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    leg = {**body, "stream": False, name: 1, "kv_transfer_params": DO_DECODE}
    if name == "max_tokens":
        leg["min_tokens"] = 1
    leg.pop("stream_options", None)
    status, answer = server.json("POST", path, leg)
    assert status == 200, answer
    return answer["kv_transfer_params"]


def well(server):
    """At the end of a test: nothing was broken, and it stops."""
    assert server.metric("sluice:invariant_violations_total") == 0
    assert server.metric("sluice:step_mallocs_total") == 0
    assert server.stop() == 0


def said(answer):
    """Of an answer what follows from the request alone."""
    return json.dumps([{k: v for k, v in c.items() if k in ("text", "message", "logprobs", "finish_reason", "index")}
                       for c in answer["choices"]], sort_keys=True)


__all__ = ["ANY_PORT", "ARGS", "DECODE", "DO_DECODE", "MODEL", "PREFILL", "Server", "pages_port", "pages_read",
           "prefill_leg", "said", "text_of", "well"]
