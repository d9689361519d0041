"""Parties in processes of their own that need not import everything again."""

import os
import runpy
import signal
import subprocess
import sys
import tempfile

from colonnade.testing.resume import forking


class Forked:
    """A script in a process forked from one that has imported what models import, and that has done nothing else.

    It is waited for, disturbed and killed like a `subprocess.Popen`.
    """

    def __init__(self, script, arguments, environment, log):
        self._process = forking().Process(target=become, args=(str(script), arguments, environment, str(log)))
        self._process.start()

    @property
    def pid(self):
        return self._process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, seconds=None):
        self._process.join(seconds)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked script", seconds)
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def become(script, arguments, environment, log):
    """Run a script as Python would, and let it write to a log."""
    with open(log, "ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.clear()
    os.environ.update(environment)
    # What was imported may have asked for the folder of temporary files, which the environment names.
    tempfile.tempdir = None
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
