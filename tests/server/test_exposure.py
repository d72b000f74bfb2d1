# SPDX-License-Identifier: MIT
"""What the server tells to whom: where it listens, what its log holds, what an error says, and what templates and
their arguments, which requests bring along, can do to it."""
import json
import os
import re
import socket

import pytest

from serverproc import Server

KEY, WRONG_KEY = "key-a71c55", "key-b82d66"
PROMPT = "A sentence that nobody else would write, 4711"
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1", "--trust-request-chat-template") as s:
        yield s
        assert s.process.poll() is None, s.log()


def listening(pid):
    """Addresses of all sockets on which a process listens, as /proc writes them."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            m = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            continue
        if m:
            inodes.add(m.group(1))
    found = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        with open(f"/proc/{pid}/net/{name}", encoding="ascii") as f:
            for line in list(f)[1:]:
                w = line.split()
                if w[9] in inodes and (name.startswith("udp") or w[3] == "0A"):
                    found.append((name, w[1]))
    return found


def test_listens_on_loopback_only(server):
    port = f"{server.port:04X}"
    loopback = socket.inet_aton("127.0.0.1")[::-1].hex().upper()
    assert listening(server.process.pid) == [("tcp", f"{loopback}:{port}")]


def test_the_log_holds_no_secrets():
    with Server("--threads", "1", "--access-log", "--api-key", KEY) as s:
        for key, want in ((KEY, 200), (WRONG_KEY, 401)):
            body = {"prompt": PROMPT, "max_tokens": 3, "user": PROMPT, "cache_salt": "salt-c93e77"}
            headers = {"Authorization": f"Bearer {key}"}
            status, _, data = s.request("POST", "/v1/completions", body, headers)
            assert status == want
            text = json.loads(data)["choices"][0]["text"] if want == 200 else ""
        s.request("GET", f"/v1/models?key={KEY}", None, {"Authorization": f"Bearer {KEY}"})
        s.raw(f"POST /v1/completions HTTP/1.1\r\nAuthorization: Bearer {KEY}\r\nbroken\r\n\r\n".encode())
        log = s.log()
        assert log.count("/v1/completions") >= 2  # it was written
        assert KEY not in log and WRONG_KEY not in log and "salt-c93e77" not in log
        assert PROMPT not in log and (len(text) < 6 or text not in log)


BAD_BODIES = [b"", b"{", b"[]", b"\xff", b'{"prompt":1e400}', b'{"prompt":{}}', b'{"prompt":"a","n":-1}',
              b'{"prompt":"a","temperature":1e300}', b'{"prompt":[99999999]}', b'{"model":"/etc/passwd","prompt":"a"}',
              b'{"prompt":"a","logit_bias":{"x":1}}', b'{"prompt":"a","stop":[1]}', b'{"prompt":"a","cache_salt":""}',
              b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///x"}}]}]}',
              b'{"messages":[{"role":"user","content":"a"}],"chat_template":"{{ raise_exception(1) }}"}',
              b'{"messages":[{"role":"user","content":"a"}],"chat_template":"{% for %}"}']


def test_errors_tell_nothing_of_the_inside(server):
    """No address of memory, no path or name of the machine; what is quoted is the client's own."""
    home, me = os.path.expanduser("~"), os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/models/x", "/nothing",
                 "/v1/completions/render", "/v1/chat/completions/render", "/apply-template"):
        for body in BAD_BODIES:
            status, _, data = server.request("POST", path, body)
            if status == 200:
                continue
            message = json.loads(data)["error"]["message"]
            assert not re.search(r"0x[0-9a-fA-F]{5,}|\b[0-9a-f]{12,16}\b", message), message
            assert home not in message and me not in message and ".c:" not in message, message
            for m in re.findall(r"/\w+(?:/\w+)+", message):
                assert m.encode() in body or m == path, message


def test_a_template_that_fails_ends_its_request(server):
    cases = ["{{ raise_exception('not this role') }}", "{{ messages[7].content }}", "{{ 1 // 0 }}",
             "{% for m in messages %}{{ m.content.nothing() }}{% endfor %}", "{% if %}", "{{ 'a' * 10 ** 12 }}",
             "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"]
    for t in cases:
        status, reply = server.json("POST", "/v1/chat/completions", {"messages": HELLO, "chat_template": t})
        assert status == 400 and reply["error"]["message"], (t, reply)
        assert server.json("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 200


def test_arguments_of_a_template_replace_nothing_of_the_server(server):
    """chat_template_kwargs reach the template; what the server itself passes to it, and how the text is used
    after it, stays the server's."""
    def ask(**fields):
        status, reply = server.json("POST", "/v1/chat/completions",
                                    {"messages": HELLO, "max_tokens": 2, "temperature": 0} | fields)
        assert status == 200, reply
        return reply["usage"]["prompt_tokens"], reply["choices"][0]["message"]["content"]
    plain = ask()
    other = [{"role": "user", "content": "something else that is much longer than a greeting"}]
    assert ask(messages=other) != plain
    for kwargs in ({"messages": other}, {"tokenize": True}, {"return_dict": True}, {"chat_template": "x"},
                   {"messages": other, "tokenize": True}, {"max_length": 1}, {"truncation": True}):
        assert ask(chat_template_kwargs=kwargs) == plain, kwargs
