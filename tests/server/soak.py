#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Mixed load on all endpoints for a while, with clients that leave at random moments; afterwards nothing may be
stuck, no KV page may be owned, and descriptors, threads and memory must be what they were. Needs nothing beyond
the standard library.

    tests/server/soak.py --seconds 7200 --clients 8 --pause 0.3 --leave 0.01 [-- serve flags]
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

WORDS = ["the", "dog", "saw", "a", "big", "red", "ball", "and", "ran", "home"]
STUCK_S = 120  # a reply that takes longer counts as stuck; the load is far from that


class Leave(Exception):
    """The client goes away in the middle, on purpose."""


class Tally:
    def __init__(self):
        self.whole = collections.Counter()  # by kind of request
        self.left = self.refused = self.tokens = 0
        self.broken = []
        self.slowest = 0.0


def words(rng, most):
    return " ".join(rng.choices(WORDS, k=rng.randrange(1, most)))


def sampling(rng):
    body = {"max_tokens": rng.randrange(1, 60), "seed": rng.randrange(1000), "ignore_eos": rng.random() < 0.7,
            "n": rng.choice([1, 1, 1, 2]), "temperature": rng.choice([0, 0.7, 1.0, 1.5])}
    for name, value in (("stop", [" qqq", "the"]), ("top_k", 20), ("min_p", 0.05), ("frequency_penalty", 0.5),
                        ("repetition_penalty", 1.1), ("logit_bias", {"17": -5}), ("priority", rng.randrange(-3, 4)),
                        ("cache_salt", "tenant-%d" % rng.randrange(3)), ("min_tokens", 1), ("user", "u")):
        if rng.random() < 0.2:
            body[name] = value
    return body


def completion(rng):
    body = sampling(rng)
    body["prompt"] = rng.choice([words(rng, 200), [words(rng, 20), words(rng, 20)], [1, 2, 3, 4, 5]])
    if rng.random() < 0.3:
        body |= {"logprobs": rng.randrange(6), "echo": rng.random() < 0.5}
    if rng.random() < 0.6:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return "POST", "/v1/completions", body, 200


def chat(rng):
    body = sampling(rng)
    body["messages"] = [{"role": "user", "content": words(rng, 100)}]
    if rng.random() < 0.3:
        body |= {"logprobs": True, "top_logprobs": rng.randrange(6)}
    if rng.random() < 0.6:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return "POST", "/v1/chat/completions", body, 200


def helper(rng):
    return rng.choice([
        ("POST", "/tokenize", {"prompt": words(rng, 300)}, 200), ("POST", "/detokenize", {"tokens": [1, 2, 3]}, 200),
        ("GET", "/v1/models", None, 200), ("GET", "/v1/models/storyteller", None, 200), ("GET", "/health", None, 200),
        ("POST", "/ping", b"", 200), ("GET", "/version", None, 200), ("GET", "/load", None, 200),
        ("HEAD", "/health", None, 200), ("GET", "/metrics", None, 200)])


def refused(rng):
    return rng.choice([
        ("GET", "/nowhere", None, 404), ("GET", "/v1/completions", None, 405), ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", {"prompt": "a", "temperature": -1}, 400),
        ("POST", "/v1/completions", {"prompt": "a", "model": "other"}, 404),
        ("POST", "/v1/chat/completions", {"messages": []}, 400),
        ("POST", "/v1/completions", {"prompt": [10**9]}, 400), ("GET", "/v1/models/other", None, 404)])


KINDS = [(completion, 50), (chat, 30), (helper, 15), (refused, 5)]


async def stream(client, data, leave_after):
    """Reads event by event, so that a client can leave between two."""
    await client.send(data)
    reply = await client.head()
    n_events = 0
    async for part in client.chunks(reply):
        reply.body += part
        n_events += part.count(b"data: ")
        if leave_after is not None and n_events > leave_after:
            raise Leave
    return reply


async def exchange(client, rng, kind, leaves, tally):
    method, path, body, expect = kind(rng)
    data = client.encode(method, path, body)
    streams = isinstance(body, dict) and body.get("stream")
    if leaves and rng.random() < 0.3:  # in the middle of its own request
        await client.send(data[:rng.randrange(len(data))])
        raise Leave
    if leaves and not streams:  # with the reply still to come
        await client.send(data)
        await asyncio.sleep(rng.random() * 0.02)
        raise Leave
    if streams:
        reply = await stream(client, data, rng.randrange(20) if leaves else None)
        if leaves:
            raise Leave
    else:
        reply = await client.request(method, path, body)
    if reply.status in (429, 503):
        tally.refused += 1
        await asyncio.sleep(0.05)
        return
    problem = None
    if reply.status != expect or not reply.done:
        problem = f"{method} {path}: status {reply.status}, expected {expect}"
    elif streams and not reply.body.endswith(b"data: [DONE]\n\n"):
        problem = f"{path}: the stream ended without [DONE]"
    elif expect == 200 and isinstance(body, dict) and "max_tokens" in body:
        last = events(reply.body)[-1] if streams else reply.json()
        tally.tokens += last["usage"]["completion_tokens"]
    if problem:
        tally.broken.append(problem)
    else:
        tally.whole[kind.__name__] += 1


async def one_client(port, args, rng, tally, until):
    client = Client(port)
    kinds, weights = zip(*KINDS)
    while time.monotonic() < until:
        kind = rng.choices(kinds, weights)[0]
        start = time.monotonic()
        try:
            await asyncio.wait_for(exchange(client, rng, kind, rng.random() < args.leave, tally), STUCK_S)
        except Leave:
            client.close(reset=rng.random() < 0.5)
            tally.left += 1
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError, ValueError, IndexError, KeyError) as e:
            tally.broken.append(f"{kind.__name__}: {e!r}")
            client.close()
        tally.slowest = max(tally.slowest, time.monotonic() - start)
        if rng.random() < 0.1:
            client.close()
        if args.pause > 0:
            await asyncio.sleep(rng.expovariate(1 / args.pause))
    client.close()


async def load(server, args, tally, watch=None):
    until = time.monotonic() + args.seconds
    tasks = [asyncio.create_task(one_client(server.port, args, random.Random(args.seed * 1000 + i), tally, until))
             for i in range(args.clients)]
    while watch and time.monotonic() < until - args.watch:
        await asyncio.sleep(args.watch)
        await asyncio.get_running_loop().run_in_executor(None, watch)
    await asyncio.gather(*tasks)


def proc(server):
    """Threads, descriptors and resident MiB, as the kernel has them."""
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        status = dict(line.split(":", 1) for line in f)
    return {"threads": int(status["Threads"]), "fds": len(os.listdir(f"/proc/{server.process.pid}/fd")),
            "mib": int(status["VmRSS"].split()[0]) / 1024}


def settle(server, failures):
    """Waits for idle, then checks what must hold there."""
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        try:
            server.wait_metric(name, 0.0, 20)
        except AssertionError as e:
            failures.append(f"stuck: {e}")
    total, free, cached = (server.metric("sluice:kv_pages_" + k) for k in ("total", "free", "cached"))
    if free + cached != total:
        failures.append(f"pages: {free:.0f} free + {cached:.0f} cached != {total:.0f}")
    if server.metric("sluice:step_mallocs_total") != 0:
        failures.append(f"heap calls in steps: {server.metric('sluice:step_mallocs_total')}")
    if server.request("GET", "/health")[0] != 200:
        failures.append("not healthy afterwards")
    deadline = time.monotonic() + 5  # closed connections linger for up to two seconds
    while server.metric("sluice:connections") != 1 and time.monotonic() < deadline:
        time.sleep(0.1)
    seen = []
    for _ in range(10):  # the connection of the last question may be there still
        time.sleep(0.1)
        seen.append(proc(server))
    return min(seen, key=lambda x: x["fds"])


def compare(before, after, args, failures):
    if after["mib"] - before["mib"] > args.max_growth_mib:
        failures.append(f"resident memory grew by {after['mib'] - before['mib']:.1f} MiB")
    if after["fds"] > before["fds"]:
        failures.append(f"descriptors: {before['fds']} before, {after['fds']} after")
    if after["threads"] != before["threads"]:
        failures.append(f"threads: {before['threads']} before, {after['threads']} after")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=200, help="requests at once")
    parser.add_argument("--pause", type=float, default=0, help="mean seconds between the requests of a client")
    parser.add_argument("--leave", type=float, default=0.01, help="share of requests whose client leaves")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--watch", type=float, default=300, help="seconds between lines on memory")
    parser.add_argument("--max-growth-mib", type=float, default=16, help="of resident memory, after a warm-up")
    parser.add_argument("flags", nargs="*", help="further flags of `sluice serve`, after --")
    args = parser.parse_args()
    failures, tally = [], Tally()
    # A small pool is soon resident as a whole; a large one would look like a leak while it fills.
    pool = [] if any("kv-cache" in f for f in args.flags) else ["--kv-cache-memory-bytes", "32M"]
    with Server("--scheduling-policy", "priority", *pool, *args.flags) as server:
        warm = argparse.Namespace(**{**vars(args), "seconds": min(60.0, max(1.0, args.seconds / 6)),
                                     "seed": args.seed + 1})
        asyncio.run(load(server, warm, Tally()))
        before = settle(server, failures)
        start = time.monotonic()

        def watch():
            now = proc(server)
            print(f"{time.monotonic() - start:6.0f} s: {sum(tally.whole.values())} whole, {tally.left} left, "
                  f"{tally.refused} refused, {len(tally.broken)} broken, {now}", flush=True)
        asyncio.run(load(server, args, tally, watch))
        after = settle(server, failures)
        compare(before, after, args, failures)
        if tally.broken:
            failures.append(f"{len(tally.broken)} broken exchanges, first: {tally.broken[0]}")
        if not all(tally.whole[kind.__name__] for kind, _ in KINDS):
            failures.append(f"some kind of request never came to its end: {dict(tally.whole)}")
        code = server.stop()
        if code != 0:
            failures.append(f"exit status {code}: {server.log()[-500:]}")
    print(f"soak: {sum(tally.whole.values())} whole {dict(tally.whole)}, {tally.left} left early, {tally.refused} "
          f"refused, {tally.tokens} tokens, slowest {tally.slowest:.2f} s, memory "
          f"{after['mib'] - before['mib']:+.1f} MiB, descriptors {before['fds']} -> {after['fds']}, "
          f"threads {before['threads']} -> {after['threads']}")
    for f in failures:
        print("FAIL", f)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
