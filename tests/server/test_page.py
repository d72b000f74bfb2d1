# SPDX-License-Identifier: MIT
"""The page at "/" and what stands behind it: how its files are served, /api/state and /api/cancel, and, where
there is a Chromium, the page itself: chat, stop, schema, tools, dashboard, keyboard, contrast, console."""
import gzip
import json
import os
import re
import threading
import time

import pytest

import browser
from serverproc import ROOT, Server

KEYS = ("key-of-one", "key-of-two")
LONG = {"messages": [{"role": "user", "content": "Tell me a story"}], "ignore_eos": True, "max_tokens": 1500}
FILES = {"/": "text/html", "/page.css": "text/css", "/page.js": "text/javascript"}

needs_chromium = pytest.mark.skipif(browser.CHROMIUM is None, reason="no Chromium here: the page is not looked at")
if browser.CHROMIUM is None:
    print("skip: no Chromium here: the page is not looked at in a browser")


@pytest.fixture(scope="module")
def server():
    with Server("--threads", "1") as s:
        yield s
        assert s.process.poll() is None, s.log()


@pytest.fixture(scope="module")
def chromium():
    with browser.Browser() as b:
        yield b


# ---- without a browser

@pytest.mark.parametrize("path", FILES)
def test_files(server, path):
    status, headers, plain = server.request("GET", path)
    assert status == 200 and headers["Content-Type"].startswith(FILES[path])
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    status, headers, packed = server.request("GET", path, headers={"Accept-Encoding": "gzip, br"})
    assert headers["Content-Encoding"] == "gzip" and headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(packed) == plain and len(packed) < len(plain) / 2
    for refusal in ("identity", "gzip;q=0"):
        assert "Content-Encoding" not in server.request("GET", path, headers={"Accept-Encoding": refusal})[1]
    again = server.request("GET", path, headers={"Accept-Encoding": "gzip", "If-None-Match": headers["ETag"]})
    assert again[0] == 304 and again[2] == b"" and again[1]["ETag"] == headers["ETag"]
    assert server.request("GET", path, headers={"If-None-Match": '"else"'})[0] == 200
    assert server.request("HEAD", path)[2] == b""
    assert server.request("POST", path, {})[0] == 405
    # The page asks nobody else for anything, and brings no markup by text.
    for word in (b"innerHTML", b"outerHTML", b"insertAdjacent", b"document.write", b"eval(", b"style=", b"onclick="):
        assert word not in plain
    assert set(re.findall(rb"(?:src|href)=\"([^\"]*)\"", plain)) <= {b"page.js", b"page.css"} | {
        u for u in re.findall(rb"href=\"(data:[^\"]*)\"", plain)}


def start_long(server, key=None, **fields):
    """A generation on a thread; the list gets (status, body) at its end."""
    out = []
    headers = {"Authorization": "Bearer " + key} if key else {}
    t = threading.Thread(target=lambda: out.append(
        server.json("POST", "/v1/chat/completions", LONG | fields, headers)))
    t.start()
    return t, out


def keep_running(server):
    """The same one after another, until one is cancelled: on a fast machine one ends within seconds."""
    out = []

    def work():
        while not out or out[-1][1]["choices"][0]["finish_reason"] != "abort":
            out.append(server.json("POST", "/v1/chat/completions", LONG))
    t = threading.Thread(target=work, daemon=True)
    t.start()
    return t, out


def running(server, key=None):
    headers = {"Authorization": "Bearer " + key} if key else {}
    return server.json("GET", "/api/state", None, headers)[1]["requests"]


def wait_running(server, n, key=None):
    deadline = time.monotonic() + 20
    while len(rows := running(server, key)) != n or any(r["output_tokens"] == 0 for r in rows):
        assert time.monotonic() < deadline, rows
        time.sleep(0.02)
    return rows


def test_state(server):
    status, headers, data = server.request("GET", "/api/state", headers={"Origin": "http://elsewhere"})
    s = json.loads(data)
    assert status == 200 and "Access-Control-Allow-Origin" not in headers
    assert s["health"] == "" and s["info"]["block_size"] > 0 and s["requests"] == [] and s["n_requests"] == 0
    p = s["pages"]
    assert len(p["map"]) == 2 * min(p["total"], 1024) and p["free"] + p["cached"] <= p["total"]
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    before = s
    for end in ("One", "Two", "Three"):
        server.json("POST", "/v1/completions", {"prompt": prompt + end * 30, "max_tokens": 2})
    s = server.json("GET", "/api/state")[1]
    assert s["generation_tokens"] == before["generation_tokens"] + 6 and s["steps"] > before["steps"]
    assert s["step_s"]["device"] > before["step_s"]["device"] and s["cpu_s"] > before["cpu_s"]
    spent = sum(s["step_s"].values()) - sum(before["step_s"].values())
    assert 0 < spent < s["now_s"] - before["now_s"]
    tree = s["pages"]["tree"]
    assert tree["pages"] == s["pages"]["cached"] and tree["leaves"] >= 3
    nodes = tree["nodes"]
    assert sum(n[2] for n in nodes if n[0] < 0) == tree["pages"]  # roots, with all behind them
    shared = max(nodes, key=lambda n: n[2])  # the prefix, and the three ends below it
    kids = [n for n in nodes if n[0] == nodes.index(shared)]
    assert len(kids) == 3 and shared[1] + sum(n[2] for n in kids) == shared[2] and all(n[3] == 0 for n in nodes)
    assert "fox" not in json.dumps(s)


def seconds_of(server, n):
    """From the first token of one streamed answer to the last, as a client sees them."""
    with server.stream("/v1/completions", {"prompt": "Once", "max_tokens": n, "ignore_eos": True}) as events:
        times = [time.monotonic() for _ in events]
    return times[-1] - times[0]


def test_history(server):
    """The server keeps what the charts show; its times agree with those of a client."""
    first = server.json("GET", "/api/state")[1]["history"]["last"]
    n = 200
    took = seconds_of(server, n)
    end, deadline = server.json("GET", "/api/state")[1]["history"]["last"], time.monotonic() + 20
    while (s := server.json("GET", "/api/state")[1])["history"]["last"] <= end:  # a point that has it all
        assert time.monotonic() < deadline
        time.sleep(0.05)
    h, window = s["history"], s["window"]
    points = [dict(zip(h["names"], p)) for p in h["points"]]
    assert [p["number"] for p in points] == list(range(1, h["last"] + 1)) and h["last"] > first
    last = points[-1]
    assert 0 < last["window_ms"] <= 11000 and last["running"] == last["waiting"] == 0
    # Every token of the server is in the windows once: windows that touch but do not overlap.
    assert last["generation_tokens"] >= n <= s["generation_tokens"]
    assert window["itl"]["count"] >= n - 1 and window["ttft"]["count"] >= 1
    assert last["itl_p95_us"] == round(window["itl"]["p95"] * 1e6)
    # Other answers may be in the window; tokens come to the client together, or late, but all of them come.
    assert 0 < window["itl"]["p50"] <= window["itl"]["p95"] <= window["itl"]["p99"]
    assert abs(window["itl"]["mean"] * (n - 1) - took) < took / 2 + .2, (window, took)
    assert 0 < sum(window["step_s"].values()) < window["seconds"] * 1.01
    # The page asks for what is new; a number of another server's is answered in full.
    new = server.json("GET", f"/api/state?since={h['last'] - 1}")[1]["history"]
    assert new["points"][0] == h["points"][-1] and len(new["points"]) == new["last"] - h["last"] + 1
    for other in ("99999999", "-1", "x", ""):
        assert len(server.json("GET", "/api/state?since=" + other)[1]["history"]["points"]) >= h["last"]


def test_cancel(server):
    t, out = start_long(server)
    row, = wait_running(server, 1)
    assert row["state"] == "decode" and row["prompt_tokens"] > 0 and row["path"] == "/v1/chat/completions"
    assert any(c != "0" for c in server.json("GET", "/api/state")[1]["pages"]["map"][::2])
    assert server.json("POST", "/api/cancel", {"id": row["id"]}) == (200, {"cancelled": row["id"]})
    t.join(10)
    status, body = out[0]
    assert status == 200 and body["id"] == row["id"] and body["choices"][0]["finish_reason"] == "abort"
    assert running(server) == []
    status, body = server.json("POST", "/api/cancel", {"id": row["id"]})
    assert status == 404 and body["error"]["param"] == "id"
    for bad in ({}, {"id": 7}, {"id": "x" * 600}, [], "no"):
        assert server.json("POST", "/api/cancel", bad)[0] == 400


def test_a_key_sees_its_own_requests_only():
    with Server("--threads", "1", "--api-key", ",".join(KEYS)) as s:
        assert s.json("GET", "/api/state")[0] == s.json("POST", "/api/cancel", {"id": "x"})[0] == 401
        assert s.request("GET", "/")[0] == 200
        (t, out), key, other = start_long(s, KEYS[0]), *({"Authorization": "Bearer " + k} for k in KEYS)
        row, = wait_running(s, 1, KEYS[0])
        state = s.json("GET", "/api/state", None, other)[1]
        assert state["requests"] == [] and state["n_requests"] == 0 and state["running"] == 1
        assert s.json("POST", "/api/cancel", {"id": row["id"]}, other)[0] == 404
        assert s.json("POST", "/api/cancel", {"id": row["id"]}, key)[0] == 200
        t.join(10)
        assert out[0][1]["choices"][0]["finish_reason"] == "abort"


def test_no_webui():
    with Server("--threads", "1", "--no-webui") as s:
        for path in (*(f for f in FILES if f != "/"), "/api/state"):
            assert s.request("GET", path)[0] == 404
        assert s.request("GET", "/")[2] == b"Ollama is running"  # what clients of that ask for stays
        assert s.request("POST", "/api/cancel", {"id": "x"})[0] == 404
        assert s.request("GET", "/v1/models")[0] == 200


# ---- in a browser

def open_page(b, server, tab=""):
    """A fresh page: nothing is kept, and nothing was said on the console."""
    b.open("about:blank")
    b.errors.clear()
    b.requests.clear()
    b.open(server.url + "/" + tab)
    b.eval("sessionStorage.clear(); localStorage.clear()")
    b.open("about:blank")
    b.open(server.url + "/" + tab)
    b.wait("document.getElementById('model').textContent !== ''")


def fill(b, field, text):
    if field.startswith("p-"):
        b.eval("openSettings(true)")
    b.eval(f"document.getElementById({field!r}).focus()")
    b.eval(f"document.getElementById({field!r}).select()")
    b.type(text)


def quiet(b, server):
    assert b.errors == []
    assert all(u.startswith((server.url + "/", "data:", "about:")) for u in b.requests), b.requests


def click(b, text, within="document"):
    b.eval(f"[...{within}.querySelectorAll('button')].find(x => x.textContent === {text!r}).click()")


SAY = "document.querySelector('.msg.assistant:last-child > .body').textContent"


@needs_chromium
def test_chat(chromium, server):
    b = chromium
    open_page(b, server)
    fill(b, "p-max_tokens", "12")
    fill(b, "p-seed", "5")
    fill(b, "input", "Hello <img src=x onerror=alert(1)>")
    b.key("Enter")
    b.wait("messages.length === 2 && !running")
    first = b.eval(SAY)
    assert first and b.eval("document.querySelectorAll('#messages img').length") == 0
    assert "12 out" in b.eval("document.querySelector('.msg.assistant .foot').textContent")
    b.eval("[...document.querySelectorAll('button')].find(x => x.textContent === 'Regenerate').click()")
    b.wait("messages.length === 2 && !running && messages[1].stats")
    assert b.eval(SAY) == first  # the same seed
    fill(b, "p-max_tokens", "")
    b.eval("{const old = requestSettings; requestSettings = () => { const r = old(); r.body.ignore_eos = true; return r; }}")
    fill(b, "input", "Go on")
    b.key("Enter")
    b.wait("messages.length === 4 && messages[3].content.length > 40")
    b.eval("document.getElementById('stop').click()")
    b.wait("!running")
    assert "ended by stop button" in b.eval("document.querySelector('.msg:last-child .foot').textContent")
    server.wait_metric("vllm:num_requests_running", 0)
    b.open(server.url + "/")  # the tab keeps its conversation
    assert b.eval("document.querySelectorAll('.msg').length") == 4
    quiet(b, server)


TITLES = "[...document.querySelectorAll('#chat-list .open')].map(x => x.textContent)"


@needs_chromium
def test_conversations(chromium, server):
    """The list: new, open, rename, delete, undo; kept over a reload."""
    b = chromium
    open_page(b, server)
    assert b.eval("document.querySelectorAll('.examples button').length") == 4
    b.eval("document.getElementById('p-max_tokens').value = '4'")
    b.eval("document.querySelector('.examples button').click()")  # an example is sent
    b.wait("messages.length === 2 && !running")
    click(b, "New chat")
    assert b.eval("messages.length") == 0
    fill(b, "input", "Second <b>one</b>")
    b.key("Enter")
    b.wait("messages.length === 2 && !running")
    first, second = "Explain how a hash table works, in simple words.", "Second <b>one</b>"
    assert b.eval(TITLES) == [second, first]
    b.eval("document.querySelector('#chat-list li:nth-child(2) .open').click()")
    assert b.eval("messages[0].content") == first
    b.eval("document.querySelector('#chat-list li:nth-child(2) .icon').click()")
    b.type("Tables")
    b.key("Enter")
    assert b.eval(TITLES) == [second, "Tables"] and b.eval("document.activeElement.textContent") == "Tables"
    b.open(server.url + "/")
    assert b.eval(TITLES) == [second, "Tables"] and b.eval("messages[0].content") == first
    b.eval("document.querySelector('#chat-list li:nth-child(2) .icon:last-child').click()")
    assert b.eval(TITLES) == [second] and b.eval("messages.length") == 0
    assert b.eval("Object.keys(localStorage).filter(k => k.startsWith('sluice.chat.')).length") == 1
    b.key("Enter")  # the focus is on Undo
    assert b.eval(TITLES) == [second, "Tables"]
    click(b, "Delete all")
    assert b.eval(TITLES) == [] and b.eval("Object.keys(localStorage).some(k => k.startsWith('sluice.chat.'))") is False
    # A browser that keeps nothing, and one that is full.
    b.eval("Storage.prototype.setItem = () => { throw new Error('full'); }")
    fill(b, "input", "Third")
    b.key("Enter")
    b.wait("messages.length === 2 && !running")
    assert "no room" in b.eval("document.getElementById('note').textContent")
    quiet(b, server)


@needs_chromium
def test_replay(chromium, server):
    """An answer that was sampled comes again bit by bit, beside other requests too; a difference is said."""
    b = chromium
    open_page(b, server)
    said = "document.querySelector('.msg.assistant .replay').textContent"
    fill(b, "p-temperature", "1.3")
    fill(b, "p-max_tokens", "40")
    fill(b, "input", "Tell me a story. " * 6)
    b.key("Enter")
    b.wait("messages.length === 2 && !running")
    n = b.eval("messages[1].ids.length")
    assert 0 < n == b.eval("messages[1].tokens.length") <= 40 and b.eval("messages[1].settings.body.seed") >= 0
    t, _ = start_long(server, max_tokens=300)
    click(b, "Replay")
    b.wait("!running && messages[1].replay")
    t.join(20)
    assert b.eval(said).startswith(f"Identical: {n} tokens, ids and log probabilities"), b.eval(said)
    assert "came from the cache" in b.eval(said)
    b.open(server.url + "/")  # what was kept is enough for it
    b.eval("messages[1].tokens[3][1] -= 1e-6")
    click(b, "Replay")
    b.wait("!running && messages[1].replay")
    assert b.eval(said).startswith("Different from token 4:"), b.eval(said)
    b.eval("messages[1].ids.pop(); messages[1].tokens.pop(); messages[1].tokens[3][1] += 1e-6; redraw()")
    b.eval("messages[1].tokens[3][1] = Math.fround(messages[1].tokens[3][1])")
    b.eval("replay(messages[1], 1)")
    b.wait("!running && messages[1].replay.same === false")
    quiet(b, server)


@needs_chromium
def test_copy(chromium, server):
    """Messages and code, also where the browser has no clipboard for the page: plain HTTP from another machine."""
    b = chromium
    open_page(b, server)
    b.eval("""{Object.defineProperty(navigator, 'clipboard', {value: undefined, configurable: true});
        document.addEventListener('copy', () => { const a = document.activeElement;
            window.copied = a.value.slice(a.selectionStart, a.selectionEnd); });
        messages = [{role: 'user', content: 'q'}, {role: 'assistant', content: 'A\\n\\n```c\\nint a;\\n```'}]; redraw()}""")
    for where, text in (("document.querySelector('.block')", "int a;"), ("document.querySelector('.msg.user')", "q"),
                        ("document.querySelector('.assistant .actions')", "A\n\n```c\nint a;\n```")):
        click(b, "Copy", where)
        assert b.eval("copied") == text
        b.wait(where + ".textContent.includes('Copied')", 2)
    quiet(b, server)


@needs_chromium
def test_replay_of_plain_text(chromium, server):
    b = chromium
    open_page(b, server)
    b.eval("document.getElementById('p-plain').click()")
    fill(b, "p-max_tokens", "300")
    fill(b, "input", "Once upon a time")
    b.key("Enter")
    b.wait("messages.length === 2 && messages[1].ids?.length > 5")
    click(b, "Stop")
    b.wait("!running")
    n = b.eval("messages[1].ids.length")
    click(b, "Replay")  # as far as it came
    b.wait("!running && messages[1].replay")
    assert b.eval("messages[1].replay.text").startswith(f"Identical: {n} tokens"), b.eval("messages[1].replay.text")
    quiet(b, server)


@needs_chromium
def test_offline(chromium):
    """A server that died is seen within seconds, on both views, and one that is back as well."""
    b = chromium
    light = "document.getElementById('health').textContent"
    with Server("--threads", "1") as s:
        port = s.port
        open_page(b, s)
        b.wait(light + " === 'ready'")
        s.process.kill()
        s.process.wait()
        b.wait(light + " === 'offline' && !document.getElementById('offline').hidden", 15)
        fill(b, "input", "Hello")
        b.key("Enter")
        b.wait("!running && messages.at(-1).error === 'The server does not answer.'")
    with Server("--threads", "1", "--port", str(port)) as s:
        b.wait(light + " === 'ready' && document.getElementById('offline').hidden", 15)
        b.eval("openTab('dash')")
        b.wait("points.length > 1")
        s.process.kill()
        s.process.wait()
        b.wait(light + " === 'offline'", 15)
    with Server("--threads", "1", "--port", str(port)) as s:
        b.wait(light + " === 'ready' && points.length === points.at(-1)?.number", 15)
    assert [e for e in b.errors if "ERR_" not in e] == []  # the browser says by itself what it cannot load


@needs_chromium
def test_idle_page_asks_less(chromium, server):
    """Looks at a server that is well become rare, until somebody touches the page or looks at the dashboard."""
    b = chromium
    open_page(b, server)
    b.wait("document.getElementById('health').textContent === 'ready'")
    b.eval("window.pauses = []; { const after = setTimeout; window.setTimeout = (f, ms) => {"
           " if (ms >= 1000) pauses.push(ms); return after(f, ms >= 1000 ? 10 : ms); }; }"
           "pause = ASK_MS; schedule()")
    b.wait("pauses.length > 6")
    assert b.eval("pauses.slice(0, 6).join()") == "3000,6000,12000,24000,30000,30000"
    b.eval("pauses = []")
    b.key("ArrowRight")
    b.wait("pauses.length > 2 && pauses.includes(3000)")
    b.eval("openTab('dash'); pauses = []")
    b.wait("pauses.length > 3")
    assert b.eval("[...new Set(pauses)].join()") == "1000"
    quiet(b, server)


@needs_chromium
def test_models_are_chosen(chromium):
    story = os.path.join(ROOT, "assets", "storyteller")
    b = chromium
    with Server("first=" + story, "second=" + story, "--threads", "1", "--max-model-len", "256",
                "--kv-cache-memory-bytes", "40M") as s:
        open_page(b, s)
        b.wait("!document.getElementById('models').hidden")
        assert b.eval("[...document.querySelectorAll('#models option')].map(o => o.value).join()") == "first,second"
        b.eval("{const m = document.getElementById('models'); m.value = 'second';"
               "m.dispatchEvent(new Event('change'));}")
        fill(b, "p-max_tokens", "6")
        fill(b, "input", "Hello")
        b.key("Enter")
        b.wait("messages.length === 2 && !running")
        assert s.metric("vllm:request_success_total", model_name="second", finished_reason="length") == 1
        assert s.metric("vllm:request_success_total", model_name="first", finished_reason="length") == 0
        b.wait("state?.model === 'second'")
        b.open(s.url + "/")  # the tab keeps its choice
        b.wait("document.getElementById('models').value === 'second'")
        quiet(b, s)


@needs_chromium
def test_schema_and_logprobs(chromium, server):
    b = chromium
    open_page(b, server)
    fill(b, "p-schema", '{"enum": ["yes", "no"]}')
    b.eval("document.getElementById('p-logprobs').click()")
    fill(b, "input", "Is it?")
    b.key("Enter")
    b.wait("messages.length === 2 && !running")
    assert b.eval("messages[1].content") in ('"yes"', '"no"')
    assert b.eval("document.querySelectorAll('.tokens span').length") == b.eval("messages[1].tokens.length") > 0
    b.eval("document.querySelector('.tokens').focus()")
    b.key("ArrowRight")
    assert re.search(r" %; else .* %", b.eval("document.querySelector('.alts').textContent"))
    fill(b, "p-schema", '{"enum": ')
    fill(b, "input", "Again")
    b.key("Enter")
    assert "The JSON schema is not JSON" in b.eval("document.getElementById('note').textContent")
    fill(b, "p-schema", '{"type": "string", "format": "iri"}')
    b.eval("generate()")
    b.wait("!running && messages.at(-1).error")
    assert "iri" in b.eval("messages.at(-1).error")
    b.errors[:] = [e for e in b.errors if "400 (Bad Request)" not in e]  # the browser says so by itself
    quiet(b, server)


@needs_chromium
def test_tools(chromium, server):
    """What has to be called is certain by constraint; the answer to it goes back to the model."""
    b = chromium
    open_page(b, server)
    schema = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"],
              "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "get_weather", "parameters": schema}}]
    fill(b, "p-tools", json.dumps(tools))
    # The page leaves the choice to the model; this one has to be told.
    b.eval("""{const old = requestSettings; requestSettings = () => { const r = old();
        if (messages.length === 1) Object.assign(r.body, {tool_choice: 'required', parallel_tool_calls: false,
            logit_bias: {202: -100, 203: -100, 206: -100, 209: -100, 225: -100, 302: -100}});
        r.body.max_tokens ||= 300; return r; };
      const body = requestBody; requestBody = (...a) => window.sent = body(...a);}""")
    fill(b, "input", "Weather?")
    b.key("Enter")
    b.wait("messages.length === 2 && !running", 60)
    assert b.eval("messages[1].calls[0].name") == "get_weather"
    assert json.loads(b.eval("messages[1].calls[0].args")) == {"city": "Rome"}
    assert "get_weather" in b.eval("document.querySelector('.call').textContent")
    b.eval("document.querySelector('.call textarea').focus()")
    b.type("sunny")
    fill(b, "p-max_tokens", "5")
    b.eval("[...document.querySelectorAll('button')].find(x => x.textContent === 'Send results').click()")
    b.wait("messages.length === 3 && !running")
    assert b.eval("sent.messages.at(-1)") == {"role": "tool", "content": "sunny",
                                              "tool_call_id": b.eval("messages[1].calls[0].id")}
    assert not b.eval("messages[2].error")
    quiet(b, server)


MARKDOWN = """# Title
Some *em*, **strong**, `a*b*c`, ~~gone~~, snake_case_name, 2 * 3 * 4 and [a link](https://example.org/a_(b)).

- one
- two
  - deeper
    still

1. first
2. second

> quoted
> text

| a | b |
|---|---|
| 1 | **2** |

```c
if (a < b && c) { *p = "<script>"; }
```
[bad](javascript:alert(1)) <b onclick=x>not bold</b> <script>alert(1)</script>
"""


@needs_chromium
def test_markdown(chromium, server):
    """Grown by one character at a time it is the same as at once, and never markup of the text's own."""
    b = chromium
    open_page(b, server)
    text = json.dumps(MARKDOWN)
    html = b.eval(f"markdown({text}, el('div')).innerHTML")
    assert b.eval(f"""(() => {{ const e = el('div'), t = {text};
        for (let i = 1; i <= t.length; i++) markdown(t.slice(0, i), e);
        return e.innerHTML; }})()""") == html
    for part in ("<h3>Title</h3>", "<em>em</em>", "<strong>strong</strong>", "<code>a*b*c</code>", "<del>gone</del>",
                 "snake_case_name, 2 * 3 * 4", 'href="https://example.org/a_(b)"', "<ol start=\"1\"><li>first</li>",
                 "<ul><li>one</li><li><p>two</p><ul>", "deeper", "<blockquote><p>quoted\ntext</p></blockquote>",
                 "<th>a</th>", "<td><strong>2</strong></td>", "&lt;script&gt;alert(1)&lt;/script&gt;"):
        assert part in html, (part, html)
    assert b.eval(f"markdown({text}, el('div')).querySelectorAll('script, b, [onclick], a').length") == 1
    assert 'if (a < b && c) { *p = "<script>"; }' == b.eval(
        f"markdown({text}, el('div')).querySelector('pre').textContent")
    # Texts made to be slow: a second at most for 20,000 characters of each.
    for piece in ("**", "*a", "_a ", "[", "[](", "`", "> ", "- ", "|a", "~~a", "  - x\\n", "((", "<http://a"):
        ms = b.eval(f"""(() => {{ const t = performance.now(); markdown("{piece}".repeat(20000 / {len(piece)}),
            el('div')); return performance.now() - t; }})()""")
        assert ms < 1000, (piece, ms)
    quiet(b, server)


CODE = {
    "python": ('def f(x):  # <b>\n    return "a\\"b" + 0x1f', {"hl-key": ["def", "return"], "hl-fun": ["f"],
               "hl-com": ["# <b>"], "hl-str": ['"a\\"b"'], "hl-num": ["0x1f"]}),
    "c": ("#include <x.h>\nint a = f('c'); /* open", {"hl-com": ["#include <x.h>", "/* open"], "hl-key": ["int"],
          "hl-fun": ["f"], "hl-str": ["'c'"]}),
    "JSON": ('{"a": [1.5e3, true]}', {"hl-str": ['"a"'], "hl-num": ["1.5e3"], "hl-key": ["true"]}),
    "html": ('<img src="x" onerror="y">&amp;', {"hl-key": ["<img", ">"], "hl-str": ['"x"', '"y"'], "hl-num": ["&amp;"]}),
    "diff": ("+a\n-b\n c", {"hl-add": ["+a\n"], "hl-del": ["-b\n"]}),
    "sql": ("SELECT x -- all", {"hl-key": ["SELECT"], "hl-com": ["-- all"]}),
    "css": ("a { color: #fff; margin: 2px }", {"hl-key": ["color", "margin"], "hl-num": ["#fff", "2px"]}),
    "constructor": ("if x", {}), "": ("if x", {}),
}


@needs_chromium
def test_highlight(chromium, server):
    """Colours are spans around the text as it is; texts made to be slow are not."""
    b = chromium
    open_page(b, server)
    for lang, (text, want) in CODE.items():
        make = f"(() => {{ const e = el('pre'); highlight({json.dumps(lang)}, {json.dumps(text)}, e); return e; }})()"
        assert b.eval(make + ".textContent") == text
        assert b.eval(make + ".querySelectorAll('*:not(span)').length") == 0
        got = b.eval(f"[...{make}.children].map(e => [e.className, e.textContent])")
        assert {k: [t for c, t in got if c == k] for k in {c for c, _ in got}} == want, (lang, got)
    for lang in b.eval("Object.keys(FAMILIES).map(f => Object.keys(LANGUAGES).find(l => LANGUAGES[l] === f))"):
        for piece in ("/*", '"', "'", "`", '"""', "\\\\", "<!--", "--", "#", "1e", "a", "<", "&", " #"):
            ms = b.eval(f"""(() => {{ const t = performance.now(); highlight("{lang}",
                {json.dumps(piece)}.repeat(20000 / {len(piece)}), el('pre')); return performance.now() - t; }})()""")
            assert ms < 1500, (lang, piece, ms)
    quiet(b, server)


@needs_chromium
def test_reasoning_is_folded(chromium, server):
    b = chromium
    open_page(b, server)
    b.eval("""messages = [{role: 'user', content: 'q'}, {role: 'assistant', content: 'so', reasoning: 'because'}];
        redraw()""")
    assert b.eval("""(() => { const d = document.querySelector('.assistant details.think');
        return !d.hidden && !d.open && d.textContent.includes('because'); })()""")


@needs_chromium
def test_dashboard(chromium, server):
    b = chromium
    open_page(b, server, "#dashboard")
    t, out = keep_running(server)
    row, = wait_running(server, 1)
    button = "document.querySelector('#requests tbody button')"
    b.wait('!!' + button)
    kind = row["id"].split("-")[0]
    b.wait(f"(document.querySelector('#requests tbody td') || {{}}).textContent?.startsWith('{kind}-')")
    b.wait("points.length >= 3 && document.getElementById('split').childNodes.length === 6")
    for canvas in ("c-requests", "c-tokens", "c-ttft", "c-itl", "c-map", "c-tree"):
        assert b.eval(f"document.getElementById('{canvas}').getAttribute('aria-label')"), canvas
        assert b.eval(f"""(() => {{ const c = document.getElementById('{canvas}');
            return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((x) => x); }})()"""), canvas
    b.wait("document.getElementById('c-requests').getAttribute('aria-label') === 'running 1, waiting 0'")
    # A tile says what the legend of its chart says.
    tile = """(name) => [...[...document.querySelectorAll('#figures div')].find(
        d => d.firstChild.textContent === name).children].map(e => e.textContent)"""
    legend = "(id) => document.getElementById(id).getAttribute('aria-label')"
    shown = b.eval(f"""[{', '.join(f"({tile})('{n}')" for n in ('generated', 'first token, mean',
        'between tokens, mean'))}, ...['c-tokens', 'c-ttft', 'c-itl'].map({legend})]""")
    for (name, value, below), said in zip(shown[:3], shown[3:]):
        assert said.startswith(("generated " if name == "generated" else "mean ") + value), shown
        assert name == "generated" or below.split(",")[0] == said.split(", ")[1], shown
    b.eval("document.getElementById('span-1h').click()")
    assert b.eval("spanS") == 3600 and b.eval("document.getElementById('span-1h').ariaPressed") == "true"
    before = b.eval("points.length")
    b.open("about:blank")
    b.open(server.url + "/#dashboard")  # the server keeps what the charts show
    b.wait(f"points.length >= {before}")
    for _ in range(20):  # one may end just before it is clicked
        b.wait('!!' + button)
        b.eval(f"{button}?.click()")
        t.join(1)
        if not t.is_alive():
            break
    assert out[-1][1]["choices"][0]["finish_reason"] == "abort"
    b.wait("!" + button)
    b.wait("document.getElementById('requests-note').textContent === 'No request is running.'")
    # A click on a row that had just ended is answered with 404, which Chromium reports by itself.
    b.errors[:] = [e for e in b.errors if not (" 404 " in e and e.endswith("/api/cancel"))]
    quiet(b, server)


@needs_chromium
def test_key(chromium):
    with Server("--threads", "1", "--api-key", KEYS[0]) as s:
        b = chromium
        b.open("about:blank")
        b.errors.clear()
        b.open(s.url + "/")
        b.wait("document.getElementById('key-dialog').open")
        b.type("wrong")
        b.key("Enter")
        b.wait("document.getElementById('key-dialog').open && document.getElementById('key').value === 'wrong'")
        fill(b, "key", KEYS[0])
        b.key("Enter")
        b.wait("document.getElementById('health').className === 'good'")
        fill(b, "p-max_tokens", "3")
        fill(b, "input", "Hi")
        b.key("Enter")
        b.wait("messages.length === 2 && !running")
        assert not b.eval("messages[1].error")
        assert [e for e in b.errors if "401" not in e] == []


# The contrast of every text with what lies behind it, by WCAG's formula.
CONTRAST = """(() => {
    const parse = (c) => c.match(/[\\d.]+/g).map(Number);
    const lum = (c) => { const [r, g, b] = c.slice(0, 3).map((x) => (x /= 255) <= .03928 ? x / 12.92 :
        ((x + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
    const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
        if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
    const bad = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let n; (n = walk.nextNode());) {
        const e = n.parentElement, s = getComputedStyle(e);
        if (!n.data.trim() || !e.checkVisibility() || e.closest(':disabled')) continue;
        const a = lum(parse(s.color)), b = lum(behind(e));
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < 4.5) bad.push([n.data.trim().slice(0, 40), ratio.toFixed(2)]);
    }
    return bad; })()"""


@needs_chromium
@pytest.mark.parametrize("dark", [False, True])
def test_contrast(chromium, server, dark):
    b = chromium
    b.colors(dark)
    open_page(b, server, "#dashboard")
    b.wait("points.length >= 2")
    assert b.eval(CONTRAST) == []
    b.eval("""messages = [{role: 'user', content: 'q'}, {role: 'assistant', content: MARKDOWN, reasoning: 'r',
        error: 'failed', stats: '1 token', replay: {same: false, text: 'Different'}}, {role: 'assistant',
        content: 'abcde', colour: true, replay: {same: true, text: 'Identical'},
        tokens: ['a', 'b', 'c', 'd', 'e'].map((t, i) => [t, [-3, -2, -1, -.2, 0][i], []])},
        ...['python', 'diff', 'html'].map((lang) => ({role: 'assistant',
            content: '```' + lang + '\\n+def f(): # c\\n-"s" 1 <b>\\n```'}))];
        keepMessages(); openSettings(true); silent(); openTab('chat'); redraw(); silent();
        document.querySelector('details').open = true; note('bad', true)""".replace("MARKDOWN", json.dumps(MARKDOWN)))
    for part in (".hl-key", ".hl-str", ".hl-com", ".hl-num", ".hl-fun", ".hl-add", ".hl-del", ".replay.good", ".replay.bad",
                 ".tokens .p0", "#chat-list .open", "#offline"):
        assert b.eval(f"document.querySelector('{part}').checkVisibility()"), part
    assert b.eval(CONTRAST) == []
    b.colors(False)


@needs_chromium
def test_keyboard(chromium, server):
    """Tab reaches every control in the order of the page, each has a name, and arrows change the tab."""
    b = chromium
    open_page(b, server)
    seen = []
    b.eval("document.getElementById('settings').classList.add('open'); document.activeElement.blur()")
    for _ in range(40):
        b.key("Tab")
        name = b.eval("document.activeElement.id || document.activeElement.tagName + "
                      "document.activeElement.textContent")
        if name.startswith("BODY") or name in seen:
            break
        seen.append(name)
    want = ["tab-chat", "new-chat", "messages", "input", "settings-open", "send", "settings-close", "p-system",
            "p-temperature", "p-tools"]
    assert [n for n in seen if n in want] == want
    tree = b.call("Accessibility.getFullAXTree")["nodes"]
    for node in tree:
        role = node.get("role", {}).get("value")
        if role in ("button", "textbox", "checkbox", "tab", "image") and not node["ignored"]:
            assert node["name"].get("value", "").strip(), node
    b.eval("document.getElementById('tab-chat').focus()")
    b.key("ArrowRight")
    assert not b.eval("document.getElementById('dash').hidden") and b.eval("location.hash") == "#dashboard"
    assert b.eval("document.activeElement.id") == "tab-dash"
    quiet(b, server)


@needs_chromium
def test_phone(server):
    with browser.Browser(width=390, height=780, phone=True) as b:
        for tab in ("#chat", "#dashboard"):
            open_page(b, server, tab)
            b.wait("points.length >= 1")
            assert b.eval("document.documentElement.scrollWidth") <= 390
        open_page(b, server)
        assert b.eval("document.getElementById('input').getBoundingClientRect().bottom") <= 780
        assert not b.eval("document.getElementById('p-system').checkVisibility()")
        b.eval("document.getElementById('settings-open').click()")
        assert b.eval("document.getElementById('p-system').checkVisibility()")
        b.key("Escape")
        assert not b.eval("document.getElementById('p-system').checkVisibility()")
        assert b.eval("document.activeElement.id") == "settings-open"
        b.eval("messages = [{role: 'user', content: 'q'}]; keepMessages(); redraw()")
        b.eval("document.getElementById('chats-open').click()")
        assert b.eval("document.activeElement.id") == "new-chat"
        click(b, "", "document.querySelector('#chat-list li .icon:last-child').parentElement")  # rename
        b.key("Escape")
        b.eval("document.querySelector('#chat-list li .icon:last-child').click()")
        assert b.eval("document.activeElement.id") == "undo" and b.eval("messages.length") == 0
        assert b.eval("document.getElementById('undo').checkVisibility()")
        b.key("Escape")
        assert not b.eval("document.getElementById('new-chat').checkVisibility()")
        assert b.eval("document.activeElement.id") == "chats-open"
        for size in b.eval("""[...document.querySelectorAll('button, input, textarea')].filter((e) =>
            e.checkVisibility()).map((e) => [e.id, e.getBoundingClientRect().height])"""):
            assert size[1] >= 24, size  # WCAG 2.2's least size of a target
        quiet(b, server)
