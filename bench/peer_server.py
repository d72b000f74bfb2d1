# SPDX-License-Identifier: MIT
"""The server mode of bench/peer_llamacpp: starts llama-server and `sluice serve` in turn, and drives both over
loopback with the same client through /v1/completions, streamed, prompts as token ids, end tokens ignored."""
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from peer_util import (Deadline, Failed, Model, OtherWork, OutOfTime, cell, machine, percentile, print_machine, ratio,
                       read_ceiling, say, spread, test_ops_ceilings, write_json)

START_LIMIT = 300  # seconds until a server has loaded its model
ROUND_LIMIT = 1800  # and until all streams of a round have ended


class Server:
    """One server process, ended by its own id when the block ends."""

    def __init__(self, name: str, argv: list[str], port_file: str | None, port: int) -> None:
        self.name, self.argv, self.port_file, self.port = name, argv, port_file, port

    def __enter__(self) -> "Server":
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.argv, stdout=self.log, stderr=subprocess.STDOUT)
        try:
            self.wait_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def wait_ready(self) -> None:
        end = time.monotonic() + START_LIMIT
        while True:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with {self.process.returncode} while starting\n{self.tail()}")
            if time.monotonic() > end:
                raise Failed(f"{self.name} was not ready after {START_LIMIT} s\n{self.tail()}")
            time.sleep(0.05)
            if self.port_file and os.path.exists(self.port_file):
                text = open(self.port_file, encoding="ascii").read().strip()
                self.port = int(text) if text else 0
            try:
                url = f"http://127.0.0.1:{self.port}/health"
                if self.port and urllib.request.urlopen(url, timeout=5).status == 200:
                    return
            except (urllib.error.URLError, OSError):
                continue

    def tail(self) -> str:
        self.log.seek(0)
        return "\n".join(self.log.read().decode("utf-8", "replace").strip().split("\n")[-12:])

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(20)
        self.log.close()


# ---------------------------------------------------------------- client

@dataclass
class Stream:
    """What the client saw of one request."""
    sent: float = 0
    events: list[float] = field(default_factory=list)  # arrival of each event that brought tokens
    last: float = 0
    n_out: int = 0
    n_cached: int = 0


async def http_pieces(reader: asyncio.StreamReader):
    """The body's pieces as they arrive, whether chunked or until the connection ends."""
    status = (await reader.readline()).decode("latin-1").split()
    headers = {}
    while (line := (await reader.readline()).decode("latin-1").strip()):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip().lower()
    if len(status) < 2 or status[1] != "200":
        body = await asyncio.wait_for(reader.read(2000), 5)
        raise Failed(f"the server answered {' '.join(status[1:])}: {body.decode('utf-8', 'replace')}")
    if headers.get("transfer-encoding") != "chunked":
        while (piece := await reader.read(65536)):
            yield piece
        return
    while True:
        size = int((await reader.readline()).split(b";")[0], 16)
        if size == 0:
            return
        piece = await reader.readexactly(size)
        await reader.readexactly(2)
        yield piece


def take_event(s: Stream, event: bytes, now: float) -> None:
    data = b"".join(l[5:].strip() for l in event.split(b"\n") if l.startswith(b"data:"))
    if not data or data == b"[DONE]":
        return
    message = json.loads(data)
    if "error" in message:
        raise Failed(f"the server reported {message['error']}")
    choice = (message.get("choices") or [None])[0]
    if choice is not None and (choice.get("text") or choice.get("finish_reason") is None):
        s.events.append(now)
        s.last = now
    usage = message.get("usage")
    if usage:
        s.n_out = usage["completion_tokens"]
        s.n_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def one_request(port: int, prompt: list[int], n_out: int) -> Stream:
    body = json.dumps({"prompt": prompt, "max_tokens": n_out, "temperature": 0, "ignore_eos": True, "stream": True,
                       "stream_options": {"include_usage": True}}).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n").encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    s = Stream(sent=time.monotonic())
    try:
        writer.write(head + body)
        await writer.drain()
        pending = b""
        async for piece in http_pieces(reader):
            now = time.monotonic()
            pending = (pending + piece).replace(b"\r\n", b"\n")
            *events, pending = pending.split(b"\n\n")
            for event in events:
                take_event(s, event, now)
    finally:
        writer.close()
    if s.n_out != n_out or not s.events:
        raise Failed(f"a stream ended after {s.n_out} of {n_out} tokens")
    return s


async def all_requests(port: int, prompts: list[list[int]], n_out: int, limit: float) -> list[Stream]:
    return await asyncio.wait_for(asyncio.gather(*(one_request(port, p, n_out) for p in prompts)), limit)


# ---------------------------------------------------------------- one round

def prompts_of(args, model: Model, round_idx: int) -> tuple[list[list[int]], list[int]]:
    """The chats' prompts and the warm-up's: ids of a seed, the same for both servers, new in every round."""
    rng = random.Random(1000 + round_idx)

    def ids(n: int) -> list[int]:
        return [rng.randrange(min(300, model.n_vocab // 2), model.n_vocab) for _ in range(n)]

    shared = ids(args.shared_prefix)
    chats = [shared + ids(args.n_in) for _ in range(args.chats)]
    return chats, ([] if args.cold else shared) + ids(max(args.n_in, 1))


def figures(streams: list[Stream]) -> dict:
    start, end = min(s.sent for s in streams), max(s.last for s in streams)
    ttft = [s.events[0] - s.sent for s in streams]
    gaps = [b - a for s in streams for a, b in zip(s.events, s.events[1:])]
    each = [(s.last - s.events[0]) / (s.n_out - 1) for s in streams if s.n_out > 1]
    first = max(s.events[0] for s in streams)
    return {"seconds": end - start, "output_tokens_per_s": sum(s.n_out for s in streams) / (end - start),
            "ttft_median_ms": 1e3 * statistics.median(ttft), "ttft_p99_ms": 1e3 * percentile(ttft, 99),
            "itl_median_ms": 1e3 * statistics.median(gaps) if gaps else float("nan"),
            "itl_p99_ms": 1e3 * percentile(gaps, 99),
            "tpot_median_ms": 1e3 * statistics.median(each) if each else float("nan"),
            "last_first_token_s": first - start, "cached_tokens": sum(s.n_cached for s in streams),
            "events_per_token": sum(len(s.events) for s in streams) / sum(s.n_out for s in streams)}


def server_of(args, model: Model, engine: str, folder: str) -> Server:
    each = args.shared_prefix + args.n_in + args.n_out + 32
    if engine == "sluice":
        port_file = os.path.join(folder, "port")
        isa = ["--cpu-isa", "avx2"] if args.isa == "avx2" else []
        pool = int(1.1 * (args.chats + 1) * each * model.kv_bytes) + (64 << 20)
        return Server("sluice serve", [args.sluice, "serve", model.path, "--device", "cpu", "--port", "0", "--port-file", port_file,
                                       "--threads", str(args.threads), "--max-model-len", str(each),
                                       "--max-num-seqs", str(max(args.chats, 1)), "--kv-cache-dtype", args.kv,
                                       "--kv-cache-memory-bytes", str(pool), *isa], port_file, 0)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    per_slot = -(-each // 256) * 256  # llama.cpp rounds a slot's context up to this
    return Server("llama-server", [os.path.join(args.peer_bin, "llama-server"), "-m", model.path, "--host",
                                   "127.0.0.1", "--port", str(port), "--offline", "--no-webui", "-np",
                                   str(args.chats), "-c", str(args.chats * per_slot), "-t", str(args.threads),
                                   "-tb", str(args.threads)], None, port)


def one_run(args, model: Model, engine: str, round_idx: int, deadline: Deadline) -> dict:
    chats, warm = prompts_of(args, model, round_idx)
    limit = min(ROUND_LIMIT, max(deadline.left(), 0) + 120)
    with tempfile.TemporaryDirectory() as folder, server_of(args, model, engine, folder) as server:
        try:
            asyncio.run(all_requests(server.port, [warm], min(args.n_out, 8), limit))
            streams = asyncio.run(all_requests(server.port, chats, args.n_out, limit))
        except (TimeoutError, asyncio.TimeoutError) as e:
            raise OutOfTime(f"{server.name}: streams not done after {limit:.0f} s") from e
        except (OSError, ValueError, asyncio.IncompleteReadError) as e:
            raise Failed(f"{server.name}: {type(e).__name__}: {e}\n{server.tail()}") from e
    f = figures(streams)
    say(f"  {engine:9}: {f['output_tokens_per_s']:.1f} tok/s out, TTFT median {f['ttft_median_ms']:.0f} ms, "
        f"{f['cached_tokens']} prompt tokens from the cache")
    return f


# ---------------------------------------------------------------- the comparison

ROWS = [("output tokens/s", "output_tokens_per_s"), ("TTFT median, ms", "ttft_median_ms"),
        ("TTFT p99, ms", "ttft_p99_ms"), ("ITL median, ms", "itl_median_ms"), ("ITL p99, ms", "itl_p99_ms"),
        ("ms per token, median", "tpot_median_ms"), ("all have a token, s", "last_first_token_s")]


def compare(args, model: Model) -> None:
    if args.chats < 1 or args.n_in + args.shared_prefix < 1 or args.n_out < 1:
        raise Failed("--chats, --in (or --shared-prefix) and --out must be at least 1")
    model.check_length(args.shared_prefix + args.n_in + args.n_out + 32)
    deadline = Deadline(args.limit)
    runs: dict[str, list[dict]] = {"sluice": [], "llama.cpp": []}
    host = machine()
    print_machine(host)
    other = OtherWork()
    reads = [read_ceiling(args)]
    try:
        for r in range(args.reps):
            if deadline.over():
                raise OutOfTime(f"--limit {args.limit:.0f} s reached before round {r + 1}")
            say(f"round {r + 1} of {args.reps}, {deadline.left():.0f} s left")
            for engine in ("llama.cpp", "sluice") if r % 2 == 0 else ("sluice", "llama.cpp"):
                runs[engine].append(one_run(args, model, engine, r, deadline))
            reads.append(read_ceiling(args))
    except OutOfTime as e:
        say(f"{e}; reporting what there is")
    host["other_work_processors"] = other.processors()
    print(other.verdict(host["other_work_processors"]))
    report(args, model, runs, max(reads), host)


def report(args, model: Model, runs: dict, ceiling: float, host: dict) -> None:
    print(f"{os.path.basename(model.path)}; {args.threads} threads; {args.chats} chats, {args.shared_prefix} shared"
          f"{' (cold)' if args.cold else ''} + {args.n_in} own tokens in, {args.n_out} out; llama.cpp {args.isa}")
    print(f"memory read, {args.threads} threads: {ceiling / 1e9:.1f} GB/s (best of the run)")
    extra = test_ops_ceilings()
    for line in extra:
        print(f"test_ops: {line}")
    print(f"\n{'':22} {'sluice':28} {'llama.cpp':28} {'sluice / llama.cpp':>18}")
    rows = []
    for title, key in ROWS:
        ours, peer = (spread([f[key] for f in runs[e]]) for e in ("sluice", "llama.cpp"))
        q = ratio(ours, peer)
        print(f"{title:22} {cell(ours):28} {cell(peer):28} {q if q is not None else float('nan'):18.2f}")
        rows.append({"figure": key, "sluice": ours, "llama.cpp": peer, "ratio": q})
    print("More is better in the first row, less in the others. ITL: between events of a stream as the client sees "
          "them; ms per token: from a stream's first token to its last.")
    write_json(args.json, {"mode": "server", "machine": host, "model": vars(model), "threads": args.threads,
                           "isa": args.isa, "kv": args.kv, "chats": args.chats, "in": args.n_in, "out": args.n_out,
                           "shared_prefix": args.shared_prefix, "cold": args.cold, "read_bytes_per_s": ceiling,
                           "test_ops": extra, "rows": rows, "runs": runs})
