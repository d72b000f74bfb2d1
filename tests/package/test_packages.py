# SPDX-License-Identifier: MIT
"""What users install: `tools/install` into a root of its own, the .deb, the container's root, the unit, and C
programs that use the library, each run as far as this machine has the tools for it. The wheel: test_python.py."""
import glob
import os
import re
import shutil
import subprocess

import pytest

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")
pytestmark = pytest.mark.skipif(BIN != "build/release/sluice", reason="packages are made of the release build")
VERSION = re.search(r'SLUICE_VERSION "(.*)"', open("include/sluice.h", encoding="utf-8").read())[1]
STORY = ["run", "-p", "Once upon a time", "--raw", "--temperature", "0", "-n", "32"]


def ok(*command: str, **more) -> str:
    r = subprocess.run(command, capture_output=True, text=True, timeout=240, **more)
    assert r.returncode == 0, r.stderr + r.stdout
    return r.stdout


def needs(tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    path = tmp_path_factory.mktemp("root")
    ok("tools/install", env=os.environ | {"DESTDIR": str(path), "PREFIX": "/opt/x"})
    return path / "opt" / "x"


@pytest.fixture(scope="module")
def story():
    return ok(BIN, *STORY)


def test_install_and_uninstall(root, story, tmp_path):
    assert ok(root / "bin" / "sluice", "--version") == f"sluice {VERSION}\n"
    assert ok(root / "bin" / "sluice", *STORY) == story
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", ok("readelf", "-d", root / "bin" / "sluice")))
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
    shutil.copytree(root, tmp_path / "opt" / "x", symlinks=True)
    ok("tools/install", "--remove", env=os.environ | {"DESTDIR": str(tmp_path), "PREFIX": "/opt/x"})
    assert [p for p in (tmp_path / "opt").rglob("*") if not p.is_dir()] == []


def test_manual_page(root):
    needs("man")
    page = root / "share" / "man" / "man1" / "sluice.1"
    r = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, check=True,
                       env=os.environ | {"MANWIDTH": "100", "LC_ALL": "C.UTF-8"})
    assert r.stderr == ""
    text = re.sub(r"\s+", " ", re.sub(r".\x08", "", r.stdout))
    for command in ("run", "chat", "serve", "bench", "bench serve", "inspect", "tokenize", "pull", "list", "rm"):
        assert f"sluice {command} " in text
    for flag in re.findall(r"--[a-z][a-z-]+", ok(BIN, "serve", "--help=all").split("Usage")[1]):
        assert flag in text, flag


def test_bash_completion(root):
    needs("bash")
    def complete(*words: str) -> list[str]:
        script = (f". '{root}/share/bash-completion/completions/sluice'; COMP_WORDS=(\"$@\"); "
                  "COMP_CWORD=$(($# - 1)); _sluice; printf '%s\\n' \"${COMPREPLY[@]}\"")
        return ok("bash", "-euc", script, "-", *words).split()
    assert complete("sluice", "pu") == ["pull"]
    assert complete("sluice", "serve", "--max-model") == ["--max-model-len"]
    assert "--request-rate" in complete("sluice", "bench", "serve", "--")
    assert "--request-rate" not in complete("sluice", "bench", "--")
    assert complete("sluice", "run", "./") == []  # file names, by the shell itself


def test_zsh_completion(root):
    needs("zsh")
    folder = root / "share" / "zsh" / "site-functions"
    script = f"""fpath=({folder} $fpath); autoload -Uz compinit; compinit -u -D
        [[ $_comps[sluice] == _sluice ]] || exit 3
        _arguments() {{ print -rl -- "$@" }}; words=(sluice serve --); CURRENT=3; source {folder}/_sluice"""
    text = ok("zsh", "-fc", script)
    assert "--max-model-len[" in text and "*:model:_files" in text


def test_fish_completion(root):
    needs("fish")
    file = root / "share" / "fish" / "vendor_completions.d" / "sluice.fish"
    text = ok("fish", "--no-config", "-c", f"source {file}; complete -C 'sluice serve --max-model'")
    assert text.startswith("--max-model-len")


def test_the_unit_is_valid_and_shut_in(root, tmp_path):
    unit = root / "lib" / "systemd" / "system" / "sluice.service"
    assert "ExecStart=/opt/x/bin/sluice serve" in unit.read_text()
    needs("systemd-analyze")
    copy = tmp_path / "sluice.service"
    copy.write_text(unit.read_text().replace("/opt/x", str(root)))
    r = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True)
    assert "sluice.service" not in r.stderr, r.stderr
    # 0 = all is shut, 10 = nothing; a plain service has 9.6.
    ok("systemd-analyze", "security", "--offline=true", "--threshold=25", copy)


def test_examples_of_the_c_api(root, story, tmp_path):
    """The same text as the program's, from C with the shared and the static library. test_python.py has the other."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    lib, include = str(root / "lib"), str(root / "include")
    warn = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-I" + include, "examples/generate.c"]
    ok(*warn, "-o", tmp_path / "shared", "-L" + lib, "-lsluice")
    private = re.search("Libs.private: (.*)", (root / "lib" / "pkgconfig" / "sluice.pc").read_text())[1].split()
    ok(*warn, "-o", tmp_path / "static", lib + "/libsluice.a", *private)
    for command, more in [([tmp_path / "shared"], {"LD_LIBRARY_PATH": lib}), ([tmp_path / "static"], {})]:
        r = subprocess.run(command, env=env | more, capture_output=True, text=True, timeout=120)
        assert r.returncode == 0 and r.stdout == story.rstrip("\n"), (command, r.stdout, r.stderr)
        assert "finished" in r.stderr
        r = subprocess.run([*command, "-", "Once upon a time", "20"], env=env | more, capture_output=True, text=True)
        assert r.returncode == 0 and "cancelled" in r.stderr and story.startswith(r.stdout), r
        assert len(r.stdout) >= 20  # how much more depends on how much came at once
        r = subprocess.run([*command, "/no/such/model"], env=env | more, capture_output=True, text=True)
        assert r.returncode == 1 and "/no/such/model" in r.stderr.replace("such/model", "/no/such/model"), r


def test_the_library_shows_the_api_and_nothing_else(root):
    names = set(re.findall(r" T (\w+)", ok("nm", "-D", "--defined-only", root / "lib" / "libsluice.so.0"))) - {"SLUICE_0"}
    assert names == set(ok("tools/api", "names").split())
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", ok("readelf", "-d", root / "lib" / "libsluice.so.0")))
    assert needed <= {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}


def test_deb(story, tmp_path):
    needs("dpkg-deb")
    ok("tools/mkdeb", env=os.environ | {"COMPRESS": "none"})  # xz takes 40 s
    deb = f"build/sluice_{VERSION}_amd64.deb"
    fields = ok("dpkg-deb", "--field", deb)
    assert "Package: sluice\n" in fields and re.search(r"Depends: libc6 \(>= 2\.\d+\)\n", fields)
    ok("dpkg-deb", "--extract", deb, str(tmp_path))
    assert ok(tmp_path / "usr" / "bin" / "sluice", *STORY) == story
    for path in ("lib/systemd/system/sluice.service", "usr/share/man/man1/sluice.1.gz",
                 "usr/share/doc/sluice/copyright", "usr/share/bash-completion/completions/sluice"):
        assert (tmp_path / path).is_file()
    assert "/usr/bin/sluice serve" in (tmp_path / "lib/systemd/system/sluice.service").read_text()
    assert "root/root" in ok("dpkg-deb", "--contents", deb) and "Expat" in (
        tmp_path / "usr/share/doc/sluice/copyright").read_text()


def test_container_root(story, tmp_path):
    """The root that deploy/Containerfile copies from, run with its own loader and libraries only."""
    ok("tools/rootfs", str(tmp_path))
    files = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert {os.path.basename(f) for f in files} <= {
        "sluice", "passwd", "group", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1",
        "ld-linux-x86-64.so.2"}
    probe = subprocess.run(["unshare", "-r", "chroot", tmp_path, "/usr/bin/sluice", "--version"], capture_output=True)
    if b"unshare" in probe.stderr or b"cannot change root" in probe.stderr:
        pytest.skip("no chroot here")
    assert ok("unshare", "-r", "chroot", tmp_path, "/usr/bin/sluice", *STORY) == story


ALL_VALUES = """
servedModelName: "n"
args: ["--max-model-len=8192"]
secret: s
apiKeys: true
cache: {existingClaim: claim}
gpus: 1
resources: {requests: {cpu: "4"}, limits: {memory: 9Gi}}
podLabels: {a: b}
nodeSelector: {k: v}
tolerations: [{key: nvidia.com/gpu, operator: Exists}]
"""


@pytest.mark.parametrize("values", ["", "deploy/helm/values-llm-d.yaml", ALL_VALUES])
def test_helm_chart_renders_to_what_kubernetes_takes(values, tmp_path):
    """With Helm's own template engine, where Debian's packages of it are; and no key comes twice."""
    yaml = pytest.importorskip("yaml")
    needs("go")
    if not os.path.isdir("/usr/share/gocode/src/github.com/Masterminds/sprig"):
        pytest.skip("golang-github-masterminds-sprig-dev is not here")
    if "\n" in values:
        (tmp_path / "values.yaml").write_text(values)
    files = [str(tmp_path / "values.yaml") if "\n" in values else values] if values else []
    text = ok("go", "run", "tests/package/chart.go", "deploy/helm/sluice", *files,
              env=os.environ | {"GO111MODULE": "off", "GOPATH": "/usr/share/gocode", "GOCACHE": str(tmp_path / "go")})

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            keys = [self.construct_object(k) for k, _ in node.value]
            assert len(set(keys)) == len(keys), f"twice: {keys}"
            return super().construct_mapping(node, deep)
    objects = [o for o in yaml.load_all(text, Strict) if o]
    assert [o["kind"] for o in objects] == ["Deployment", "Service"]
    if values == ALL_VALUES:
        box = objects[0]["spec"]["template"]["spec"]["containers"][0]
        assert box["resources"] == {"requests": {"cpu": "4", "memory": "8Gi"}, "limits": {"memory": "9Gi", "nvidia.com/gpu": 1}}
        assert "--served-model-name=n" in box["args"] and "--max-model-len=8192" in box["args"]
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for o in objects:
        kubernetes_validate.validate(o, "1.31", strict=True)


def test_helm_values_are_yaml_and_name_what_the_templates_use():
    yaml = pytest.importorskip("yaml")
    with open("deploy/helm/sluice/values.yaml", encoding="utf-8") as f:
        values = yaml.safe_load(f)
    with open("deploy/helm/values-llm-d.yaml", encoding="utf-8") as f:
        assert set(yaml.safe_load(f)) <= set(values)
    used = set()
    for path in glob.glob("deploy/helm/sluice/templates/*.yaml"):
        text = open(path, encoding="utf-8").read()
        assert text.count("{{- if") + text.count("{{- with") == text.count("{{- end }}")
        used |= set(re.findall(r"\.Values\.([\w.]+)", text))
    for name in used:
        value = values
        for part in name.split("."):
            assert part in value, name
            value = value[part]
    assert {name.split(".")[0] for name in used} == set(values)
    flags = ok(BIN, "serve", "--help=all")
    for flag in re.findall(r"- (--[a-z-]+)", open("deploy/helm/sluice/templates/deployment.yaml", encoding="utf-8").read()):
        assert flag in flags
