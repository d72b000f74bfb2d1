# SPDX-License-Identifier: MIT
"""TLS: Python's ssl and http.client talk to the server, old versions and hostile clients are turned away, a
certificate is exchanged while serving."""
import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

from collector import Collector
from serverproc import BINARY, Server, listens

if shutil.which("openssl") is None:
    pytest.skip("skip: no openssl program to make a certificate with", allow_module_level=True)


def make_certificate(folder, name):
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    return {name: make_certificate(folder, name) for name in ("one", "two")}


@pytest.fixture(scope="module")
def server(certs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("used")
    cert, key = folder / "cert", folder / "key"
    shutil.copy(certs["one"][0], cert)
    shutil.copy(certs["one"][1], key)
    with Server("--threads", "1", "--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--http-threads", "2",
                "--timeout-header", "1500", "--timeout-keep-alive", "20000") as s:
        s.cert, s.key = cert, key
        s.context = ssl.create_default_context(cafile=str(certs["one"][0]))
        yield s
        assert s.process.poll() is None and s.stop() == 0, s.log()


def connect(server, context=None):
    c = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=20, context=context or server.context)
    c.connect()
    return c


def ask(c, body, stream=False):
    c.request("POST", "/v1/completions", json.dumps({"prompt": "Once upon", "max_tokens": 8, **body, "stream": stream}))
    r = c.getresponse()
    data = r.read()
    assert r.status == 200, data
    return data


def alive(server):
    c = connect(server)
    c.request("GET", "/health")
    assert c.getresponse().status == 200
    c.close()


def test_serves(server):
    c = connect(server)
    assert c.sock.version() == "TLSv1.3"
    first = json.loads(ask(c, {"temperature": 0}))["choices"][0]["text"]
    assert json.loads(ask(c, {"temperature": 0}))["choices"][0]["text"] == first  # the same connection
    streamed = ask(c, {"temperature": 0}, stream=True).decode()
    text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in streamed.split("\n")
                   if line.startswith("data: {"))
    assert text == first and streamed.endswith("data: [DONE]\n\n")
    big = {"prompt": "a", "ignored": "x" * 3_000_000, "temperature": 0}  # many records, prepared by a worker
    assert json.loads(ask(c, big))["choices"]
    c.request("GET", "/metrics")
    assert len(c.getresponse().read()) > 20000
    c.close()


def test_versions(server):
    old = ssl.create_default_context(cafile=str(server.cert))
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    c = connect(server, old)
    assert c.sock.version() == "TLSv1.2" and json.loads(ask(c, {}))["choices"]
    c.close()
    ancient = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ancient.check_hostname, ancient.verify_mode = False, ssl.CERT_NONE
    ancient.set_ciphers("ALL:@SECLEVEL=0")
    ancient.minimum_version = ancient.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        connect(server, ancient)
    h2 = ssl.create_default_context(cafile=str(server.cert))
    h2.set_alpn_protocols(["h2", "http/1.1"])
    c = connect(server, h2)
    assert c.sock.selected_alpn_protocol() == "http/1.1"
    c.close()


def raw(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=10)


def test_hostile_clients(server):
    """Plain HTTP, garbage, half handshakes, silence: cut off in time, while others are served."""
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(32)  # a ClientHello cut short
    held = [raw(server) for _ in range(30)]
    for i, c in enumerate(held):
        c.sendall([b"", b"\x16", hello][i % 3])
    t0 = time.monotonic()
    for data in (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"\x00" * 600, b"\x16\x03\x01\xff\xff" + b"x" * 70000,
                 b"\x80\x2e\x01\x03\x01", b"\x15\x03\x03\x00\x02\x02\x28", b"\x17\x03\x03\x00\x10" + bytes(16)):
        with raw(server) as c:
            try:
                c.sendall(data)
                got = b"".join(iter(lambda: c.recv(4096), b""))
            except OSError:
                got = b""
            assert b"HTTP/1.1 200" not in got
        alive(server)
    for c in held:
        try:
            while c.recv(4096):
                pass
        except ConnectionResetError:
            pass
        c.close()
    assert time.monotonic() - t0 < 10


def test_slow_and_split(server):
    """A handshake byte by byte works; a client that reads slowly gets everything; many at once do too."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = server.context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with raw(server) as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def run(step):
            while True:
                try:
                    done = step()
                except ssl.SSLWantReadError:
                    done = None
                for byte in outgoing.read():
                    c.sendall(bytes([byte]))
                if done is not None:
                    return done
                data = c.recv(100)
                assert data
                incoming.write(data)
        run(lambda: tls.do_handshake() or True)
        run(lambda: tls.write(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
        got = b""
        while part := run(lambda: tls.read(65536)):
            got += part
        head, _, body = got.partition(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        assert head.startswith(b"HTTP/1.1 200") and len(body) == length
    out = []
    threads = [threading.Thread(target=lambda: out.append(ask(connect(server), {"temperature": 0}))) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)
    assert len({json.loads(o)["choices"][0]["text"] for o in out}) == 1 and len(out) == 12


def test_reload(server, certs):
    """SIGHUP takes a new certificate for new connections; a broken one changes nothing."""
    before = connect(server)
    shutil.copy(certs["two"][0], server.cert)
    server.process.send_signal(signal.SIGHUP)  # the key does not fit yet
    wait_log(server, "keeping the old certificate", 1)
    alive(server)
    shutil.copy(certs["two"][1], server.key)
    server.process.send_signal(signal.SIGHUP)
    wait_log(server, "certificate and key reloaded", 1)
    assert json.loads(ask(before, {}))["choices"]  # a connection goes on
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server)
    server.context = ssl.create_default_context(cafile=str(certs["two"][0]))
    alive(server)


def wait_log(server, text, n):
    deadline = time.monotonic() + 10
    while server.log().count(text) < n:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


def test_bad_files(certs, tmp_path):
    (tmp_path / "no").write_text("no certificate")
    one, two = certs["one"], certs["two"]
    for cert, key, message in [(tmp_path / "none", one[1], "--ssl-certfile"), (tmp_path / "no", one[1], "--ssl-certfile"),
                               (one[0], tmp_path / "none", "--ssl-keyfile"), (one[0], two[1], "--ssl-keyfile")]:
        with pytest.raises(RuntimeError) as e:
            Server("--threads", "1", "--ssl-certfile", str(cert), "--ssl-keyfile", str(key))
        assert message in str(e.value) and os.path.basename(str(cert if "cert" in message else key)) in str(e.value)
    with pytest.raises(RuntimeError, match="--ssl-keyfile needs --ssl-certfile"):
        Server("--threads", "1", "--ssl-keyfile", str(one[1]))
    both = tmp_path / "both"
    both.write_text(one[0].read_text() + one[1].read_text())
    with Server("--threads", "1", "--ssl-certfile", str(both)) as s:
        s.context = ssl.create_default_context(cafile=str(both))
        alive(s)


@pytest.mark.parametrize("trusts, shows", [("one", "two"), ("two", "two"), ("one", None)])
def test_a_collector_of_traces(certs, trusts, shows):
    """Both sides show a certificate; a collector that is not trusted, or does not trust, gets no spans."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*map(str, certs["one"]))
    context.load_verify_locations(str(certs["two"][0]))
    context.verify_mode = ssl.CERT_REQUIRED
    env = {"OTEL_EXPORTER_OTLP_CERTIFICATE": str(certs[trusts][0]), "OTEL_BSP_SCHEDULE_DELAY": "10",
           "OTEL_BSP_EXPORT_TIMEOUT": "5000", "no_proxy": "*"}
    if shows:
        env |= {"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": str(certs[shows][0]), "OTEL_EXPORTER_OTLP_CLIENT_KEY": str(certs[shows][1])}
    with Collector(tls=context) as c, Server("--otlp-traces-endpoint", c.traces, env=env) as s:
        assert s.request("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1})[0] == 200
        if (trusts, shows) == ("one", "two"):
            c.wait_requests(1)
        s.wait_metric("sluice:trace_export_attempts_total", 1)
        assert s.stop() == 0
        assert len(c.bodies) == ((trusts, shows) == ("one", "two"))


def test_while_a_model_is_loaded_probes_get_an_answer_over_tls(certs, tmp_path):
    cert, key = certs["one"]
    template, uds = str(tmp_path / "template"), str(tmp_path / "socket")
    os.mkfifo(template)  # nobody writes it: loading does not end
    context = ssl.create_default_context(cafile=str(cert))

    def ask_loading(data):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(10)
            raw.connect(uds)
            with context.wrap_socket(raw, server_hostname="127.0.0.1") as s:
                s.sendall(data)
                reply = b""
                while part := s.recv(65536):
                    reply += part
        return reply
    with subprocess.Popen([BINARY, "serve", "--uds", uds, "--chat-template", template, "--threads", "1", "--ssl-certfile",
                           str(cert), "--ssl-keyfile", str(key)], stderr=subprocess.PIPE) as p:
        deadline = time.monotonic() + 10
        while not listens(uds):
            assert time.monotonic() < deadline and p.poll() is None
            time.sleep(0.01)
        try:
            reply = ask_loading(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 503 ") and b'"message":"Loading model"' in reply
            assert ask_loading(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200 ")
            large = b"POST /v1/completions HTTP/1.1\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200000
            assert ask_loading(large).startswith(b"HTTP/1.1 503 ")
            with socket.socket(socket.AF_UNIX) as plain:  # no TLS: closed
                plain.settimeout(10)
                plain.connect(uds)
                plain.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert b"HTTP" not in plain.recv(4096)
        finally:
            p.kill()
