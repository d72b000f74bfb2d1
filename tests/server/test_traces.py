# SPDX-License-Identifier: MIT
"""OpenTelemetry traces: what a collector gets, whose trace a request joins, and that a collector which is
slow, gone or out of order costs no request anything."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time

import pytest

from collector import Collector, attributes
from serverproc import BINARY, Server

PROMPT = "Once upon a time there was a secret"
BODY = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, "temperature": 0.7, "top_p": 0.9, "seed": 7}
FAST = {"OTEL_BSP_SCHEDULE_DELAY": "20", "OTEL_BSP_EXPORT_TIMEOUT": "2000", "no_proxy": "*"}
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")


@pytest.fixture(scope="module", autouse=True)
def clean_environment():
    kept = {k: os.environ.pop(k) for k in list(os.environ) if k.startswith("OTEL_")}
    yield
    os.environ.update(kept)


@pytest.fixture(scope="module")
def collector():
    with Collector() as c:
        yield c


@pytest.fixture(scope="module")
def server(collector):
    with Server("--otlp-traces-endpoint", collector.traces, "--served-model-name", "tale", env=FAST) as s:
        yield s
        assert s.process.poll() is None, s.log()


@pytest.fixture
def spans(collector):
    """Of the requests after this."""
    before = len(collector.requests())

    def get(n=1):
        return collector.wait_requests(before + n)[before:]
    return get


def start(collector, **env):
    return Server("--otlp-traces-endpoint", collector.traces, env=FAST | env)


def ask(server, headers=None, **more):
    status, reply = server.json("POST", "/v1/completions", BODY | more, headers)
    assert status == 200, reply
    return reply


def children(collector, span):
    return {s.name: s for s in collector.spans() if s.parent_span_id == span.span_id}


def test_a_request_and_its_parts(server, collector, spans):
    before = time.time_ns()
    reply = ask(server)
    span, = spans()
    after = time.time_ns()
    a = attributes(span)
    assert span.name == "text_completion tale" and span.kind == span.SPAN_KIND_SERVER
    assert not span.parent_span_id and span.status.code == span.status.STATUS_CODE_UNSET
    assert before <= span.start_time_unix_nano < span.end_time_unix_nano <= after
    want = {"gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "sluice", "gen_ai.request.model": "tale",
            "gen_ai.response.model": "tale", "gen_ai.response.id": reply["id"], "gen_ai.request.id": reply["id"],
            "gen_ai.request.max_tokens": 4, "gen_ai.request.temperature": 0.7, "gen_ai.request.top_p": 0.9,
            "gen_ai.request.seed": 7, "gen_ai.request.n": 1, "gen_ai.request.stream": False,
            "gen_ai.response.finish_reasons": ["length"], "http.route": "/v1/completions",
            "http.response.status_code": 200, "http.request.method": "POST",
            "gen_ai.usage.input_tokens": reply["usage"]["prompt_tokens"], "gen_ai.usage.output_tokens": 4,
            "gen_ai.usage.prompt_tokens": reply["usage"]["prompt_tokens"], "gen_ai.usage.completion_tokens": 4}
    assert {k: a.get(k) for k in want} == want
    assert "error.type" not in a
    parts = children(collector, span)
    assert list(parts) == ["queue", "prefill", "decode"]
    at = span.start_time_unix_nano
    for part in parts.values():
        assert part.trace_id == span.trace_id and part.kind == part.SPAN_KIND_INTERNAL
        assert at <= part.start_time_unix_nano <= part.end_time_unix_nano <= span.end_time_unix_nano
        at = part.end_time_unix_nano
    assert len({s.span_id for s in parts.values()} | {span.span_id}) == 4
    seconds = {n: (p.end_time_unix_nano - p.start_time_unix_nano) * 1e-9 for n, p in parts.items()}
    latency = {k.removeprefix("gen_ai.latency."): v for k, v in a.items() if k.startswith("gen_ai.latency.")}
    assert latency["time_in_queue"] == pytest.approx(seconds["queue"], abs=1e-6)
    assert latency["time_in_model_prefill"] == pytest.approx(seconds["prefill"], abs=1e-6)
    assert latency["time_in_model_decode"] == pytest.approx(seconds["decode"], abs=1e-6)
    assert latency["time_to_first_token"] == pytest.approx(seconds["queue"] + seconds["prefill"], abs=1e-6)
    assert latency["time_in_model_inference"] == pytest.approx(seconds["prefill"] + seconds["decode"], abs=1e-6)
    assert latency["time_in_model_inference"] <= latency["e2e"] <= (after - before) * 1e-9
    server.wait_metric("sluice:trace_queued_spans", 0)
    assert server.metric("sluice:trace_spans_total", result="exported") >= 4


def test_what_is_said_with_them(server, collector, spans):
    ask(server)
    spans()
    path, headers = collector.headers[-1]
    assert path == "/v1/traces" and headers["Content-Type"] == "application/json"
    assert re.match(r"OTel-OTLP-Exporter-C/\d+\.\d+\.\d+ ", headers["User-Agent"])
    r = collector.resources()[-1]
    a = attributes(r.resource)
    assert a["service.name"] == "sluice" and a["telemetry.sdk.name"] == "sluice"
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", a["service.instance.id"])
    assert r.scope_spans[0].scope.name == "sluice"
    assert b"secret" not in b"".join(collector.bodies)  # of prompt and answer there is nothing


def test_streams_choices_and_many_prompts(server, collector, spans):
    with server.stream("/v1/completions", BODY | {"n": 2}) as s:
        list(s)
    span, = spans()
    a = attributes(span)
    assert a["gen_ai.request.stream"] is True and a["gen_ai.request.n"] == 2
    assert a["gen_ai.response.finish_reasons"] == ["length"] * 2 and a["gen_ai.usage.output_tokens"] == 8
    ask(server, prompt=["one day", "two days", "three"])
    span = spans(2)[1]
    parts = [s for s in collector.spans() if s.parent_span_id == span.span_id]
    assert sorted((attributes(p)["sluice.prompt.index"], p.name) for p in parts) == sorted(
        (i, n) for i in range(3) for n in ("queue", "prefill", "decode"))


def test_other_endpoints(server, spans):
    message = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    for path in ("/v1/chat/completions", "/v1/messages"):
        server.request("POST", path, message)
    server.request("POST", "/v1/responses", {"input": "hello", "max_output_tokens": 16})
    names = [s.name.split()[0] for s in spans(3)]
    assert names == ["chat"] * 3
    for method, path in (("GET", "/health"), ("GET", "/metrics"), ("POST", "/tokenize"), ("GET", "/v1/completions"),
                         ("POST", "/nowhere")):
        server.request(method, path, b"{}" if method == "POST" else None)
    ask(server)
    assert [s.name for s in spans(4)[3:]] == ["text_completion tale"]


# ---- whose trace it is


def test_a_caller_s_trace_is_joined(server, collector, spans):
    state = "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"
    ask(server, {"traceparent": PARENT, "tracestate": state})
    span, = spans()
    assert span.trace_id == TRACE and span.parent_span_id == bytes.fromhex("b7ad6b7169203331")
    assert span.trace_state == state and span.flags & 0x301 == 0x301  # sampled; the parent is remote
    for part in children(collector, span).values():
        assert part.trace_id == TRACE and part.trace_state == state and part.flags & 0x300 == 0x100


def test_the_caller_decides_what_is_sampled(server, spans):
    ask(server, {"traceparent": PARENT[:-2] + "00"})
    ask(server, {"traceparent": PARENT[:-2] + "03"})
    span, = spans()
    assert span.flags & 3 == 3


MALFORMED_PARENTS = [
    "", "00", PARENT[:-1], PARENT + "0", PARENT + "-00", "ff" + PARENT[2:], "0g" + PARENT[2:], PARENT.upper(),
    "00-" + "0" * 32 + PARENT[35:], PARENT[:36] + "0" * 16 + "-01", PARENT.replace("-", "_"), PARENT[:-2] + "zz",
    "01" + PARENT[2:] + "x", PARENT + ", " + PARENT, "00-" + "é" * 16 + PARENT[35:], "-" * 55, "x" * 4000, PARENT[:20] + " " + PARENT[21:]]


def test_a_malformed_parent_is_none(server, spans):
    for bad in MALFORMED_PARENTS:
        ask(server, {"traceparent": bad.encode("latin-1", "replace"), "tracestate": "a=b"}, max_tokens=1)
    got = spans(len(MALFORMED_PARENTS))
    wrong = [bad for bad, s in zip(MALFORMED_PARENTS, got) if s.trace_id == TRACE or s.parent_span_id or s.trace_state]
    assert not wrong and len({s.trace_id for s in got}) == len(got)


def test_later_versions_and_blanks(server, spans):
    for i, good in enumerate(["cc" + PARENT[2:], "cc" + PARENT[2:] + "-what-comes", f"  {PARENT}\t"], 1):
        ask(server, {"traceparent": good}, max_tokens=1)
        assert spans(i)[-1].trace_id == TRACE


def test_two_parents_are_none_and_states_are_joined(server, spans):
    def send(*lines):
        body = json.dumps(BODY | {"max_tokens": 1}).encode()
        head = "".join(f"{line}\r\n" for line in lines)
        got = server.raw(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{head}"
                         f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert got.startswith(b"HTTP/1.1 200"), got
    send(f"Traceparent: {PARENT}", f"traceparent: {PARENT}", "tracestate: a=b")
    send(f"TraceParent: {PARENT}", "tracestate: a=1 , ,b=2", "Tracestate: c=3")
    two, joined = spans(2)
    assert two.trace_id != TRACE and not two.trace_state
    assert joined.trace_id == TRACE and joined.trace_state == "a=1,b=2,c=3"


MALFORMED_STATES = ["a", "a=", "=b", "A=b", "a=b,a=c", "a=b=c", ",".join(f"k{i}=v" for i in range(33)),
                    "a" * 257 + "=v", "a=" + "v" * 257, "a b=c", "a=é"]


def test_a_malformed_state_does_not_harm_the_parent(server, spans):
    for bad in MALFORMED_STATES:
        ask(server, {"traceparent": PARENT, "tracestate": bad.encode("latin-1")}, max_tokens=1)
    got = spans(len(MALFORMED_STATES))
    assert not [bad for bad, s in zip(MALFORMED_STATES, got) if s.trace_id != TRACE or s.trace_state]


# ---- what goes wrong is seen


def test_refusals_and_clients_that_leave(server, spans):
    status, _ = server.json("POST", "/v1/completions", {"prompt": "x", "max_tokens": -5}, {"traceparent": PARENT})
    assert status == 400
    assert server.json("POST", "/v1/completions", {"prompt": "x", "model": "nobody"})[0] == 404
    refused, unknown = spans(2)
    a = attributes(refused)
    assert refused.trace_id == TRACE and refused.name == "text_completion" and "gen_ai.request.model" not in a
    assert a["http.response.status_code"] == 400 and a["error.type"] == "400"
    assert refused.status.code == refused.status.STATUS_CODE_UNSET  # the client's error, not the server's
    assert attributes(unknown)["error.type"] == "404"
    with server.stream("/v1/completions", BODY | {"max_tokens": 400}) as s:
        s.first()
    left = spans(3)[2]
    a = attributes(left)
    assert a["http.response.status_code"] == 499 and a["error.type"] == "client_disconnected"
    assert "gen_ai.response.finish_reasons" not in a and 0 < a["gen_ai.usage.output_tokens"] < 400


def test_a_server_that_cannot_is_an_error(collector):
    """Asleep, it answers 503: an error of the server's."""
    n = len(collector.requests())
    with Server("--otlp-traces-endpoint", collector.traces, "--enable-sleep-mode", env=FAST) as s:
        assert s.request("POST", "/sleep")[0] == 200
        assert s.request("POST", "/v1/completions", BODY)[0] == 503
        span = collector.wait_requests(n + 1)[n]
        assert span.status.code == span.status.STATUS_CODE_ERROR and span.status.message
        assert attributes(span)["http.response.status_code"] == 503


# ---- collectors


def result(server, name):
    return server.metric("sluice:trace_spans_total", result=name)


def test_what_is_retried_and_what_is_not():
    late = (503, {"Retry-After": "1"}, b"{}")
    partial = (200, {}, json.dumps({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "no"}}).encode())
    with Collector(late, (400, {}, b"bad"), partial, (200, {}, b"\xff" * 70000)) as c, start(c) as s:
        ask(s)
        c.wait(lambda: len(c.bodies) == 2)  # 503, then, a second later, 400
        assert c.bodies[0] == c.bodies[1] and 0.95 < c.times[1] - c.times[0] < 5
        ask(s)
        c.wait(lambda: len(c.bodies) == 3)
        ask(s)
        c.wait(lambda: len(c.bodies) == 4)
        s.wait_metric("sluice:trace_export_attempts_total", 4)
        c.wait(lambda: [result(s, r) for r in ("exported", "rejected", "dropped", "failed")] == [1 + 4, 3, 0, 4])
        assert s.log().count("spans are lost") == 1 and "accepts spans again" in s.log()


def test_the_other_codes_that_are_retried():
    with contextlib.ExitStack() as stack:
        collectors = [stack.enter_context(Collector((status, {}, b""))) for status in (429, 502, 504)]
        for c in collectors:
            ask(stack.enter_context(start(c)))
        for c in collectors:
            c.wait(lambda: len(c.bodies) == 2)
            assert 0.45 < c.times[1] - c.times[0] < 6  # about a second, at random


def timed(servers, n=8):
    """The median seconds of a request to each, in turns: what else the machine does slows all alike."""
    times = [[] for _ in servers]
    for _ in range(n):
        for server, to in zip(servers, times):
            t0 = time.monotonic()
            ask(server)
            to.append(time.monotonic() - t0)
    return [sorted(t)[n // 2] for t in times]


def test_a_collector_that_hangs_costs_no_request_anything(server):
    with Collector(*[60] * 100) as c:
        with start(c, OTEL_BSP_MAX_QUEUE_SIZE="8", OTEL_BSP_EXPORT_TIMEOUT="300") as s:
            ask(s)
            c.wait(lambda: len(c.bodies) == 1)  # now it hangs
            usual, beside_it = timed([server, s])
            assert beside_it < 2 * usual + 0.1  # who waited for an export would wait for 0.3 s
            assert result(s, "dropped") == 8 * 4 - 8 and s.metric("sluice:trace_queued_spans") == 8
            t0 = time.monotonic()
            assert s.stop() == 0
            assert time.monotonic() - t0 < 2 and "could not be sent" in s.log()


def test_a_collector_that_is_down_and_comes_back():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    with Server("--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces", env=FAST) as s:
        ask(s)
        s.wait_metric("sluice:trace_export_attempts_total", 1)
        with Collector(port=port) as c:
            c.wait_requests(1)


def test_what_is_queued_is_sent_at_the_end():
    with Collector() as c, start(c, OTEL_BSP_SCHEDULE_DELAY="60000") as s:
        for _ in range(3):
            ask(s)
        assert not c.bodies
        assert s.stop(signal.SIGTERM) == 0
        assert len(c.requests()) == 3 and len(c.bodies) == 1


def test_batches():
    with Collector() as c, start(c, OTEL_BSP_SCHEDULE_DELAY="60000", OTEL_BSP_MAX_EXPORT_BATCH_SIZE="8") as s:
        for _ in range(4):
            ask(s)
        c.wait_requests(4)
        assert [len([x for x in c.bodies]), s.metric("sluice:trace_queued_spans")] == [2, 0]


# ---- the environment


def test_variables():
    with Collector() as c:
        env = FAST | {"OTEL_EXPORTER_OTLP_ENDPOINT": c.url + "/", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b, Other = c ,",
                      "OTEL_SERVICE_NAME": "tales", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                      "OTEL_RESOURCE_ATTRIBUTES": "service.name=no,deployment.environment.name=t%C3%A9st,a=\"1\"",
                      "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
        with Server(env=env) as s:
            # The decision is the trace's: its last 8 bytes, whatever the caller decided.
            for low, flags in (("7fffffffffffffff", "00"), ("8000000000000001", "01"), ("0000000000000001", "01")):
                ask(s, {"traceparent": f"00-ffffffffffffffff{low}-b7ad6b7169203331-{flags}"}, max_tokens=1)
            got = c.wait_requests(2)
            assert [g.trace_id.hex()[16:] for g in got] == ["7fffffffffffffff", "0000000000000001"]
        path, headers = c.headers[0]
        assert path == "/v1/traces" and headers["x-key"] == "a b" and headers["Other"] == "c"
        a = attributes(c.resources()[0].resource)
        assert (a["service.name"], a["deployment.environment.name"], a["a"]) == ("tales", "tést", '"1"')


@pytest.mark.parametrize("env", [
    {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_TRACES_SAMPLER": "always_off"},
    {"OTEL_TRACES_SAMPLER": "parentbased_always_off"},
    {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0"}])
def test_off(env):
    with Collector() as c, start(c, **env) as s:
        ask(s)
        if "parentbased" in env.get("OTEL_TRACES_SAMPLER", ""):
            ask(s, {"traceparent": PARENT})
        assert s.stop() == 0
        assert [r.trace_id for r in c.requests()] == ([TRACE] if "parentbased" in env.get("OTEL_TRACES_SAMPLER", "") else [])


def test_propagation_can_be_off():
    with Collector() as c, start(c, OTEL_PROPAGATORS="b3") as s:
        ask(s, {"traceparent": PARENT[:-2] + "00"})
        span, = c.wait_requests(1)
        assert span.trace_id != TRACE and not span.parent_span_id


def test_values_that_cannot_be_read_are_told_of_and_defaults_hold():
    bad = {"OTEL_EXPORTER_OTLP_HEADERS": "secret", "OTEL_RESOURCE_ATTRIBUTES": "a=%zz", "OTEL_TRACES_SAMPLER": "what",
           "OTEL_BSP_MAX_QUEUE_SIZE": "-1", "OTEL_EXPORTER_OTLP_TIMEOUT": "soon"}
    with Collector() as c, start(c, **bad) as s:
        ask(s)
        assert attributes(c.resources()[0].resource)["service.name"] == "sluice" if c.wait_requests(1) else False
        log = s.log()
        assert all(name in log for name in bad) and "secret" not in log


@pytest.mark.parametrize("args,env,says", [
    (["--otlp-traces-endpoint", "grpc://host:4317"], {}, "--otlp-traces-endpoint: 'grpc://host:4317' is no URL of OTLP over HTTP"),
    (["--otlp-traces-endpoint", "localhost:4318"], {}, "is no URL"),
    (["--otlp-traces-endpoint", "http:///v1/traces"], {}, "has no host"),
    (["--otlp-traces-endpoint", "http://a b/"], {}, "a space or control character"),
    ([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, "OTEL_EXPORTER_OTLP_ENDPOINT: 'collector/v1/traces' is no URL"),
    (["--otlp-traces-endpoint", "http://h/"], {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc'")])
def test_what_would_go_nowhere_is_an_error(args, env, says):
    r = subprocess.run([BINARY, "serve", *args], env=os.environ | env, capture_output=True, text=True, timeout=20)
    assert r.returncode in (1, 2) and says in r.stderr and "listening" not in r.stderr, r.stderr


def test_without_the_library_it_says_what_to_install(tmp_path):
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
        (tmp_path / name).write_bytes(b"")
    r = subprocess.run([BINARY, "serve", "--port", "0", "--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces"],
                       env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}, capture_output=True, text=True, timeout=20)
    assert r.returncode in (1, 2) and "traces: libcurl.so.4 is not here" in r.stderr, r.stderr
