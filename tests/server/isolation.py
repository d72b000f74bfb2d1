#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Victims beside hostile neighbours. Each of a set of requests is answered alone first; then the same requests
run again and again while others abuse every parameter, cancel, flood, exhaust the pages, share the victims'
prefixes and send what is no HTTP. Every answer, tokens and log probabilities to the last digit, must equal the one
given alone. Needs nothing beyond the standard library.

    tests/server/isolation.py --victims 10000
    tests/server/isolation.py --victims 1 --probes 1000     does the time of a hit tell one key about another?
"""
import argparse
import asyncio
import collections
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serverproc import Server  # noqa: E402
from wire import Client, events  # noqa: E402

WORDS = "once upon a time the little dog saw red ball and ran home to find his friend who was very happy".split()
CONTEXT = 512
FLAGS = ["--max-model-len", str(CONTEXT), "--max-num-seqs", "24", "--scheduling-policy", "priority",
         "--max-num-queued-reqs", "4096"]
# Some 200 pages of 16 tokens: half a dozen long prompts fill them.
POOL = ["--kv-cache-memory-bytes", "13M"]
LIMIT_S = 120


def words(rng, n):
    return " ".join(rng.choices(WORDS, k=n))


# ---- victims

def make_victim(rng, i):
    """(path, body) of a request whose answer is a function of itself."""
    chat = i % 4 == 3
    body = {"max_tokens": rng.randrange(4, 24), "seed": rng.randrange(2**40), "ignore_eos": rng.random() < 0.8,
            "temperature": rng.choice([0, 0, 0.7, 1.0, 1.6])}
    options = [("top_p", rng.choice([0.5, 0.9])), ("top_k", rng.choice([5, 50])), ("min_p", 0.02),
               ("repetition_penalty", rng.choice([0.8, 1.2])), ("presence_penalty", 0.7), ("frequency_penalty", -0.4),
               ("n", 2), ("stop", ["dog", " and"]), ("logit_bias", {str(rng.randrange(1000)): rng.choice([-7, 7])}),
               ("min_tokens", 3), ("include_stop_str_in_output", True)]
    for name, value in options:
        if rng.random() < 0.25:
            body[name] = value
    if rng.random() < 0.5:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body["return_token_ids"] = True
    if chat:
        body["messages"] = [{"role": "user", "content": words(rng, rng.randrange(1, 60))}]
        body |= {"logprobs": True, "top_logprobs": rng.choice([0, 3, 20])}
        return "/v1/chat/completions", body
    shared = words(random.Random(i % 5), 40) + " "  # groups of victims share their beginning
    body["prompt"] = rng.choice(["", shared]) + words(rng, rng.randrange(1, 100))
    body["logprobs"] = rng.choice([0, 2, 20])
    if rng.random() < 0.2:
        body |= {"prompt_logprobs": 3, "stream": False}
        body.pop("stream_options", None)
    if rng.random() < 0.2:
        body["echo"] = True
    return "/v1/completions", body


def scrub(x):
    """The answer without what may differ: names, times, and what was cached."""
    if isinstance(x, dict):
        return {k: scrub(v) for k, v in x.items() if k not in ("id", "created", "prompt_tokens_details")}
    return [scrub(v) for v in x] if isinstance(x, list) else x


def merged(parts):
    """A stream cuts its text where it likes; per choice the pieces together must be the same."""
    choices = collections.defaultdict(lambda: collections.defaultdict(list))
    usage = None
    for event in parts:
        usage = event.get("usage") or usage
        for c in event["choices"]:
            mine = choices[c["index"]]
            mine["text"].append(c.get("text") or c.get("delta", {}).get("content") or "")
            mine["token_ids"] += c.get("token_ids") or []
            if c.get("finish_reason"):
                mine["finish"].append([c["finish_reason"], c.get("stop_reason")])
            lp = c.get("logprobs")
            for name, values in (lp or {}).items():
                mine[name] += values or []
    for mine in choices.values():
        mine["text"] = "".join(mine["text"])
    return scrub({"choices": choices, "usage": usage})


async def ask(client, path, body):
    """(status, canonical text of the answer)"""
    reply = await asyncio.wait_for(client.request("POST", path, body), LIMIT_S)
    if reply.status != 200:
        return reply.status, reply.body.decode()
    if not body.get("stream"):
        return 200, json.dumps(scrub(reply.json()), sort_keys=True)
    if not reply.body.endswith(b"data: [DONE]\n\n"):
        return 0, "the stream broke off"
    return 200, json.dumps(merged(events(reply.body)), sort_keys=True)


# ---- neighbours

def abuse(rng):
    """Extreme and valid."""
    body = {"prompt": words(rng, rng.randrange(1, 60)), "max_tokens": rng.randrange(1, 40), "ignore_eos": True,
            "stream": rng.random() < 0.5}
    body |= rng.choice([
        {"temperature": 100}, {"temperature": 1e-30}, {"top_k": 2**31 - 1}, {"top_k": 1, "temperature": 100},
        {"min_p": 1}, {"top_p": 1e-6}, {"repetition_penalty": 100}, {"repetition_penalty": 1e-6},
        {"presence_penalty": 2, "frequency_penalty": 2}, {"presence_penalty": -2, "frequency_penalty": -2},
        {"logit_bias": {str(i): 100 for i in range(1024)}}, {"logit_bias": {str(i): -100 for i in range(1024)}},
        {"n": 32}, {"n": 16, "logprobs": 20}, {"stop": ["%03d" % i + "x" * 250 for i in range(16)]},
        {"stop_token_ids": list(range(64))}, {"logprobs": 20}, {"prompt_logprobs": 20, "stream": False},
        {"min_tokens": 1}, {"echo": True, "logprobs": 20}, {"priority": -2**31}, {"priority": 2**31 - 1},
        {"cache_salt": "s" * 64}, {"seed": -1}, {"prompt": [words(rng, 5)] * 64, "max_tokens": 2},
        {"prompt": [rng.randrange(4000) for _ in range(20)]}, {"truncate_prompt_tokens": 1}])
    return body


def wrong(rng):
    return rng.choice([
        {"prompt": "a", "temperature": -1}, {"prompt": "a", "temperature": "1e999"}, {"prompt": [2**31]},
        {"prompt": [-1]}, {"prompt": ""}, {"prompt": "a", "n": 10**9}, {"prompt": "a", "logprobs": 21},
        {"prompt": "a", "logit_bias": {"999999999": 1}}, {"prompt": "a", "stop": ["x"] * 17},
        {"prompt": "a", "top_p": 0}, {"prompt": "a", "cache_salt": "s" * 65}, {"prompt": "a" * 200000},
        {"prompt": {"a": 1}}, {"prompt": "a", "max_tokens": -1}, [1, 2], {"prompt": [[]]},
        {"prompt": "a", "response_format": {"type": "xml"}}, {"prompt": "a", "min_tokens": 10**6}])


def exhaust(rng):
    """Fills the context, several times over: the pages run out and others are preempted."""
    n = rng.choice([1, 1, 2, 4])
    return {"prompt": [rng.randrange(4000) for _ in range(CONTEXT - 80)], "max_tokens": 79, "n": n,
            "ignore_eos": True, "priority": rng.choice([0, 0, -1, 1])}


def imitate(rng, victims):
    """A victim's prompt, so that pages are shared, and another end."""
    path, body = rng.choice(victims)
    body = dict(body) | {"max_tokens": rng.randrange(1, 30), "seed": rng.randrange(99), "temperature": 1.3,
                         "ignore_eos": True}
    body.pop("prompt_logprobs", None)
    return path, body


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 100, b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    b"\r\n-2\r\n", b"GET /v1/models HTTP/1.1\nHost: a\n\n", b"A" * 70000, b"GET " + b"/" * 9000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999999999\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n{\"a\":[[",
    b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n" + b"[" * 4000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 500]


async def one_hostile(client, rng, kind, victims):
    if kind == "garbage":
        await client.connect()
        data = rng.choice(GARBAGE)
        client.writer.write(data[:rng.randrange(len(data)) + 1] if rng.random() < 0.3 else data)
        await asyncio.sleep(rng.random() * 0.02)
        client.close(reset=rng.random() < 0.5)
        return
    path = "/v1/completions"
    if kind == "imitate":
        path, body = imitate(rng, victims)
    else:
        body = {"abuse": abuse, "wrong": wrong, "exhaust": exhaust, "cancel": abuse}[kind](rng)
    if kind != "cancel" and not (kind == "imitate" and rng.random() < 0.3):
        await client.request("POST", path, body)
        return
    await client.send(client.encode("POST", path, body))
    await asyncio.sleep(rng.random() * rng.choice([0.001, 0.02, 0.2]))
    client.close(reset=rng.random() < 0.5)


async def hostile(port, rng, victims, counts, stop):
    client = Client(port)
    kinds, weights = zip(("abuse", 30), ("cancel", 25), ("exhaust", 5), ("imitate", 20), ("wrong", 10), ("garbage", 8),
                         ("flood", 2))
    while not stop.is_set():
        kind = rng.choices(kinds, weights)[0]
        counts[kind] += 1
        try:
            if kind == "flood":
                crowd = [Client(port) for _ in range(40)]
                await asyncio.wait_for(asyncio.gather(
                    *(one_hostile(c, rng, "cancel", victims) for c in crowd), return_exceptions=True), LIMIT_S)
            else:
                await asyncio.wait_for(one_hostile(client, rng, kind, victims), LIMIT_S)
        except (OSError, asyncio.IncompleteReadError, ValueError, IndexError):
            client.close()
    client.close()


# ---- the two runs

async def run_alone(port, victims):
    client = Client(port)
    answers = []
    for path, body in victims:
        status, text = await ask(client, path, body)
        if status != 200:
            raise SystemExit(f"a victim was refused alone: {status} {text} {body}")
        answers.append(text)
    client.close()
    return answers


async def run_beside(port, victims, alone, args):
    counts, stop, failures = collections.Counter(), asyncio.Event(), []
    neighbours = [asyncio.create_task(hostile(port, random.Random(args.seed * 77 + i), victims, counts, stop))
                  for i in range(args.neighbours)]
    left = iter(range(args.victims))
    n_same = n_retries = 0
    n_tokens = 0

    async def worker():
        nonlocal n_same, n_retries, n_tokens
        client = Client(port)
        for k in left:
            i = k % len(victims)
            path, body = victims[i]
            while True:
                status, text = await ask(client, path, body)
                if status not in (429, 503):
                    break
                n_retries += 1
                await asyncio.sleep(0.05)
            if status == 200 and text == alone[i]:
                n_same += 1
                n_tokens += json.loads(text)["usage"]["completion_tokens"]
            else:
                failures.append((i, status, text))
        client.close()
    start = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(args.concurrency)))
    stop.set()
    await asyncio.wait(neighbours, timeout=LIMIT_S)
    return n_same, n_retries, n_tokens, counts, failures, time.monotonic() - start


def show_difference(a, b):
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"alone ...{a[max(0, at - 80):at + 80]}...\n     beside ...{b[max(0, at - 80):at + 80]}..."


def check_end(server, n_victims, failures):
    """Nothing is left of anybody, and what was claimed did happen."""
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        try:
            server.wait_metric(name, 0.0, 30)
        except AssertionError as e:
            failures.append(str(e))
    pages = {k: server.metric("sluice:kv_pages_" + k) for k in ("total", "free", "cached")}
    if pages["free"] + pages["cached"] != pages["total"]:
        failures.append(f"pages: {pages}")
    facts = {"preemptions": "vllm:num_preemptions_total", "cached tokens": "vllm:prompt_tokens_cached_total",
             "clients that left": "sluice:client_disconnects_total"}
    facts = {k: server.metric(v) for k, v in facts.items()}
    if n_victims >= 100:
        failures += [f"no {k}: the neighbours were not hostile enough" for k, v in facts.items() if not v]
    return facts


# ---- what the time tells

def z_of_ranks(a, b):
    """Mann-Whitney: how many standard deviations the ranks of a and b lie from those of one population."""
    ranked = sorted([(x, 0) for x in a] + [(x, 1) for x in b])
    rank_sum = sum(i + 1 for i, (_, side) in enumerate(ranked) if side == 0)
    n, m = len(a), len(b)
    return (rank_sum - n * (n + m + 1) / 2) / (n * m * (n + m + 1) / 12) ** 0.5


async def probe(port, n):
    """One key primes prompts; the other times them, and others like them that nobody has asked before."""
    primer, spy = Client(port, "key-of-a"), Client(port, "key-of-b")
    rng, seen, fresh, cached = random.Random(5), [], [], 0

    async def timed(prompt):
        start = time.perf_counter()
        reply = await spy.request("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        return time.perf_counter() - start, reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    for _ in range(n):
        known, unknown = ([rng.randrange(1000) for _ in range(400)] for _ in range(2))
        await primer.request("POST", "/v1/completions", {"prompt": known, "max_tokens": 1})
        pair = [(known, seen), (unknown, fresh)]
        rng.shuffle(pair)
        for prompt, times in pair:
            took, n_cached = await timed(prompt)
            times.append(took)
            cached += n_cached
    primer.close()
    spy.close()
    return z_of_ranks(seen, fresh), cached


def oracle(n):
    """Between keys the time must tell nothing; where they share it must tell, or the measurement is no good."""
    flags = ["--threads", "1", "--api-key=key-of-a", "--api-key=key-of-b"]
    with Server(*flags) as server:
        apart, n_cached = asyncio.run(probe(server.port, n))
    with Server(*flags, "--share-prefixes") as server:
        shared, n_shared = asyncio.run(probe(server.port, n))
    print(f"oracle: {n} probes of known and unknown prompts: {apart:+.1f} standard deviations apart, {n_cached} cached "
          f"tokens; where keys share, {shared:+.1f} and {n_shared}")
    failures = []
    if abs(apart) > 3.3 or n_cached:  # chance: one run of a thousand
        failures.append("the time, or the usage, tells one key what another has asked")
    if shared > -3.3 or not n_shared:
        failures.append("a hit was not noticed where keys share their prefixes")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victims", type=int, default=200, help="requests that are compared")
    parser.add_argument("--distinct", type=int, default=100, help="different ones among them")
    parser.add_argument("--concurrency", type=int, default=8, help="victims at once")
    parser.add_argument("--neighbours", type=int, default=16, help="hostile clients at once")
    parser.add_argument("--probes", type=int, default=0, help="of the timing of another key's prompts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="further flags of `sluice serve`, after --")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    victims = [make_victim(rng, i) for i in range(min(args.distinct, args.victims))]
    with Server(*FLAGS, "--max-num-seqs", "1", "--no-enable-prefix-caching", *args.flags) as server:
        alone = asyncio.run(run_alone(server.port, victims))
        if server.metric("vllm:num_preemptions_total") != 0:
            raise SystemExit("a victim alone was preempted")
    with Server(*FLAGS, *POOL, "--http-threads", "2", *args.flags) as server:
        n_same, n_retries, n_tokens, counts, bad, seconds = asyncio.run(run_beside(server.port, victims, alone, args))
        failures = [f"victim {i}: status {status}, {show_difference(alone[i], text)}" for i, status, text in bad[:5]]
        facts = check_end(server, args.victims, failures)
        code = server.stop()
        if code != 0:
            failures.append(f"exit status {code}: {server.log()[-500:]}")
    print(f"isolation: {n_same} of {args.victims} victims ({n_tokens} tokens) the same, {len(bad)} different, "
          f"{n_retries} refused and repeated, {seconds:.1f} s; neighbours: {sum(counts.values())} {dict(counts)}; "
          + ", ".join(f"{v:.0f} {k}" for k, v in facts.items()))
    if args.probes:
        failures += oracle(args.probes)
    for f in failures:
        print("FAIL", f)
    return 1 if failures or n_same != args.victims else 0


if __name__ == "__main__":
    sys.exit(main())
