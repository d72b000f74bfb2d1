#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the pictures of docs/OPERATIONS.md: the page at "/" in Chromium, with the bundled model under a little
load. Text in the chat pictures is an example put in by hand; everything on the dashboard is measured.

    build/venv/bin/python tests/server/screenshots.py docs/images"""
import json
import random
import sys
import threading
import time

from browser import Browser
from serverproc import Server
from test_page import fill, open_page

ANSWER = """A prompt is read in *chunks*, and what was read stays in the **prefix tree**:

1. Equal beginnings are kept once.
2. What nobody holds is kept until its pages are needed:
   - the least recently used leaf goes first
   - a page in use never goes

```c
int32_t page = sl_radix_evict(&kv->tree); /* the oldest leaf */
```

| page | owner | in the tree |
|---|---|---|
| free | no | no |
| cached | no | yes |
| owned | yes | once it is full |
"""
TALK = [{"role": "user", "content": "How is a prompt kept?"},
        {"role": "assistant", "content": ANSWER, "reasoning": "Pages, states, order of eviction."},
        {"role": "user", "content": "And the weather in Rome?"},
        {"role": "assistant", "content": "",
         "calls": [{"id": "call_1", "name": "get_weather", "args": '{"city": "Rome", "days": 2}'}]}]


def load(server, seconds):
    """Nine clients that share the beginnings of their prompts."""
    rng = random.Random(1)
    systems = [f"You are a teller of tales about {w}. " * 6 for w in ("foxes", "kings", "ships", "gardens")]
    end = time.monotonic() + seconds

    def client():
        while time.monotonic() < end:
            messages = [{"role": "system", "content": rng.choice(systems)},
                        {"role": "user", "content": f"Story {rng.randrange(30)}"}]
            server.json("POST", "/v1/chat/completions",
                        {"messages": messages, "max_tokens": rng.randrange(60, 400), "ignore_eos": True})
            time.sleep(rng.random())
    threads = [threading.Thread(target=client) for _ in range(9)]
    for t in threads:
        t.start()
    return threads


def main():
    out = sys.argv[1]
    with Server("--threads", "2", "--max-num-seqs", "16") as server:
        clients = load(server, 60)
        with Browser(1280, 1420) as b:
            open_page(b, server, "#dashboard")
            end = time.monotonic() + 50
            while time.monotonic() < end:
                b.pump(0.2)
            b.screenshot(out + "/dashboard.png")
        for t in clients:
            t.join()
        for name, size, shown in (("chat", (1200, 980, False, False), 4), ("phone", (390, 780, True, True), 2)):
            with Browser(*size) as b:
                open_page(b, server)
                b.eval(f"messages = {json.dumps(TALK[:shown])}; redraw(); $('messages').scrollTop = 0")
                b.screenshot(f"{out}/{name}.png")
        with Browser(1200, 460) as b:
            open_page(b, server)
            b.eval("document.getElementById('p-logprobs').click()")
            fill(b, "p-max_tokens", "90")
            fill(b, "p-seed", "3")
            fill(b, "input", "Tell me about the sea.")
            b.key("Enter")
            b.wait("messages.length === 2 && !running")
            b.eval("document.querySelector('.tokens').focus()")
            for _ in range(9):
                b.key("ArrowRight")
            b.screenshot(out + "/tokens.png")


if __name__ == "__main__":
    main()
