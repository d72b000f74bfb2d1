#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Many streams for a while, clients that leave at random moments; afterwards nothing may be stuck, no KV page may
be owned and memory must not have grown. Needs nothing beyond the standard library.

    tests/server/soak.py --seconds 60 --streams 200 [-- serve flags]
"""
import argparse
import asyncio
import json
import os
import random
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serverproc import Server  # noqa: E402


class Tally:
    def __init__(self):
        self.whole = self.left = self.refused = self.tokens = 0
        self.broken = []


async def one_stream(port, rng, tally, until):
    while time.monotonic() < until:
        leaves_after = rng.choice([None, None, 0, rng.randrange(1, 20)])  # half of them stay
        body = json.dumps({
            "prompt": " ".join(rng.choices(["the", "dog", "saw", "a", "big", "red", "ball"], k=rng.randrange(1, 200))),
            "max_tokens": rng.randrange(1, 60), "n": rng.choice([1, 1, 1, 2]), "stream": True, "ignore_eos": True,
            "stop": rng.choice([None, [" qqq"]]), "seed": rng.randrange(1000),
            "stream_options": {"include_usage": True}}).encode()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                         % len(body) + body)
            await writer.drain()
            status = int((await reader.readline()).split()[1])
            n_events, done = 0, False
            while leaves_after is None or n_events < leaves_after:
                line = await asyncio.wait_for(reader.readline(), 120)
                if not line:
                    break
                if line.startswith(b"data: {"):
                    n_events += 1
                    usage = json.loads(line[6:]).get("usage")
                    tally.tokens += usage["completion_tokens"] if usage else 0
                done |= line.startswith(b"data: [DONE]")
            if status in (429, 503):
                tally.refused += 1
                await asyncio.sleep(0.05)
            elif leaves_after is not None and not done:
                tally.left += 1
            elif done:
                tally.whole += 1
            else:
                tally.broken.append(f"status {status}: the stream ended without [DONE]")
            writer.close()
        except (OSError, asyncio.TimeoutError, ValueError, IndexError) as e:
            tally.broken.append(repr(e))
            return


async def load(port, args, tally):
    until = time.monotonic() + args.seconds
    await asyncio.gather(*(one_stream(port, random.Random(args.seed * 1000 + i), tally, until)
                           for i in range(args.streams)))


def check_idle(server, failures):
    for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        try:
            server.wait_metric(name, 0.0, 20)
        except AssertionError as e:
            failures.append(f"stuck: {e}")
    total, free, cached = (server.metric("sluice:kv_pages_" + k) for k in ("total", "free", "cached"))
    if free + cached != total:
        failures.append(f"pages: {free} free + {cached} cached != {total}")
    if server.metric("sluice:step_mallocs_total") != 0:
        failures.append(f"heap calls in steps: {server.metric('sluice:step_mallocs_total')}")
    if server.request("GET", "/health")[0] != 200:
        failures.append("not healthy afterwards")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--max-growth-mib", type=float, default=16, help="of resident memory, after a warm-up")
    parser.add_argument("flags", nargs="*", help="further flags of `sluice serve`, after --")
    args = parser.parse_args()
    failures, tally = [], Tally()
    # A small pool is soon resident as a whole; a large one would look like a leak while it fills.
    pool = [] if any("kv-cache" in f for f in args.flags) else ["--kv-cache-memory-bytes", "32M"]
    with Server(*pool, *args.flags) as server:
        warm = argparse.Namespace(**{**vars(args), "seconds": max(1.0, args.seconds / 6), "seed": args.seed + 1})
        asyncio.run(load(server.port, warm, tally))
        check_idle(server, failures)
        rss = server.metric("process_resident_memory_bytes")
        fds = server.metric("process_open_fds")
        asyncio.run(load(server.port, args, tally))
        check_idle(server, failures)
        time.sleep(0.5)
        grown = (server.metric("process_resident_memory_bytes") - rss) / 2**20
        if grown > args.max_growth_mib:
            failures.append(f"resident memory grew by {grown:.1f} MiB")
        if server.metric("process_open_fds") > fds + 2:
            failures.append(f"descriptors: {fds} before, {server.metric('process_open_fds')} after")
        if tally.broken:
            failures.append(f"{len(tally.broken)} broken streams, first: {tally.broken[0]}")
        if tally.whole == 0:
            failures.append("no stream reached its end")
        code = server.stop()
        if code != 0:
            failures.append(f"exit status {code}: {server.log()[-500:]}")
    print(f"soak: {tally.whole} whole, {tally.left} left early, {tally.refused} refused, {tally.tokens} tokens, "
          f"memory {grown:+.1f} MiB")
    for f in failures:
        print("FAIL", f)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
