# SPDX-License-Identifier: MIT
"""Prefill and decode in servers of their own: what two give together is, byte for byte, what one gives alone; and
whatever happens to one of them, requests end and are right.

The calls here are those that routers make: vLLM's (the first server's answer is handed to the second) and SGLang's
(both get the request at once, with the number of a room). test_routers.py has the routers themselves.

  SLUICE_PAIR_REQUESTS=1000 pytest -k many tests/server/test_disaggregation.py    more requests, with kills"""
import json
import os
import random
import socket
import threading
import time

import pytest

from pairs import (ANY_PORT, ARGS, DECODE, DO_DECODE, MODEL, PREFILL, Server, pages_port, pages_read, prefill_leg, said,
                   text_of, well)

@pytest.fixture(scope="module")
def pair():
    with Server(MODEL, *PREFILL, *ANY_PORT) as p, Server(MODEL, *DECODE) as d, Server(MODEL, *ARGS) as one:
        yield p, d, one
        for s in (p, d, one):
            well(s)


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
    assert said(answer) == said(one.json("POST", "/v1/completions", body)[1])


def test_streams_are_the_same(pair):
    p, d, one = pair
    body = {"prompt": text_of("stream"), "max_tokens": 24, "temperature": 0.8, "seed": 2, "logprobs": 2}
    params = prefill_leg(p, "/v1/completions", body)

    def events(server, more):
        with server.stream("/v1/completions", {**body, **more}) as s:
            choices = [c for e in s for c in e["choices"]]  # how many tokens an event has is a matter of time
        return ("".join(c["text"] for c in choices), choices[-1]["finish_reason"],
                [x for c in choices if c["logprobs"] for x in zip(*[c["logprobs"][k] for k in ("tokens",
                 "token_logprobs", "top_logprobs", "text_offset")])])

    assert events(d, {"kv_transfer_params": params}) == events(one, {})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_conversations(pair, path):
    p, d, one = pair
    text = text_of(path)
    body = {"max_output_tokens": 16, "input": text} if path == "/v1/responses" else {
        "max_tokens": 16, "messages": [{"role": "user", "content": text}], "logprobs": True, "top_logprobs": 2}
    body |= {"temperature": 0.7, "seed": 4} if path != "/v1/responses" else {"temperature": 0}
    status, want = one.json("POST", path, body)
    if status == 400 and "chat_template" in json.dumps(want):
        pytest.skip("the bundled model has no chat template")
    before = pages_read(d)
    params = prefill_leg(p, path, body)
    status, got = d.json("POST", path, {**body, "kv_transfer_params": params})
    assert status == 200 and pages_read(d) - before >= 8
    if path == "/v1/responses":
        assert [o["content"] for o in got["output"]] == [o["content"] for o in want["output"]]
    else:
        assert said(got) == said(want)


def test_a_list_of_prompts(pair):
    p, d, one = pair
    body = {"prompt": [text_of("list 1", 200), "a", text_of("list 2", 100)], "max_tokens": 8, "temperature": 0.9,
            "seed": 1, "n": 2}
    params = prefill_leg(p, "/v1/completions", body)
    offers = params["sluice"]["offers"]
    assert offers[1] is None and len(offers[0]) == len(offers[2]) == 32  # "a" has no complete block
    before = pages_read(d)
    answer = d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})[1]
    assert said(answer) == said(one.json("POST", "/v1/completions", body)[1])
    assert (pages_read(d) - before) * 16 == params["remote_num_tokens"]


def test_a_second_turn_brings_what_is_new(pair):
    p, d, one = pair
    body = {"prompt": text_of("turn", 250), "max_tokens": 16, "temperature": 0}
    first = d.json("POST", "/v1/completions", {**body, "kv_transfer_params": prefill_leg(p, "/v1/completions", body)})[1]
    body["prompt"] += first["choices"][0]["text"] + " " + text_of("turn 2", 60)
    before = pages_read(d)
    params = prefill_leg(p, "/v1/completions", body)
    second = d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})[1]
    assert said(second) == said(one.json("POST", "/v1/completions", body)[1])
    assert 0 < (pages_read(d) - before) * 16 < params["remote_num_tokens"] - first["usage"]["prompt_tokens"] + 16


def in_room(p, d, body, room, port=None, delay=0.0):
    """Both legs at once, as SGLang's router sends them; the answers of both."""
    rooms = {"bootstrap_host": "127.0.0.1", "bootstrap_port": port or pages_port(p), "bootstrap_room": room}
    legs = []

    def first():
        time.sleep(delay)
        legs.append(p.json("POST", "/v1/completions", {**body, **rooms}))

    thread = threading.Thread(target=first)
    thread.start()
    answer = d.json("POST", "/v1/completions", {**body, **rooms})
    thread.join()
    return legs[0], answer


@pytest.mark.parametrize("delay", [0.0, 0.3])
def test_rooms(pair, delay):
    p, d, one = pair
    body = {"prompt": text_of(f"room {delay}"), "max_tokens": 24, "temperature": 0.9, "seed": 8, "min_tokens": 4}
    before = pages_read(d)
    (status, leg), (_, answer) = in_room(p, d, body, 2 ** 62 + 17, delay=delay)
    assert status == 200 and leg["usage"]["completion_tokens"] == 1  # more is the other's work
    assert said(answer) == said(one.json("POST", "/v1/completions", body)[1])
    assert pages_read(d) - before == (answer["usage"]["prompt_tokens"] - 1) // 16


@pytest.mark.parametrize("wrong", [{"top_p": 7}, {"prompt": []}, {"stop": 5}, {"logit_bias": {"99999999": 1}}])
def test_a_room_that_is_refused_is_told_of(pair, wrong):
    p, d, one = pair
    body = {"prompt": text_of(json.dumps(wrong)), "max_tokens": 4, "temperature": 0}
    rooms = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pages_port(p), "bootstrap_room": random.getrandbits(62)}
    got = []
    thread = threading.Thread(target=lambda: got.append(d.json("POST", "/v1/completions", {**body, **rooms})))
    thread.start()
    time.sleep(0.2)
    assert p.json("POST", "/v1/completions", {**body, **wrong, **rooms})[0] == 400
    at = time.monotonic()
    thread.join()
    assert time.monotonic() - at < 5  # it does not wait for a room that stays empty
    assert said(got[0][1]) == said(one.json("POST", "/v1/completions", body)[1])


def test_what_is_not_there_is_computed(pair):
    """Offers that are gone, peers that are gone, other prompts: a request's answer is right all the same."""
    p, d, one = pair
    body = {"prompt": text_of("gone"), "max_tokens": 12, "temperature": 0.6, "seed": 6}
    other = {**body, "prompt": text_of("another")}
    params = prefill_leg(p, "/v1/completions", body)
    want = {name: said(one.json("POST", "/v1/completions", b)[1]) for name, b in (("body", body), ("other", other))}
    s = socket.create_server(("127.0.0.1", 0))  # takes connections and says nothing
    silent = s.getsockname()[1]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = unused.getsockname()[1]
        for change in ({"remote_port": nobody}, {"remote_port": d.port}, {"remote_port": silent},
                       {"remote_host": "localhost"}, {"remote_host": "no.such.host.invalid"},
                       {"sluice": {**params["sluice"], "offers": ["0" * 32]}}):
            answer = d.json("POST", "/v1/completions", {**other, "kv_transfer_params": {**params, **change}})[1]
            assert said(answer) == want["other"], change
    s.close()
    answer = d.json("POST", "/v1/completions", {**other, "kv_transfer_params": params})[1]
    assert said(answer) == want["other"]  # another prompt's pages
    assert said(d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})[1]) == want["body"]
    assert d.metric("sluice:kv_transfer_faults_total", kind="refused") > 0


@pytest.mark.parametrize("params", [
    1, "x", [1], {"do_remote_decode": 1}, {"do_remote_decode": True}, {"do_remote_prefill": True},
    {"do_remote_prefill": True, "do_remote_decode": True}, {"do_remote_prefill": True, "remote_host": 1},
    {"remote_port": 0}, {"remote_port": 1 << 16}, {"remote_host": ""}, {"remote_host": "evil\0host"},
    {"remote_host": "10.0.0.1"}, {"remote_host": "::2"}, {"sluice": None}, {"sluice": {"v": 2}},
    {"sluice": {"v": 1, "offers": []}}, {"sluice": {"v": 1, "offers": ["x" * 32]}}, {"sluice": {"v": 1, "offers": [1]}},
    {"remote_host": "h" * 300}])
def test_strange_parameters_are_refused_by_name(pair, params):
    _, d, _ = pair
    good = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": 9,
            "sluice": {"v": 1, "offers": ["0" * 32]}}
    if isinstance(params, dict) and not any(k.startswith("do_") for k in params):
        params = {**good, **params}
    status, answer = d.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "kv_transfer_params": params})
    assert status == 400 and answer["error"]["param"] == "kv_transfer_params", answer


@pytest.mark.parametrize("rooms", [{"bootstrap_room": -1}, {"bootstrap_room": "x"}, {"bootstrap_room": [1, 2]},
                                   {"bootstrap_port": 0}, {"bootstrap_port": "x"}, {"bootstrap_host": 5},
                                   {"bootstrap_host": None}, {"bootstrap_host": "10.0.0.1"}])
def test_strange_rooms_are_refused_by_name(pair, rooms):
    _, d, _ = pair
    good = {"bootstrap_host": "127.0.0.1", "bootstrap_port": 9, "bootstrap_room": 3}
    status, answer = d.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, **good, **rooms})
    assert status == 400 and answer["error"]["param"] == next(iter(rooms)), answer


def test_callers_that_are_not_on_the_list():
    """This machine is not on the list of the first server: nobody here may ask it, by HTTP or for pages."""
    with Server(MODEL, *PREFILL, *ANY_PORT, "--kv-transfer-peers", "10.0.0.0/8,fd00::/8") as p, \
            Server(MODEL, *DECODE, "--kv-transfer-peers", "127.0.0.1") as d, Server(MODEL, *ARGS) as one:
        body = {"prompt": text_of("list"), "max_tokens": 8, "temperature": 0}
        status, answer = p.json("POST", "/v1/completions", {**body, "kv_transfer_params": DO_DECODE})
        assert status == 400 and "--kv-transfer-peers" in answer["error"]["message"]
        status, answer = p.json("POST", "/v1/completions", {**body, "bootstrap_host": "127.0.0.1", "bootstrap_room": 1})
        assert status == 400 and "--kv-transfer-peers" in answer["error"]["message"]
        params = {"do_remote_prefill": True, "remote_host": "127.0.0.1", "remote_port": pages_port(p),
                  "sluice": {"v": 1, "offers": ["1" * 32]}}
        answer = d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})[1]
        assert said(answer) == said(one.json("POST", "/v1/completions", body)[1]) and pages_read(d) == 0
        assert p.metric("sluice:kv_transfer_faults_total", kind="refused") == 1
        for s in (p, d, one):
            well(s)


@pytest.mark.parametrize("flags, named", [
    (["--disaggregation-mode", "x"], "disaggregation-mode"),
    (["--kv-transfer-peers", "*"], "--disaggregation-mode"),
    (["--disaggregation-mode", "decode", "--kv-transfer-peers", "1.2.3.4/40"], "kv-transfer-peers"),
    (["--disaggregation-mode", "prefill", *ANY_PORT, "--kv-transfer-host", "192.0.2.77"], "192.0.2.77"),
    (["--disaggregation-mode", "prefill", *ANY_PORT, "--kv-transfer-host", "0.0.0.0"], "kv-transfer-host"),
    (["--disaggregation-mode", "prefill", "--no-enable-prefix-caching"], "prefix caching"),
    (["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_x"}'], "kv_role"),
    (["--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_connector_extra_config": {"backends": ["GDS"]}}'],
     "backends"),
    (["--kv-transfer-config", '{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"backends": '
      '["UCX"], "cpu_bytes_to_use": 1000000}}'], "backends"),
])
def test_what_cannot_work_is_refused_by_name(flags, named):
    with pytest.raises(RuntimeError, match=named):
        Server(MODEL, *ARGS, *flags)


def test_vllms_way_to_ask_for_it():
    config = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    with Server(MODEL, *ARGS, *ANY_PORT, "--kv-transfer-config", config) as a, \
            Server(MODEL, *ARGS, *ANY_PORT, "--kv-transfer-config", config) as b:
        body = {"prompt": text_of("both"), "max_tokens": 8, "temperature": 0}
        for x, y in ((a, b), (b, a)):
            params = prefill_leg(x, "/v1/completions", body)
            y.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})
        assert pages_read(b) > 0 and pages_read(a) == 0  # that one has computed them
        assert a.json("GET", "/server_info")[1]["disaggregation_mode"] == "both"


def by_nixl(role):
    config = {"kv_connector": "NixlConnector", "kv_role": role, "kv_connector_extra_config": {"backends": ["UCX"]}}
    return [*ARGS, *ANY_PORT, "--kv-transfer-config", json.dumps(config)]


def nixl_ready(server):
    """Once its memory is registered."""
    end = time.monotonic() + 60
    while not server.metric("sluice:kv_transfer_nixl_registered_bytes"):
        assert time.monotonic() < end
        time.sleep(0.05)
    return server


def has_nixl():
    try:
        Server(MODEL, *by_nixl("kv_both")).__exit__(None, None, None)
    except RuntimeError as e:
        assert "NIXL" in str(e) and "libnixl_capi.so" in str(e)  # it says what is missing
        return False
    return True


def test_pages_by_nixl():
    """The library's agents carry the pages; a server without it still gets them, over TCP."""
    if not has_nixl():
        pytest.skip("NIXL's library is not here")
    with Server(MODEL, *by_nixl("kv_producer")) as p, Server(MODEL, *by_nixl("kv_consumer")) as d, \
            Server(MODEL, *DECODE) as tcp, Server(MODEL, *ARGS) as one:
        nixl_ready(p), nixl_ready(d)
        for k, (name, case) in enumerate(CASES.items()):
            body = {"prompt": text_of(f"nixl {name}"), "max_tokens": 24, **case}
            want = said(one.json("POST", "/v1/completions", body)[1])
            if k % 2:
                (_, _), (_, answer) = in_room(p, d, body, 7000 + k)
            else:
                params = prefill_leg(p, "/v1/completions", body)
                answer = d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})[1]
            assert said(answer) == want
        by = d.metric("sluice:kv_transfer_nixl_pages_total")
        assert by > 0 and by <= pages_read(d)
        assert d.metric("sluice:kv_transfer_nixl_kept_pages") == 0
        assert d.metric("sluice:kv_transfer_nixl_faults_total", kind="failed") == 0
        body = {"prompt": text_of("without nixl"), "max_tokens": 8, "temperature": 0}
        params = prefill_leg(p, "/v1/completions", body)
        answer = tcp.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})[1]
        assert said(answer) == said(one.json("POST", "/v1/completions", body)[1]) and pages_read(tcp) > 0
        for s in (p, d, tcp, one):
            well(s)


def test_a_server_that_others_read_by_nixl_is_killed():
    if not has_nixl():
        pytest.skip("NIXL's library is not here")
    r = random.Random(4)
    with Server(MODEL, *ARGS) as one, Server(MODEL, *by_nixl("kv_consumer")) as d:
        nixl_ready(d)
        for k in range(5):
            body = {"prompt": text_of(f"nixl kill {k}"), "max_tokens": 6, "temperature": 0}
            with Server(MODEL, *by_nixl("kv_producer")) as p:
                nixl_ready(p)
                params = prefill_leg(p, "/v1/completions", body)
                got = []
                leg = threading.Thread(target=lambda: got.append(
                    d.json("POST", "/v1/completions", {**body, "kv_transfer_params": params})))
                leg.start()
                time.sleep(r.random() * 0.15)
                p.process.kill()
                at = time.monotonic()
                leg.join(40)
                assert time.monotonic() - at < 20 and got
            assert said(got[0][1]) == said(one.json("POST", "/v1/completions", body)[1])
        well(d)


def test_the_first_server_is_killed(tmp_path):
    """At every point of a transfer: the other one's requests end, and are right."""
    del tmp_path
    r = random.Random(1)
    bodies = [{"prompt": text_of(f"kill {k}"), "max_tokens": 6, "temperature": 0} for k in range(12)]
    with Server(MODEL, *ARGS) as one, Server(MODEL, *DECODE) as d:
        want = [said(one.json("POST", "/v1/completions", b)[1]) for b in bodies]
        for k, body in enumerate(bodies):
            with Server(MODEL, *PREFILL, *ANY_PORT) as p:
                rooms = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pages_port(p), "bootstrap_room": k}
                got = []
                legs = [threading.Thread(target=lambda: got.append(d.json("POST", "/v1/completions", {**body, **rooms})))]

                def first():
                    try:
                        p.json("POST", "/v1/completions", {**body, **rooms})
                    except (OSError, ValueError):
                        pass  # it was killed

                legs.append(threading.Thread(target=first))
                for leg in legs:
                    leg.start()
                time.sleep(r.random() * 0.25)
                p.process.kill()
                at = time.monotonic()
                for leg in legs:
                    leg.join(30)
                assert time.monotonic() - at < 15 and got and said(got[0][1]) == want[k]
        well(d)


def test_the_second_server_is_killed():
    """The first one's pages are given up in time, and it serves on."""
    with Server(MODEL, *PREFILL, *ANY_PORT) as p:
        for k in range(6):
            with Server(MODEL, *DECODE) as d:
                body = {"prompt": text_of(f"lost {k}"), "max_tokens": 6, "temperature": 0}
                params = prefill_leg(p, "/v1/completions", body)
                leg = threading.Thread(target=lambda: hang_up(d, {**body, "kv_transfer_params": params}))
                leg.start()
                time.sleep(0.01 * k)
                d.process.kill()
                leg.join(30)
        assert p.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200
        well(p)


def hang_up(server, body):
    try:
        server.json("POST", "/v1/completions", body)
    except (OSError, ValueError):
        pass  # it was killed


def test_clients_that_leave(pair):
    """In every stage of a transfer."""
    p, d, one = pair
    r = random.Random(2)
    for k in range(20):
        body = {"prompt": text_of(f"leave {k}"), "max_tokens": 40, "temperature": 0}
        rooms = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pages_port(p), "bootstrap_room": 5000 + k}
        for server in r.sample([p, d], 2):
            s = socket.create_connection(("127.0.0.1", server.port))
            data = json.dumps({**body, **rooms}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
            time.sleep(r.random() * 0.05)
            s.close()
    body = {"prompt": text_of("after"), "max_tokens": 8, "temperature": 0}
    (_, _), (_, answer) = in_room(p, d, body, 99)
    assert said(answer) == said(one.json("POST", "/v1/completions", body)[1])


class Slot:
    """A server that is killed now and then and starts again, at the same place for those who ask."""

    def __init__(self, flags):
        self.flags, self.lock, self.kills = flags, threading.Lock(), 0
        self.server = Server(MODEL, *flags)

    def kill(self):
        with self.lock:
            self.server.process.kill()
            self.kills += 1
            self.server.__exit__(None, None, None)
            self.server = Server(MODEL, *self.flags)

    def now(self):
        with self.lock:
            return self.server, self.kills


def one_request(first, second, k, body):
    """(answer, was a server killed meanwhile?)"""
    (p, n_p), (d, n_d) = first.now(), second.now()
    answer = None
    try:
        if k % 2:
            answer = d.json("POST", "/v1/completions",
                            {**body, "kv_transfer_params": prefill_leg(p, "/v1/completions", body)})
        else:
            rooms = {"bootstrap_host": "127.0.0.1", "bootstrap_port": pages_port(p), "bootstrap_room": 10000 + k}
            leg = threading.Thread(target=lambda: hang_up(p, {**body, **rooms}))
            leg.start()
            answer = d.json("POST", "/v1/completions", {**body, **rooms})
            leg.join()
    except (OSError, ValueError, IndexError):
        pass
    return answer, (first.kills, second.kills) != (n_p, n_d)


def test_many_requests_while_servers_are_killed():
    """An answer is right, or there is none because a server of its two was killed."""
    n = int(os.environ.get("SLUICE_PAIR_REQUESTS", "80"))
    r = random.Random(5)
    first, second = Slot([*PREFILL, *ANY_PORT]), Slot(DECODE)
    wrong, unanswered, read = [], [], 0
    with Server(MODEL, *ARGS) as one:
        def ask(k):
            body = {"prompt": text_of(f"many {k % 40}", 80 + k % 150), "max_tokens": 6, "temperature": 0.8, "seed": k}
            answer, killed = one_request(first, second, k, body)
            if answer is not None and answer[0] == 200:
                if said(answer[1]) != said(one.json("POST", "/v1/completions", body)[1]):
                    wrong.append(k)
            elif not killed:
                unanswered.append((k, answer))

        for at in range(0, n, 20):
            threads = [threading.Thread(target=ask, args=(k,)) for k in range(at, min(at + 20, n))]
            for t in threads:
                t.start()
            time.sleep(r.random() * 0.6)
            r.choice([first, second]).kill()
            for t in threads:
                t.join(60)
                assert not t.is_alive()
            read += pages_read(second.server)
    assert not wrong and not unanswered
    assert read > 0
    for slot in (first, second):
        well(slot.server)
        slot.server.__exit__(None, None, None)
