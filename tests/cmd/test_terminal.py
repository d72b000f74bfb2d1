# SPDX-License-Identifier: MIT
"""sluice on a terminal: run with its prompt as an argument or piped in, chat with line editing, history and its
own commands, as a person types them into a pseudo-terminal."""
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import time

import pytest

BIN = os.environ.get("SLUICE_BIN", "build/release/sluice")
STORY = "assets/storyteller"
PROMPT = ">>> [^\n]*\x1b\\[\\?2004h"  # pastes are asked for when the editor listens: what comes earlier is not edited
ANSWERED = f"\r\n\r\n{PROMPT}"


def run(*args: str, stdin: bytes | None = None) -> subprocess.CompletedProcess:
    given = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}
    return subprocess.run([BIN, "run", *args], **given, capture_output=True, timeout=60)


class Terminal:
    """A program on a pseudo-terminal of its own."""

    def __init__(self, *args: str, env: dict | None = None):
        self.text, self.prompt = "", PROMPT if (env or {}).get("TERM") != "dumb" else ">>> "
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", **(env or {})})
            os.execv(BIN, [BIN, *args])

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait_for(self, pattern: str, timeout: float = 20) -> str:
        """Reads up to the end of the pattern, and gives that part."""
        end = time.monotonic() + timeout
        while not (m := re.search(pattern, self.text.replace("\x1b[?2004l", ""))):
            assert time.monotonic() < end, (pattern, self.text)
            if select.select([self.fd], [], [], 0.2)[0]:
                self.text += os.read(self.fd, 65536).decode(errors="replace")
        self.text = m.string[m.end():]
        return m.string[:m.end()]

    def close(self) -> int:
        """The exit status."""
        end = time.monotonic() + 20
        while (ended := os.waitpid(self.pid, os.WNOHANG))[0] == 0:
            assert time.monotonic() < end
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    pass
        os.close(self.fd)
        return os.waitstatus_to_exitcode(ended[1])


@pytest.fixture
def chat(tmp_path):
    had = []

    def start(*args, **env):
        had.append(Terminal("chat", "-n", "6", "--seed", "1", *args,
                            env={"XDG_STATE_HOME": str(tmp_path / "state"), **env}))
        had[-1].wait_for(f"leaves(?s:.)*{had[-1].prompt}")
        return had[-1]
    yield start
    for t in had:
        try:
            os.kill(t.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def saved(t: Terminal, path) -> list:
    t.send(f"/save {path}\r")
    t.wait_for("messages saved to .*\n" + t.prompt)
    return [(m["role"], m["content"]) for m in json.loads(path.read_text())["messages"]]


def test_the_prompt_is_an_argument_or_piped_or_both():
    how = ["--raw", "-n", "8", "--temperature", "0"]
    want = run("-p", "Once upon a time\n\nthere was", *how).stdout
    assert len(want) > 8
    for args, stdin in (([STORY, "Once upon a time\n\nthere was"], None),
                        (["-m", STORY, "Once upon a time\n\nthere was"], None),
                        ([STORY, "Once upon a time"], b"there was\n"),
                        ([STORY], b"Once upon a time\n\nthere was\r\n"),
                        ([], b"Once upon a time\n\nthere was"),
                        (["-p", "Once upon a time\n\nthere was"], b"not read")):
        r = run(*args, *how, stdin=stdin)
        assert (r.returncode, r.stdout, r.stderr) == (0, want, b""), (args, stdin)


@pytest.mark.parametrize("args, says", [
    ([], "a prompt is needed"), ([STORY], "a prompt is needed"),
    ([STORY, "x", "-p", "y"], "cannot be combined"), (["-m", STORY, "x", "y"], "unexpected argument 'y'"),
    ([STORY, "x", "y"], "unexpected argument 'y'"), (["", "x"], "MODEL is empty")])
def test_a_prompt_that_is_missing_or_given_twice(args, says):
    r = run(*args)
    assert r.returncode == 2 and says in r.stderr.decode() and r.stderr.count(b"\n") == 1, r.stderr


def test_a_reader_that_leaves_ends_the_program_as_it_ends_cat():
    """`| head`: by SIGPIPE, without a message, whether the text comes by write or by printf."""
    for args in (["run", "-p", "Once", "--raw", "--ignore-eos"], ["man"], ["inspect", "--tensors"]):
        reader, writer = os.pipe()
        os.close(reader)
        r = subprocess.run([BIN, *args], stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE, timeout=60)
        os.close(writer)
        assert (r.stderr, r.returncode) == (b"", -signal.SIGPIPE), args


def test_chat_edits_lines_and_keeps_history(chat, tmp_path):
    t = chat()
    t.send("Tell me a sturies\x7f\x7f\x7fy\x01\x06\x06\r")  # backspaces, then to the beginning and on: sends the line
    t.wait_for(ANSWERED)
    assert saved(t, tmp_path / "a")[0] == ("user", "Tell me a stury")
    t.send("\x1b[A\x1b[A\x7fiez\r")  # up twice: the message, not the /save behind it
    t.wait_for(ANSWERED)
    assert saved(t, tmp_path / "b")[2] == ("user", "Tell me a sturiez")
    t.send("日本語\x7f\x7fü\r")
    t.wait_for(ANSWERED)
    assert saved(t, tmp_path / "c")[4] == ("user", "日ü")
    t.send("\x04")
    assert t.close() == 0
    kept = tmp_path / "state/sluice/chat_history"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and "sturiez" in kept.read_text()
    again = chat()
    again.send("\x12sturiez\r\r")  # found by a search backwards
    again.wait_for(ANSWERED)
    assert saved(again, tmp_path / "d")[0] == ("user", "Tell me a sturiez")


def test_history_is_bounded_and_can_be_off(chat, tmp_path):
    kept = tmp_path / "state/sluice/chat_history"
    t = chat("--no-history")
    t.send("/help\r")
    t.wait_for("this list(?s:.)*" + PROMPT)
    t.send("/bye\r")
    assert t.close() == 0 and not kept.exists()
    kept.parent.mkdir(parents=True)
    kept.write_text("_HiStOrY_V2_\n" + "".join(f"line{i}\n" for i in range(5000)))
    t = chat()
    t.send("/bye\r")
    assert t.close() == 0
    lines = kept.read_text().split()
    assert len(lines) == 1001 and lines[-1] == "/bye" and lines[1] == "line4001"


def test_chat_takes_several_lines(chat, tmp_path):
    t = chat()
    for typed in ('"""first\rsecond\r"""\r', "one \\\rtwo\r", "\x1b[200~pasted\rtext ü\x1b[201~ more\r"):
        t.send(typed)
        t.wait_for(ANSWERED)
    users = [text for role, text in saved(t, tmp_path / "a") if role == "user"]
    assert users == ["first\nsecond\n", "one \ntwo", "pasted\ntext ü more"]


def test_chat_commands(chat, tmp_path):
    t = chat("--system", "Be kind.")
    for typed, says in (("/sys\t\r", r"\[Be kind\.\]"), ("/hlep\r", "did you mean /help"),
                        ("/set temprature 1\r", "did you mean temperature"), ("/set top-p 7\r", "7 is not between 0 and 1"),
                        ("/set max-tokens 3\r", "max-tokens=3"), ("/set\r", "max-tokens +3 "),
                        ("/regen\r", "no message to answer"), ("/save\r", "which file"), ("/load /none\r", "/none"),
                        ("/system Be brief.\r", "system message set"), ("/etc is a folder\r", "no command /etc")):
        t.send(typed)
        t.wait_for(f"{says}(?s:.)*{PROMPT}")
    t.send("/etc/passwd is a file\r")
    t.wait_for(ANSWERED)
    first = saved(t, tmp_path / "a")
    assert first[:2] == [("system", "Be brief."), ("user", "/etc/passwd is a file")] and len(first) == 3
    t.send("/regen\r")
    t.wait_for(ANSWERED)
    second = saved(t, tmp_path / "b")
    assert second[:2] == first[:2] and len(second) == 3 and second[2] != first[2]
    t.send('/clear\r/system ""\r')
    t.wait_for("system message set")
    assert saved(t, tmp_path / "c") == []
    t.send(f"/load {tmp_path}/a\r")
    t.wait_for("3 messages loaded")
    assert saved(t, tmp_path / "d") == first
    (tmp_path / "e").write_text('[{"role": "robot", "content": "x"}]')
    t.send(f"/load {tmp_path}/e\r")
    t.wait_for(r"messages\[0\].role")
    assert saved(t, tmp_path / "f") == first


def test_ctrl_c_stops_an_answer_and_ctrl_d_leaves(chat, tmp_path):
    t = chat("--ignore-eos", "--max-tokens", "1900")
    t.send("Tell me\r")
    t.wait_for(r"\n.{30}")
    t.send("\x03")
    t.wait_for(r"\[stopped\](?s:.)*" + PROMPT)
    t.send("half a line\x03")
    t.wait_for(r"Ctrl-D or /bye leaves\](?s:.)*" + PROMPT)
    roles = [role for role, text in saved(t, tmp_path / "a")]
    assert roles == ["user", "assistant"]  # what was said so far stays
    t.send("\x04")
    assert t.close() == 0


def test_chat_on_a_dumb_terminal_reads_plain_lines(chat, tmp_path):
    """As without libedit."""
    t = chat(TERM="dumb")
    t.send("Tell me\n")
    t.wait_for("\r\n\r\n>>> ")
    assert saved(t, tmp_path / "a")[0] == ("user", "Tell me")
    t.send("\x03")
    t.wait_for("leaves")
    t.send("\x04")
    assert t.close() == 0
