# SPDX-License-Identifier: MIT
"""A model that drafts for another one, with the real binary: answers are those without it, bit for bit, and a model
that drafts for itself is right every time. What cannot draft is refused at the start with the reason."""
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from serverproc import BINARY, ROOT, Server

MKMODEL = os.path.join(ROOT, "build", "release", "tools", "mkmodel")
STORY = os.path.join(ROOT, "assets", "storyteller")
ANY_TIME = ["--threads", "1", "--max-itl", "0"]  # no prices are learnt: all drafts are made
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
          "required": ["name", "age"]}
BODIES = [
    {"prompt": "Once upon a time there was", "max_tokens": 60, "temperature": 0, "repetition_penalty": 1},
    {"prompt": "Once upon a time there was", "max_tokens": 40, "temperature": 1, "seed": 3, "n": 4},
    {"prompt": "The king said " * 30, "max_tokens": 30, "temperature": 0.5, "seed": 4, "frequency_penalty": 0.3},
    {"prompt": "The king said " * 30, "max_tokens": 33, "temperature": 0, "presence_penalty": 0.2},
    {"prompt": "A name: ", "max_tokens": 60, "temperature": 0.7, "seed": 5,
     "structured_outputs": {"json": SCHEMA}},
    {"prompt": "Yes or no? ", "max_tokens": 40, "temperature": 0, "structured_outputs": {"regex": "(yes|no|maybe){3,9}"}},
]


def config(**keys):
    return ["--speculative-config", json.dumps({"method": "draft_model", "num_speculative_tokens": 4} | keys)]


def answers(server, bodies=None):
    def ask(body):
        status, reply = server.json("POST", "/v1/completions", body | {"logprobs": 2})
        assert status == 200, reply
        return reply["choices"]

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(ask, bodies or BODIES))


def counted(server, name):
    return server.metric(f"vllm:spec_decode_num_{name}_total")


@pytest.fixture(scope="module")
def story():
    with Server(STORY, *ANY_TIME) as s:
        return answers(s)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")

    def make(name, *args):
        subprocess.run([MKMODEL, "--vocab", "bytes", "--out", str(folder / name), *args], check=True,
                       capture_output=True)

    make("llama", "--family", "llama", "--seed", "7")
    make("qwen3", "--family", "qwen3", "--seed", "8", "--layers", "1")
    make("gemma3", "--family", "gemma3", "--seed", "9")
    make("small.gguf", "--family", "llama", "--seed", "7", "--format", "gguf", "--dtype", "f32")
    make("recurrent", "--family", "lfm2")
    make("window", "--family", "mistral", "--window", "64")
    return folder


def test_itself_is_always_right(story):
    with Server(STORY, *ANY_TIME, *config(model=STORY)) as s:
        assert answers(s, BODIES[:1]) == story[:1]
        assert counted(s, "draft_tokens") == counted(s, "accepted_tokens") >= 40
        info = s.json("GET", "/server_info")[1]
        assert info["speculative_algorithm"] == "draft_model" and info["speculative_num_draft_tokens"] == 4
        assert info["speculative_draft_model_path"] == STORY
        assert answers(s) == story
        assert answers(s) == story  # from the cache
        assert s.metric("sluice:invariant_violations_total") == 0
        assert s.stop() == 0


def test_drafts_end_at_its_max_model_len(story):
    """vLLM's key: with it, no draft is made behind so many tokens."""
    with Server(STORY, *ANY_TIME, *config(model=STORY, max_model_len=24, draft_tensor_parallel_size=1)) as s:
        assert answers(s, BODIES[:1]) == story[:1]
        assert 0 < counted(s, "draft_tokens") == counted(s, "accepted_tokens") < 24
        assert s.stop() == 0


@pytest.mark.parametrize("keys,words", [
    ({"max_model_len": 1 << 20}, "max_model_len 1048576 is more than the"),
    ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size must be 1")])
def test_what_a_configuration_may_not_say(keys, words):
    r = subprocess.run([BINARY, "inspect", STORY, *config(model=STORY, **keys)], capture_output=True, text=True)
    assert r.returncode != 0 and words in r.stderr, r.stderr


@pytest.mark.parametrize("level", [1, 2])
def test_sleeps_and_wakes(story, level):
    with Server(STORY, *ANY_TIME, "--enable-sleep-mode", "--kv-cache-memory-bytes", "100M", "--speculative-model",
                "(bundled)") as s:
        assert answers(s, BODIES[:1]) == story[:1]
        assert s.request("POST", f"/sleep?level={level}")[0] == 200 and s.request("POST", "/wake_up")[0] == 200
        assert answers(s, BODIES[:1]) == story[:1]
        assert counted(s, "draft_tokens") == counted(s, "accepted_tokens") >= 80
        assert s.stop() == 0


@pytest.mark.parametrize("target,drafter", [("llama", "qwen3"), ("gemma3", "small.gguf"), ("llama", "gemma3"),
                                            ("llama", "small.gguf"), ("recurrent", "llama")])
def test_another_family_drafts(models, target, drafter):
    bodies = [b for b in BODIES if "structured_outputs" not in b]
    flags = [*ANY_TIME, "--max-num-batched-tokens", "48", "--max-num-seqs", "8"]
    with Server(str(models / target), *flags) as s:
        plain = answers(s, bodies)
    with Server(str(models / target), *flags, *config(model=str(models / drafter))) as s:
        assert answers(s, bodies) == plain
        assert counted(s, "draft_tokens") > 20
        assert s.stop() == 0


def test_one_of_several_models(models, story):
    with Server("story=" + STORY, "tiny=" + str(models / "llama"), *ANY_TIME, "--kv-cache-memory-bytes", "64M", "--for",
                "story", "--max-model-len", "512", "--speculative-model", "(bundled)") as s:
        assert answers(s, [BODIES[0] | {"model": "story"}]) == story[:1]
        assert s.metric("vllm:spec_decode_num_accepted_tokens_total", model_name="story") >= 40
        assert answers(s, [BODIES[0] | {"model": "tiny"}])
        assert s.stop() == 0


@pytest.mark.parametrize("model,drafter,words", [
    (STORY, "llama", "the vocabulary of"), ("llama", "recurrent", "recurrent layers cannot draft"),
    ("window", "llama", "see all positions"), ("llama", "absent", "no such file or folder")])
def test_what_cannot_draft(models, model, drafter, words):
    command = [BINARY, "inspect", str(models / model), *config(model=str(models / drafter))]
    r = subprocess.run(command, capture_output=True, text=True)
    assert r.returncode != 0 and words in r.stderr, r.stderr


def test_the_plan_shows_it(models):
    command = [BINARY, "inspect", str(models / "llama"), "--kv-cache-memory-bytes", "8M"]
    plain = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)["memory"]
    command += config(model=str(models / "qwen3"))
    both = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)["memory"]
    assert both["n_pages"] < plain["n_pages"] and both["draft_kv_bytes"] > 0
    assert both["draft_mapped_bytes"] + both["draft_repacked_bytes"] > 0
    assert both["activation_bytes"] - both["draft_activation_bytes"] >= plain["activation_bytes"]
    assert "of these, to draft" in subprocess.run(command, capture_output=True, check=True, text=True).stdout


def test_a_drafter_that_costs_too_much(story):
    """One as slow as its target: nothing is gained by drafts, however right they are."""
    body = BODIES[0] | {"max_tokens": 200, "ignore_eos": True}
    with Server(STORY, "--threads", "1", *config(model=STORY)) as s:
        for _ in range(3):  # prices are learnt
            answers(s, [body])
        before = counted(s, "draft_tokens")
        answers(s, [body])
        assert counted(s, "draft_tokens") - before < 40
        assert s.stop() == 0
