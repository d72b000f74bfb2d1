#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Too much of everything: requests, connections, bytes, slow and silent clients. Each part starts its own server,
asks for more than it has, and prints what was promised beside what came. Needs nothing beyond the standard
library.

    tests/server/overload.py                   all parts with the published bars: some minutes
    tests/server/overload.py --quick           a short slice with loose bars, for machines that others use too
    tests/server/overload.py --only goodput idle
"""
import argparse
import json
import os
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from serverproc import BINARY, Server  # noqa: E402

PARTS = {}


def part(f):
    PARTS[f.__name__] = f
    return f


class Table:
    def __init__(self):
        self.n_bad = 0

    def row(self, what, figure, bar, good):
        self.n_bad += not good
        print(f"{'ok  ' if good else 'FAIL'} {what:<58} {figure:>24}   bar: {bar}", flush=True)


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * p / 100))] if values else 0.0


def rss_kib(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def post(path, body, extra=""):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: a\r\n{extra}Content-Length: {len(data)}\r\n\r\n".encode() + data


def connect(server, rcvbuf=None, timeout=60):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if rcvbuf:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
    s.settimeout(timeout)
    s.connect(("127.0.0.1", server.port))
    return s


def read_reply(s):
    """Status, headers and body of a reply that has a length."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = s.recv(65536)
        if not piece:
            raise ConnectionResetError("closed before a reply")
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
    while len(body) < int(headers.get("content-length", 0)):
        body += s.recv(65536)
    return int(lines[0].split()[1]), headers, body


def until_closed(s, limit):
    """Reads everything; returns what came and after how many seconds the server ended it, None: it did not."""
    start, got = time.monotonic(), b""
    try:
        while (left := limit - (time.monotonic() - start)) > 0:
            s.settimeout(left)
            piece = s.recv(65536)
            if not piece:
                return got, time.monotonic() - start
            got += piece
    except TimeoutError:
        pass
    except ConnectionResetError:
        return got, time.monotonic() - start
    return got, None


# ---- more requests than can be served

def bench(server, n, *flags):
    command = [BINARY, "bench", "serve", "--url", server.url, "--num-prompts", str(n), "--random-input-len", "32",
               "--random-output-len", "32", "--ignore-eos", "--json", *flags]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=600, check=False).stdout
    return json.loads(out)


@part
def goodput(t, args):
    """Ten times the load that can be served, offered as fast as it comes. The refusals are measured beside the
    full load, by the client, so they hold the client's own waits for a core as well."""
    n_peak, n_over, rounds = (150, 1500, 1) if args.quick else (600, 8000, args.rounds)
    peak = over = 0.0
    refusals, rss = [], []
    with Server("--max-num-queued-reqs", "256") as server:
        for _ in range(rounds):
            peak = max(peak, bench(server, n_peak, "--max-concurrency", "128")["request_throughput"])
            r = bench(server, n_over, "--request-rate", f"{10 * peak:.0f}")
            over = max(over, r["request_throughput"])
            refusals.append((r["p99_refusal_ms"], r["median_refusal_ms"], r["refused"]))
            rss.append(rss_kib(server))
            if r["completed"] + r["refused"] != n_over:
                t.row("every request is served or refused", r["completed"] + r["refused"], n_over, False)
        p99, p50, n = min(refusals)
        bar = 0.3 if args.quick else 0.95
        t.row("goodput at 10x the offered load, of the peak", f"{over:.1f} of {peak:.1f} req/s ({100 * over / peak:.0f} %)",
              f">= {100 * bar:.0f} %", over >= bar * peak)
        bar = 100 if args.quick else 5
        t.row(f"refusals p99 (p50 {p50:.2f} ms, {n} of them)", f"{p99:.2f} ms", f"< {bar} ms", p99 < bar)
        if rounds > 1:
            t.row("resident memory, first overload to last", f"{(rss[-1] - rss[0]) / 1024:+.1f} MiB", "< 8 MiB",
                  rss[-1] - rss[0] < 8192)
        for name in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
            server.wait_metric(name, 0.0, 30)


@part
def refusal(t, args):
    """What a refusal looks like, and that it does not wait for a large body."""
    with Server("--threads", "1", "--max-num-queued-reqs", "1", "--max-num-seqs", "1") as server:
        long = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}
        busy = [connect(server) for _ in range(2)]
        for i, s in enumerate(busy):
            s.sendall(post("/v1/completions", long))
            server.wait_metric("vllm:num_requests_" + ("running" if i == 0 else "waiting"), 1.0)
        times = []
        for _ in range(50 if args.quick else 500):
            with connect(server) as s:
                start = time.monotonic()
                s.sendall(post("/v1/completions", {"prompt": "a"}))
                status, headers, body = read_reply(s)
                times.append((time.monotonic() - start) * 1e3)
            good = status == 429 and "retry-after" in headers and json.loads(body)["error"]["code"] is not None
            if not good:
                t.row("a refusal is 429 with Retry-After", f"{status} {headers}", "429", False)
                return
        t.row("429 with Retry-After, one core busy: p99", f"{percentile(times, 99):.2f} ms",
              "< 50 ms" if args.quick else "< 5 ms", percentile(times, 99) < (50 if args.quick else 5))
        # A large prompt is refused by its headers: it is not read, let alone tokenised.
        with connect(server) as s:
            start = time.monotonic()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n")
            status, headers, _ = read_reply(s)
            took = (time.monotonic() - start) * 1e3
        t.row("429 before a body of 30 MB", f"{status} after {took:.2f} ms", "429", status == 429)
        for s in busy:
            s.close()
        server.wait_metric("vllm:num_requests_running", 0.0)
        status = server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0]
        t.row("served again when there is room", status, 200, status == 200)


@part
def priority(t, args):
    """The better class beside a flood of the worse; and the worse beside a flood of the better."""
    n = 8 if args.quick else 40

    def ask(server, p, max_tokens):
        start = time.monotonic()
        with connect(server) as s:
            s.sendall(post("/v1/completions", {"prompt": "The dog ran to the big red house", "priority": p,
                                               "max_tokens": max_tokens, "ignore_eos": True, "stream": True}))
            while b"data:" not in s.recv(65536):
                pass
            return (time.monotonic() - start) * 1e3

    def flood(server, p, stop):
        while not stop.is_set():
            server.request("POST", "/v1/completions", {"prompt": "The dog", "priority": p, "max_tokens": 40,
                                                       "ignore_eos": True})
    with Server("--scheduling-policy", "priority", "--priority-max-wait", "2", "--max-num-seqs", "8") as server:
        alone = [ask(server, 0, 2) for _ in range(n)]
        waits = {}
        for mine, theirs in ((0, 1), (1, 0)):
            stop = threading.Event()
            threads = [threading.Thread(target=flood, args=(server, theirs, stop)) for _ in range(32)]
            for th in threads:
                th.start()
            time.sleep(0.5)
            waits[mine] = [ask(server, mine, 2) for _ in range(n if mine == 0 else 3)]
            stop.set()
            for th in threads:
                th.join()
        t.row("first token of the better class, alone: p50", f"{percentile(alone, 50):.1f} ms", "-", True)
        worst = percentile(waits[0], 99)
        t.row("the same beside a flood of 32 of the worse class: p99", f"{worst:.1f} ms", "< 500 ms", worst < 500)
        worst = max(waits[1]) / 1e3
        t.row("the worse class beside a flood of the better: slowest", f"{worst:.2f} s", "max wait of 2 s, + 4 s",
              worst < 6)


# ---- clients that do not read, do not write, or go away

WIDE = {"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True, "logprobs": 20}  # 3 MB of events


@part
def slow_readers(t, args):
    """Pages of the KV pool become resident when a token is first written there, so a pool that the warm-up does
    not fill grows under the readers, by 1.4 MB each, whatever the server holds for them. This one has room for
    half of their contexts and is touched to its last page before anything is measured."""
    n = 20 if args.quick else 100
    pool = f"{n * 4 // 5}M"
    with Server("--timeout-write", "1500", "--http-threads", "1", "--kv-cache-memory-bytes", pool) as server:
        def whole():
            with connect(server) as s:
                s.sendall(post("/v1/completions", WIDE))
                tail = b""
                while b"[DONE]" not in tail:
                    tail = tail[-64:] + s.recv(1 << 20)
        threads = [threading.Thread(target=whole) for _ in range(n)]  # warm: the same load, read at once
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        before = rss_kib(server)
        start = time.monotonic()
        socks = [connect(server, rcvbuf=4096) for _ in range(n)]
        for s in socks:
            s.sendall(post("/v1/completions", WIDE))
        most = held = 0
        while time.monotonic() - start < 60 and server.metric("sluice:client_disconnects_total") < n:
            most, held = max(most, rss_kib(server)), max(held, server.metric("sluice:held_bytes"))
            time.sleep(0.05)
        took = time.monotonic() - start
        cut = server.metric("sluice:client_disconnects_total")
        t.row(f"stopped readers cut off ({n})", f"{cut:.0f} after {took:.1f} s", f"{n}", cut == n)
        t.row("bytes held for one stopped reader", f"{held / n / 1024:.0f} KiB", "0 < .. <= 128 KiB",
              0 < held / n <= 131072)
        t.row("memory of one stopped reader, its request included", f"{(most - before) / n:.0f} KiB", "<= 512 KiB",
              most - before <= 512 * n)
        for s in socks:
            s.close()
        server.wait_metric("vllm:num_requests_running", 0.0)
        # A byte now and then is no reading.
        s = connect(server, rcvbuf=4096)
        s.sendall(post("/v1/completions", WIDE))
        start = time.monotonic()
        while server.metric("sluice:client_disconnects_total") == n and time.monotonic() - start < 30:
            s.recv(1)
            time.sleep(0.05)
        took = time.monotonic() - start
        t.row("a reader of 20 bytes a second is cut off", f"{took:.1f} s", "< 20 s", took < 20)
        s.close()
        # One that reads slowly but fairly is not.
        s, got = connect(server, rcvbuf=65536), 0
        s.sendall(post("/v1/completions", WIDE | {"max_tokens": 100}))
        tail = b""
        while piece := s.recv(8192):
            got += len(piece)
            tail = (tail + piece)[-64:]
            if b"[DONE]" in tail:
                break
            time.sleep(0.02)
        t.row("a reader of 400 KB a second gets all", f"{got / 1024:.0f} KiB", "[DONE]", b"[DONE]" in tail)
        s.close()


def drip(server, socks, pieces, every, limit):
    """Sends every connection a piece at a time; returns after how many seconds each was ended, or None."""
    start, ends, at = time.monotonic(), [None] * len(socks), 0
    by_fd = {s.fileno(): i for i, s in enumerate(socks)}
    poll = select.poll()
    for s in socks:
        s.setblocking(False)
        poll.register(s, select.POLLIN)
    while any(e is None for e in ends) and time.monotonic() - start < limit:
        for i, s in enumerate(socks):
            if ends[i] is None:
                try:
                    s.send(pieces[at % len(pieces)])
                except OSError:
                    ends[i] = time.monotonic() - start
        at += 1
        due = start + at * every
        while (left := due - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1e3):
                i = by_fd[fd]
                try:
                    data = socks[i].recv(4096)
                except OSError:
                    data = b""
                if ends[i] is None:
                    ends[i] = time.monotonic() - start
                if not data:
                    poll.unregister(fd)
    return ends


@part
def slowloris(t, args):
    n = 100 if args.quick else 1000
    with Server("--timeout-header", "1000", "--timeout-body", "1000", "--max-connections", str(2 * n)) as server:
        for name, head in (("headers", b"GET /health HTTP/1.1\r\nX-A: "),
                           ("body", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n{"),
                           ("chunks", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")):
            socks = [connect(server) for _ in range(n)]
            for s in socks:
                s.sendall(head)
            good = []

            def others():
                for _ in range(5):
                    start = time.monotonic()
                    if server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] != 200:
                        good.append(1e9)
                    good.append(time.monotonic() - start)
            th = threading.Thread(target=others)
            th.start()
            ends = drip(server, socks, [b"1\r\n \r\n"] if name == "chunks" else [b" "], 0.1, 10)
            th.join()
            open_ = sum(e is None for e in ends)
            last = max((e for e in ends if e is not None), default=0)
            t.row(f"{n} connections that send {name} byte by byte: last ended", f"{last:.2f} s, {open_} open",
                  "limit of 1 s, + 3 s", open_ == 0 and last < 4)
            t.row("a request of somebody else meanwhile: slowest", f"{max(good):.2f} s", "< 2 s", max(good) < 2)
            for s in socks:
                s.close()
        with connect(server) as s:  # a slow but honest upload is no attack
            body = json.dumps({"prompt": "a" * 40000, "max_tokens": 1}).encode()
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
            for i in range(0, len(body), 2048):
                s.sendall(body[i:i + 2048])
                time.sleep(0.06)
            status = read_reply(s)[0]
        t.row("an upload of 34 KB a second arrives", status, 200, status == 200)


@part
def vanished(t, args):
    """How long until a request whose client went away is gone from the engine."""
    rounds = 3 if args.quick else 25
    states = {"queued": (3, {"max_tokens": 50}), "streaming": (1, {"max_tokens": 1500, "stream": True}),
              "waiting for a whole reply": (1, {"max_tokens": 1500}),
              "not reading": (1, WIDE | {"max_tokens": 1500}),
              "sending ahead": (1, {"max_tokens": 1500, "stream": True})}
    with Server("--threads", "1", "--max-num-seqs", "2") as server:
        probe = connect(server)

        def load():
            probe.sendall(b"GET /load HTTP/1.1\r\nHost: a\r\n\r\n")
            return json.loads(read_reply(probe)[2])["server_load"]
        for name, (n, fields) in states.items():
            times = []
            for i in range(rounds):
                hold = [connect(server) for _ in range(n - 1)]  # the seats, when it shall queue
                for s in hold:
                    s.sendall(post("/v1/completions", {"prompt": "a", "max_tokens": 1500, "ignore_eos": True,
                                                       "stream": True}))
                while load() < n - 1:
                    pass
                s = connect(server, rcvbuf=4096)
                s.sendall(post("/v1/completions", {"prompt": "a", "ignore_eos": True} | fields))
                while load() < n:
                    pass
                if name == "sending ahead":  # more than the server takes beside a request: it stops reading
                    s.sendall(post("/v1/completions", {"prompt": "b" * 70000}))
                time.sleep(0.3 if name == "not reading" else 0.03)
                if load() < n:
                    t.row(f"vanished while {name}", "ended before", "-", False)
                    return
                if i % 2 == 0:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                start = time.monotonic()
                s.close()
                while load() > n - 1:
                    pass
                times.append((time.monotonic() - start) * 1e3)
                for h in hold:
                    h.close()
                while load() > 0:
                    pass
            t.row(f"client vanished while {name}: slowest of {rounds}", f"{max(times):.1f} ms",
                  "< 1000 ms" if args.quick else "<= 100 ms", max(times) < (1000 if args.quick else 100))
        timers = []
        time.sleep(0.5)  # until everything is acknowledged
        with open("/proc/net/tcp", encoding="ascii") as f:
            for line in list(f)[1:]:
                w = line.split()
                if w[1].endswith(f":{server.port:04X}") and w[3] == "01":
                    timers.append(w[5].split(":")[0])
        t.row("idle connections are probed for vanished hosts", f"timers {sorted(set(timers))}", "['02']",
              set(timers) == {"02"})
        probe.close()


# ---- many connections

@part
def idle(t, args):
    n = 1000 if args.quick else args.idle
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n + 200:
        n = hard - 200
        print(f"     {hard} descriptors are allowed: {n} connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    get = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    with Server("--max-connections", str(n), "--http-threads", "2") as server:
        for _ in range(20):
            server.request("GET", "/health")
        time.sleep(2.5)  # connections linger that long
        before, socks, start = rss_kib(server), [], time.monotonic()
        for _ in range(n - 1):
            s = connect(server)
            s.sendall(get)
            if read_reply(s)[0] != 200:
                t.row("idle connections", len(socks), n, False)
                return
            socks.append(s)
        took = time.monotonic() - start
        grown = rss_kib(server) - before
        t.row(f"{n - 1} idle connections after a request each", f"{took:.1f} s", "-", True)
        t.row("memory of one", f"{grown * 1024 / (n - 1):.0f} bytes", "<= 4096", grown * 1024 <= 4096 * (n - 1))
        times = []
        for _ in range(20):
            start = time.monotonic()
            socks[0].sendall(post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
            if read_reply(socks[0])[0] != 200:
                times.append(1e9)
            times.append((time.monotonic() - start) * 1e3)
        t.row("a request beside them: slowest of 20", f"{max(times):.1f} ms", "< 1000 ms", max(times) < 1000)
        extra = connect(server)
        extra.sendall(get)
        first = read_reply(extra)[0]  # the last place
        refused = []
        for _ in range(100):
            s = connect(server)
            s.sendall(get)
            try:
                refused.append(read_reply(s))
            except OSError as e:
                refused.append((repr(e), {}, b""))
            s.close()
        clean = sum(r[0] == 503 and "retry-after" in r[1] for r in refused)
        t.row("connections beyond the limit told 503, Retry-After", f"{clean} of 100", "100",
              first == 200 and clean == 100)
        for s in socks + [extra]:
            s.close()
        server.wait_metric("sluice:connections", 1.0, 30)
        grown = rss_kib(server) - before
        t.row("memory kept when they are gone", f"{grown} KiB", "-", True)
        status = server.request("GET", "/health")[0]
        t.row("served again", status, 200, status == 200)


@part
def descriptors(t, args):
    """A process that may open few descriptors lowers its limit of connections instead of running into it."""
    n_allowed = 300
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shell = f"ulimit -n {n_allowed}; exec \"$0\" \"$@\""
    port_file = f"/tmp/sluice-overload-{os.getpid()}"
    process = subprocess.Popen(["sh", "-c", shell, BINARY, "serve", "--port", "0", "--port-file", port_file,
                                "--threads", "1"], stderr=subprocess.PIPE)
    try:
        while not os.path.exists(port_file):
            time.sleep(0.05)
        with open(port_file, encoding="ascii") as f:
            port = int(f.read())
        socks, answers = [], []
        for _ in range(n_allowed):
            s = socket.create_connection(("127.0.0.1", port), timeout=10)
            s.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            try:
                answers.append(read_reply(s)[0])
            except OSError as e:
                answers.append(repr(e))
            socks.append(s)
        n_ok = answers.count(200)
        t.row(f"{n_allowed} descriptors, {n_allowed} connections: served, told 503",
              f"{n_ok}, {answers.count(503)}", "all one or the other",
              n_ok >= 100 and n_ok + answers.count(503) == n_allowed)
        for s in socks:
            s.close()
    finally:
        process.terminate()
        process.communicate()
        os.remove(port_file)


@part
def large_bodies(t, args):
    """Bodies and replies of all connections together stay under one bound; small requests are not in it."""
    n, size, cap = 40, 1 << 20, 8 << 20
    with Server("--threads", "1", "--max-held-bytes", str(cap)) as server:
        server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        before, socks, refused = rss_kib(server), [], 0
        for _ in range(n):
            s = connect(server)
            s.sendall(b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % size + b" " * (size // 2))
            socks.append(s)
        time.sleep(0.5)
        held, most = server.metric("sluice:held_bytes"), rss_kib(server)
        small = server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0]
        for s in socks:
            s.setblocking(False)
            try:
                refused += s.recv(4096).startswith(b"HTTP/1.1 503")
            except BlockingIOError:
                pass
        t.row(f"{n} half-sent bodies of 1 MiB, 8 MiB allowed: told 503", refused, "most", refused >= n // 2)
        t.row("held bytes; resident growth", f"{held / 2**20:.1f} MiB; {(most - before) / 1024:.1f} MiB",
              "<= 9 MiB; <= 32 MiB", held <= 9 << 20 and most - before <= 32 << 10)
        t.row("a small request meanwhile", small, 200, small == 200)
        for s in socks:
            s.close()
        # So do headers and requests sent ahead, in many connections.
        socks = [connect(server) for _ in range(300)]
        for s in socks:
            s.sendall(b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 60000)
        time.sleep(0.5)
        held = server.metric("sluice:held_bytes")
        t.row("300 unfinished headers of 60 KB, 8 MiB allowed: held", f"{held / 2**20:.1f} MiB", "<= 9 MiB",
              held <= 9 << 20)
        for s in socks:
            s.close()
        server.wait_metric("sluice:held_bytes", 0.0)
        # Whole replies grow in memory until they are complete: they count too.
        bodies = [post("/v1/completions", {"prompt": "a", "max_tokens": 400, "n": 16, "logprobs": 20,
                                           "ignore_eos": True}) for _ in range(4)]
        socks = [connect(server, timeout=120) for _ in bodies]
        for s, b in zip(socks, bodies):
            s.sendall(b)
        most = 0
        stop = threading.Event()

        def watch():
            nonlocal most
            while not stop.is_set():
                most = max(most, server.metric("sluice:held_bytes"))
                time.sleep(0.02)
        th = threading.Thread(target=watch)
        th.start()
        statuses = [read_reply(s)[0] for s in socks]
        stop.set()
        th.join()
        for s in socks:
            s.close()
        t.row("whole replies of 12 MB together, 8 MiB allowed", f"{statuses}", "503 for one", 503 in statuses)
        t.row("held bytes at most", f"{most / 2**20:.1f} MiB", "<= 9 MiB", most <= 9 << 20)
        server.wait_metric("sluice:held_bytes", 0.0)


@part
def long_prompts(t, args):
    """A prompt that takes long to prepare does not keep other clients waiting."""
    with Server("--threads", "1", "--http-threads", "1") as server:
        text = "Once upon a time there was a dog. " * (1000 if args.quick else 600000)
        data = memoryview(post("/v1/completions", {"prompt": text, "max_tokens": 1}))
        times, answers = [], []

        def big():
            with connect(server, timeout=300) as s:
                for at in range(0, len(data), 65536):  # short holds of Python's own lock
                    s.sendall(data[at:at + 65536])
                answers.append(read_reply(s)[0])
        th = threading.Thread(target=lambda: [big() for _ in range(3)])
        probe = connect(server)
        th.start()
        while th.is_alive():
            start = time.monotonic()
            probe.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            read_reply(probe)
            times.append((time.monotonic() - start) * 1e3)
            time.sleep(0.002)
        t.row(f"prompts of {len(text) >> 10} KB, too long: answers", f"{answers}", "[400, 400, 400]",
              answers == [400] * 3)
        t.row("probes beside them: slowest", f"{max(times):.1f} ms", "< 100 ms", max(times) < 100)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of the load; the best counts")
    parser.add_argument("--idle", type=int, default=10000, help="idle connections")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    args = parser.parse_args()
    t = Table()
    for name in args.only:
        print(f"---- {name}", flush=True)
        PARTS[name](t, args)
    print(f"overload: {t.n_bad} of the bars were missed")
    return 1 if t.n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
