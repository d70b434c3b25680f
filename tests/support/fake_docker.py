"""A container runtime for tests, with the commands and options of Docker that Gavel uses.

As with Docker, containers are children of a daemon, not of the command that starts them: they survive that command, and
are not among its descendants. `FakeDocker` is the daemon, in the process of the test; its program `docker` is the
command.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

_PROGRAM = """#!{python} -SE
import json, os, signal, socket, sys
options = [a for a in sys.argv[2:]]
def ask(request, *fds):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect({socket!r})
        socket.send_fds(link, [json.dumps(request).encode() + b"\\n"], fds or (2,))
        with link.makefile() as replies:
            for line in replies:
                yield json.loads(line)
request = {{"argv": sys.argv[1:], "env": dict(os.environ), "uid": os.getuid()}}
code = 1
for reply in ask(request, 1, 2):
    if "id" in reply:
        stop = {{"argv": ["kill", reply["id"]]}}
        signal.signal(signal.SIGTERM, lambda *_: list(ask(stop)))
    code = reply.get("code", code)
sys.exit(code)
"""
# What an image sets.
IMAGE_PATH = "/of/the/image:/usr/bin:/bin"


class FakeDocker:
    """The daemon, its images and its containers."""

    def __init__(self, folder: Path) -> None:
        """Start it. `folder`: where its program is put."""
        self.program = folder / "docker"
        # Images that were pulled; and all commands, in order, with the users who called.
        self.images: set[str] = set()
        self.calls: list[list[str]] = []
        self.uids: set[int] = set()
        # While it is clear, the daemon answers nothing but `run`.
        self.answers, self.may_pull = threading.Event(), threading.Event()
        self.answers.set()
        self.may_pull.set()
        self.containers: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        self._ids = itertools.count(1)
        self._socket = socket.socket(socket.AF_UNIX)
        path = folder / "docker.sock"
        self._socket.bind(str(path))
        path.chmod(0o777)
        self._socket.listen()
        self.program.write_text(_PROGRAM.format(python=sys.executable, socket=str(path)))
        self.program.chmod(0o755)
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End the daemon and all containers."""
        self._socket.close()
        self.answers.set()
        self.may_pull.set()
        for name in [*self.containers]:
            self._remove(name)

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[link], daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        with link:
            data, fds, _, _ = socket.recv_fds(link, 1 << 20, 2)
            while not data.endswith(b"\n"):
                data += link.recv(1 << 20)
            request = json.loads(data)
            command, *words = request["argv"]
            self.calls.append(request["argv"])
            if "uid" in request:
                self.uids.add(request["uid"])
            try:
                self._carry_out(link, command, words, request, fds)
            except OSError:
                # The command was killed.
                pass
            finally:
                for fd in fds:
                    os.close(fd)

    def _carry_out(
        self, link: socket.socket, command: str, words: list[str], request: dict[str, Any], fds: list[int]
    ) -> None:
        code = 0
        if command not in ("run", "kill"):
            self.answers.wait()
        match command:
            case "run":
                code = self._run(link, words, request["env"], fds)
            case "kill":
                self.containers[words[0]][1].send_signal(signal.SIGTERM)
            case "ps":
                names = [
                    name
                    for name, (label, _) in [*self.containers.items()]
                    if f"--filter=label={label}" in words
                ]
                os.write(fds[0], "".join(f"{name}\n" for name in names).encode())
            case "rm":
                for name in words:
                    if not name.startswith("--"):
                        self._remove(name)
            case "image":
                code = int(words[1] not in self.images)
            case "pull":
                os.write(fds[0], f"pulling {words[0]}\n".encode())
                self.may_pull.wait()
                code = int("missing" in words[0])
                os.write(fds[1], b"manifest unknown\n" if code else b"")
                self.images |= set() if code else {words[0]}
        link.sendall(json.dumps({"code": code}).encode() + b"\n")

    def _run(self, link: socket.socket, words: list[str], outside: dict[str, str], fds: list[int]) -> int:
        count = next(index for index, word in enumerate(words) if not word.startswith("--"))
        options, image, argv = words[:count], words[count], words[count + 1 :]
        if image not in self.images:
            os.write(fds[1], f"{image}: image not known\n".encode())
            return 125
        env, named = {"PATH": IMAGE_PATH}, [word[6:] for word in options if word.startswith("--env=")]
        for name, equals, value in (word.partition("=") for word in named):
            if equals or name in outside:
                env[name] = value if equals else outside[name]
        value_of = dict(word.split("=", 1) for word in options if "=" in word)
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=value_of["--workdir"],
            stdin=subprocess.DEVNULL,
            stdout=fds[0],
            stderr=fds[1],
            start_new_session=True,
        )
        name = f"c{next(self._ids)}"
        self.containers[name] = (value_of["--label"], process)
        link.sendall(json.dumps({"id": name}).encode() + b"\n")
        code = process.wait()
        self.containers.pop(name, None)
        return 128 - code if code < 0 else code

    def _remove(self, name: str) -> None:
        container = self.containers.pop(name, None)
        if container is not None:
            os.killpg(container[1].pid, signal.SIGKILL)
