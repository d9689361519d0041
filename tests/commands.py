"""The command line in processes of their own that need not import everything again."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TextIO

from colonnade.testing.resume import forking

# Not gRPC, which reads the environment when it is imported.
MODULES = ("colonnade.cli.main", "colonnade.deploy.party_run", "colonnade.deploy.doctor.doctor")


class Command:
    """`colonnade` with some arguments, in a process forked from one that has imported it and has done nothing else.

    It is heard, waited for, disturbed and killed like a `subprocess.Popen` with pipes of text.

    Args:
        arguments: What stands behind `colonnade`.
        cwd: Where it is typed.
        env: Its environment.
        merged: Whether errors go where the output goes.
        log: The file to which both are appended, instead of pipes.
    """

    def __init__(
        self,
        *arguments: str | Path,
        cwd: Path,
        env: Mapping[str, str],
        merged: bool = False,
        log: Path | None = None,
    ) -> None:
        context = forking(*MODULES)
        pipes = [context.Pipe(duplex=False) for _ in range(0 if log is not None else 1 if merged else 2)]
        typed, ends = ["colonnade", *map(str, arguments)], [end for _, end in pipes]
        self._process: Any = context.Process(target=_become, args=(typed, str(cwd), dict(env), ends, log))
        self._process.start()
        self.pid: int = self._process.pid
        self._heard = [_text(heard) for heard, _ in pipes]
        for end in ends:
            end.close()

    @property
    def stdout(self) -> TextIO:
        return self._heard[0]

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("colonnade", timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What the process says until it ends: its output, and its errors unless they go there too."""
        said = [""] * len(self._heard)

        def listen(number: int) -> None:
            if not self._heard[number].closed:
                with self._heard[number] as pipe:
                    said[number] = pipe.read()

        listening = [threading.Thread(target=listen, args=(number,), daemon=True) for number in range(len(said))]
        for each in listening:
            each.start()
        self.wait(timeout)
        for each in listening:
            each.join(timeout)
        return "".join(said[:1]), "".join(said[1:])

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def ended(*arguments: str | Path, cwd: Path, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A command that has come to its end."""
    command = Command(*arguments, cwd=cwd, env=env)
    said, errors = command.communicate()
    return subprocess.CompletedProcess(arguments, command.wait(), said, errors)


# It imports next to nothing, hands its arguments and its output over, and ends as the command ends.
SHIM = """#!{python} -IS
import json, os, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
asked = json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]).encode()
socket.send_fds(line, [len(asked).to_bytes(8, "little")], [1, 2])
line.sendall(asked)
sys.exit(int(line.makefile().read() or 1))
"""


@contextmanager
def typed_in_a_shell(folder: Path, env: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of shells in which `colonnade` is a forked process as `Command` is."""
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="shim-") as place, socket.socket(socket.AF_UNIX) as server:
        address = f"{place}/socket"
        server.bind(address)
        server.listen()
        shim = folder / "colonnade"
        shim.write_text(SHIM.format(python=sys.executable, address=address))
        shim.chmod(0o700)
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield {**env, "PATH": f"{folder}{os.pathsep}{env['PATH']}"}
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def _serve(server: socket.socket) -> None:
    while True:
        try:
            line, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(line,), daemon=True).start()


def _answer(line: socket.socket) -> None:
    with line:
        size, streams, _, _ = socket.recv_fds(line, 8, 2)
        asked = b""
        while len(asked) < int.from_bytes(size, "little"):
            asked += line.recv(65536)
        place, environment, arguments = json.loads(asked)
        ends = [Connection(stream, readable=False) for stream in streams]
        typed = ["colonnade", *arguments]
        process: Any = forking(*MODULES).Process(target=_become, args=(typed, place, environment, ends, None))
        process.start()
        for end in ends:
            end.close()
        process.join()
        line.sendall(str(process.exitcode).encode())


def _text(pipe: Connection) -> TextIO:
    with pipe:
        return os.fdopen(os.dup(pipe.fileno()), encoding="utf-8")


def _become(
    typed: list[str], place: str, environment: dict[str, str], ends: list[Connection], log: Path | None
) -> None:
    """Run the command line as Python would."""
    if log is None:
        os.dup2(ends[0].fileno(), 1)
        os.dup2(ends[-1].fileno(), 2)
    else:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    for end in ends:
        end.close()
    os.chdir(place)
    os.environ.clear()
    os.environ.update(environment)
    # What was imported may have asked for the folder of temporary files, which the environment names.
    tempfile.tempdir = None
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    sys.argv = typed
    from colonnade.cli.main import main

    main()
