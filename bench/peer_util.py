# SPDX-License-Identifier: MIT
"""What bench/peer_llamacpp's modes share: paths, running programs within a time limit, the peer's build, random
models, the machine's ceilings, statistics."""
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, field

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
PEER = os.path.join(ROOT, "build", "peer")

# The peer without what a benchmark does not need: tests, examples, TLS, the web page, downloads at build time. Linked
# whole, so that it runs on machines with an older or newer C library; the loopback needs no name service.
CMAKE_FLAGS = [
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF", "-DGGML_OPENMP=ON",
    "-DCMAKE_EXE_LINKER_FLAGS=-static",
]
AVX2 = ["-DGGML_NATIVE=OFF"] + [f"-DGGML_{f}=ON" for f in ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")]
AMX = ["AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16", "AMX_TILE", "AMX_INT8", "AMX_BF16"]
VARIANTS = {
    "native": ["-DGGML_NATIVE=ON"],
    "avx2": AVX2,
    "amx": AVX2 + [f"-DGGML_{f}=ON" for f in AMX],
}

# What mkmodel makes of the models that people run in these sizes. The mixtures of experts are Qwen3-30B-A3B with 12
# of its 48 layers and gpt-oss-20b with 8 of 24, Qwen3.5-9B has 8 of 32. Their vocabularies are cut as the layers are, so that the output
# matrix has the share of a token that it has in the whole model.
MODELS = {
    "tiny": ["--shape", "tiny", "--family", "llama", "--hidden", "256", "--intermediate", "512", "--head-dim", "64",
             "--context", "32768", "--vocab", "bytes"],
    "0.6b": ["--shape", "0.6b", "--family", "qwen3", "--vocab", "bytes"],
    "1b": ["--shape", "1b", "--family", "llama", "--rope", "llama3", "--theta", "500000", "--vocab", "bytes"],
    "4b": ["--shape", "4b", "--family", "qwen3", "--vocab", "bytes"],
    "8b": ["--shape", "8b", "--family", "llama", "--rope", "llama3", "--theta", "500000", "--vocab", "bytes"],
    "qwen3moe": ["--family", "qwen3moe", "--hidden", "2048", "--intermediate", "6144", "--layers", "12", "--heads",
                 "32", "--kv-heads", "4", "--head-dim", "128", "--experts", "128", "--top-experts", "8",
                 "--expert-intermediate", "768", "--vocab", "bytes", "--vocab", "37984", "--context", "40960",
                 "--untied"],
    "qwen35-0.8b": ["--family", "qwen35", "--hidden", "1024", "--intermediate", "3584", "--layers", "24", "--heads", "8",
                    "--kv-heads", "2", "--head-dim", "256", "--state-heads", "16", "--state-groups", "16",
                    "--state-key-dim", "128", "--state-value-dim", "128", "--vocab", "bytes", "--vocab", "248320",
                    "--context", "32768", "--tied"],
    "qwen35-9b": ["--family", "qwen35", "--hidden", "4096", "--intermediate", "12288", "--layers", "8", "--heads",
                  "16", "--kv-heads", "4", "--head-dim", "256", "--state-heads", "32", "--state-groups", "16",
                  "--state-key-dim", "128", "--state-value-dim", "128", "--vocab", "bytes", "--vocab", "62080",
                  "--context", "32768", "--untied"],
    "lfm2-1.2b": ["--family", "lfm2", "--hidden", "2048", "--intermediate", "8192", "--layers", "16", "--heads", "32",
                  "--kv-heads", "8", "--head-dim", "64", "--vocab", "bytes", "--vocab", "65536", "--context",
                  "32768"],
    "gpt-oss": ["--family", "gpt-oss", "--hidden", "2880", "--intermediate", "2880", "--layers", "8", "--heads", "64",
                "--kv-heads", "8", "--head-dim", "64", "--experts", "32", "--top-experts", "4",
                "--expert-intermediate", "2880", "--vocab", "bytes", "--vocab", "67072", "--context", "40960",
                "--untied"],
}
FORMATS = ["q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "mxfp4", "bf16", "f16", "f32"]


class Failed(Exception):
    """What went wrong, for the user."""


class OutOfTime(Failed):
    """A program was ended because it, or the whole run, took too long; what was measured before still counts."""


def say(text: str) -> None:
    print(f"peer: {text}", file=sys.stderr, flush=True)


@dataclass
class Deadline:
    """The end of the whole run: nothing new starts after it, and no program outlives it by more than a minute."""
    seconds: float
    start: float = field(default_factory=time.monotonic)

    def left(self) -> float:
        return self.start + self.seconds - time.monotonic()

    def over(self) -> bool:
        return self.left() <= 0


def run(what: str, argv: list[str], timeout: float, log: str | None = None, **more) -> str:
    """Standard output of a program that must succeed; with log, both streams go there instead."""
    if not (os.path.exists(argv[0]) or shutil.which(argv[0])):
        raise Failed(f"{what}: {argv[0]} is not there")
    try:
        if log is not None:
            with open(log, "w", encoding="utf-8") as f:
                r = subprocess.run(argv, stdout=f, stderr=subprocess.STDOUT, timeout=timeout, check=False, **more)
        else:
            r = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, check=False, **more)
    except subprocess.TimeoutExpired as e:
        raise OutOfTime(f"{what}: not done after {timeout:.0f} s") from e
    if r.returncode != 0:
        tail = open(log, encoding="utf-8", errors="replace").read() if log else r.stderr + r.stdout
        lines = "\n".join(tail.strip().split("\n")[-12:])
        raise Failed(f"{what}: exit status {r.returncode}{', see ' + log if log else ''}\n{lines}")
    return "" if log else r.stdout


# ---------------------------------------------------------------- building the peer

def source_dir() -> str:
    src = os.path.join(PEER, "src")
    found = sorted(os.listdir(src)) if os.path.isdir(src) else []
    for name in reversed(found):
        path = os.path.join(src, name, "vendor", "llama.cpp")
        if os.path.exists(os.path.join(path, "CMakeLists.txt")):
            return path
    raise Failed(f"no llama.cpp source below {src}; run bench/peer_llamacpp setup")


def release_name() -> str:
    try:
        return next(p for p in source_dir().split(os.sep) if p.startswith("llama_cpp_python"))
    except (Failed, StopIteration):
        return "llama.cpp of unknown release"


def fetch_source(release: str | None) -> None:
    """The release on PyPI of the Python binding carries llama.cpp's whole source."""
    src = os.path.join(PEER, "src")
    python = os.path.join(PEER, "venv", "bin", "python")
    os.makedirs(src, exist_ok=True)
    if not os.path.exists(python):
        say("making a private Python environment")
        run("venv", [sys.executable, "-m", "venv", os.path.join(PEER, "venv")], 300)
    tools = [t for t in ("cmake", "ninja") if shutil.which(t) is None]
    if tools:
        run("pip install " + " ".join(tools), [python, "-m", "pip", "install", "-q", *tools], 600)
    try:
        source_dir()
        if release is None or os.path.isdir(os.path.join(src, f"llama_cpp_python-{release}")):
            return
    except Failed:
        pass
    say("downloading llama.cpp's source")
    run("pip download", [python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", src,
                         "llama-cpp-python" + (f"=={release}" if release else "")], 900)
    for name in sorted(os.listdir(src)):
        if name.endswith(".tar.gz") and not os.path.isdir(os.path.join(src, name[:-7])):
            with tarfile.open(os.path.join(src, name)) as tar:
                tar.extractall(src, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    source_dir()


def tool(name: str) -> str:
    own = os.path.join(PEER, "venv", "bin", name)
    path = shutil.which(name) or (own if os.path.exists(own) else None)
    if path is None:
        raise Failed(f"{name} is not there; run bench/peer_llamacpp setup")
    return path


def build_variant(variant: str, jobs: int, timeout: float) -> None:
    """Runs cmake and ninja at low priority; both do nothing where all is built already."""
    out = os.path.join(PEER, variant)
    gomp = run("gcc", ["gcc", "-print-file-name=libgomp.a"], 30).strip() if shutil.which("gcc") else ""
    static = [f"-DOpenMP_gomp_LIBRARY={gomp}"] if os.path.isabs(gomp) else []
    say(f"configuring {variant}")
    run(f"cmake for {variant}", [tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", "-S",
                                 source_dir(), "-B", out, *CMAKE_FLAGS, *static, *VARIANTS[variant]], 600,
        out + ".cmake.log")
    say(f"building {variant}, many minutes (progress: {out}.build.log)")
    run(f"build of {variant}", ["nice", "-n", "10", tool("ninja"), "-C", out, f"-j{jobs}", "llama-bench",
                                "llama-server"], timeout, out + ".build.log")


def carry(variant: str, folder: str) -> None:
    """Copies what a machine without compilers needs."""
    os.makedirs(folder, exist_ok=True)
    for program in ("llama-bench", "llama-server"):
        run("strip", ["strip", "-o", os.path.join(folder, program), os.path.join(PEER, variant, "bin", program)], 60)
    shutil.copy2(build_stream(), os.path.join(folder, "stream_read"))


def build_stream() -> str:
    """The reader of memory: small, and static so that it can be carried along."""
    out, src = os.path.join(PEER, "stream_read"), os.path.join(ROOT, "bench", "stream_read.c")
    if not os.path.exists(out) or os.path.getmtime(out) < os.path.getmtime(src):
        os.makedirs(PEER, exist_ok=True)
        run("stream_read", ["cc", "-O3", "-std=c11", "-D_GNU_SOURCE", "-mavx2", "-pthread", "-static", "-o", out,
                            src], 60)
    return out


# ---------------------------------------------------------------- models

@dataclass
class Model:
    path: str
    weight_bytes: int  # that one token of decoding reads
    kv_bytes: int      # of one position, in a cache of 16-bit floats
    n_vocab: int
    context: int       # longest sequence

    def check_length(self, n_tokens: int) -> None:
        if n_tokens > self.context:
            raise Failed(f"{self.path} takes {self.context} tokens, the longest test needs {n_tokens}")


class GgufHeader:
    """Metadata and tensors of a GGUF file; of an array, the number of items."""
    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, path: str) -> None:
        with open(path, "rb") as self.f:
            if self.f.read(4) != b"GGUF":
                raise ValueError("not a GGUF file")
            self.u(4)
            n_tensors, n_meta = self.u(8), self.u(8)
            self.meta = {}
            for _ in range(n_meta):
                key = self.text()
                self.meta[key] = self.value(self.u(4))
            self.tensors = {}  # name: (offset, dimensions)
            for _ in range(n_tensors):
                name = self.text()
                dims = [self.u(8) for _ in range(self.u(4))]
                self.u(4)
                self.tensors[name] = (self.u(8), dims)
            align = self.meta.get("general.alignment", 32)
            self.data_bytes = os.path.getsize(path) - -(-self.f.tell() // align) * align

    def bytes_of(self, name: str) -> int:
        """With the padding behind it."""
        start = self.tensors[name][0]
        return min((o for o, _ in self.tensors.values() if o > start), default=self.data_bytes) - start

    def u(self, n: int) -> int:
        raw = self.f.read(n)
        if len(raw) < n:
            raise ValueError("the file ends inside its header")
        return int.from_bytes(raw, "little")

    def text(self) -> str:
        return self.f.read(self.u(8)).decode("utf-8", "replace")

    def value(self, kind: int):
        if kind == 8:
            return self.text()
        if kind == 9:
            item, n = self.u(4), self.u(8)
            for _ in range(n):
                self.value(item)
            return n
        return self.u(self.SIZES[kind])  # floats come out as their bits; none is used here


def gguf_facts(path: str) -> Model:
    """What a token costs, out of a GGUF file's header."""
    try:
        h = GgufHeader(path)
        arch = h.meta["general.architecture"]
        dims = h.tensors["token_embd.weight"][1]
        heads = h.meta[f"{arch}.attention.head_count"]
        head_dim = h.meta.get(f"{arch}.attention.key_length", h.meta[f"{arch}.embedding_length"] // heads)
        kv_heads = h.meta.get(f"{arch}.attention.head_count_kv", heads)
        n_layers, context = h.meta[f"{arch}.block_count"], h.meta[f"{arch}.context_length"]
        n_experts, n_used = h.meta.get(f"{arch}.expert_count", 0), h.meta.get(f"{arch}.expert_used_count", 0)
    except (KeyError, ValueError, OSError) as e:
        raise Failed(f"{path}: cannot read it as a model in a GGUF file: {e}") from e
    unread = 0
    if "output.weight" in h.tensors:  # then a token needs one row of the embedding
        unread = h.bytes_of("token_embd.weight")
    if n_experts > 0:
        unread += sum(h.bytes_of(t) for t in h.tensors if "_exps." in t) * (n_experts - n_used) // n_experts
    return Model(path, h.data_bytes - unread, n_layers * 2 * kv_heads * head_dim * 2, dims[1], context)


def model_file(args) -> Model:
    """The model asked for; a random one is made once and kept."""
    if os.path.sep in args.model or args.model.endswith(".gguf"):
        if not os.path.exists(args.model):
            raise Failed(f"{args.model} is not there")
        return gguf_facts(args.model)
    path = os.path.join(args.models, f"{args.model}-{args.format}.gguf")
    if not os.path.exists(path):
        if not os.path.exists(args.mkmodel):
            raise Failed(f"{path} is not there, nor {args.mkmodel} to make it (run make)")
        say(f"making {path}")
        os.makedirs(args.models, exist_ok=True)
        run("mkmodel", [args.mkmodel, *MODELS[args.model], "--dtype", args.format, "--format", "gguf", "--quiet",
                        "--out", path + ".part"], 1800)
        os.rename(path + ".part", path)
    return gguf_facts(path)


# ---------------------------------------------------------------- machine

def machine() -> dict:
    info = open("/proc/cpuinfo", encoding="utf-8").read()
    cpu = next((l.split(":")[1].strip() for l in info.split("\n") if l.startswith("model name")), "?")
    flags = next((l.split(":")[1].split() for l in info.split("\n") if l.startswith("flags")), [])
    wide = [f for f in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16") if f in flags]
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True,
                            check=False).stdout.strip() if shutil.which("git") else ""
    return {"cpu": cpu, "cores": len(os.sched_getaffinity(0)), "flags": wide, "kernel": platform.release(),
            "load_1min": os.getloadavg()[0], "commit": commit, "peer": release_name()}


def print_machine(m: dict) -> None:
    print(f"{m['cpu']}, {m['cores']} cores ({' '.join(m['flags'])}), load {m['load_1min']:.1f} before the run")
    print(f"sluice {m['commit'] or '?'}, llama.cpp of {m['peer']}")


class OtherWork:
    """How much of the machine went to programs that are not this run's, from start to now. Both engines let their
    threads wait for each other by spinning, so a little of it costs them much, and not the same."""

    def __init__(self) -> None:
        self.start, self.busy, self.own = time.monotonic(), self.busy_seconds(), self.own_seconds()

    @staticmethod
    def busy_seconds() -> float:
        user, nice, system, _, _, irq, soft, steal = map(int, open("/proc/stat", encoding="ascii").readline()
                                                         .split()[1:9])
        return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def own_seconds() -> float:
        return sum(os.times()[:4])  # of this process and of the children it has waited for

    def processors(self) -> float:
        spent = self.busy_seconds() - self.busy - (self.own_seconds() - self.own)
        return max(spent, 0) / max(time.monotonic() - self.start, 1e-9)

    def verdict(self, n: float) -> str:
        quiet = n < 0.05 * len(os.sched_getaffinity(0))
        return (f"other work took {n:.2f} processors on average during the run" +
                ("" if quiet else ": the machine was busy, do not quote these figures"))


def read_ceiling(args) -> float:
    """Bytes a second that the run's threads can read, now."""
    program = args.stream or build_stream()
    return float(run("stream_read", [program, str(args.threads)], 60))


def test_ops_ceilings() -> list[str]:
    """What the kernels' own benchmark says of the machine, where it is built."""
    program = os.path.join(ROOT, "build", "release", "tests", "ops", "test_ops")
    if not os.path.exists(program):
        return []
    try:
        out = run("test_ops", [program, "--bench", "ceilings-only"], 60)
    except Failed as e:
        say(str(e))
        return []
    return [l for l in out.split("\n") if l.startswith("threads ")]


# ---------------------------------------------------------------- figures

def spread(values: list[float]) -> dict:
    if not values:
        return {"median": None, "min": None, "max": None, "n": 0}
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def cell(s: dict, unit: str = "") -> str:
    if s["n"] == 0:
        return "-"
    digits = 0 if s["median"] >= 1000 else 1 if s["median"] >= 10 else 2
    return f"{s['median']:.{digits}f}{unit} [{s['min']:.{digits}f}..{s['max']:.{digits}f}]"


def ratio(a: dict, b: dict) -> float | None:
    return a["median"] / b["median"] if a["n"] and b["n"] and b["median"] else None


def percentile(values: list[float], p: float) -> float:
    """Linear between ranks, as `sluice bench` has it."""
    s = sorted(values)
    if not s:
        return float("nan")
    rank = p / 100 * (len(s) - 1)
    low = int(rank)
    high = min(low + 1, len(s) - 1)
    return s[low] + (rank - low) * (s[high] - s[low])


def write_json(path: str | None, data: dict) -> None:
    if path:
        with open(path, "w", encoding="utf-8") as f:
            json.dump(data, f, indent=1)
            f.write("\n")
