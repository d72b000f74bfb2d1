# SPDX-License-Identifier: MIT
"""A stand-in for an OpenTelemetry collector on loopback. What comes must be OTLP's JSON mapping of
ExportTraceServiceRequest, read with the protobuf classes that opentelemetry-proto generates."""
import base64
import http.server
import json
import threading
import time

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = ("traceId", "spanId", "parentSpanId")


def from_otlp(x, key=""):
    """Protobuf's own mapping, where bytes are base64. OTLP's differs: ids are hex, enums are numbers, and
    names are never those of the .proto file."""
    if isinstance(x, dict):
        for k in x:
            assert "_" not in k, f"{k} is no lowerCamelCase"
        return {k: from_otlp(v, k) for k, v in x.items()}
    if isinstance(x, list):
        return [from_otlp(v) for v in x]
    if key in IDS:
        raw = bytes.fromhex(x)
        assert len(raw) == (16 if key == "traceId" else 8) and any(raw), (key, x)
        return base64.b64encode(raw).decode()
    if key == "kind":
        assert isinstance(x, int) and not isinstance(x, bool)
    if key in ("startTimeUnixNano", "endTimeUnixNano", "intValue"):
        assert isinstance(x, str), f"{key}: 64 bits are a string"
    return x


def decode(body: bytes) -> ExportTraceServiceRequest:
    return json_format.ParseDict(from_otlp(json.loads(body)), ExportTraceServiceRequest())


def value(v):
    kind = v.WhichOneof("value")
    return [value(x) for x in v.array_value.values] if kind == "array_value" else getattr(v, kind)


def attributes(x) -> dict:
    pairs = [(a.key, value(a.value)) for a in x.attributes]
    assert len(dict(pairs)) == len(pairs), "an attribute comes twice"
    return dict(pairs)


class Collector:
    """answers: for each request in turn (status, headers, body), or a number of seconds to say nothing; then
    all are taken. tls: an ssl.SSLContext."""

    def __init__(self, *answers, port=0, tls=None):
        self.answers, self.bodies, self.headers, self.times = list(answers), [], [], []
        self.decoded = []  # bodies, as far as somebody has looked
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.times.append(time.monotonic())
                outer.headers.append((self.path, dict(self.headers.items())))
                answer = outer.answers.pop(0) if outer.answers else (200, {}, b"{}")
                if not isinstance(answer, tuple):
                    outer.bodies.append(body)
                    outer.release.wait(answer)
                    self.close_connection = True
                    return
                status, headers, reply = answer
                self.send_response(status)
                for k, v in {"Content-Type": "application/json", "Content-Length": str(len(reply)), **headers}.items():
                    self.send_header(k, v)
                self.end_headers()
                self.wfile.write(reply)
                outer.bodies.append(body)

            def log_message(self, *args):
                pass

        self.release = threading.Event()
        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.httpd.daemon_threads = True
        if tls is not None:
            self.httpd.socket = tls.wrap_socket(self.httpd.socket, server_side=True)
        self.port = self.httpd.server_address[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}"
        self.traces = self.url + "/v1/traces"
        threading.Thread(target=self.httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.release.set()
        self.httpd.shutdown()
        self.httpd.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def wait(self, done, seconds=10.0):
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, f"{len(self.bodies)} requests came"
            time.sleep(0.01)

    def resources(self):
        while len(self.decoded) < len(self.bodies):
            self.decoded.append(decode(self.bodies[len(self.decoded)]))
        return [r for d in self.decoded for r in d.resource_spans]

    def spans(self):
        return [s for r in self.resources() for scope in r.scope_spans for s in scope.spans]

    def requests(self):
        return [s for s in self.spans() if s.kind == s.SPAN_KIND_SERVER]

    def wait_requests(self, n, seconds=10.0):
        self.wait(lambda: len(self.requests()) >= n, seconds)
        return self.requests()
