# SPDX-License-Identifier: MIT
"""A stand-in for the hub on loopback: the list of a repository's files, `resolve` with its redirect to
another host for large files, ranges, tokens, and faults on request. It keeps a log of what was asked."""
import hashlib
import http.server
import json
import threading
import time
import urllib.parse

COMMIT = "1234567890abcdef1234567890abcdef12345678"


def git_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files: dict[str, bytes], lfs=(".safetensors", ".gguf"), commit=COMMIT):
        self.files, self.lfs, self.commit = files, lfs, commit
        self.token: str | None = None  # what a reader must send
        self.blobs = True              # does the list have digests and sizes?
        self.revisions = {"main": commit}

    def is_large(self, path: str) -> bool:
        return path.endswith(tuple(self.lfs))

    def digest(self, path: str) -> str:
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if self.is_large(path) else git_id(data)


class Fault:
    """What happens to requests of a path: `times` of them, then all is well."""
    def __init__(self, kind: str, times: int = 1, **more):
        self.kind, self.times, self.more = kind, times, more


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: "Hub"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def reply(self, status: int, body: bytes = b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer(self):
        url = urllib.parse.urlsplit(self.path)
        hub, parts = self.hub, [urllib.parse.unquote(p) for p in url.path.split("/")[1:]]
        with hub.lock:
            hub.log.append((self.command, url.path, dict(self.headers), self.server.server_port))
        fault = hub.take_fault(url.path)
        if fault and self.refuse(fault):
            return
        if parts[0] == "blobs":  # the store of large files, another host
            repo, path = hub.repos["/".join(parts[1:3])], "/".join(parts[3:])
            return self.send(repo.files[path], fault)
        if parts[:2] == ["api", "models"]:
            return self.listing(parts[2:], url.query)
        self.resolve(parts, fault)

    def refuse(self, fault: Fault) -> bool:
        if fault.kind == "status":
            extra = {k: v for k, v in fault.more.items() if k != "status"}
            self.reply(fault.more["status"], b"<html>no</html>", **extra)
            return True
        if fault.kind == "drop":
            self.close_connection = True
            return True
        return False

    def may_read(self, repo: Repo) -> bool:
        if repo.token is None or self.headers.get("Authorization") == "Bearer " + repo.token:
            return True
        code = 403 if "Authorization" in self.headers else 401
        self.reply(code, b'{"error":"gated"}', X_Error_Code="GatedRepo",
                   X_Error_Message="Access to this model is restricted")
        return False

    def listing(self, parts: list[str], query: str):
        name = "/".join(parts[:2])
        repo = self.hub.repos.get(name)
        revision = parts[3] if len(parts) == 4 and parts[2] in ("revision", "tree") else None
        if repo is None or (revision not in repo.revisions and revision != repo.commit):
            return self.reply(404, b'{"error":"not found"}', X_Error_Code="RepoNotFound")
        if not self.may_read(repo):
            return
        if parts[2] == "tree":  # what the Python library asks for; sluice does not
            tree = [{"type": "file", "path": path, "size": len(data), "oid": git_id(data)}
                    | ({"lfs": {"oid": repo.digest(path), "size": len(data), "pointerSize": 130}}
                       if repo.is_large(path) else {}) for path, data in repo.files.items()]
            return self.reply(200, json.dumps(tree).encode(), Content_Type="application/json")
        siblings = []
        for path, data in repo.files.items():
            entry = {"rfilename": path}
            if repo.blobs and query == "blobs=true":
                entry |= {"size": len(data), "blobId": git_id(data)}
                if repo.is_large(path):
                    entry |= {"blobId": "0" * 40, "lfs": {"sha256": repo.digest(path), "size": len(data)}}
            siblings.append(entry)
        body = {"id": name, "sha": repo.revisions.get(revision, repo.commit), "siblings": siblings}
        self.reply(200, json.dumps(body).encode(), Content_Type="application/json")

    def resolve(self, parts: list[str], fault: Fault | None):
        repo = self.hub.repos.get("/".join(parts[:2]))
        path = "/".join(parts[4:])
        if repo is None or parts[2] != "resolve" or path not in repo.files:
            return self.reply(404, b"Entry not found", X_Error_Code="EntryNotFound")
        if not self.may_read(repo):
            return
        head = {"X_Repo_Commit": repo.commit, "ETag": f'"{git_id(repo.files[path])}"'}
        if repo.is_large(path):
            location = f"http://127.0.0.1:{self.hub.store_port}/blobs/{'/'.join(parts[:2])}/{path}"
            return self.reply(302, b"moved", Location=location, X_Linked_Size=str(len(repo.files[path])),
                              X_Linked_ETag=f'"{repo.digest(path)}"', **head)
        self.send(repo.files[path], fault, **head)

    def send(self, data: bytes, fault: Fault | None, **headers):
        start, status = 0, 200
        kind = fault.kind if fault else ""
        if "Range" in self.headers and kind != "no_ranges":
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                return self.reply(416, Content_Range=f"bytes */{len(data)}")
            status = 206
            if kind == "wrong_range":
                start = 0
            headers["Content_Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        if kind == "garbage":
            body = bytes(b ^ 1 for b in body)
        if kind == "longer":
            body += b"more"
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "cut":
            self.wfile.write(body[:fault.more["after"]])
            self.close_connection = True
        elif kind == "stall":
            self.wfile.write(body[:fault.more["after"]])
            self.wfile.flush()
            self.hub.stalled.set()
            self.hub.go_on.wait(fault.more.get("seconds", 20))
            self.close_connection = True
        elif kind == "slow":
            for i in range(0, len(body), 4096):
                self.wfile.write(body[i:i + 4096])
                self.wfile.flush()
                time.sleep(fault.more["seconds"])
        else:
            self.wfile.write(body)


class Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):  # a client that went away
        pass


class Hub:
    def __init__(self):
        self.repos: dict[str, Repo] = {}
        self.faults: list[tuple[str, Fault]] = []
        self.log: list[tuple] = []
        self.lock = threading.Lock()
        self.stalled, self.go_on = threading.Event(), threading.Event()
        handler = type("HubHandler", (Handler,), {"hub": self})
        self.servers = [Quiet(("127.0.0.1", 0), handler) for _ in range(2)]
        self.port, self.store_port = (s.server_port for s in self.servers)
        for s in self.servers:
            threading.Thread(target=s.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fault(self, path_end: str, kind: str, times: int = 1, **more) -> None:
        self.faults.append((path_end, Fault(kind, times, **more)))

    def take_fault(self, path: str) -> Fault | None:
        with self.lock:
            for end, fault in self.faults:
                if fault.times > 0 and path.endswith(end):
                    fault.times -= 1
                    return fault
        return None

    def asked(self, part: str = "") -> list[tuple]:
        with self.lock:
            return [entry for entry in self.log if part in entry[1]]

    def close(self) -> None:
        self.go_on.set()
        for s in self.servers:
            s.shutdown()
            s.server_close()
