"""New interpreters that have imported torch, and nothing of this package.

Importing torch takes seconds, so a server does it once and forks for every command. What the
command itself imports is imported anew: an example that forgets an import fails as for a user.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

SRC = pathlib.Path(__file__).parents[1] / "src"
PATH = os.pathsep.join(filter(None, [str(SRC), os.environ.get("PYTHONPATH")]))


def run(*arguments, env=None, cwd=None) -> subprocess.CompletedProcess:
    """As `python ARGUMENTS` with the package on its path: a script, or -c and code, or -m."""
    if not hasattr(os, "fork"):  # on Windows, where each has to import torch
        return _alone(*arguments, env=env, cwd=cwd)
    import fork_server

    env = {**os.environ, "PYTHONPATH": PATH, **(env or {})}
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with open(os.devnull, "rb") as stdin:
            files = dict(enumerate(file.fileno() for file in (stdin, stdout, stderr)))
            returncode = fork_server.run("torch", arguments, files, env, cwd)
        printed = []
        for file in (stdout, stderr):
            file.seek(0)
            printed.append(file.read().decode("utf-8"))
    return subprocess.CompletedProcess(arguments, returncode, *printed)


def _alone(*arguments, env, cwd) -> subprocess.CompletedProcess:
    set_for_all = {"PYTHONPATH": PATH, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={**os.environ, **set_for_all, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
