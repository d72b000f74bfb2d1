# SPDX-License-Identifier: MIT
"""Copies of KV pages outside the pool: a server that starts again with the same folder finds its prefixes, with
the same bits; a small pool finds in host memory what it evicted; flags are vLLM's and are refused by name."""
import json
import os
import shutil
import time

import pytest

from serverproc import ROOT, Server

MODEL = os.path.join(ROOT, "assets", "storyteller")
ARGS = ["--threads", "1", "--max-num-seqs", "4"]


def body(k):
    words = " ".join(f"{('red', 'blue', 'old')[(i * i + k) % 3]} {('fox', 'boat')[(i + k) % 2]}" for i in range(40))
    return {"prompt": f"Story {k}: {words}. Once upon a time", "max_tokens": 12, "temperature": 0, "logprobs": 2}


def ask(server, k):
    status, reply = server.json("POST", "/v1/completions", body(k))
    assert status == 200, reply
    choice = reply["choices"][0]
    return (choice["text"], choice["logprobs"]["token_logprobs"],
            reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["usage"]["prompt_tokens"])


def well(server):
    assert server.metric("sluice:invariant_violations_total") == 0
    assert server.metric("sluice:step_mallocs_total") == 0
    assert server.stop() == 0


def test_a_small_pool_finds_what_it_evicted():
    with Server(MODEL, *ARGS, "--kv-cache-memory-bytes", "12M", "--max-model-len", "256",
                "--kv-offloading-size", "0.5", "--kv-offloading-backend", "native") as s:
        first = [ask(s, k) for k in range(40)]
        assert s.metric("sluice:kv_evicted_pages_total", cause="prompt") > 0
        again = [ask(s, k) for k in range(40)]
        for a, b in zip(first, again):
            assert a[:2] == b[:2]
            assert b[2] == (b[3] - 1) // 16 * 16
        assert s.metric("vllm:external_prefix_cache_hits_total") > 0
        assert s.metric("sluice:kv_tier_hits_total", tier="host") > 0
        well(s)


def test_a_server_that_starts_again_finds_its_prefixes(tmp_path):
    args = [*ARGS, "--kv-cache-dir", str(tmp_path / "kv"), "--kv-cache-disk-size", "0.5"]
    with Server(MODEL, *args) as s:
        first = [ask(s, k) for k in range(4)]
        well(s)
    moved = tmp_path / "elsewhere"
    shutil.copytree(MODEL, moved)  # named by what it is, not by where it lies
    with Server(str(moved), *args) as s:
        again = [ask(s, k) for k in range(4)]
        assert s.metric("sluice:kv_tier_hits_total", tier="disk") > 0
        well(s)
    for a, b in zip(first, again):
        assert a[:2] == b[:2]
        assert a[2] < b[2] == (b[3] - 1) // 16 * 16


@pytest.mark.parametrize("dtype", ["turboquant_4bit_nc", "turboquant_3bit_nc", "int4_per_token_head", "nvfp4"])
def test_pages_of_other_formats_are_not_found(tmp_path, dtype):
    """Pages of codes come back with the same bits; where one layer has another format, none is found."""
    args = [*ARGS, "--kv-cache-dir", str(tmp_path / "kv"), "--kv-cache-disk-size", "0.5", "--kv-cache-dtype"]
    ways = {"4": [dtype, "--kv-cache-dtype-skip-layers", "4"],
            "again": [dtype, "--kv-cache-dtype-skip-layers", "4"],
            "5": [dtype, "--kv-cache-dtype-skip-layers", "5"]}
    got = {}
    for name, way in ways.items():
        with Server(MODEL, *args, *way) as s:
            got[name] = [ask(s, k) for k in range(2)]
            assert (s.metric("sluice:kv_tier_hits_total", tier="disk") > 0) == (name == "again"), name
            well(s)
    for a, b, c in zip(got["4"], got["again"], got["5"]):
        assert a[:2] == b[:2] and b[2] == (b[3] - 1) // 16 * 16
        assert c[2] == a[2] < b[2]


def train_a_little(model):
    path = model / "model.safetensors"
    data = bytearray(path.read_bytes())
    n = 8 + int.from_bytes(data[:8], "little")
    for name, t in json.loads(data[8:n]).items():
        if name != "__metadata__" and name.endswith("v_proj.weight"):
            a, b = (n + o for o in t["data_offsets"])
            data[a:b] = bytes(x ^ (i % 2 == 0) for i, x in enumerate(data[a:b]))
    path.write_bytes(data)


def test_other_weights_find_nothing(tmp_path):
    args = [*ARGS, "--kv-cache-dir", str(tmp_path / "kv")]
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    with Server(str(model), *args) as s:
        ask(s, 1)
        well(s)
    train_a_little(model)
    with Server(str(model), *args) as s:
        assert ask(s, 1)[2] == 0
        well(s)


def test_coded_pages_are_the_same(tmp_path):
    """Pages of the bundled model shrink on their way to the disk, and come back bit for bit."""
    args = [*ARGS, "--kv-cache-dir", str(tmp_path), "--kv-cache-coding", "always"]
    with Server(MODEL, *args) as s:
        first = [ask(s, k) for k in range(4)]
        well(s)
    with Server(MODEL, *args) as s:
        again = [ask(s, k) for k in range(4)]
        for a, b in zip(first, again):
            assert a[:2] == b[:2] and b[2] == (b[3] - 1) // 16 * 16
        assert s.metric("sluice:kv_tier_hits_total", tier="disk") > 0
        assert s.metric("sluice:kv_tier_corrupt_total", tier="disk") == 0
        more, deadline = ask(s, 9), time.monotonic() + 10
        while s.metric("sluice:kv_tier_stored_total", tier="disk") < more[3] // 16:
            assert time.monotonic() < deadline
        n = s.metric("sluice:kv_tier_coded_total", tier="disk")
        assert n == s.metric("sluice:kv_tier_stored_total", tier="disk")
        assert s.metric("sluice:kv_tier_coded_bytes_total", tier="disk") * 1.3 < \
            s.metric("sluice:kv_tier_stored_bytes_total", tier="disk")
        well(s)
    with Server(MODEL, *ARGS, "--kv-cache-dir", str(tmp_path), "--kv-cache-coding", "none") as s:
        assert [ask(s, k)[:2] for k in range(4)] == [a[:2] for a in first]
        assert s.metric("sluice:kv_tier_hits_total", tier="disk") == 0  # it reads plain pages only
        well(s)


def test_a_folder_is_one_servers(tmp_path):
    folder = tmp_path / "kv"
    with Server(MODEL, *ARGS, "--kv-cache-dir", str(folder)) as s:
        with pytest.raises(RuntimeError, match=str(folder)):
            Server(MODEL, *ARGS, "--kv-cache-dir", str(folder))
        well(s)
    (folder / "lock").unlink()
    (folder / "lock").mkdir()
    with pytest.raises(RuntimeError, match=str(folder)):
        Server(MODEL, *ARGS, "--kv-cache-dir", str(folder))


def test_damaged_files_are_computed_again(tmp_path):
    args = [*ARGS, "--kv-cache-dir", str(tmp_path)]
    with Server(MODEL, *args) as s:
        first = ask(s, 1)
        well(s)
    for path in tmp_path.glob("*.slab"):
        data = bytearray(path.read_bytes())
        for i in range(len(data) // 2, len(data), 509):
            data[i] ^= 0x55
        for i in range(8192, len(data), 40000):
            data[i] ^= 0x55
        path.write_bytes(data)
    with Server(MODEL, *args) as s:
        again = ask(s, 1)
        assert again[:2] == first[:2] and again[2] < again[3] // 16 * 16
        assert s.metric("sluice:kv_tier_corrupt_total", tier="disk") > 0
        well(s)


def test_a_model_that_sleeps_keeps_what_was_stored():
    with Server(MODEL, *ARGS, "--enable-sleep-mode", "--allow-weight-updates", "--kv-offloading-size", "0.5") as s:
        first = ask(s, 1)
        assert s.request("POST", "/sleep?level=2")[0] == 200
        s.wait_metric("sluice:kv_pages_cached", 0.0)
        assert s.request("POST", "/wake_up")[0] == 200
        again = ask(s, 1)
        assert again[:2] == first[:2] and again[2] == (again[3] - 1) // 16 * 16
        status, _, data = s.request("POST", "/update_weights_from_disk", {})
        assert status == 400 and b"weights that are loaded" in data
        well(s)


@pytest.mark.parametrize("flags, named", [
    (["--kv-offloading-size", "1", "--kv-offloading-backend", "lmcache"], "kv-offloading-backend"),
    (["--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}'], "kv_connector"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_port": 1}'], "kv_port"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector"}'], "cpu_bytes_to_use"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"block": 1}}'],
     "block"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": '
                              '{"cpu_bytes_to_use": 1e8, "eviction_policy": "fifo"}}'], "eviction_policy"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": '
                              '{"cpu_bytes_to_use": 1e8, "store_threshold": -1}}'], "store_threshold"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": '
                              '{"cpu_bytes_to_use": 1e8, "max_tracker_size": 0}}'], "max_tracker_size"),
    (["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_producer", '
                              '"kv_connector_extra_config": {"store_threshold": 2}}'], "store_threshold"),
    (["--kv-transfer-config", "[]"], "kv-transfer-config"),
    (["--kv-cache-disk-size", "1"], "--kv-cache-dir"),
    (["--kv-cache-coding", "always"], "--kv-cache-dir"),
    (["--kv-cache-dir", "/tmp", "--kv-cache-coding", "zip"], "kv-cache-coding"),
    (["--kv-offloading-size", "1", "--no-enable-prefix-caching"], "prefix caching"),
    (["--kv-offloading-size", "1", "--tensor-parallel-size", "2", "--nnodes", "2"], "ranks"),
    (["--kv-offloading-size", "0.0001"], "kv-offloading-size"),
    (["--kv-offloading-size", "100000"], "kv-offloading-size"),
])
def test_what_cannot_work_is_refused_by_name(flags, named):
    with pytest.raises(RuntimeError, match=named):
        Server(MODEL, *ARGS, *flags)


def test_what_few_ask_for_is_not_stored():
    """vLLM's store_threshold: pages are stored when the second request has them; which go is chosen by ARC."""
    config = {"kv_connector": "OffloadingConnector",
              "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 26, "eviction_policy": "arc", "store_threshold": 2}}
    with Server(MODEL, *ARGS, "--kv-transfer-config", json.dumps(config)) as s:
        first = ask(s, 1)
        s.wait_metric("vllm:num_requests_running", 0.0)
        assert s.metric("sluice:kv_tier_stored_total", tier="host") == 0
        again = ask(s, 1)
        assert again[:2] == first[:2]
        s.wait_metric("sluice:kv_tier_stored_total", (first[3] - 1) // 16, tier="host")
        well(s)


def test_vllms_configuration_is_understood():
    config = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
              "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 28, "eviction_policy": "lru"}}
    with Server(MODEL, *ARGS, "--kv-transfer-config", json.dumps(config)) as s:
        ask(s, 1)
        s.wait_metric("vllm:num_requests_running", 0.0)
        assert 0 < s.metric("sluice:kv_tier_capacity_bytes", tier="host") <= 1 << 28
        assert s.metric("sluice:kv_tier_stored_total", tier="host") > 0
        well(s)
