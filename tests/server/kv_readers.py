# SPDX-License-Identifier: MIT
"""How two routers read KV events: the rules of their decoders, as their public sources have them, and the index
that each keeps. Anything they would refuse or drop is an error here. Rules, not code; sources:

    Dynamo   ai-dynamo/dynamo, lib/kv-router/src/zmq_wire (deserialize.rs, types.rs, filter.rs, extra_keys.rs,
             convert.rs) and protocols.rs: a block is found by its tokens, adapter and salt, below its parent
    AIBrix   vllm-project/aibrix, pkg/cache/kvcache/msgpack_decoder.go: typed fields, hashes as int64"""
import msgpack

I64, U64, U32 = (-2**63, 2**63 - 1), (0, 2**64 - 1), (0, 2**32 - 1)
MEDIA = {"GPU", "CPU", "CPU_PINNED", "DISK", "EXTERNAL"}
MAIN_KINDS = {"full_attention", "mla_attention", "sink_full_attention"}  # those that blocks are indexed by
OTHER_KINDS = {"sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention"}
DYNAMO_SALT = "dynamo-cache-salt:"


def integer(x, limits, what):
    assert type(x) is int and limits[0] <= x <= limits[1], f"{what}: {x!r}"
    return x


def text(x, what):
    assert x is None or type(x) is str, f"{what}: {x!r}"
    return x


def listed(x, what):
    assert type(x) is list, f"{what}: {x!r}"
    return x


class Dynamo:
    """An index of one worker. Its blocks are found block by block from the root."""

    def __init__(self, block_size):
        self.block_size = block_size
        self.blocks = {}  # the engine's hash -> (the parent's or None, what the router finds it by)
        self.kinds = {}  # of groups of layers, learned from what is stored
        self.recurrent = set()  # hashes of the group "mamba": where a prompt of a hybrid can go on

    def event(self, e):
        """(type, fields) of a tagged map or sequence. Unknown members of maps are skipped."""
        if type(e) is dict:
            assert all(type(k) is str for k in e)
            return e["type"], {k: v for k, v in e.items() if k != "type"}
        tag, *rest = e
        names = {"BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                                 "lora_name", "extra_keys"],
                 "BlockRemoved": ["block_hashes", "medium"], "AllBlocksCleared": []}[tag]
        fields = dict(zip(names, rest))
        tail = rest[len(names):]
        # With four or more the places are fixed; fewer are told apart by their types.
        assert len(tail) < 4
        for x in tail:
            if type(x) is int and "group_idx" not in fields:
                fields["group_idx"] = x
            elif type(x) is int and "kv_cache_spec_sliding_window" not in fields:
                fields["kv_cache_spec_sliding_window"] = x
            elif type(x) is str:
                fields["kv_cache_spec_kind"] = x
            else:
                assert x is None, f"{tag} ends in {x!r}"
        return tag, fields

    def take(self, payload):
        ts, events, rank = msgpack.unpackb(payload)
        assert type(ts) is float and (rank is None or integer(rank, (-2**31, 2**31 - 1), "rank") >= 0)
        for e in listed(events, "events"):
            kind, f = self.event(e)
            if kind == "AllBlocksCleared":
                self.blocks, self.recurrent = {}, set()
                continue
            hashes = [integer(h, U64, "a hash") for h in listed(f["block_hashes"], "block_hashes")]
            assert f.get("medium") is None or text(f["medium"], "medium") in MEDIA
            group, spec = f.get("group_idx"), f.get("kv_cache_spec_kind")
            if spec is not None and group is not None:
                self.kinds[group] = spec
            if spec is None and group is not None:
                assert group in self.kinds, f"a group that was never stored: {group}"
                spec = self.kinds[group]
            assert spec is None or spec in MAIN_KINDS | OTHER_KINDS, spec
            if spec == "mamba":
                self.recurrent = self.recurrent - set(hashes) if kind == "BlockRemoved" else self.recurrent | set(hashes)
            if spec is not None and spec not in MAIN_KINDS:
                continue
            if kind == "BlockRemoved":
                for h in hashes:
                    del self.blocks[h]
            else:
                assert kind == "BlockStored"
                self.store(hashes, f)

    def salt(self, f):
        if f.get("cache_salt") is not None:
            return text(f["cache_salt"], "cache_salt")
        first = (f.get("extra_keys") or [None])[0] or []
        tagged = [k for k in first if type(k) is str and k.startswith(DYNAMO_SALT)]
        return tagged[0].removeprefix(DYNAMO_SALT) if tagged else None

    def store(self, hashes, f):
        parent = f.get("parent_block_hash")
        assert parent is None or integer(parent, U64, "parent") in self.blocks
        assert len({parent, *hashes}) == len(hashes) + 1, "a block that is its own parent"
        tokens = [integer(t, U32, "a token") for t in listed(f["token_ids"], "token_ids")]
        size = integer(f["block_size"], U64, "block_size")
        assert size == self.block_size and len(tokens) >= size * len(hashes), "the block would not be indexed"
        assert f.get("lora_id") is None
        window = f.get("kv_cache_spec_sliding_window")
        assert window is None or integer(window, U32, "window") >= 0
        keys = f.get("extra_keys")
        for k in keys or []:
            for item in k or []:
                assert type(item) in (str, bytes, int, float, bool)
                # 64 hexadecimal digits by themselves would be taken for a picture.
                assert type(item) is not str or len(item) != 64 or item == f.get("lora_name")
        assert keys is None or len(keys) == len(hashes)
        for i, h in enumerate(hashes):
            found_by = (text(f.get("lora_name"), "lora_name") or None, self.salt(f), tuple(tokens[i * size:(i + 1) * size]))
            self.blocks[h] = (parent, found_by)
            parent = h

    def overlap(self, tokens, adapter=None, salt=None):
        """Blocks of a request that the router believes to be there."""
        return len(self.found(tokens, adapter, salt))

    def reuse(self, tokens):
        """Of a hybrid: blocks up to the deepest recurrent state that all attention before is there for."""
        return max((n + 1 for n, h in enumerate(self.found(tokens)) if h in self.recurrent), default=0)

    def found(self, tokens, adapter=None, salt=None):
        n, parent, size, out = 0, None, self.block_size, []
        while (n + 1) * size <= len(tokens):
            want = (parent, (adapter, salt, tuple(tokens[n * size:(n + 1) * size])))
            parent = next((h for h, b in self.blocks.items() if b == want), None)
            if parent is None:
                break
            out.append(parent)
            n += 1
        return out


def aibrix_hash(x):
    if type(x) in (bytes, str):
        raw = x.encode() if type(x) is str else x
        return int.from_bytes(raw[:8].rjust(8, b"\0"), "big", signed=True)
    x = integer(x, (I64[0], U64[1]), "a hash")
    return x - 2**64 if x > I64[1] else x


def aibrix(payload):
    """The events of a message: (type, fields), in the order of its decoder."""
    batch = listed(msgpack.unpackb(payload), "a batch")
    assert len(batch) in (2, 3) and type(batch[0]) is float
    if len(batch) == 3:  # nil is refused
        integer(batch[2], I64, "data_parallel_rank")
    places = {"BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium",
                              "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind",
                              "kv_cache_spec_sliding_window", "locality"],
              "BlockRemoved": ["block_hashes", "medium", "group_idx", "locality"], "AllBlocksCleared": []}
    out = []
    for e in listed(batch[1], "events"):
        kind = e["type"] if type(e) is dict else e[0]
        f = e if type(e) is dict else dict(zip(places[kind], e[1:]))
        for name in ("medium", "lora_name", "kv_cache_spec_kind", "locality"):
            text(f.get(name), name)
        for name in ("lora_id", "group_idx", "kv_cache_spec_sliding_window"):
            assert f.get(name) is None or integer(f[name], I64, name) >= 0
        got = {}
        if kind != "AllBlocksCleared":
            got["hashes"] = [aibrix_hash(h) for h in listed(f["block_hashes"], "block_hashes")]
        if kind == "BlockStored":
            size = integer(f["block_size"], I64, "block_size")
            tokens = [integer(t, U32, "a token") for t in listed(f["token_ids"], "token_ids")]
            assert size > 0 and len(tokens) % size == 0
            keys = f.get("extra_keys")
            assert keys is None or all(k is None or type(k) is list for k in listed(keys, "extra_keys"))
            parent = f.get("parent_block_hash")
            got |= {"parent": None if parent is None else aibrix_hash(parent), "medium": f.get("medium"),
                    "blocks": [b"".join(t.to_bytes(4, "big") for t in tokens[i:i + size])
                               for i in range(0, len(tokens), size)]}
            assert len(got["blocks"]) == len(got["hashes"])
        out.append((kind, got))
    return out
