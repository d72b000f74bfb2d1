# SPDX-License-Identifier: MIT
"""A small HTTP/1.1 client over asyncio for the load tests: keep-alive, chunked replies read event by event, and
the rude ends that real clients make (a reset, a half-closed socket, half a request)."""
import asyncio
import json
import socket
import struct


class Reply:
    def __init__(self, status, headers):
        self.status = status
        self.headers = headers
        self.body = b""
        self.done = False  # the reply came whole

    def json(self):
        return json.loads(self.body)


class Client:
    """One connection at a time, opened when it is needed. Used by one task."""

    def __init__(self, port, key=None):
        self.port = port
        self.key = key
        self.reader = self.writer = None

    async def connect(self, rcvbuf=None):
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if rcvbuf is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
            self.reader, self.writer = await asyncio.open_connection(sock=sock, limit=1 << 22)
        except BaseException:
            sock.close()
            raise

    def close(self, reset=False):
        if self.writer is None:
            return
        if reset:
            sock = self.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.writer.transport.abort()
        else:
            self.writer.close()
        self.reader = self.writer = None

    def encode(self, method, path, body=None, headers=()):
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else (body or b"")
        lines = [f"{method} {path} HTTP/1.1", "Host: a", *headers]
        if self.key is not None:
            lines.append("Authorization: Bearer " + self.key)
        if data or method == "POST":
            lines.append(f"Content-Length: {len(data)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + data

    async def send(self, data):
        if self.writer is None:
            await self.connect()
        self.writer.write(data)
        await self.writer.drain()

    async def head(self):
        line = await self.reader.readline()
        if not line:
            raise ConnectionResetError("closed before a reply")
        reply = Reply(int(line.split()[1]), {})
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            reply.headers[name.strip().lower()] = value.strip()
        return reply

    async def chunks(self, reply):
        """The pieces of a body as they come; reply.done is set behind the last."""
        if reply.headers.get("transfer-encoding") == "chunked":
            while (n := int(await self.reader.readline() or b"0", 16)) > 0:
                yield (await self.reader.readexactly(n + 2))[:-2]
            reply.done = await self.reader.readline() == b"\r\n"
        else:
            yield await self.reader.readexactly(int(reply.headers.get("content-length", 0)))
            reply.done = True

    async def request(self, method, path, body=None, headers=()):
        """A whole exchange. A kept connection that the server closed meanwhile is opened anew, once."""
        data = self.encode(method, path, body, headers)
        fresh = self.writer is None
        try:
            await self.send(data)
            reply = await self.head()
        except (ConnectionResetError, BrokenPipeError):
            self.close()
            if fresh:
                raise
            await self.send(data)
            reply = await self.head()
        if method != "HEAD":
            reply.body = b"".join([part async for part in self.chunks(reply)])
        reply.done = True
        if reply.headers.get("connection") == "close":
            self.close()
        return reply


def events(body):
    """The JSON objects of an event stream."""
    return [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
