#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the pictures of docs/OPERATIONS.md: the page at "/" in Chromium, with the bundled model under a little
load. Text in the chat pictures is an example put in by hand; everything on the dashboard is measured, and so is what
the replay in the picture of tokens says. pngquant, where there is one, makes the files small.

    build/venv/bin/python tests/server/screenshots.py docs/images"""
import json
import random
import shutil
import subprocess
import sys
import threading
import time

from browser import Browser
from serverproc import Server
from test_page import click, fill, open_page

ANSWER = """A prompt is read in *chunks*, and what was read stays in the **prefix tree**:

1. Equal beginnings are kept once.
2. What nobody holds is kept until its pages are needed:
   - the least recently used leaf goes first
   - a page in use never goes

```c
int32_t page = sl_pool_take(&kv->pool);
if (page < 0) /* none is free: the oldest leaf goes */
    page = sl_radix_evict(&kv->tree, 1);
return page < 0 ? sl_fail(err, SL_ENOMEM, "no page") : page;
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


TITLES = ("Explain TCP slow start", "A haiku about the sea", "Sort a list in C", "Recipe as JSON")


def list_titles(b):
    """Conversations for the list, under names put in by hand."""
    b.eval(f"""for (const [i, title] of {json.dumps(TITLES)}.entries()) {{
        chatId = 'example' + i; messages = [{{role: 'user', content: title}}]; keepMessages(); }}
        chatId = 'shown';""")


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
        with Browser(1280, 1500) as b:
            open_page(b, server, "#dashboard")
            end = time.monotonic() + 50
            while time.monotonic() < end:
                b.pump(0.2)
            b.screenshot(out + "/dashboard.png")
        for t in clients:
            t.join()
        for name, size, shown in (("chat", (1200, 900, False, False), 4), ("phone", (390, 780, True, True), 2)):
            with Browser(*size) as b:
                open_page(b, server)
                list_titles(b)
                b.eval(f"messages = {json.dumps(TALK[:shown])}; keepMessages(); redraw(); $('messages').scrollTop = 0")
                b.screenshot(f"{out}/{name}.png")
        with Browser(1200, 560) as b:
            open_page(b, server)
            list_titles(b)
            b.eval("newChat(); document.getElementById('p-logprobs').click()")
            fill(b, "p-max_tokens", "90")
            fill(b, "p-seed", "3")
            b.eval("openSettings(false)")
            fill(b, "input", "Tell me about the sea.")
            b.key("Enter")
            b.wait("messages.length === 2 && !running")
            click(b, "Replay")
            b.wait("!running && messages[1].replay")
            b.eval("document.querySelector('.tokens').focus()")
            for _ in range(9):
                b.key("ArrowRight")
            b.screenshot(out + "/tokens.png")
    if shutil.which("pngquant"):
        subprocess.run(["pngquant", "--force", "--ext", ".png", "--speed", "1", "128",
                        *(f"{out}/{name}.png" for name in ("chat", "dashboard", "phone", "tokens"))], check=True)


if __name__ == "__main__":
    main()
