#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures the spine's figures on this machine and prints one table: start-up, idle cost, engine and front end
with the null model, the bundled model's speed, tokenizer speed. Needs a release build (`make`) and nothing else.

    bench/bars.py [--seconds 10] [--json]
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BIN = "build/release/sluice"
CORPUS = os.environ.get("SLUICE_CORPUS", "../shared/corpus")
TESTDATA = os.environ.get("SLUICE_TESTDATA", "../shared/testdata")


class Server:
    def __init__(self, *flags: str) -> None:
        self.dir = tempfile.TemporaryDirectory()
        port_file = os.path.join(self.dir.name, "port")
        self.process = subprocess.Popen([BIN, "serve", "--port", "0", "--port-file", port_file, *flags],
                                        stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while not os.path.exists(port_file) or not open(port_file).read().strip():
            if time.monotonic() > deadline or self.process.poll() is not None:
                sys.exit("bars: the server did not start")
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{open(port_file).read().strip()}"

    def cpu_seconds(self) -> float:
        fields = open(f"/proc/{self.process.pid}/stat").read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.process.terminate()
        code = self.process.wait(30)
        self.dir.cleanup()
        return code


def first_token_ms(runs: int = 15) -> float:
    times = []
    for _ in range(runs):
        start = time.monotonic()
        p = subprocess.Popen([BIN, "run", "-p", "Once upon a time", "--raw", "-n", "1", "--temperature", "0"],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        p.stdout.read(1)
        times.append((time.monotonic() - start) * 1e3)
        p.communicate()
    return statistics.median(times)


def idle_percent(seconds: float) -> float:
    server = Server()
    subprocess.run([BIN, "bench", "serve", "--url", server.url, "--num-prompts", "4", "--json"],
                   capture_output=True, check=True)
    time.sleep(1)
    before = server.cpu_seconds()
    time.sleep(seconds)
    used = server.cpu_seconds() - before
    server.stop()
    return 100 * used / seconds


def load(flags: list[str], server_flags: list[str]) -> dict:
    server = Server(*server_flags)
    r = subprocess.run([BIN, "bench", "serve", "--url", server.url, "--json", *flags], capture_output=True, text=True)
    server.stop()
    if r.returncode != 0:
        sys.exit(f"bars: load generator: {r.stderr}")
    return json.loads(r.stdout)


def offline(*flags: str) -> dict:
    r = subprocess.run([BIN, "bench", "--json", *flags], capture_output=True, text=True, check=True)
    return json.loads(r.stdout)


def tokenizer_mb_s() -> str:
    ranks = "build/testdata/tokenizers/tiktoken/llama3.tiktoken"
    text = os.path.join(CORPUS, "wikitext2_valid.txt")
    if not os.path.exists(ranks) or not os.path.exists(text):
        return "skip: vocabulary or corpus not there"
    r = subprocess.run(["build/release/tools/tok_bench", ranks, text], capture_output=True, text=True, check=True)
    return r.stdout.strip().split("\n")[-1]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=float, default=10, help="length of the idle measurement")
    p.add_argument("--json", action="store_true")
    args = p.parse_args()
    os.chdir(ROOT)
    rows: list[tuple[str, str, str]] = []
    rows.append(("exec to first token, bundled model", "< 200 ms", f"{first_token_ms():.0f} ms (median of 15)"))
    rows.append(("idle server, CPU", "0.0 %", f"{idle_percent(args.seconds):.2f} % over {args.seconds:.0f} s"))
    d = load(["--endpoint", "completions", "--num-prompts", "40000", "--max-concurrency", "64", "--random-input-len",
              "200", "--random-output-len", "1", "--no-stream", "--ignore-eos"], ["--null-model"])
    rows.append(("front end, 1 KB prompts, null model", ">= 5,000 req/s", f"{d['request_throughput']:.0f} req/s"))
    d = load(["--endpoint", "completions", "--num-prompts", "2000", "--max-concurrency", "64", "--random-input-len",
              "16", "--random-output-len", "512", "--stream", "--ignore-eos"], ["--null-model"])
    rows.append(("front end, streamed tokens, null model", ">= 100,000 tok/s", f"{d['output_throughput']:.0f} tok/s"))
    d = offline("--num-prompts", "1", "--input-len", "64", "--output-len", "256")
    rows.append(("bundled model, batch 1", "-", f"{1e3 / d['itl_ms']['p50']:.0f} tok/s"))
    d = offline("--num-prompts", "64", "--input-len", "64", "--output-len", "128")
    rows.append(("bundled model, 64 at a time", "-", f"{d['output_tokens_per_s']:.0f} tok/s out"))
    rows.append(("heap calls on the engine thread", "0", str(d["step_mallocs"])))
    rows.append(("tokenizer, Llama-3 vocabulary, one thread", ">= 10 MB/s", tokenizer_mb_s()))
    rows.append(("binary", "-", f"{os.path.getsize(BIN) / 1e6:.1f} MB"))
    cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    machine = f"{cpu}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, commit {commit}"
    if args.json:
        print(json.dumps({"machine": machine, "rows": rows}))
        return
    print(machine)
    for what, bar, figure in rows:
        print(f"{what:44} {bar:18} {figure}")


if __name__ == "__main__":
    main()
