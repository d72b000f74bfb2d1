# SPDX-License-Identifier: MIT
"""The command line of the real binary on the bundled model: results on stdout, all else on stderr, bad
input named with exit status 2."""
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import time

import pytest

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")


def sluice(*args: str, stdin: bytes = b"", timeout: float = 120) -> subprocess.CompletedProcess:
    return subprocess.run([BIN, *args], input=stdin, capture_output=True, timeout=timeout)


def ok(*args: str, stdin: bytes = b"") -> str:
    r = sluice(*args, stdin=stdin)
    assert r.returncode == 0, r.stderr.decode()
    return r.stdout.decode()


COMMANDS = ["run", "chat", "serve", "bench", "inspect", "tokenize", "template", "grammar", "embed", "batch", "pull",
            "list", "rm", "calibrate", "ps", "top", "stop", "doctor"]


@pytest.mark.parametrize("command", COMMANDS + ["bench serve"])
def test_help_fits_a_screen_and_teaches(command):
    text, everything = (ok(*command.split(), form) for form in ("--help", "--help=all"))
    lines = text.rstrip("\n").split("\n")
    assert len(lines) <= 40
    assert lines[2] == "Examples:" and lines[3].lstrip().startswith(("sluice ", "cat ", "echo "))
    assert "Usage: sluice" in text
    for t in (text, everything):
        assert max(map(len, t.split("\n"))) <= 100
    flags, all_flags = (set(re.findall(r"^ .{5}(--[a-z0-9-]+)", t, re.M)) for t in (text, everything))
    assert flags <= all_flags
    if flags != all_flags:
        assert f"--help=all` shows all {len(all_flags)} flags" in lines[-1]


@pytest.mark.parametrize("more", [{"architectures": ["\x1b]0;title\x07"]}, {"hidden_act": "\x9b31m\x7f"},
                                  {"rope_scaling": {"rope_type": "\x1b[2J", "factor": 2.0}},
                                  {"quantization_config": {"quant_method": "\r\x1b[1A"}}])
def test_a_models_words_are_no_commands_for_the_terminal(tmp_path, more):
    for name in os.listdir("assets/storyteller"):
        (tmp_path / name).symlink_to(os.path.abspath(f"assets/storyteller/{name}"))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config | more))
    for args in (["inspect", str(tmp_path)], ["run", str(tmp_path), "-p", "x", "-n", "1"]):
        r = sluice(*args)
        assert r.returncode == 2 and r.stderr.endswith(b"\n")
        assert all(c.isprintable() for c in r.stderr.decode()[:-1]) and b"?" in r.stderr, r.stderr


def test_the_log_has_no_commands_for_the_terminal(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "\x1b[2J\n": True}))
    r = sluice("run", "-p", "x", "--lora", str(tmp_path))
    lines = r.stderr.decode().rstrip("\n").split("\n")
    assert r.returncode == 2 and len(lines) == 2 and '"?[2J?" is not known' in lines[0], r.stderr


def test_help_behind_for():
    story = "assets/storyteller"
    r = sluice("serve", f"a={story}", f"b={story}", "--for", "b", "--help")
    assert (r.returncode, r.stderr) == (0, b"") and b"--max-model-len" in r.stdout


def test_help_of_a_command_by_another_way():
    assert ok("help", "run") == ok("run", "--help") and ok("help", "bench") == ok("bench", "-h")
    assert "did you mean 'serve'" in sluice("help", "srever").stderr.decode()


def test_top_level_help_and_version():
    assert all(f"  {c} " in ok("--help") for c in COMMANDS)
    assert ok("--version").startswith("sluice ")
    assert sluice().returncode == 2


@pytest.mark.parametrize("args, says", [
    (["ruin"], "did you mean 'run'?"),
    (["run", "--tempertaure", "1", "-p", "x"], "did you mean --temperature?"),
    (["run", "--no-such-thing", "-p", "x"], "--no-such-thing"),
    (["run", "-p"], "--prompt needs a value"),
    (["run", "-p", "x", "-f", "y"], "cannot be combined"),
    (["run", "-p", "x", "-n", "0"], "--max-tokens"),
    (["run", "-p", "x", "-n", "1e3"], "--max-tokens"),
    (["run", "-p", "x", "-n", "99999999999999999999"], "--max-tokens"),
    (["run", "-p", "x", "--temperature", "nan"], "--temperature"),
    (["run", "-p", "x", "--temperature", "-1"], "--temperature"),
    (["run", "-p", "x", "--top-p", "1.5"], "--top-p"),
    (["run", "-p", "x", "-n", "99999999999"], "99999999999 is not between 1 and 67108864"),
    (["run", "-p", "x", "--raw=yes"], "--raw takes no value"),
    (["run", "-p", "x", "extra", "more"], "the prompt is given twice"),
    (["run", "/nonexistent/model", "-p", "x"], "/nonexistent/model"),
    (["run", "-p", "x", "--device", "tpu"], "device"),
    (["run", "-p", "x", "--cpu-isa", "sse9"], "sse9"),
    (["run", "-p", "x", "--numa", "some"], "numa: 'some' is not one of: auto, off"),
    (["run", "-p", "x", "--kv-cache-dtype", "f7"], "f7"),
    (["run", "-p", "x", "--skip-softmax-threshold-scale-factor", "-1"], "--skip-softmax-threshold-scale-factor"),
    (["run", "-p", "x", "--sparse-topk-pages", "7"], "7 is not between 8 and 1048576"),
    (["run", "-p", "x", "--sparse-topk-pages", "8", "--skip-softmax-threshold-scale-factor", "1"], "choose one of them"),
    (["calibrate"], "a text is needed: --data FILE"),
    (["calibrate", "--data", "/dev/null", "--target-sparsity", "0.5,2"], "--target-sparsity"),
    (["calibrate", "--data", "/dev/null"], "--input-len"),
    (["run", "-p", "x", "--activation-dtype", "fp7"], "activation-dtype: 'fp7' is not one of: auto, bf16, fp8"),
    (["run", "-p", "x", "--max-model-len", "999999"], "max_model_len"),
    (["run", "-p", "x", "--max-model-len", "1024", "--kv-cache-memory-bytes", "1000"], "kv_cache_memory_bytes"),
    (["run", "-p", "x", "--raw", "--system", "y"], "--system needs a chat template"),
    (["run", "-f", "/nonexistent"], "/nonexistent"),
    (["run", "-p", "x", "--regex", "a", "--choice", "b"], "--regex and --choice cannot be combined"),
    (["run", "-p", "x", "--regex", "("], "run: --regex: ')' is missing"),
    (["run", "-p", "x", "-j", "/nonexistent"], "--json-schema: /nonexistent"),
    (["run", "-p", "x", "--regex", "a", "--disable-any-whitespace"],
     "--disable-any-whitespace needs --json-schema"),
    (["run", "-p", "x", "-j", '{"type": "string", "format": "iri"}'], "iri"),
    (["chat", "--grammar", "root ::= x"], "chat: --grammar: line 1: no such rule: x"),
    (["bench", "--grammar-file", "/nonexistent"], "--grammar-file: /nonexistent"),
    (["tokenize", "Makefile"], "not a tokenizer"),
    (["run", "./assets/storyteler", "x"], "assets/storyteler: no such file or folder; did you mean ./assets/storyteller?"),
    (["serve", "asset", "--port", "0"], "asset: no such file or folder, and a name of the hub is org/name; did you mean assets?"),
    (["serve", "--port", "0", "--log-level", "error", "--ssl-certfile", "/nonexistent"], "--ssl-certfile /nonexistent: No such file or directory"),
    (["serve", "--port", "0", "--log-level", "error", "--file-storage-path", "/proc/x"], "--file-storage-path: /proc/x: No such file"),
    (["template", "Makefile.none"], "Makefile.none"),
    (["bench", "--prefix-len", "200"], "--prefix-len"),
    (["inspect", "Makefile"], "Makefile"),
    (["pull"], "(nothing) is not the name of a model"),
    (["pull", "./x"], "./x is not the name of a model"),
    (["rm"], "which model?"),
    (["run", "org/name", "-p", "x", "--offline", "--download-dir", "/nonexistent"], "not in the cache /nonexistent"),
])
def test_bad_input_is_named(args, says):
    r = sluice(*args, stdin=b"{}")
    assert r.returncode == 2, (r.returncode, r.stderr)
    assert says in r.stderr.decode(), r.stderr
    assert r.stdout == b""
    assert r.stderr.decode().count("\n") == 1


def test_messages_say_a_thing_once():
    """Not `grammar: grammar:`, nor a status where there was no reply."""
    r = sluice("grammar", stdin=b"{")
    assert r.returncode == 2 and r.stderr.startswith(b"sluice grammar: the schema is not JSON"), r.stderr
    r = sluice("bench", "serve", "--url", "http://127.0.0.1:1")
    assert (r.returncode, r.stderr) == (1, b"sluice bench serve: http://127.0.0.1:1: cannot connect\n")
    r = sluice("bench", "serve", "--url", "http://127.0.0.1:1", "--model", "x", "--num-prompts", "2")
    assert r.returncode == 1 and b"first failure: cannot connect\n" in r.stderr, r.stderr


def test_a_wrong_name_of_the_hub_finds_the_cached_one(tmp_path):
    (tmp_path / "models--Qwen--Qwen3-0.6B" / "blobs").mkdir(parents=True)
    for typed in ("qwen/qwen3-0.6b", "Qwen/Qwen3-0.6", "Qwen3-0.6B", "Qwen/Qwne3-0.6B"):
        r = sluice("run", typed, "x", "--offline", "--download-dir", str(tmp_path))
        assert r.returncode == 2 and r.stderr.endswith(b"; did you mean Qwen/Qwen3-0.6B?\n"), r.stderr
    r = sluice("run", "other/thing", "x", "--offline", "--download-dir", str(tmp_path))
    assert r.returncode == 2 and b"did you mean" not in r.stderr


def test_run_is_reproducible_and_quiet():
    args = ["run", "-p", "Once upon a time", "--raw", "-n", "24", "--temperature", "1", "--seed", "7"]
    a, b = sluice(*args), sluice(*args, "--threads", "1", "--max-num-batched-tokens", "1")
    assert a.returncode == 0 and a.stdout == b.stdout and len(a.stdout) > 20
    assert a.stderr == b""
    c = ok("run", "-p", "Once upon a time", "--raw", "-n", "24", "--temperature", "1", "--seed", "8")
    assert c != a.stdout.decode()


def test_every_instruction_set_gives_the_same_text():
    texts = {isa: sluice("run", "-p", "The king", "--raw", "-n", "16", "--temperature", "0", "--cpu-isa", isa)
             for isa in ("c", "avx2", "avx512", "avx512-vnni")}
    had = {isa: r.stdout for isa, r in texts.items() if r.returncode == 0}
    assert "c" in had and len(set(had.values())) == 1
    for isa, r in texts.items():
        assert r.returncode in (0, 2), (isa, r.stderr)


def test_a_drawn_seed_is_shown_and_gives_the_text_again():
    """At the end of a run on a terminal; the text stays alone on stdout."""
    ours, theirs = pty.openpty()
    args = ["run", "-p", "Once upon a time", "--raw", "-n", "12", "--temperature", "1"]
    with subprocess.Popen([BIN, *args], stdout=subprocess.PIPE, stderr=theirs) as p:
        os.close(theirs)
        text, told = p.stdout.read().decode(), b""
        while b"]" not in told:
            told += os.read(ours, 4096)
        assert p.wait(60) == 0
    os.close(ours)
    seed = re.search(rb", seed (\d+)\]", told)
    assert seed, told
    assert ok(*args, "--seed", seed[1].decode()) == text


def test_help_says_how_large_a_step_is():
    help_text = ok("inspect", "--help")  # the short one
    for model in ([], ["tests/golden/models/bert"]):  # one that reads whole texts
        tokens = json.loads(ok("inspect", "--json", "--device", "cpu", *model))["memory"]["max_num_batched_tokens"]
        assert re.search(rf"--max-num-batched-tokens N .*\b{tokens}\b", help_text), tokens


def test_run_json_and_stop():
    r = json.loads(ok("run", "-p", "Tell me a story about a fox.", "-n", "40", "--json", "--seed", "1"))
    assert set(r) >= {"text", "finish_reason", "prompt_tokens", "completion_tokens", "ttft_s", "seed"}
    assert r["completion_tokens"] <= 40
    word = next(w for w in r["text"].split() if len(w) > 3)
    cut = json.loads(ok("run", "-p", "Tell me a story about a fox.", "-n", "40", "--json", "--seed", "1",
                        "--stop", word))
    assert cut["finish_reason"] == "stop" and cut["text"] == r["text"][:r["text"].index(word)]


def test_run_reads_stdin():
    a = ok("run", "-f", "-", "--raw", "-n", "8", "--temperature", "0", stdin=b"Once upon a time")
    assert a == ok("run", "-p", "Once upon a time", "--raw", "-n", "8", "--temperature", "0")


@pytest.mark.parametrize("text", ["Hello, world", "", "  spaces \n\n\ttabs", "naïve – “quoted” 你好 🦊 <|end|>"])
def test_tokenize_round_trip(text):
    ids = ok("tokenize", stdin=text.encode())
    assert all(isinstance(i, int) for i in json.loads(ids))
    assert ok("tokenize", "--decode", stdin=ids.encode()) == text


@pytest.mark.parametrize("bad", [b"", b"[", b"[1,]", b"[1 2]", b"{}", b"[1.5]", b"[1]x", b"[99999999999]",
                                 b"[-1]", b"[1000000]"])
def test_decode_refuses(bad):
    r = sluice("tokenize", "--decode", stdin=bad)
    assert r.returncode == 2 and r.stderr


def test_template_of_the_bundled_model():
    text = ok("template", stdin=json.dumps({"messages": [{"role": "user", "content": "Hi"}],
                                            "add_generation_prompt": True}).encode())
    assert "Hi" in text and "assistant" in text
    for bad in (b"", b"[]", b"{", b'{"messages": 3}', b'{"now": "yesterday", "messages": []}'):
        r = sluice("template", stdin=bad)
        assert r.returncode == 2 and r.stderr, bad


def test_inspect():
    d = json.loads(ok("inspect", "--json", "--tensors"))
    assert d["memory"]["weight_bytes"] > 1_000_000 and d["memory"]["n_pages"] > 0
    m = d["memory"]
    assert m["weights_repacked_bytes"] + m["weights_mapped_bytes"] >= m["weight_bytes"]
    assert "memory plan" in ok("inspect")
    exact = json.loads(ok("inspect", "--json", "--exact-weights", "--numa", "off"))["memory"]
    assert exact["weights_repacked_bytes"] < m["weight_bytes"] // 100
    assert exact["weights_mapped_bytes"] > m["weight_bytes"] * 99 // 100


def test_inspect_offload(tmp_path):
    """Repacked weights beyond a bound lie on the disk; what is read ahead of them is in memory too."""
    whole = json.loads(ok("inspect", "--json"))["memory"]
    limit = whole["weights_repacked_bytes"] // 3
    flags = ["--offload-folder", str(tmp_path), "--weights-memory-bytes", str(max(limit, 1))]
    m = json.loads(ok("inspect", "--json", *flags))["memory"]
    assert whole["weights_stored_bytes"] == 0
    if limit:  # this processor repacks weights of the bundled model's format
        assert m["weights_stored_bytes"] == whole["weights_repacked_bytes"] - limit
        assert m["weights_repacked_bytes"] >= limit and "weights, on disk" in ok("inspect", *flags)


def test_inspect_states():
    """States are float32 whatever keys would be; a layer that is alone is no range."""
    text = ok("inspect", "--kv-cache-memory-bytes", "64M", "tests/golden/models/mamba2")
    assert re.search(r"^  KV pages .* blocks of 16 tokens, f32$", text, re.M) and "KV bf16" not in text, text
    assert re.search(r"^layers        0-2: .*no MLP$", text, re.M), text
    text = ok("inspect", "--kv-cache-memory-bytes", "64M", "tests/golden/models/nemotron_h")
    assert re.search(r"^layer         0: ", text, re.M) and "0-0" not in text, text
    assert re.search(r"^  KV pages .* blocks of 16 tokens, bf16$", text, re.M), text


def test_bench_json():
    d = json.loads(ok("bench", "--num-prompts", "4", "--input-len", "20", "--output-len", "8", "--json"))
    assert d["output_tokens"] == 32 and d["failed"] == 0 and d["step_mallocs"] == 0


def test_bench_of_a_late_prompt():
    """Chunks of a prompt that comes while others generate: with a bound they are many and short."""
    flags = ["bench", "--num-prompts", "3", "--input-len", "16", "--output-len", "60", "--late-input-len", "180",
             "--json"]
    whole, cut = json.loads(ok(*flags)), json.loads(ok(*flags, "--max-itl", "1"))
    for d in (whole, cut):
        assert d["failed"] == 0 and d["output_tokens"] == 4 * 60 and d["input_tokens"] == 3 * 16 + 180
        assert d["late_input_len"] == 180 and d["late_ttft_ms"] > 0 and d["itl_beside_late_ms"]["p50"] > 0
    assert cut["steps"] > whole["steps"]


def test_bench_warmup_is_not_counted_and_leaves_the_prefix_cached():
    flags = ["bench", "--num-prompts", "1", "--max-concurrency", "1", "--prefix-len", "64", "--input-len", "80",
             "--output-len", "8", "--json"]
    cold, warm = json.loads(ok(*flags)), json.loads(ok(*flags, "--warmup", "2"))
    assert cold["cached_tokens"] == 0 and warm["cached_tokens"] == 64
    for d in (cold, warm):
        assert d["requests"] == 1 and d["output_tokens"] == 8 and d["input_tokens"] == 80
        assert d["prefill_tokens_per_s"] > 0 and d["decode_tokens_per_s"] > 0


def test_output_can_be_constrained(tmp_path):
    schema = '{"type": "integer", "minimum": 5, "maximum": 77}'
    schema_file, rules = tmp_path / "schema", tmp_path / "rules"
    schema_file.write_text(schema)
    rules.write_text('root ::= [a-c]+ "!" "\\n"')
    run = ["run", "--raw", "-p", "Once", "-n", "200", "--seed", "3", "--json"]
    for given in (schema, str(schema_file)):
        assert 5 <= json.loads(json.loads(ok(*run, "-j", given))["text"]) <= 77
    assert re.fullmatch(r"[0-9]{2}-x", json.loads(ok(*run, "--regex", "[0-9]{2}-x"))["text"])
    assert re.fullmatch(r"[a-c]+!\n", json.loads(ok(*run, "--grammar-file", str(rules)))["text"])
    assert re.fullmatch(r"(ab)+", json.loads(ok(*run, "--grammar", 'root ::= "ab" | "ab" root'))["text"])
    assert json.loads(ok(*run, "--choice", "red", "--choice", "blue"))["text"] in ("red", "blue")
    r = sluice("chat", "--choice", "yes", "--choice", "no", "--seed", "1", stdin=b"Well?\nAnd now?\n")
    assert r.returncode == 0 and all(line in (b"yes", b"no") for line in r.stdout.split()), r.stdout


def test_bench_of_constrained_requests():
    text = ok("bench", "--num-prompts", "2", "--input-len", "8", "--output-len", "8", "--regex", "[ab]{100}")
    assert "16 out" in text and "too late for a step" in text


def test_chat_keeps_history_and_answers():
    r = sluice("chat", "--seed", "1", "-n", "12", stdin=b"Tell me a story.\n/clear\n/help\nAnd now?\r\n/exit\r\nunread\n")
    assert r.returncode == 0, r.stderr
    assert r.stdout.count(b"\n") >= 2
    assert b"conversation cleared" in r.stderr


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def seconds_of(pid):
    """Of processors, by all threads."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def blocked_in_write(pid, fd):
    """What the kernel says of the main thread: `number of the system call, its arguments, ...`."""
    try:
        call = pathlib.Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
    except OSError:  # nobody may look here: by now it should be there
        time.sleep(5)
        return True
    return call[0] in ("1", "64") and call[1] == hex(fd)  # x86-64, AArch64


def test_interrupt_ends_a_run_cleanly():
    p = subprocess.Popen([BIN, "run", "-p", "Once", "--raw", "--ignore-eos"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE)
    p.stdout.read(1)
    start = time.monotonic()
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    assert p.returncode == 0, err
    assert time.monotonic() - start < 10


def test_interrupted_bench_ends_cleanly():
    p = subprocess.Popen([BIN, "bench", "--num-prompts", "400", "--output-len", "200", "--json"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.5)
    wait_for(lambda: seconds_of(p.pid) > 1)  # of a processor: it is past its start
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30)
    assert p.returncode == 1 and out == b"", (p.returncode, err)
    assert b"interrupted after" in err and b"bug" not in err


@pytest.mark.parametrize("args", [["--version"], ["run", "--help"], ["run", "-p", "x", "-n", "2"],
                                  ["run", "-p", "x", "-n", "2", "--json"], ["inspect"],
                                  ["bench", "--num-prompts", "1", "--output-len", "2"]])
def test_output_that_cannot_be_written_fails(args):
    with open("/dev/full", "wb") as full:
        r = subprocess.run([BIN, *args], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert r.returncode == 1 and b"write" in r.stderr, r


@pytest.mark.parametrize("closed, status", [(">&-", 1), ("2>&-", 0), ("<&- 2>&-", 0), ("<&- >&- 2>&-", 1)])
def test_closed_standard_files_are_not_reused(closed, status):
    r = subprocess.run(["/bin/sh", "-c", f'exec "$0" run -p x -n 2 {closed}', BIN], stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=60)
    assert r.returncode == status, r.stderr
    assert (r.stdout != b"") == (status == 0)
    if closed == ">&-":
        assert b"Bad file descriptor" in r.stderr


def test_second_interrupt_kills_a_run_that_nobody_reads():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    p = subprocess.Popen([BIN, "run", "-p", "Once", "--raw", "--ignore-eos"], stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    wait_for(lambda: blocked_in_write(p.pid, 1))  # of its first word
    p.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=10)
    os.close(reader)
    assert p.returncode == -signal.SIGINT


def test_chat_names_an_unreadable_stdin():
    folder = os.open("/", os.O_RDONLY)
    r = subprocess.run([BIN, "chat"], stdin=folder, capture_output=True, timeout=60)
    os.close(folder)
    assert r.returncode == 1 and b"standard input" in r.stderr


def test_doctor_knows_this_machine():
    r = sluice("doctor", "--no-measure", "--json")
    j = json.loads(r.stdout)
    assert j["threads"] >= 1 and 0 < j["ram_bytes"] <= j["ram_bytes_of"] * 1.01
    assert r.returncode == any(f["problem"] for f in j["findings"])
    assert b"default" in sluice("doctor", "--no-measure").stdout


def test_calibrate_finds_what_factors_leave_out(tmp_path):
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a little fox who lived in a wood. " * 120)
    args = ["calibrate", "--data", str(text), "--num-samples", "1", "--input-len", "900", "--json"]
    j = json.loads(ok(*args, "--target-sparsity", "0.01,0.2", "--output-len", "4"))
    dense, first = j["points"][:2]
    assert dense["factor"] == dense["rows"] == dense["worst"] == 0
    assert first["factor"] == 450 and first["rows"] > 0 and first["decodes"] > 0
    rows = [p["rows"] for p in j["points"][1:]]
    assert rows == sorted(rows, reverse=True)
    assert abs(j["points"][-1]["perplexity"] / dense["perplexity"] - 1) < 0.01
    assert [f["target"] for f in j["factors"]] == [0.01, 0.2]
