# SPDX-License-Identifier: MIT
"""Models by name, with the real binary against a stand-in for the hub on loopback (standin.py): what is
fetched, what is checked, what goes wrong and what is said, and a cache that Hugging Face's own tools read."""
import fcntl
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from standin import COMMIT, Hub, Repo, git_id  # noqa: E402

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")
STORY = "assets/storyteller"
NAME = "org/Story-1.0"
BIG = random.Random(7).randbytes(300_000)  # stands for a GGUF file where only its bytes matter


def story() -> dict[str, bytes]:
    files = {p.name: p.read_bytes() for p in pathlib.Path(STORY).iterdir()}
    return files | {"README.md": b"for people", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x"}


class World:
    """A hub and an empty cache."""
    def __init__(self, tmp: pathlib.Path):
        self.hub, self.home = Hub(), tmp / "hf"
        self.cache = self.home / "hub"
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING", "TRANSFORMERS"))
                and not k.lower().endswith("_proxy")}
        self.env = keep | {"HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.url, "no_proxy": "*"}

    def start(self, *args: str, **env: str) -> subprocess.Popen:
        return subprocess.Popen([BIN, *args], env=self.env | env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run([BIN, *args], env=self.env | env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=60)

    def ok(self, *args: str, **env: str) -> subprocess.CompletedProcess:
        r = self.run(*args, **env)
        assert r.returncode == 0, r.stderr
        return r

    def fails(self, says: str, *args: str, **env: str) -> str:
        r = self.run(*args, **env)
        last = r.stderr.strip().split("\n")[-1]
        assert r.returncode in (1, 2) and r.stdout == "", (r.returncode, r.stdout)
        assert says in last and last.startswith("sluice "), r.stderr
        return r.stderr

    def repo(self, name: str = NAME) -> pathlib.Path:
        return self.cache / ("models--" + name.replace("/", "--"))

    def snapshot(self, name: str = NAME) -> set[str]:
        root = self.repo(name) / "snapshots" / COMMIT
        return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def world(tmp_path):
    w = World(tmp_path)
    w.hub.repos[NAME] = Repo(story())
    w.hub.repos["org/Story-GGUF"] = Repo({
        "README.md": b"", "config.json": b"{}", "Story-Q4_K_M.gguf": b"GGUF4" + BIG,
        "Story-UD-Q4_K_M.gguf": b"GGUFU", "Story-Q8_0.gguf": b"GGUF8", "mmproj-F16.gguf": b"GGUFm",
        "Story-Q4_1.gguf": b"GGUF1", "Story-IQ4_XS.gguf": b"GGUFx",
        "BF16/Story-BF16-00001-of-00002.gguf": b"GGUFa", "BF16/Story-BF16-00002-of-00002.gguf": b"GGUFb"})
    yield w
    w.hub.close()


def good(world: World, name: str = NAME) -> None:
    """Every blob is what its name says, every link leads to one, nothing is left over."""
    repo, source = world.repo(name), world.hub.repos[name]
    for blob in (repo / "blobs").iterdir():
        data = blob.read_bytes()
        assert blob.name == (hashlib.sha256(data).hexdigest() if len(blob.name) == 64 else git_id(data))
    for path in world.snapshot(name):
        link = repo / "snapshots" / COMMIT / path
        assert link.is_symlink() and os.readlink(link).startswith("../" * (2 + path.count("/")) + "blobs/")
        assert link.read_bytes() == source.files[path]
        assert link.resolve().name == source.digest(path)
    assert (repo / "refs" / "main").read_text() == COMMIT


def test_serve_by_name_fetches_what_the_model_needs_and_then_never_asks_again(world):
    args = ["run", NAME, "--raw", "-p", "Once upon a time", "-n", "8", "--temperature", "0"]
    first = world.ok(*args)
    want = world.ok("run", *args[2:]).stdout  # the bundled model is the same one
    assert first.stdout == want
    assert f"downloading {NAME}: " in first.stderr and "model.safetensors (" in first.stderr
    assert "\r" not in first.stderr
    assert world.snapshot() == {p for p in story() if p.endswith((".json", ".jinja", ".safetensors"))}
    good(world)
    n = len(world.hub.asked())
    again = world.ok(*args)
    assert (again.stdout, again.stderr) == (want, "") and len(world.hub.asked()) == n
    assert world.ok("inspect", NAME).stdout == world.ok("inspect", NAME, HF_HUB_OFFLINE="1").stdout
    assert len(world.hub.asked()) == n


def test_a_cache_made_by_others_is_used_and_completed(world):
    """Laid out by hand as huggingface_hub does, with one file missing."""
    source, repo = world.hub.repos[NAME], world.repo()
    snapshot = repo / "snapshots" / COMMIT
    for d in (repo / "blobs", snapshot, repo / "refs"):
        d.mkdir(parents=True)
    for path in world.hub.repos[NAME].files:
        if path.endswith((".json", ".safetensors")) and path != "tokenizer.json":
            (repo / "blobs" / source.digest(path)).write_bytes(source.files[path])
            (snapshot / path).symlink_to(f"../../blobs/{source.digest(path)}")
    (repo / "refs" / "main").write_text(COMMIT)
    world.fails("tokenizer are missing", "run", NAME, "-p", "x", "--offline")
    assert world.hub.asked() == []
    assert world.ok("run", NAME, "-p", "x", "-n", "2").stdout
    assert {e[1].rsplit("/", 1)[1] for e in world.hub.asked("resolve")} <= {"tokenizer.json", "chat_template.jinja"}
    good(world)


def test_offline_and_local_paths_ask_nobody(world, tmp_path):
    world.fails("not in the cache", "run", NAME, "-p", "x", "--offline")
    world.fails("downloads are off", "run", NAME, "-p", "x", HF_HUB_OFFLINE="1")
    (tmp_path / "org").mkdir()
    (tmp_path / NAME).symlink_to(os.path.abspath(STORY))  # a path that exists wins over the name
    r = subprocess.run([os.path.abspath(BIN), "run", NAME, "-p", "x", "-n", "1"], env=world.env, cwd=tmp_path,
                       capture_output=True, check=True)
    assert r.returncode == 0 and world.hub.asked() == []
    for name in ("./no/model", "no-such-file", "a/b/c", "org/na--me", "/abs/path", "org/x:"):
        world.run("run", name, "-p", "x")
    assert world.hub.asked() == []


@pytest.mark.parametrize("ask, gets", [
    ("org/Story-GGUF:Q8_0", {"Story-Q8_0.gguf"}),
    ("org/Story-GGUF:q4_k_m", {"Story-Q4_K_M.gguf"}),
    ("org/Story-GGUF:Q4_1", {"Story-Q4_1.gguf"}),
    ("org/Story-GGUF:iq4_xs", {"Story-IQ4_XS.gguf"}),
    ("org/Story-GGUF", {"Story-Q4_K_M.gguf"}),
    ("org/Story-GGUF:UD-Q4_K_M", {"Story-UD-Q4_K_M.gguf"}),
    ("org/Story-GGUF/mmproj-F16.gguf", {"mmproj-F16.gguf"}),
    ("org/Story-GGUF:BF16", {f"BF16/Story-BF16-0000{i}-of-00002.gguf" for i in (1, 2)}),
])
def test_gguf_by_quantisation_and_by_file(world, ask, gets):
    path = pathlib.Path(world.ok("pull", ask).stdout.strip())
    assert world.snapshot("org/Story-GGUF") == gets
    assert str(path).endswith(sorted(gets)[0])
    good(world, "org/Story-GGUF")


def test_a_bare_name_uses_the_one_quantisation_in_the_cache(world):
    name = "org/Story-GGUF"
    for ask in (":Q8_0", ""):
        world.ok("pull", name + ask)
        n, offline = len(world.hub.asked()), {"HF_HUB_OFFLINE": "1"}
        r = world.run("inspect", name, **offline)  # no GGUF file, but its name is in the message
        if ask:  # one is there: it is used, and named
            assert f"{name}: using Story-Q8_0.gguf, the only GGUF file in the cache" in r.stderr
            assert "Story-Q8_0.gguf: " in r.stderr.strip().split("\n")[-1]
        else:  # several: the default, without a word
            assert "using" not in r.stderr and "Story-Q4_K_M.gguf: " in r.stderr
        assert "using" not in world.run("inspect", name + ":Q8_0", **offline).stderr
        assert len(world.hub.asked()) == n
    shutil.rmtree(world.cache)
    for ask in (":Q8_0", ":BF16"):  # two, and neither is the default: the name has to say which
        world.ok("pull", name + ask)
    world.fails("no Q4_K_M among its GGUF files", "inspect", name, "--offline")


def test_gguf_that_is_not_there(world):
    says = world.fails("no Q2_K among its GGUF files", "pull", "org/Story-GGUF:Q2_K")
    assert "Story-Q8_0.gguf" in says and "mmproj" not in says
    world.fails("missing", "pull", "org/Story-GGUF/nothing.gguf")
    world.fails("name the first", "pull", "org/Story-GGUF/BF16/Story-BF16-00002-of-00002.gguf")
    world.hub.repos["org/pickled"] = Repo({"config.json": b"{}", "pytorch_model.bin": b"x"})
    world.fails("only pickled ones", "pull", "org/pickled")


def test_weights_of_an_adapter_that_is_none(world):
    world.hub.repos["org/odd"] = Repo({"config.json": b"{}", "tokenizer.json": b"{}",
                                       "adapter_model.safetensors": b"x"})
    world.fails("there is neither model.safetensors nor", "pull", "org/odd")
    snapshot = world.repo("org/odd") / "snapshots" / COMMIT  # and the same from a cache
    snapshot.mkdir(parents=True)
    for name in world.hub.repos["org/odd"].files:
        (snapshot / name).write_bytes(b"{}")
    world.fails("there is neither model.safetensors nor", "run", "org/odd", "-p", "x", "--offline", "--revision", COMMIT)


def test_shards_are_those_of_the_index(world):
    index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                            "b": "model-00002-of-00002.safetensors"}}
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode(),
             "model-00001-of-00002.safetensors": b"one", "model-00002-of-00002.safetensors": b"two",
             "consolidated.safetensors": b"all again", "original/params.json": b"{}", "1_Pooling/config.json": b"[]"}
    world.hub.repos["org/sharded"] = Repo(files)
    world.ok("pull", "org/sharded")
    assert world.snapshot("org/sharded") == set(files) - {"consolidated.safetensors", "original/params.json"}
    good(world, "org/sharded")
    del world.hub.repos["org/sharded"].files["model-00002-of-00002.safetensors"]
    world.fails("model-00002-of-00002.safetensors is missing", "pull", "org/sharded")


def test_a_tokenizer_needs_no_weights(world):
    r = subprocess.run([BIN, "tokenize", NAME], env=world.env, input=b"Hello", capture_output=True, check=True)
    assert r.stdout == subprocess.run([BIN, "tokenize"], input=b"Hello", capture_output=True, check=True).stdout
    assert "model.safetensors" not in world.snapshot() and "tokenizer.json" in world.snapshot()


def test_a_transfer_that_breaks_goes_on_where_it_was(world):
    blob = "Story-Q4_K_M.gguf"
    world.hub.fault("blobs/org/Story-GGUF/" + blob, "cut", after=100_000)
    world.hub.fault("blobs/org/Story-GGUF/" + blob, "status", status=503, Retry_After="1")
    start = time.monotonic()
    r = world.ok("pull", "org/Story-GGUF")
    assert time.monotonic() - start >= 1  # as the server asked
    ranges = [e[2].get("Range") for e in world.hub.asked("blobs")]
    assert ranges == [None, "bytes=100000-", "bytes=100000-"]
    assert "again in" in r.stderr and "answers 503; again in 1.0 s" in r.stderr
    good(world, "org/Story-GGUF")


def test_a_killed_process_leaves_a_part_that_the_next_one_uses(world):
    world.hub.fault("blobs/org/Story-GGUF/Story-Q4_K_M.gguf", "stall", after=200_000)
    p = world.start("pull", "org/Story-GGUF")
    assert world.hub.stalled.wait(20)
    blobs = world.repo("org/Story-GGUF") / "blobs"
    until = time.monotonic() + 10
    while sum(f.stat().st_size for f in blobs.glob("*.incomplete")) < 200_000 and time.monotonic() < until:
        time.sleep(0.02)
    p.kill()
    p.communicate()
    assert [f.name for f in blobs.iterdir()] == [world.hub.repos["org/Story-GGUF"].digest("Story-Q4_K_M.gguf")
                                                 + ".incomplete"]
    assert "(unfinished)" in world.ok("list").stdout
    world.ok("pull", "org/Story-GGUF")
    assert world.hub.asked("blobs")[-1][2]["Range"] == "bytes=200000-"
    good(world, "org/Story-GGUF")


def test_pull_brings_again_what_lost_its_end(world):
    """As a blob is found after a power cut that its data did not outlive."""
    path = world.ok("pull", NAME).stdout.strip()
    weights = world.repo() / "blobs" / world.hub.repos[NAME].digest("model.safetensors")
    os.truncate(weights, 1000)
    world.fails("model.safetensors", "run", NAME, "-p", "x", "-n", "1")
    n = len(world.hub.asked("resolve"))
    assert world.ok("pull", NAME).stdout.strip() == path
    assert [e[1].rsplit("/", 1)[1] for e in world.hub.asked("resolve")[n:]] == ["model.safetensors"]
    good(world)


@pytest.mark.parametrize("kind, more", [("garbage", {}), ("longer", {}), ("no_ranges", {}), ("wrong_range", {})])
def test_what_is_wrong_is_fetched_once_more(world, kind, more):
    digest = world.hub.repos["org/Story-GGUF"].digest("Story-Q4_K_M.gguf")
    blobs = world.repo("org/Story-GGUF") / "blobs"
    if kind in ("no_ranges", "wrong_range"):
        blobs.mkdir(parents=True)
        (blobs / (digest + ".incomplete")).write_bytes(b"GGUF4" + BIG[:1000])
    world.hub.fault("Story-Q4_K_M.gguf", kind, times=2, **more)  # the redirect and the store
    world.ok("pull", "org/Story-GGUF")
    good(world, "org/Story-GGUF")


def test_a_wrong_digest_twice_is_refused_and_leaves_nothing(world):
    world.hub.fault("blobs/org/Story-GGUF/Story-Q8_0.gguf", "garbage", times=9)
    world.fails("Story-Q8_0.gguf: the digest is", "pull", "org/Story-GGUF:Q8_0")
    left = list((world.repo("org/Story-GGUF") / "blobs").iterdir())
    assert [f.stat().st_size for f in left] == [0] and not (world.repo("org/Story-GGUF") / "refs").exists()
    world.hub.fault("resolve/" + COMMIT + "/config.json", "garbage", times=9)  # a small file's is git's
    world.fails("config.json: the digest is", "pull", NAME)


@pytest.mark.parametrize("path, status, says", [
    ("/revision/main", 404, "has no such model, or no revision 'main'"),
    ("/revision/main", 401, "needs HF_TOKEN"),
    ("/revision/main", 403, "the hub answers 403"),
    ("/config.json", 410, "config.json: the hub answers 410"),
])
def test_refusals_are_told_at_once(world, path, status, says):
    world.hub.fault(path, "status", status=status)
    world.fails(says, "pull", NAME)
    assert len(world.hub.asked(path)) == 1


def test_a_server_that_asks_for_too_long_a_wait(world):
    world.hub.fault("/revision/main", "status", status=429, Retry_After="4000")
    world.fails("answers 429 and asks to wait for 4000 s", "pull", NAME)


def test_busy_or_gone_servers_are_asked_again_then_given_up(world):
    world.hub.fault("/revision/main", "status", status=500)
    world.hub.fault("/revision/main", "drop")
    world.ok("pull", NAME)
    world.hub.fault("/revision/main", "status", times=99, status=502)
    world.fails("the hub answers 502 (tried 5 times)", "pull", NAME)
    assert len(world.hub.asked("/revision/main")) == 3 + 5


def test_silence_ends_an_attempt(world):
    world.hub.fault("blobs/org/Story-GGUF/Story-Q4_K_M.gguf", "stall", after=50_000)
    r = world.ok("pull", "org/Story-GGUF", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert "again in" in r.stderr
    good(world, "org/Story-GGUF")
    world.fails("HF_HUB_DOWNLOAD_TIMEOUT", "pull", NAME, HF_HUB_DOWNLOAD_TIMEOUT="soon")


def test_tokens_reach_the_hub_and_not_the_store(world):
    world.hub.repos[NAME].token = "hf_secret"
    world.fails("needs HF_TOKEN", "pull", NAME)
    world.fails("the token may not read it", "pull", NAME, HF_TOKEN="hf_other")
    world.fails("HF_TOKEN: byte 3", "pull", NAME, HF_TOKEN="hf_\nX-Evil: 1")
    world.home.mkdir(exist_ok=True)
    (world.home / "token").write_text("hf_secret\n")
    world.ok("pull", NAME)
    good(world)
    sent = {"Authorization" in e[2] for e in world.hub.asked("resolve")}
    assert sent == {True} and world.hub.asked("blobs")
    assert all("Authorization" not in e[2] for e in world.hub.asked("blobs"))


def test_a_mirror_without_digests(world):
    world.hub.repos[NAME].blobs = False
    world.ok("pull", NAME)
    assert {e[0] for e in world.hub.asked("resolve")} == {"HEAD", "GET"}
    good(world)


def test_revisions(world):
    repo = world.hub.repos[NAME]
    repo.revisions |= {"refs/pr/1": COMMIT, "v1.0": COMMIT}
    world.ok("pull", NAME, "--revision", "refs/pr/1")
    assert (world.repo() / "refs" / "refs" / "pr" / "1").read_text() == COMMIT
    n = len(world.hub.asked())
    world.ok("inspect", NAME, "--revision", COMMIT)
    assert len(world.hub.asked()) == n
    world.fails("no revision 'v9'", "inspect", NAME, "--revision", "v9")
    world.fails("--revision: '../../x'", "inspect", NAME, "--revision", "../../x")
    newer = "f" * 40
    repo.files = dict(repo.files) | {"generation_config.json": b'{"temperature": 0.5}'}
    repo.revisions["main"] = repo.commit = newer
    world.ok("pull", NAME)
    assert (world.repo() / "refs" / "main").read_text() == newer
    assert len(list((world.repo() / "snapshots").iterdir())) == 2


def test_the_revision_of_a_drafter_is_its_own(world):
    world.hub.repos["org/Small"] = Repo(story())
    world.hub.repos["org/Small"].revisions["v2"] = COMMIT
    config = {"model": "org/Small", "revision": "v2", "num_speculative_tokens": 2}
    world.ok("inspect", NAME, "--speculative-config", json.dumps(config))
    assert world.hub.asked("org/Small/revision/v2") and world.hub.asked(NAME + "/revision/main")
    assert not world.hub.asked("org/Small/revision/main") and not world.hub.asked(NAME + "/revision/v2")
    world.fails("no revision 'v9'", "inspect", NAME, "--speculative-config", json.dumps(config | {"revision": "v9"}))


def test_another_folder_list_and_rm(world, tmp_path):
    here = str(tmp_path / "models")
    world.ok("pull", NAME, "--download-dir", here)
    assert not world.cache.exists() and os.path.isdir(here + "/models--org--Story-1.0/snapshots")
    world.ok("pull", "org/Story-GGUF:Q8_0", "--download-dir", here)
    rows = [json.loads(line) for line in world.ok("list", "--json", "--download-dir", here).stdout.splitlines()]
    assert [r["model"] for r in rows] == [NAME, "org/Story-GGUF"] and rows[1]["bytes"] == 5
    assert rows[0]["revisions"] == "main" and rows[0]["unfinished_bytes"] == 0
    assert world.ok("rm", "org/Story-GGUF", "--download-dir", here).stdout.startswith("removed org/Story-GGUF")
    assert NAME in (left := world.ok("list", "--download-dir", here).stdout) and "GGUF" not in left
    world.fails("is not in the cache", "rm", "org/Story-GGUF", "--download-dir", here)
    for bad in ("../../etc", "org/Story-GGUF:Q8_0", "x"):
        world.fails("not a repository of the cache", "rm", bad, "--download-dir", here)
    assert world.ok("list").stdout == ""


def test_two_processes_share_one_transfer(world):
    world.hub.fault("blobs/org/Story-GGUF/Story-Q4_K_M.gguf", "slow", seconds=0.01)
    both = [world.start("pull", "org/Story-GGUF") for _ in range(2)]
    ends = [p.communicate(timeout=60) + (p.returncode,) for p in both]
    assert [e[2] for e in ends] == [0, 0], ends
    assert ends[0][0] == ends[1][0] and len(world.hub.asked("blobs")) == 1
    good(world, "org/Story-GGUF")


def test_the_lock_is_the_one_that_pythons_tools_take(world):
    digest = world.hub.repos["org/Story-GGUF"].digest("Story-Q8_0.gguf")
    lock = world.cache / ".locks" / "models--org--Story-GGUF" / (digest + ".lock")
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        p = world.start("pull", "org/Story-GGUF:Q8_0")
        assert "waiting for another process" in p.stderr.readline() + p.stderr.readline()
        assert not world.hub.asked("blobs")
    out, err = p.communicate(timeout=20)
    assert p.returncode == 0, err


def test_no_rights_and_a_limit_on_files(world, tmp_path):
    limited = ["prlimit", "--fsize=100000", BIN, "pull", "org/Story-GGUF"]
    r = subprocess.run(limited, env=world.env, capture_output=True, text=True)
    assert r.returncode == 1 and "write failed: File too large" in r.stderr, r.stderr
    world.ok("pull", "org/Story-GGUF")  # what fitted was kept
    assert world.hub.asked("blobs")[-1][2]["Range"] == "bytes=100000-"
    (tmp_path / "file").write_text("")
    world.fails("file", "pull", NAME, "--download-dir", str(tmp_path / "file" / "x"))
    world.fails("HF_ENDPOINT", "pull", NAME, HF_ENDPOINT="ftp://x")


def test_a_full_disk(world, tmp_path):
    """A file system of 200 kB. The list says sizes, so that the first download is not begun; a mirror's
    list does not, so that the second one fills it."""
    def pull():
        script = f"mount -t tmpfs -o size=200k none {tmp_path}/disk && {BIN} pull org/Story-GGUF --download-dir {tmp_path}/disk"
        return subprocess.run(["unshare", "-rm", "sh", "-c", script], env=world.env, capture_output=True, text=True)
    (tmp_path / "disk").mkdir()
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path / "disk")],
                      capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    r = pull()
    assert r.returncode == 1 and "0.3 MB are to be downloaded and 0." in r.stderr, r.stderr
    assert not world.hub.asked("blobs")
    world.hub.repos["org/Story-GGUF"].blobs, world.hub.repos["org/Story-GGUF"].lfs = False, ()
    r = pull()
    assert r.returncode == 1 and "no space left for Story-Q4_K_M.gguf" in r.stderr, r.stderr


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"sha": 1}', b'{"sha": "../../../x"}',
                                  b'{"sha": "%s", "siblings": 1}' % COMMIT.encode(),
                                  b'{"sha": "%s", "siblings": [{}]}' % COMMIT.encode()])
def test_replies_that_are_none(world, body):
    world.hub.repos[NAME].files = {}
    listing = world.hub.servers[0].RequestHandlerClass.listing
    world.hub.servers[0].RequestHandlerClass.listing = lambda self, *a: self.reply(200, body)
    world.fails("the hub's ", "pull", NAME)
    world.hub.servers[0].RequestHandlerClass.listing = listing


def test_sizes_whose_sum_wraps_are_too_much_for_any_disk(world):
    sizes = {"config.json": 2, "tokenizer.json": 2**63 - 1, "model.safetensors": 2**63 - 1}
    body = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": p, "size": n, "blobId": git_id(p.encode())}
                                                   for p, n in sizes.items()]}).encode()
    world.hub.servers[0].RequestHandlerClass.listing = lambda self, *a: self.reply(200, body)
    world.fails("MB are to be downloaded and", "pull", NAME)
    assert world.hub.asked("resolve") == []


def test_names_that_would_leave_the_cache_are_not_fetched(world):
    evil = {"../../../evil.json": b"{}", "/abs.json": b"{}", "..": b"", "a\x1b.json": b"{}"}
    world.hub.repos[NAME].files |= evil
    world.ok("pull", NAME)
    assert not set(evil) & {e[1].split("resolve/" + COMMIT + "/")[-1] for e in world.hub.asked("resolve")}
    index = {"weight_map": {"a": "../../../../evil.safetensors"}}
    world.hub.repos["org/evil"] = Repo({"config.json": b"{}", "tokenizer.json": b"{}",
                                        "model.safetensors.index.json": json.dumps(index).encode()})
    world.fails("evil.safetensors is missing", "pull", "org/evil")


def test_without_the_library_it_says_what_to_install(world, tmp_path):
    """An empty libcurl in front of the real one: loading it fails as if there were none."""
    for name in ("libcurl.so.4", "libcurl-gnutls.so.4"):
        (tmp_path / name).write_bytes(b"")
    world.fails("libcurl.so.4 is not here", "pull", NAME, LD_LIBRARY_PATH=str(tmp_path))


OLD_CURL = """
#include <dlfcn.h>
#define CALL(name) __attribute__((visibility("hidden"))) void *p_##name; \\
    __attribute__((naked)) void curl_##name(void) { __asm__("jmp *p_" #name "(%rip)"); }
CALL(global_init) CALL(easy_init) CALL(easy_getinfo) CALL(easy_reset) CALL(easy_cleanup) CALL(easy_strerror)
CALL(multi_init) CALL(multi_add_handle) CALL(multi_remove_handle) CALL(multi_perform) CALL(multi_poll)
CALL(multi_info_read) CALL(multi_cleanup) CALL(multi_strerror) CALL(slist_append) CALL(slist_free_all)
static int (*setopt)(void *, int, ...);
int curl_easy_setopt(void *easy, int option, void *x)
{
    return option == 10318 || option == 10319 ? 48 : setopt(easy, option, x); /* CURLE_UNKNOWN_OPTION */
}
__attribute__((constructor)) static void load(void)
{
    void *real = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
    setopt = (int (*)(void *, int, ...))dlsym(real, "curl_easy_setopt");
#define TAKE(name) p_##name = dlsym(real, "curl_" #name);
    TAKE(global_init) TAKE(easy_init) TAKE(easy_getinfo) TAKE(easy_reset) TAKE(easy_cleanup) TAKE(easy_strerror)
    TAKE(multi_init) TAKE(multi_add_handle) TAKE(multi_remove_handle) TAKE(multi_perform) TAKE(multi_poll)
    TAKE(multi_info_read) TAKE(multi_cleanup) TAKE(multi_strerror) TAKE(slist_append) TAKE(slist_free_all)
}
"""


def test_a_library_that_cannot_be_kept_to_tls_is_not_used(world, tmp_path):
    """libcurl before 7.85: options it does not know it refuses, and follows redirects to anything."""
    load = "import ctypes; ctypes.CDLL('libcurl.so.4'); print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True).stdout
    real = next(x.split()[-1] for x in maps.split("\n") if "libcurl.so" in x)
    (tmp_path / "old.c").write_text(OLD_CURL)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", f'-DREAL="{real}"', "-o", str(tmp_path / "libcurl.so.4"),
                    str(tmp_path / "old.c")], check=True)
    world.fails("libcurl is too old", "pull", NAME, LD_LIBRARY_PATH=str(tmp_path))
    assert world.hub.asked() == []


def test_serve_answers_by_the_name(world, tmp_path):
    import http.client
    port_file = tmp_path / "port"
    p = world.start("serve", NAME, "--port", "0", "--port-file", str(port_file), "--device", "cpu")
    try:
        until = time.monotonic() + 30
        while not port_file.exists() and time.monotonic() < until:
            time.sleep(0.02)
        c = http.client.HTTPConnection("127.0.0.1", int(port_file.read_text()))
        c.request("GET", "/v1/models")
        assert json.loads(c.getresponse().read())["data"][0]["id"] == NAME
    finally:
        p.terminate()
        p.communicate(timeout=20)


def test_hugging_faces_own_library_reads_this_cache_and_fills_one_for_us(world, tmp_path):
    """huggingface_hub on the same hub: what sluice wrote is whole and without a warning to it, and what it
    writes is used without a question. One process, as its import takes longest."""
    path = world.ok("pull", NAME).stdout.strip()
    other = tmp_path / "other"
    code = f"""
import json
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download
print(snapshot_download({NAME!r}, local_files_only=True))
print(hf_hub_download({NAME!r}, "config.json", local_files_only=True))
info = scan_cache_dir()
repo = next(iter(info.repos))
print(json.dumps([len(info.warnings), repo.repo_id, repo.size_on_disk, repo.nb_files, sorted(repo.refs)]))
snapshot_download({NAME!r}, cache_dir={str(other)!r})
"""
    env = world.env | {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    r = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert r.returncode == 0, r.stderr
    lines = r.stdout.split("\n")
    assert lines[:2] == [path, path + "/config.json"]
    row = json.loads(world.ok("list", "--json").stdout)
    assert json.loads(lines[2]) == [0, NAME, row["bytes"], row["files"], ["main"]]
    n = len(world.hub.asked())
    args = ["--raw", "-p", "Once upon a time", "-n", "4", "--temperature", "0"]
    assert world.ok("run", NAME, "--download-dir", str(other), *args).stdout == world.ok("run", *args).stdout
    assert len(world.hub.asked()) == n
