# SPDX-License-Identifier: MIT
"""KV events as a router reads them: pyzmq and msgpack decode what the server publishes, a model of the
router's index follows it, and slow, broken and silent peers harm nobody."""
import json
import os
import re
import socket
import subprocess
import time

import pytest

zmq = pytest.importorskip("zmq", reason="skip: pyzmq is not installed")
msgpack = pytest.importorskip("msgpack", reason="skip: msgpack is not installed")

from kv_readers import Dynamo, aibrix
from serverproc import BINARY, Server

TOPIC = "kv@10.0.0.1:8000@storyteller"
END = b"\xff" * 8
BLOCK = 16


def start(pages=64, extra=(), n_descriptors=None, model=None, **config):
    cfg = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:*", "topic": TOPIC,
           "replay_endpoint": "tcp://127.0.0.1:*", **config}
    s = Server(*([model] if model else []), "--threads", "1", "--block-size", str(BLOCK), "--max-model-len", "256", "--max-num-seqs", "4",
               "--kv-events-config", json.dumps(cfg), *extra,
               *([] if model else ["--kv-cache-memory-bytes", str(pages * 5120 * BLOCK)]),
               n_descriptors=n_descriptors)
    m = re.search(r"KV events: \w+ \w+ (\S+?)(?:, replay on (\S+))?$", s.log(), re.M)
    s.pub, s.replay = m.group(1), m.group(2)
    return s


@pytest.fixture(scope="module")
def ctx():
    c = zmq.Context()
    yield c
    c.destroy(0)


def subscribe(ctx, endpoint, topic=b"kv@"):
    s = ctx.socket(zmq.SUB)
    s.setsockopt(zmq.SUBSCRIBE, topic)
    s.setsockopt(zmq.RCVTIMEO, 10000)
    s.connect(endpoint)
    return s


def decode(payload):
    """The events of a batch as dictionaries, whichever way they are written."""
    ts, events, rank = msgpack.unpackb(payload, strict_map_key=False)
    assert abs(ts - time.time()) < 600 and rank == 0
    names = {"BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                             "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
                             "kv_cache_spec_sliding_window"],
             "BlockRemoved": ["block_hashes", "medium", "group_idx"], "AllBlocksCleared": []}
    out = []
    for e in events:
        if isinstance(e, list):
            e = {"type": e[0], **dict(zip(names[e[0]], e[1:], strict=True))}
        salted = ["cache_salt"] if "cache_salt" in e else []
        assert list(e) == ["type", *names[e["type"]], *salted]
        out.append(e)
    return out


class Index:
    """What a router keeps: blocks by hash, each with its parent and tokens."""
    def __init__(self):
        self.blocks = {}
        self.seq = -1

    def take(self, seq, payload):
        seq = int.from_bytes(seq, "big")
        assert seq == self.seq + 1 or seq == 0 or self.seq == -1, (seq, self.seq)
        self.seq = seq
        for e in decode(payload):
            if e["type"] == "AllBlocksCleared":
                self.blocks = {}
            elif e["type"] == "BlockRemoved":
                for h in e["block_hashes"]:
                    del self.blocks[h]
            else:
                parent = e["parent_block_hash"]
                assert e["medium"] == "GPU" and e["block_size"] == BLOCK and e["group_idx"] == 0
                assert len(e["token_ids"]) == BLOCK * len(e["block_hashes"]) == BLOCK * len(e["extra_keys"])
                for i, h in enumerate(e["block_hashes"]):
                    assert h not in self.blocks and 0 < h < 2**63 and (parent is None or parent in self.blocks)
                    self.blocks[h] = (parent, tuple(e["token_ids"][i * BLOCK:(i + 1) * BLOCK]), e["lora_name"],
                                      e["extra_keys"][i])
                    parent = h

    def depth(self, tokens):
        """Blocks of these tokens that are known, from the beginning."""
        n, parent = 0, None
        while (n + 1) * BLOCK <= len(tokens):
            want = (parent, tuple(tokens[n * BLOCK:(n + 1) * BLOCK]))
            parent = next((h for h, b in self.blocks.items() if b[:2] == want and b[3] is None), None)
            if parent is None:
                break
            n += 1
        return n


def follow(sub, index, until, seconds=10):
    deadline = time.monotonic() + seconds
    while not until(index):
        assert time.monotonic() < deadline, (len(index.blocks), index.seq)
        topic, seq, payload = sub.recv_multipart()
        assert topic == TOPIC.encode()
        index.take(seq, payload)


def replay(ctx, endpoint, start_seq=0):
    s = ctx.socket(zmq.DEALER)
    s.setsockopt(zmq.RCVTIMEO, 10000)
    s.connect(endpoint)
    s.send_multipart([b"", start_seq.to_bytes(8, "big")])
    got = []
    while True:
        empty, topic, seq, payload = s.recv_multipart()
        assert empty == b""
        if seq == END:
            assert topic == b"" and payload == b""
            break
        assert topic == TOPIC.encode()
        got.append((seq, payload))
    s.close(0)
    return got


def ask(server, tokens, **more):
    status, reply = server.json("POST", "/v1/completions", {"prompt": tokens, "max_tokens": 1, "ignore_eos": True, **more})
    assert status == 200, reply
    return reply


def prompt(seed, n=64):
    return [3 + (seed * 31 + i * (seed + 1)) % 200 for i in range(n)]


@pytest.mark.parametrize("kind", ["map", "array"])
def test_index_follows(ctx, kind):
    """Through stores, evictions and a late replay the router knows exactly what the cache has."""
    with start(pages=40, format=kind) as s:
        with subscribe(ctx, s.pub) as sub:
            s.wait_metric("sluice:kv_event_subscribers", 1.0)
            index = Index()
            ask(s, prompt(1))
            follow(sub, index, lambda i: i.depth(prompt(1)) == 4)
            ask(s, prompt(1)[:32] + prompt(2)[32:])  # shares two blocks
            follow(sub, index, lambda i: i.depth(prompt(1)[:32] + prompt(2)[32:]) == 4)
            assert len(index.blocks) == 6
            for k in range(3, 18):  # more than there is room for
                ask(s, prompt(k))
            follow(sub, index, lambda i: i.depth(prompt(17)) == 4)
            assert s.metric("vllm:kv_cache_usage_perc") == 0
            n_cached = s.metric("sluice:kv_pages_cached")
            follow(sub, index, lambda i: len(i.blocks) == n_cached)
            assert index.depth(prompt(1)) < 4
            late = Index()
            for seq, payload in replay(ctx, s.replay):
                late.take(seq, payload)
            assert late.blocks == index.blocks and late.seq == index.seq
            tail = replay(ctx, s.replay, index.seq)
            assert [int.from_bytes(q, "big") for q, _ in tail] == [index.seq]
            assert replay(ctx, s.replay, index.seq + 1) == []
            # what the index says is cached is cached
            for k in range(1, 18):
                known = index.depth(prompt(k))
                u = ask(s, prompt(k), cache_hit_threshold=known / 4)
                assert u["choices"][0]["finish_reason"] == "length", (k, known)
                if known < 4:
                    break
        assert s.stop() == 0


def test_salt_and_caching(ctx):
    with start() as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        index = Index()
        ask(s, prompt(1), cache_salt="pepper")
        follow(sub, index, lambda i: len(i.blocks) == 4)
        first = [b for b in index.blocks.values() if b[0] is None]
        assert len(first) == 1 and first[0][3] == ["pepper"]
        assert [b[3] for b in index.blocks.values() if b[0] is not None] == [None] * 3
        ask(s, prompt(1))
        follow(sub, index, lambda i: len(i.blocks) == 8)  # not the same blocks
        assert index.depth(prompt(1)) == 4


def listen(sub, until, take):
    deadline = time.monotonic() + 10
    while not until():
        assert time.monotonic() < deadline
        _, _, payload = sub.recv_multipart()
        take(payload)


@pytest.mark.parametrize("kind", ["map", "array"])
def test_dynamo_reads_it(ctx, kind):
    """With evictions, and prompts that only a salt tells apart: what it believes is what the cache has."""
    with start(pages=40, format=kind) as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        d = Dynamo(BLOCK)
        ask(s, prompt(1), cache_salt="pepper")
        listen(sub, lambda: len(d.blocks) == 4, d.take)
        ask(s, prompt(1) + prompt(2), cache_salt="pepper")  # later pages of a salted prompt, in an event of their own
        listen(sub, lambda: len(d.blocks) == 8, d.take)
        if kind == "map":  # it reads no salt from arrays but those that it made itself
            assert d.overlap(prompt(1) + prompt(2)) == 0  # no request without the salt finds any of it
            assert d.overlap(prompt(1) + prompt(2), salt="pepper") == 8
        for k in range(3, 18):
            ask(s, prompt(k))
        listen(sub, lambda: d.overlap(prompt(17)) == 4, d.take)
        assert len(d.blocks) <= 40 and d.overlap(prompt(1), salt="pepper") < 4


@pytest.mark.parametrize("kind", ["map", "array"])
def test_aibrix_reads_it(ctx, kind):
    with start(pages=40, format=kind) as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        known = {}

        def take(payload):
            for event, f in aibrix(payload):
                if event == "AllBlocksCleared":
                    known.clear()
                for i, h in enumerate(f.get("hashes", [])):
                    if event == "BlockRemoved":
                        del known[h]
                    else:
                        assert f["medium"] == "GPU" and (f["parent"] is None or f["parent"] in known)
                        known[h] = f["blocks"][i]
        for k in range(1, 16):
            ask(s, prompt(k), **({"cache_salt": "s"} if k % 2 else {}))
        want = {b"".join(t.to_bytes(4, "big") for t in prompt(15)[i:i + BLOCK]) for i in range(0, 64, BLOCK)}
        listen(sub, lambda: want <= set(known.values()), take)
        n_cached = s.metric("sluice:kv_pages_cached")
        listen(sub, lambda: len(known) == n_cached, take)
        for seq, payload in replay(ctx, s.replay):
            aibrix(payload)


class Groups:
    """Blocks with a page, by group of layers; (kind, window) of each group."""
    def __init__(self):
        self.blocks, self.kinds, self.n_removed = {}, {}, {}

    def take(self, payload):
        for e in decode(payload):
            if e["type"] == "AllBlocksCleared":
                self.blocks = {}
                continue
            known = self.blocks.setdefault(e["group_idx"], set())
            for h in e["block_hashes"]:
                assert (h in known) == (e["type"] == "BlockRemoved")
                (known.remove if e["type"] == "BlockRemoved" else known.add)(h)
            if e["type"] == "BlockRemoved":
                self.n_removed[e["group_idx"]] = self.n_removed.get(e["group_idx"], 0) + len(e["block_hashes"])
            else:
                kind = (e["kv_cache_spec_kind"], e["kv_cache_spec_sliding_window"])
                assert self.kinds.setdefault(e["group_idx"], kind) == kind

    def count(self, group):
        return len(self.blocks.get(group, ()))


def tiny(tmp_path, family, **edits):
    mkmodel = os.path.join(os.path.dirname(BINARY), "tools", "mkmodel")
    subprocess.run([mkmodel, "--quiet", "--family", family, "--vocab", "bytes", "--out", str(tmp_path / "m")], check=True)
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps(config | edits))
    return str(tmp_path / "m")


@pytest.mark.parametrize("kind", ["map", "array"])
def test_recurrent_states(ctx, tmp_path, kind):
    """Blocks with a state are a group of their own: who reads it knows where a prompt can go on, and that is so."""
    flags = ("--max-state-slots", "5", "--kv-cache-memory-bytes", "1M", "--max-num-seqs", "1")
    with start(model=tiny(tmp_path, "qwen35"), extra=flags, format=kind) as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        d, groups = Dynamo(BLOCK), Groups()

        def take(payload):
            d.take(payload)
            groups.take(payload)
        for k in range(6):  # more prompts than slots for states
            ask(s, prompt(k, 70))
        listen(sub, lambda: d.overlap(prompt(5, 70)) == 4 and d.reuse(prompt(5, 70)) == 4, take)
        listen(sub, lambda: groups.n_removed.get(1, 0) > 0 and groups.count(1) <= 5, take)
        assert groups.kinds == {0: ("full_attention", None), 1: ("mamba", None)}
        assert 0 < groups.count(1) < groups.count(0) and groups.blocks[1] <= groups.blocks[0]
        assert groups.n_removed.get(0, 0) == 0  # the keys stayed
        tree = s.json("GET", "/api/state")[1]["pages"]["tree"]
        assert tree["pages"] == groups.count(0) and tree["states"] == groups.count(1)
        assert sum(n[4] for n in tree["nodes"] if n[0] < 0) == tree["states"]
        n_hits = 0
        for k in (5, 4, 3, 2, 1, 0):
            reuse = d.reuse(prompt(k, 70)) * BLOCK
            found = ask(s, prompt(k, 70))["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert found == reuse, (k, found, reuse)
            if found < 64:
                break  # what it computed changed the cache
            n_hits += 1
        assert 2 <= n_hits < 6 and d.overlap(prompt(0, 70)) == 4  # the keys alone say it is there
        late = Groups()
        for _, payload in replay(ctx, s.replay):
            late.take(payload)
        assert late.kinds == groups.kinds and late.count(0) >= 20


def test_windows_that_are_gone(ctx, tmp_path):
    """Pages of windowed layers leave while their blocks stay: events of that group say so."""
    flags = ("--kv-cache-memory-bytes", "400K", "--max-num-seqs", "1", "--max-num-batched-tokens", "32")
    with start(model=tiny(tmp_path, "gemma3"), extra=flags) as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        pages = s.json("GET", "/api/state")[1]["pages"]["groups"]
        groups = Groups()
        for k in range(8):
            ask(s, prompt(k, 100))
        listen(sub, lambda: groups.n_removed.get(1, 0) > 0, groups.take)
        deadline = time.monotonic() + 10
        while groups.count(0) != s.metric("sluice:kv_pages_cached"):
            assert time.monotonic() < deadline
            groups.take(sub.recv_multipart()[2])
        assert groups.kinds == {0: ("full_attention", None), 1: ("sliding_window", pages[1]["window"])}
        assert groups.blocks[1] < groups.blocks[0]
        now = s.json("GET", "/api/state")[1]["pages"]["groups"]
        listen(sub, lambda: groups.count(1) == now[1]["cached"], groups.take)


class Tiers(Groups):
    """Hashes by medium; a tier's pages come without tokens, as vLLM has it."""
    def __init__(self):
        self.media = {"GPU": set(), "CPU": set(), "DISK": set()}
        self.n_removed = dict.fromkeys(self.media, 0)

    def take(self, payload):
        for e in decode(payload):
            if e["type"] == "AllBlocksCleared":
                self.media = {m: set() for m in self.media}
                continue
            known, hashes = self.media[e["medium"]], set(e["block_hashes"])
            assert len(hashes) == len(e["block_hashes"]) and e["group_idx"] == 0
            if e["type"] == "BlockRemoved":
                assert hashes <= known
                known -= hashes
                self.n_removed[e["medium"]] += len(hashes)
                continue
            assert not hashes & known
            known |= hashes
            if e["medium"] != "GPU":
                assert e["token_ids"] == [] and e["parent_block_hash"] is None and e["extra_keys"] is None
                assert e["block_size"] == BLOCK and e["kv_cache_spec_kind"] == "full_attention"


def settled(server, tiers):
    return all(len(tiers.media[m]) == server.metric("sluice:kv_tier_pages", tier=t)
               for m, t in [("CPU", "host"), ("DISK", "disk")]) and \
        len(tiers.media["GPU"]) == server.metric("sluice:kv_pages_cached")


def test_tiers(ctx, tmp_path):
    """Which pages are in the pool, in host memory and on disk, through evictions from each, a replay and a restart."""
    flags = ("--kv-offloading-size", "0.012", "--kv-cache-dir", str(tmp_path), "--kv-cache-disk-size", "0.016")
    with start(pages=40, extra=flags) as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        tiers = Tiers()
        ask(s, prompt(1))
        listen(sub, lambda: all(len(known) == 4 for known in tiers.media.values()), tiers.take)
        assert tiers.media["GPU"] == tiers.media["CPU"] == tiers.media["DISK"]  # the names are the same
        for k in range(2, 80):
            ask(s, prompt(k))
        s.wait_metric("vllm:num_requests_running", 0.0)
        late, deadline = Tiers(), time.monotonic() + 10
        while not settled(s, late):
            assert time.monotonic() < deadline
            late = Tiers()
            for _, payload in replay(ctx, s.replay):
                late.take(payload)
        assert all(n > 0 for n in late.n_removed.values()), late.n_removed
        assert len(late.media["GPU"]) < len(late.media["CPU"]) < len(late.media["DISK"])
        listen(sub, lambda: tiers.media == late.media, tiers.take)
        on_disk = tiers.media["DISK"]
        assert s.stop() == 0
    with start(pages=40, extra=flags) as s:  # what it finds on the disk is told
        late, deadline = Tiers(), time.monotonic() + 10
        while not late.media["DISK"]:
            assert time.monotonic() < deadline
            late = Tiers()
            for _, payload in replay(ctx, s.replay):
                late.take(payload)
        assert late.media == {"GPU": set(), "CPU": set(), "DISK": on_disk}
        assert s.stop() == 0


def test_tiers_are_left_out_of_arrays(ctx):
    """Their readers take the tokens of every page; "tiers" says otherwise."""
    for config, media in [({"format": "array"}, {"GPU"}), ({"tiers": False}, {"GPU"}),
                          ({"format": "array", "tiers": True}, {"GPU", "CPU"})]:
        with start(extra=("--kv-offloading-size", "0.1"), **config) as s, subscribe(ctx, s.pub) as sub:
            s.wait_metric("sluice:kv_event_subscribers", 1.0)
            tiers = Tiers()
            ask(s, prompt(1))
            listen(sub, lambda: all(len(tiers.media[m]) == 4 for m in media), tiers.take)
            s.wait_metric("sluice:kv_tier_pages", 4.0, tier="host")
            time.sleep(0.2)
            while sub.poll(0):
                tiers.take(sub.recv_multipart()[2])
            assert {m for m in tiers.media if tiers.media[m]} == media
            assert s.stop() == 0


def test_renumbering(ctx):
    """When the first batch would be forgotten the numbers begin anew, so that a replay from 0 is whole."""
    with start(pages=40, buffer_steps=8) as s, subscribe(ctx, s.pub) as sub:
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        index = Index()
        for k in range(20):
            ask(s, prompt(k))
        follow(sub, index, lambda i: i.depth(prompt(19)) == 4)
        follow(sub, index, lambda i: len(i.blocks) == s.metric("sluice:kv_pages_cached"))
        assert s.metric("sluice:kv_event_renumberings_total") >= 2
        got = replay(ctx, s.replay)
        assert got[0][0] == bytes(8) and len(got) <= 8
        late = Index()
        for seq, payload in got:
            late.take(seq, payload)
        assert late.blocks == index.blocks


def test_topics_and_peers(ctx, tmp_path):
    """Who subscribes to something else gets nothing; peers come and go; ipc works."""
    with start(endpoint=f"ipc://{tmp_path}/zmq") as s:
        other, right = subscribe(ctx, s.pub, b"kv@other"), subscribe(ctx, s.pub, b"")
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        ask(s, prompt(1))
        follow(right, Index(), lambda i: len(i.blocks) == 4)
        with pytest.raises(zmq.Again):
            other.recv_multipart(zmq.NOBLOCK)
        other.setsockopt(zmq.SUBSCRIBE, b"kv@10.")
        s.wait_metric("sluice:kv_event_subscribers", 2.0)
        right.setsockopt(zmq.UNSUBSCRIBE, b"")
        s.wait_metric("sluice:kv_event_subscribers", 1.0)
        ask(s, prompt(2))
        follow(other, Index(), lambda i: len(i.blocks) == 4)
        other.close(0)
        right.close(0)
        s.wait_metric("sluice:kv_event_subscribers", 0.0)


def test_connects_out(ctx):
    """Without * the server connects, and keeps trying until somebody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with start(endpoint=f"tcp://localhost:{port}") as s:
        ask(s, prompt(1))
        sub = ctx.socket(zmq.SUB)
        sub.setsockopt(zmq.SUBSCRIBE, b"")
        sub.setsockopt(zmq.RCVTIMEO, 10000)
        sub.bind(f"tcp://127.0.0.1:{port}")
        deadline = time.monotonic() + 20
        while s.metric("sluice:kv_event_subscribers") != 1:
            assert time.monotonic() < deadline
            sub.poll(50)  # a bound socket subscribes from within its owner's calls
        ask(s, prompt(2))
        follow(sub, Index(), lambda i: i.depth(prompt(2)) == 4)
        sub.close(0)


def address(endpoint):
    return ("127.0.0.1", int(endpoint.rsplit(":", 1)[1]))


def test_no_descriptor_for_a_peer(ctx):
    """Peers that find none wait, and so does the thread that would accept them."""
    with start(n_descriptors=150) as s:
        peers = [socket.create_connection(address(s.pub)) for _ in range(90)]
        clients = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(60)]
        time.sleep(0.3)
        peers.append(socket.create_connection(address(s.pub)))
        assert s.is_idle(0.2)
        for c in peers + clients:
            c.close()
        with subscribe(ctx, s.pub):
            s.wait_metric("sluice:kv_event_subscribers", 1.0)


def test_hostile_peers(ctx):
    """HTTP, other protocols, wrong socket types, huge frames, half greetings, floods, and one that never reads."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
    ready = lambda t: b"\x04" + bytes([22 + len(t)]) + b"\x05READY\x0bSocket-Type\x00\x00\x00" + bytes([len(t)]) + t
    assert len(greeting) == 64
    hostile = [b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x01", greeting[:12] + b"PLAIN" + bytes(47),
               greeting + b"\x02" + b"\xff" * 8, greeting + b"\x00\x01x", greeting + ready(b"PUB"),
               greeting + ready(b"REQ"), greeting + b"\x04\x00", greeting + b"\xf0\x00"]
    with start() as s:
        silent = [socket.create_connection(address(e)) for e in (s.pub, s.replay) for _ in range(5)]
        for data in hostile:
            with socket.create_connection(address(s.pub), timeout=5) as c:
                c.sendall(data)
                got = b""
                try:
                    while part := c.recv(4096):
                        got += part
                except ConnectionResetError:
                    pass
                assert len(got) <= 64 + 27  # at most its greeting and its name, then the end
        with socket.create_connection(address(s.replay), timeout=5) as c:
            c.sendall(greeting + ready(b"DEALER"))
            bad = [b"\x00\x08" + bytes(8), b"\x01\x00\x00\x07" + bytes(7), b"\x01\x01x\x00\x08" + bytes(8),
                   b"\x01\x00\x01\x00\x00\x08" + bytes(8)]
            c.sendall(b"".join(bad) * 50 + b"\x01\x00\x00\x08" + bytes(8))
            got = b""
            while END not in got:
                got += c.recv(4096)
        with subscribe(ctx, s.pub) as sub, socket.create_connection(address(s.pub)) as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.sendall(greeting + ready(b"SUB") + b"\x00\x01\x01" * 3)
            s.wait_metric("sluice:kv_event_subscribers", 2.0)
            index = Index()
            for k in range(8):
                ask(s, prompt(k))
                follow(sub, index, lambda i, k=k: i.depth(prompt(k)) == 4)
        for c in silent:
            c.close()
        assert ask(s, prompt(1))
        assert s.process.poll() is None and s.stop() == 0


@pytest.mark.parametrize("text, message", [
    ('{"enable_kv_cache_events": true, "endpoint": "udp://x"}', "neither tcp:// nor ipc://"),
    ('{"enable_kv_cache_events": true, "endpoint": "tcp://*"}', "is not tcp://HOST:PORT"),
    ('{"enable_kv_cache_events": true, "endpoint": "tcp://*:no"}', "port must be a number"),
    ('{"enable_kv_cache_events": true, "endpoint": "tcp://x*:1"}', "not an IP address"),
    ('{"enable": true}', "unknown member 'enable'"), ('no', "--kv-events-config")])
def test_refused(text, message):
    with pytest.raises(RuntimeError) as e:
        Server("--threads", "1", "--kv-events-config", text)
    assert message in str(e.value)
