# SPDX-License-Identifier: MIT
"""The wheel in an environment of its own, and the package in it: declarations against a C compiler, every example of
docs/PYTHON.md and of the docstrings, results against the program's, errors, threads, signals, fork, and ends."""
import asyncio
import ctypes
import doctest
import gc
import glob
import importlib
import json
import math
import os
import pathlib
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import typing
import zipfile

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))
from colbert import make_colbert  # noqa: E402

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")
pytestmark = pytest.mark.skipif(BIN != "build/release/sluice", reason="packages are made of the release build")
VERSION = re.search(r'SLUICE_VERSION "(.*)"', open("include/sluice.h", encoding="utf-8").read())[1]
STORY = ["run", "-p", "Once upon a time", "--raw", "--temperature", "0", "-n", "32"]
MODULES = ["sluice", "sluice.errors", "sluice.llm", "sluice.params", "sluice.server", "sluice.tokenizer"]
ONCE = "Once upon a time"


def ok(*command, **more) -> str:
    r = subprocess.run(command, capture_output=True, text=True, timeout=240, **more)
    assert r.returncode == 0, r.stderr + r.stdout
    return r.stdout


@pytest.fixture(scope="module")
def wheel():
    for old in glob.glob("build/sluice-*.whl"):
        os.remove(old)
    ok("tools/mkwheel", env=os.environ | {"COMPRESS": "none"})  # deflate takes 10 s
    [path] = glob.glob(f"build/sluice-{VERSION}-py3-none-manylinux_*_x86_64.whl")
    return path


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory):
    """An empty environment with nothing but the wheel, where this process takes the package from as well."""
    path = tmp_path_factory.mktemp("venv")
    ok(sys.executable, "-m", "venv", "--without-pip", path)
    ok(sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", f"--python={path}", "install", "--no-index",
       wheel)
    [site] = glob.glob(f"{path}/lib/python3*/site-packages")
    sys.path.insert(0, site)
    os.environ["SLUICE_PROGRAM"] = f"{path}/bin/sluice"
    yield path
    sys.path.remove(site)
    del os.environ["SLUICE_PROGRAM"]


@pytest.fixture(scope="module")
def python(venv):
    """Runs a program with the environment's Python, without a word of this one's environment about sluice."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "SLUICE_", "PYTHON"))}

    def run(text: str, **variables: str) -> subprocess.CompletedProcess:
        return subprocess.run([venv / "bin" / "python", "-c", textwrap.dedent(text)], env=env | variables,
                              capture_output=True, text=True, timeout=120)
    run.command, run.env = str(venv / "bin" / "python"), env
    return run


@pytest.fixture(scope="module")
def sluice(venv):
    return importlib.import_module("sluice")


@pytest.fixture(scope="module")
def llm(sluice):
    with sluice.LLM(device="cpu") as llm:
        yield llm


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """What docs/PYTHON.md names: small models with random weights."""
    folder, mkmodel = tmp_path_factory.mktemp("models"), ["build/release/tools/mkmodel", "--quiet"]
    for name, family in (("all-MiniLM-L6-v2", "bert"), ("ms-marco-MiniLM-L6-v2", "bert-classifier"),
                         ("Qwen3-0.6B", "qwen3")):
        ok(*mkmodel, "--family", family, "--vocab", "bytes", "--seed", "7", "--out", folder / name)
    ok(*mkmodel, "--adapter-of", folder / "Qwen3-0.6B", "--rank", "8", "--seed", "1", "--out", folder / "sql-adapter")
    return folder


# ---- what is installed


def test_wheel(wheel, venv, python):
    with zipfile.ZipFile(wheel) as z:
        assert z.testzip() is None
        names = z.namelist()
        assert "sluice/py.typed" in names and "sluice/libsluice.so.0" in names
        metadata = z.read(f"sluice-{VERSION}.dist-info/METADATA").decode()
    assert "Requires-Dist" not in metadata
    story = ok(BIN, *STORY)
    assert ok(venv / "bin" / "sluice", *STORY) == story
    assert ok(python.command, "-m", "sluice", "--version") == f"sluice {VERSION}\n"
    r = python("import sluice; print(sluice.find_program(), sluice.__version__)")
    assert r.stdout == f"{venv}/bin/sluice {VERSION}\n"


def test_the_tag_is_the_glibc_that_is_needed(wheel, venv):
    [library] = glob.glob(f"{venv}/lib/python3*/site-packages/sluice/libsluice.so.0")
    needed = set()
    for path in (library, f"{venv}/bin/sluice"):
        needed |= {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", ok("readelf", "-V", path))}
    major, minor = max(needed)[:2]
    assert f"manylinux_{major}_{minor}_x86_64" in wheel
    assert (major, minor) <= (2, 34), "no longer for Ubuntu 22.04 and RHEL 9: src/cmd/compat.c has what glibc 2.34 lacks"


def test_declarations_are_those_of_the_header(sluice, tmp_path):
    """Every field of every structure lies where the C compiler has it."""
    abi = importlib.import_module("sluice._abi")
    lines, want = [], []
    for name, kind in abi.STRUCTURES.items():
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        want.append((name, ctypes.sizeof(kind)))
        for field, _ in kind._fields_:
            lines.append(f'printf("%zu %zu\\n", offsetof(struct {name}, {field}), sizeof(((struct {name} *)0)->{field}));')
            at = getattr(kind, field)
            want.append((f"{name}.{field}", f"{at.offset} {at.size}"))
    for constant in [n for n in dir(abi) if re.fullmatch(r"[A-Z]+_\w+|RUNNING", n) and isinstance(getattr(abi, n), int)]:
        lines.append(f'printf("%d\\n", SL_{constant});')
        want.append((constant, getattr(abi, constant)))
    for code, (name, http, _) in abi.ERRORS.items():
        lines.append(f'printf("%d\\n", SL_{name});')
        want.append((name, code))
    source = tmp_path / "abi.c"
    source.write_text("#include <sluice.h>\n#include <stdio.h>\nint main(void)\n{\n" + "\n".join(lines) + "}\n")
    ok("cc", "-Iinclude", source, "-o", tmp_path / "abi")
    got = ok(tmp_path / "abi").splitlines()
    assert [(n, str(v)) for n, v in want] == [(n, g) for (n, _), g in zip(want, got)] and len(got) == len(want)
    assert len(want) > 250
    assert set(abi.FUNCTIONS) == set(ok("tools/api", "names").split())


def test_types(sluice, tmp_path):
    """The package is strict, and a user's mistakes are seen."""
    pytest.importorskip("mypy")
    folder = os.path.dirname(sluice.__file__)
    (tmp_path / "user.py").write_text(textwrap.dedent("""
        from sluice import LLM, SamplingParams
        def first(llm: LLM) -> str:
            outputs = llm.generate(["a"], SamplingParams(top_k=3))
            text: str = outputs[0].outputs[0].text
            return outputs[0].outputs[0].token_ids
        SamplingParams(top_kk=3)
        """))
    r = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, folder,
                        tmp_path / "user.py"], capture_output=True, text=True,
                       env=os.environ | {"MYPYPATH": os.path.dirname(folder)})
    assert '"list[int]", expected "str"' in r.stdout and 'argument "top_kk"' in r.stdout, r.stdout
    assert "Found 2 errors in 1 file" in r.stdout


# ---- examples


@pytest.mark.parametrize("module", MODULES)
def test_docstrings(sluice, module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.failed == 0 and result.attempted > 0


def blocks():
    with open("docs/PYTHON.md", encoding="utf-8") as f:
        return re.findall(r"^```python\n(.*?)^```", f.read(), flags=re.S | re.M)


@pytest.mark.parametrize("number", range(len(blocks())))
def test_examples_of_the_page(python, models, number):
    r = subprocess.run([python.command, "-c", blocks()[number]], cwd=models, env=python.env, capture_output=True,
                       text=True, timeout=120)
    assert r.returncode == 0 and r.stderr == "" and r.stdout.strip() != "", r.stderr + r.stdout


def test_the_example_streams_and_stops(python):
    story = ok(BIN, *STORY).rstrip("\n")
    command = [python.command, "examples/generate.py"]
    r = subprocess.run(command, env=python.env, capture_output=True, text=True)
    assert r.returncode == 0 and r.stdout == story and "finished" in r.stderr, r
    r = subprocess.run([*command, "-", ONCE, "20"], env=python.env, capture_output=True, text=True)
    assert r.returncode == 0 and "cancelled" in r.stderr and len(r.stdout) >= 20 and story.startswith(r.stdout), r
    r = subprocess.run([*command, "/no/such/model"], env=python.env, capture_output=True, text=True)
    assert r.returncode == 1 and "/no/such/model" in r.stderr, r


# ---- results


def test_text_is_the_program_s(sluice, llm):
    story = ok(BIN, *STORY).rstrip("\n")
    params = llm.get_default_sampling_params()
    params.temperature, params.max_tokens = 0, 32
    [one] = llm.generate(ONCE, params)
    assert one.outputs[0].text == one.text == story and one.prompt == ONCE and one.finished
    assert one.outputs[0].finish_reason == "length" and len(one.outputs[0].token_ids) == 32
    assert llm.detokenize(one.outputs[0].token_ids) == story
    stream = llm.stream(ONCE, params)
    assert "".join(stream) == story and stream.output.finished
    [same] = llm.generate({"prompt_token_ids": one.prompt_token_ids}, params)
    assert same.text == story and same.prompt is None and same.num_cached_tokens > 0 or same.text == story
    assert 0 <= same.metrics.scheduled <= same.metrics.first_token <= same.metrics.finished


def test_a_list_runs_together(sluice, llm):
    params = [sluice.SamplingParams(temperature=0, max_tokens=4 + i, ignore_eos=True) for i in range(24)]
    prompts = [f"The number {i} is" for i in range(24)]
    before = llm.stats()["steps"]
    outputs = llm.generate(prompts, params)
    steps = llm.stats()["steps"] - before
    assert [o.prompt for o in outputs] == prompts
    assert [len(o.outputs[0].token_ids) for o in outputs] == [4 + i for i in range(24)]
    assert steps < 60, f"{steps} steps for 372 tokens: they did not share them"
    assert [llm.generate(p, s)[0].text for p, s in zip(prompts[:3], params)] == [o.text for o in outputs[:3]]


def test_sampling_params(sluice, llm):
    def text(**fields):
        return llm.generate(ONCE, sluice.SamplingParams(max_tokens=12, **fields))[0].outputs[0]
    assert text(seed=5).text == text(seed=5).text != text(seed=6).text
    greedy = text(temperature=0)
    stopped = text(temperature=0, stop=" day")
    assert stopped.finish_reason == "stop" and stopped.stop_reason == " day" and greedy.text.startswith(stopped.text)
    assert text(temperature=0, stop=[" day"], include_stop_str_in_output=True).text == stopped.text + " day"
    token = greedy.token_ids[3]
    ended = text(temperature=0, stop_token_ids=[token])
    assert ended.stop_reason == token and ended.token_ids == greedy.token_ids[:4]
    assert token not in text(temperature=0, logit_bias={token: -100.0}).token_ids
    assert set(text(allowed_token_ids=[token, 300]).token_ids) <= {token, 300}
    assert " great" in text(temperature=0, allowed_token_ids=llm.tokenize(" great", False)).text
    with pytest.raises(sluice.RequestError, match="bad_words"):
        text(bad_words=["x" * 500])
    word = next(w for w in re.findall(r" (\w+)", greedy.text) if len(llm.tokenize(" " + w, False)) == 1)
    assert not re.search(rf" {word}\b", text(temperature=0, bad_words=[word]).text)
    two = llm.generate(ONCE, sluice.SamplingParams(n=2, seed=1, max_tokens=8))[0].outputs
    assert [o.index for o in two] == [0, 1] and two[0].text != two[1].text
    assert len(llm.generate(ONCE)[0].outputs[0].token_ids) <= 16
    assert isinstance(llm.get_default_sampling_params().temperature, float)


def test_a_seed_of_the_engine(sluice):
    def texts(seed):
        with sluice.LLM(device="cpu", seed=seed) as llm:
            return [o.text for o in llm.generate([ONCE] * 3) + llm.generate(ONCE)]
    first = texts(3)
    assert texts(3) == first and len(set(first)) == 4 and texts(4) != first


def test_logprobs(sluice, llm):
    [output] = llm.generate(ONCE, sluice.SamplingParams(temperature=0, max_tokens=6, logprobs=3, prompt_logprobs=1))
    out = output.outputs[0]
    assert len(out.logprobs) == 6
    for token, step in zip(out.token_ids, out.logprobs):
        assert step[token].rank == 1 and step[token].logprob == max(p.logprob for p in step.values())
        assert len(step) == 3 and sum(math.exp(p.logprob) for p in step.values()) <= 1
        assert step[token].decoded_token == llm.detokenize([token], skip_special_tokens=False)
    assert out.cumulative_logprob == pytest.approx(sum(s[t].logprob for t, s in zip(out.token_ids, out.logprobs)))
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert all(t in p for t, p in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:]))


def test_tokens(sluice, llm):
    listed = [int(i) for i in re.findall(r"^\s*(\d+)", ok(BIN, "tokenize", input=ONCE), flags=re.M)]
    assert llm.tokenize(ONCE) == llm.get_tokenizer().encode(ONCE) == sluice.Tokenizer().encode(ONCE)
    assert not listed or llm.tokenize(ONCE) == listed
    assert llm.detokenize(llm.tokenize("ÄÖÜ ß 漢字 \0 x", add_special_tokens=False)) == "ÄÖÜ ß 漢字 \0 x"
    assert llm.count_tokens(ONCE) == len(llm.tokenize(ONCE)) and len(sluice.Tokenizer()) == llm.info["n_vocab"]
    chat = [{"role": "user", "content": "Hello"}]
    [output] = llm.chat(chat, sluice.SamplingParams(max_tokens=1))
    assert llm.count_tokens(chat) == len(output.prompt_token_ids) and output.prompt == llm.render_chat(chat)


def test_templates(sluice):
    template = ("{% for m in messages %}[{{ m.content }}]{% endfor %}{{ tools[0].name if tools }}{{ mood }}"
                "{% if add_generation_prompt %}>{% endif %}")
    with sluice.LLM(device="cpu", chat_template=template) as llm:
        hello = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "The "}]
        assert llm.render_chat(hello) == "[Hello][The ]>"
        assert llm.render_chat(hello, add_generation_prompt=False, continue_final_message=True) == "[Hello][The"
        [output] = llm.chat(hello, sluice.SamplingParams(max_tokens=1), tools=[{"name": "look"}],
                            chat_template_kwargs={"mood": "?"})
        assert output.prompt == "[Hello][The ]look?>"
        one, two = llm.chat([hello, hello[:1]], sluice.SamplingParams(max_tokens=1))
        assert one.prompt == "[Hello][The ]>" and two.prompt == "[Hello]>"


def test_sleep_and_priority(sluice):
    params = sluice.SamplingParams(temperature=0, max_tokens=4)
    with sluice.LLM(device="cpu") as llm:
        want = llm.generate(ONCE, params, priority=3, use_tqdm=True)[0].text
        for level in (1, 2):
            llm.sleep(level)
            with pytest.raises(sluice.SluiceError) as e:
                llm.generate(ONCE, params)
            assert e.value.code == "EASLEEP" and e.value.http_status == 503
            llm.wake_up()
            assert llm.generate([ONCE] * 2, params, priority=[1, 2])[1].text == want


def test_errors_and_outputs_cross_processes(sluice, llm):
    error = pickle.loads(pickle.dumps(sluice.RequestError("top_p must be", "top_p", -1)))
    assert (error.field, error.code, error.message) == ("top_p", "EINVAL", "top_p must be")
    server = pickle.loads(pickle.dumps(sluice.ServerError("ended", "a log", 3)))
    assert (server.log, server.returncode, str(server)) == ("a log", 3, "ended; the end of its log:\na log")
    outputs = llm.generate(ONCE, sluice.SamplingParams(max_tokens=2, logprobs=1))
    assert pickle.loads(pickle.dumps(outputs)) == outputs


def test_structured(sluice, llm):
    def text(n=200, **kind):
        structured = sluice.StructuredOutputsParams(**kind)
        return llm.generate(ONCE, sluice.SamplingParams(max_tokens=n, structured_outputs=structured))[0].text
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
              "additionalProperties": False}
    for given in (schema, json.dumps(schema)):
        assert json.loads(text(json=given, disable_any_whitespace=True))["a"] in "xy"
    assert text(choice=["red", "blue"]) in ("red", "blue")
    assert re.fullmatch(r"[a-c]{3}", text(regex="[a-c]{3}"))
    assert text(grammar='root ::= "x" | "yy"') in ("x", "yy")
    pydantic = pytest.importorskip("pydantic")

    class Fox(pydantic.BaseModel, extra="forbid"):
        fur: typing.Literal["red", "brown"]
        red: bool
    assert Fox.model_validate_json(text(json=Fox, disable_any_whitespace=True)).fur in ("red", "brown")


def test_embeddings_and_scores(sluice, models):
    def lines(*command):
        return [json.loads(line) for line in ok(BIN, "embed", *command).splitlines()]
    folder = str(models / "all-MiniLM-L6-v2")
    want = [line["embedding"] for line in lines(folder, "a fox", "a hare")]
    with sluice.LLM(folder, device="cpu") as llm:
        got = [o.outputs.embedding for o in llm.embed(["a fox", "a hare"])]
        assert got[0] == pytest.approx(want[0], abs=1e-7) and got[1] == pytest.approx(want[1], abs=1e-7)
        [score] = llm.score("a fox", "a hare")
        assert score.outputs.score == pytest.approx(sum(a * b for a, b in zip(*want)), abs=1e-6)
        assert asyncio.run(llm.ascore("a fox", "a hare"))[0].outputs.score == score.outputs.score
        short = llm.embed("a fox", dimensions=8)[0].outputs.embedding
        assert len(short) == 8 and math.hypot(*short) == pytest.approx(1)
        assert asyncio.run(llm.aembed("a fox"))[0].outputs.embedding == got[0]
        with pytest.raises(sluice.RequestError, match="embeddings or scores"):
            llm.generate("a fox")
        with pytest.raises(sluice.RequestError) as e:
            llm.embed("a fox", dimensions=4000)
        assert e.value.field == "dimensions"
    folder = str(models / "ms-marco-MiniLM-L6-v2")
    want = [line["scores"][-1] for line in lines(folder, "-q", "how tall", "very", "not so")]
    with sluice.LLM(folder, device="cpu") as llm:
        assert [s.outputs.score for s in llm.score("how tall", ["very", "not so"])] == pytest.approx(want, abs=1e-7)
        assert len(llm.classify("very")[0].outputs.probs) == llm.info["n_pooled"]
        assert llm.encode("very", pooling_task="classify")[0].outputs.data == llm.classify("very")[0].outputs.probs


def test_vectors_of_tokens(sluice, models):
    folder = str(make_colbert(models / "all-MiniLM-L6-v2", models / "colbert", 12))
    want = [json.loads(line)["embedding"] for line in ok(BIN, "embed", folder, "a fox", "a hare runs", "red").splitlines()]
    with sluice.LLM(folder, device="cpu") as llm:
        got = llm.encode(["a fox", "a hare runs", "red"], pooling_task="token_embed")
        n = llm.info["n_pooled"]
        for o, rows in zip(got, want):
            assert len(o.outputs.data) == len(o.prompt_token_ids) == len(rows) and {len(v) for v in o.outputs.data} == {n}
            assert sum(o.outputs.data, []) == pytest.approx(sum(rows, []), abs=1e-7)

        def max_sim(query, document):
            return sum(max(sum(a * b for a, b in zip(q, d)) for d in document) for q in query)
        scores = [s.outputs.score for s in llm.score("a fox", ["a hare runs", "red"])]
        assert scores == pytest.approx([max_sim(want[0], d) for d in want[1:]], abs=1e-5)
        assert [s.outputs.score for s in llm.score(["a fox", "red"], ["a hare runs", "red"])] == pytest.approx(
            [scores[0], len(want[2])], abs=1e-5)  # a text with itself: each token is its own best, and of length 1
        for task in ("embed", "score"):
            with pytest.raises(sluice.RequestError, match="pooling_task must be 'token_embed'"):
                llm.encode("a fox", pooling_task=task)
        with pytest.raises(sluice.RequestError, match="gives no embeddings"):
            llm.embed("a fox")


def test_adapters(sluice, models):
    params, adapter = sluice.SamplingParams(temperature=0, max_tokens=8), str(models / "sql-adapter")
    with sluice.LLM(str(models / "Qwen3-0.6B"), device="cpu", enable_lora=True) as llm:
        def ids(**more):
            return llm.generate("SELECT", params, **more)[0].outputs[0].token_ids
        plain, adapted = ids(), ids(lora=adapter)
        assert plain != adapted and llm.list_loras() == [adapter]
        assert ids(lora_request=sluice.LoRARequest("x", 1, adapter)) == adapted
        assert ids(lora=sluice.LoRARequest("x", 1, adapter, scale=0.0)) == plain
        llm.unload_lora("x")
        with pytest.raises(sluice.RequestError) as e:
            ids(lora="x")
        assert e.value.field == "lora" and llm.list_loras() == [adapter]


# ---- errors

WRONG = [("temperature", -1), ("temperature", "hot"), ("top_p", 2), ("min_p", float("nan")), ("top_k", -5), ("n", 0),
         ("n", 2**40), ("max_tokens", 0), ("min_tokens", -1), ("logprobs", 1000), ("prompt_logprobs", 1000),
         ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("seed", 2**65), ("stop", [""]),
         ("stop", 5), ("stop_token_ids", [-1]), ("stop_token_ids", "x"), ("allowed_token_ids", []),
         ("allowed_token_ids", [10**6]), ("logit_bias", {0: 1000}), ("bad_words", [""]),
         ("repetition_detection", {"min_count": 0, "max_pattern_size": 5}), ("repetition_detection", {"x": 1})]


@pytest.mark.parametrize("field, value", WRONG, ids=str)
def test_an_error_names_the_field(sluice, llm, field, value):
    with pytest.raises(sluice.RequestError) as e:
        llm.generate(ONCE, sluice.SamplingParams(**{field: value}))
    assert e.value.field == e.value.param == field and field in e.value.message
    assert isinstance(e.value, ValueError) and e.value.http_status == 400


def test_errors_of_prompts_and_structure(sluice, llm):
    def refused(field, *args, **more):
        with pytest.raises(sluice.RequestError) as e:
            llm.generate(*args, **more)
        assert e.value.field == field, e.value
        return e.value.message
    def structured(**kind):
        return sluice.SamplingParams(structured_outputs=sluice.StructuredOutputsParams(**kind))
    assert "prompt 1: " in refused("prompt", [ONCE, "x " * 5000, ONCE])
    refused("prompt", [[10**6]])
    refused("prompt", [3.5])
    refused("prompt", {"prompt": "x", "prompt_token_ids": [1]})
    refused("prompt", "half \ud800")
    refused("sampling_params", ["a", "b"], [sluice.SamplingParams()])
    refused("structured_outputs", ONCE, structured(regex="("))
    refused("structured_outputs", ONCE, structured())
    refused("structured_outputs", ONCE, structured(json={"type": "nothing"}))
    refused("structured_outputs", ONCE, structured(json={1, 2}))
    refused("lora", ONCE, lora="no-such-adapter")
    refused("n", ONCE, sluice.SamplingParams(n=1000))
    with pytest.raises(sluice.RequestError) as e:
        llm.stream(ONCE, sluice.SamplingParams(n=2))
    assert e.value.field == "n"
    for messages in ("Hello", [[]], [{"content": "x"}], [[{"role": "user", "content": {1}}]]):
        with pytest.raises(sluice.RequestError) as e:
            llm.chat(messages)
        assert e.value.field == "messages"
    wait_idle(llm)


def test_errors_of_loading(sluice):
    for field, args in (("model", {"model": "/no/such/model"}), ("kv_cache_dtype", {"kv_cache_dtype": "f17"}),
                        ("max_model_len", {"max_model_len": 2**40}), ("no_such", {"no_such": 1}),
                        ("tensor_parallel_size", {"tensor_parallel_size": 7}),
                        ("cpu_offload_experts", {"cpu_offload_experts": "all"}),
                        ("kv_offloading_size", {"kv_offloading_size": -1.0}),
                        ("kv_cache_disk_size", {"kv_cache_disk_size": 1.0}),
                        ("kv_transfer_config", {"kv_transfer_config": {"kv_connector": "NoConnector"}}),
                        ("kv_transfer_config", {"kv_transfer_config": {"kv_connector": {1}}})):
        with pytest.raises(sluice.RequestError) as e:
            sluice.LLM(**args)
        assert e.value.field == field, e.value
    sluice.LLM(tensor_parallel_size=1, dtype="auto", trust_remote_code=True, enforce_eager=True).close()


def test_pages_outlive_an_engine(sluice, tmp_path):
    params = sluice.SamplingParams(temperature=0, max_tokens=4)
    args = {"device": "cpu", "kv_cache_dir": str(tmp_path / "pages"), "kv_cache_disk_size": 0.25,
            "kv_offloading_size": 0.0625}
    prompt = {"prompt_token_ids": [5 + i % 90 for i in range(200)]}
    outputs = []
    for _ in range(2):
        with sluice.LLM(**args) as llm:
            [output] = llm.generate(prompt, params)
            outputs.append(output)
    assert outputs[0].num_cached_tokens == 0 and outputs[1].num_cached_tokens > 100
    assert outputs[0].outputs[0].token_ids == outputs[1].outputs[0].token_ids


def test_progress(sluice):
    seen = []
    sluice.LLM(device="cpu", progress=lambda *what: seen.append(what)).close()
    assert seen[-1][0] == "loading weights" and seen[-1][1] == seen[-1][2] > 0

    def fail(*unused):
        raise KeyError("mine")
    with pytest.raises(KeyError, match="mine"):
        sluice.LLM(device="cpu", progress=fail)


# ---- threads, ends, signals


def wait_idle(llm):
    deadline = time.monotonic() + 10
    while (s := llm.stats())["n_running"] + s["n_waiting"] > 0:
        assert time.monotonic() < deadline, s
        time.sleep(0.01)


LONG = {"temperature": 0, "max_tokens": 900, "ignore_eos": True}


def test_threads_share_steps(sluice, llm):
    params = sluice.SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    [want] = llm.generate(ONCE, params)
    before, got = llm.stats()["steps"], []
    threads = [threading.Thread(target=lambda: got.append("".join(llm.stream(ONCE, params)))) for _ in range(16)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert got == [want.text] * 16 and llm.stats()["steps"] - before < 16 * 16


def test_a_full_queue_is_waited_for(sluice, llm, monkeypatch):
    abi, engine = importlib.import_module("sluice._abi"), importlib.import_module("sluice._engine")
    small = engine.Engine(abi.EngineConfig(device=b"cpu", max_queued=2, max_num_seqs=2))
    monkeypatch.setattr(llm, "_engine", small)
    outputs = llm.generate([f"{i}" for i in range(30)], sluice.SamplingParams(max_tokens=2))
    assert len(outputs) == 30 and all(o.outputs[0].token_ids for o in outputs)
    small.close()


def test_streams_that_are_left(sluice, llm):
    params = sluice.SamplingParams(**LONG)
    for _ in llm.stream(ONCE, params):
        break  # and collected
    gc.collect()
    wait_idle(llm)
    with llm.stream(ONCE, params) as pieces:
        first = next(pieces)
        assert first and pieces.output.text.startswith(first) and not pieces.output.finished
    wait_idle(llm)
    with pytest.raises(sluice.SluiceError, match="cancelled"):
        list(pieces)


def test_asyncio(sluice, llm):
    async def main():
        params = sluice.SamplingParams(temperature=0, max_tokens=12)
        [want] = llm.generate(ONCE, params)
        many = await asyncio.gather(*[llm.agenerate(ONCE, params) for _ in range(8)])
        assert [o.text for [o] in many] == [want.text] * 8
        assert "".join([p async for p in llm.astream(ONCE, params)]) == want.text
        chat = [{"role": "user", "content": "Hello"}]
        assert (await llm.achat(chat, params))[0].text == "".join([p async for p in llm.astream_chat(chat, params)])
        task = asyncio.create_task(llm.agenerate([ONCE, "The fox"], sluice.SamplingParams(**LONG)))
        ticks = 0
        while llm.stats()["n_running"] == 0:
            await asyncio.sleep(0.001)
            ticks += 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with llm.astream(ONCE, sluice.SamplingParams(**LONG)) as pieces:
            async for _ in pieces:
                break
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.agenerate(ONCE, sluice.SamplingParams(**LONG)), 0.05)
        with pytest.raises(sluice.RequestError) as e:
            await llm.agenerate([ONCE, ONCE], sluice.SamplingParams(top_p=7))
        assert e.value.field == "top_p"
    asyncio.run(main())
    wait_idle(llm)


def test_closing_ends_what_runs(sluice):
    llm = sluice.LLM(device="cpu")
    errors = []

    def ask():
        try:
            llm.generate([ONCE] * 4, sluice.SamplingParams(**LONG))
        except sluice.SluiceError as e:
            errors.append(e)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    [t.start() for t in threads]
    while llm.stats()["n_running"] == 0:
        time.sleep(0.001)
    start = time.monotonic()
    llm.close()
    [t.join(10) for t in threads]
    assert len(errors) == 4 and all(e.code == "ESHUTDOWN" for e in errors) and time.monotonic() - start < 5
    for call in (lambda: llm.generate(ONCE), lambda: llm.tokenize("x"), llm.stats, llm.sleep):
        with pytest.raises(sluice.SluiceError, match="closed"):
            call()
    llm.close()


def test_the_last_reference_frees_an_engine(python):
    r = python("""
        import gc, os, time
        from sluice import LLM
        def threads(): return len(os.listdir("/proc/self/task"))
        gc.disable()  # no cycles: the last reference is enough
        before = threads()
        for _ in range(3): LLM(device="cpu").generate("Hello")
        deadline = time.monotonic() + 10  # the reader may have the last one
        while threads() != before and time.monotonic() < deadline: time.sleep(0.01)
        assert threads() == before, threads()
        """)
    assert r.returncode == 0, r.stderr


def test_a_process_may_end_in_any_state(python):
    r = python("""
        from sluice import LLM, SamplingParams, StructuredOutputsParams
        llm = LLM(device="cpu")
        params = SamplingParams(max_tokens=900, ignore_eos=True, structured_outputs=StructuredOutputsParams(regex="a*"))
        streams = [llm.stream("Hello", params) for _ in range(4)]
        print(next(streams[0]) != "")
        """)
    assert r.returncode == 0 and r.stdout == "True\n" and r.stderr == "", r.stderr


@pytest.mark.parametrize("how", ["llm.generate(['Hello'] * 8, params)", "list(llm.stream('Hello', params))"])
def test_ctrl_c_ends_a_generation_and_nothing_else(python, how):
    program = textwrap.dedent(f"""
        import time
        from sluice import LLM, SamplingParams
        llm = LLM(device="cpu")
        params = SamplingParams(max_tokens=900, ignore_eos=True)
        for _ in range(3):
            try:
                print("ready", flush=True)
                while True: {how}
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        while llm.stats()["n_running"]: time.sleep(0.01)
        print(len(llm.generate("Hello", SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids))
        """)
    with subprocess.Popen([python.command, "-c", program], env=python.env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as p:
        for _ in range(3):
            assert p.stdout.readline() == "ready\n"
            time.sleep(0.1)
            p.send_signal(signal.SIGINT)
            assert p.stdout.readline() == "interrupted\n"
        out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out == "3\n" and err == "", out + err


def test_any_number_of_signals(python):
    """Wherever they strike, no request is lost and nothing waits for ever."""
    program = textwrap.dedent("""
        import signal, time
        from sluice import LLM, SamplingParams
        llm = LLM(device="cpu")
        params, n, end = SamplingParams(max_tokens=4, ignore_eos=True), 0, time.monotonic() + 2
        armed = False
        def strike(*unused):
            global armed
            if armed:
                armed = False
                raise KeyboardInterrupt
        signal.signal(signal.SIGINT, strike)
        print("ready", flush=True)
        while time.monotonic() < end:
            try:
                armed = True
                while time.monotonic() < end:
                    llm.generate(["Hello"] * 4, params)
                    for _ in llm.stream("Hello", params): pass
                armed = False
            except KeyboardInterrupt:
                n += 1
        end = time.monotonic() + 10
        while llm.stats()["n_running"] + llm.stats()["n_waiting"] and time.monotonic() < end: time.sleep(0.01)
        print(n > 10, llm.stats()["n_running"], len(llm.generate(["Hello"] * 3, params)))
        """)
    with subprocess.Popen([python.command, "-c", program], env=python.env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "ready\n"
        end = time.monotonic() + 1.8
        while time.monotonic() < end:
            time.sleep(0.007)
            p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=60)
    assert p.returncode == 0 and out == "True 0 3\n", out + err


def test_fork(python):
    r = python("""
        import os, threading
        from sluice import LLM, SamplingParams, SluiceError
        llm = LLM(device="cpu")
        llm.generate("Hello")
        stream = llm.stream("Hello", SamplingParams(max_tokens=100))
        pid = os.fork()
        if pid == 0:
            try:
                llm.generate("Hello")
            except SluiceError as e:
                assert "fork" in e.message
                llm.close()
                raise SystemExit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert len(list(stream)) > 0 and llm.generate("Hello")[0].finished
        """)
    assert r.returncode == 0, r.stderr


# ---- the server


def test_server(sluice):
    openai = pytest.importorskip("openai")
    with sluice.Server(device="cpu", served_model_name=["story", "tale"], max_model_len=256) as server:
        assert server.port > 0 and server.url == f"http://127.0.0.1:{server.port}"
        client = openai.OpenAI(base_url=server.base_url, api_key="-", max_retries=0)
        reply = client.completions.create(model="tale", prompt=ONCE, max_tokens=4, temperature=0)
        assert reply.usage.completion_tokens == 4
        pid = server.process.pid
        assert "listening on" in server.log()
    assert server.process.returncode == 0 and not os.path.exists(f"/proc/{pid}")
    assert "drain" in server.log() and server.stop() == 0


def test_a_server_that_does_not_start(sluice):
    with pytest.raises(sluice.ServerError) as e:
        sluice.Server("/no/such/model")
    assert e.value.returncode not in (0, None) and "/no/such/model" in e.value.log and e.value.log in str(e.value)
    with pytest.raises(sluice.ServerError, match="max-no-such"):
        sluice.Server(max_no_such=4)


def test_a_server_ends_with_its_python(python):
    r = python("""
        from sluice import Server
        server = Server(device="cpu")
        print(server.process.pid)
        """)
    assert r.returncode == 0 and not os.path.exists(f"/proc/{r.stdout.strip()}")


# ---- as vLLM, and by name

QUICKSTART = """
from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
llm = LLM(model="facebook/opt-125m")
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
"""


@pytest.fixture
def hub(tmp_path):
    sys.path.insert(0, "tests/hub")
    standin = importlib.import_module("standin")
    hub = standin.Hub()
    files = {p.name: p.read_bytes() for p in pathlib.Path("assets/storyteller").iterdir()}
    hub.repos["facebook/opt-125m"] = standin.Repo(files)  # a model of that name, which is the bundled one
    hub.env = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.url, "no_proxy": "*"}
    yield hub
    hub.close()


def test_the_quickstart_of_vllm_with_another_import(python, hub):
    r = python(QUICKSTART.replace("from vllm import", "from sluice import"), **hub.env)
    assert r.returncode == 0 and r.stderr == "", r.stderr
    lines = r.stdout.splitlines()
    assert len(lines) >= 4 and re.match("Prompt: 'Hello, my name is', Generated text: ['\"]", lines[0]), lines
    asked = len(hub.asked())
    r = python("""
        from sluice import LLM, RequestError, Tokenizer
        print(LLM("facebook/opt-125m", progress=print, offline=True).info["architecture"])
        try:
            LLM("facebook/opt-126m", offline=True)
        except RequestError as error:
            print(error.field)
        """, **hub.env)
    assert asked > 0 and len(hub.asked()) == asked  # the cache is enough
    assert r.stdout.endswith("llama\nmodel\n") and "loading weights" in r.stdout, r.stderr


def test_ctrl_c_ends_a_download(python, hub):
    hub.fault("blobs/facebook/opt-125m/model.safetensors", "stall", after=1000)
    program = textwrap.dedent("""
        from sluice import LLM
        try:
            LLM("facebook/opt-125m", progress=lambda what, done, total: print(what, done > 0, flush=True))
        except KeyboardInterrupt:
            print("interrupted")
        """)
    with subprocess.Popen([python.command, "-c", program], env=python.env | hub.env, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline().startswith("downloading facebook/opt-125m ")
        assert hub.stalled.wait(30)
        p.send_signal(signal.SIGINT)
        out, err = p.communicate(timeout=20)
    assert p.returncode == 0 and out.endswith("interrupted\n") and err == "", out + err
