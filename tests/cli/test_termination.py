"""SIGTERM stops the process that runs a command, and no other way than Ctrl-C would."""

import os
import signal
import subprocess
import sys
import threading

import pytest

import fresh
from fresh import TIMEOUT, forks
from spiritlevel.cli.termination import Termination


def test_sigterm_is_an_interrupt_while_a_command_runs():
    before = signal.getsignal(signal.SIGTERM)
    termination = Termination()
    with pytest.raises(KeyboardInterrupt), termination:
        os.kill(os.getpid(), signal.SIGTERM)
    assert termination.came
    assert signal.getsignal(signal.SIGTERM) is before


def stopped_twice(ended):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        ended.append(True)


def test_a_second_sigterm_does_not_disturb_the_end_of_a_command():
    ended = []
    with pytest.raises(KeyboardInterrupt), Termination():
        stopped_twice(ended)
    assert ended == [True]


def test_ctrl_c_is_told_apart():
    termination = Termination()
    with pytest.raises(KeyboardInterrupt), termination:
        os.kill(os.getpid(), signal.SIGINT)
    assert not termination.came


def ends_its_child() -> None:
    """Exits with the number of the signal that ended a child by fork."""
    with Termination() as termination:
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        _, status = os.waitpid(child, 0)
    os._exit(os.WTERMSIG(status) if not termination.came else 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_by_fork_ends_at_once():
    process = forks().Process(target=ends_its_child)
    process.start()
    process.join(TIMEOUT)
    process.kill()
    assert process.exitcode == signal.SIGTERM


def test_another_thread_than_the_main_one_changes_nothing():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def enter():
        with Termination() as termination:
            seen.append((signal.getsignal(signal.SIGTERM), termination.came))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(TIMEOUT)
    assert seen == [(before, False)]


# -- Ctrl-C while torch is imported ----------------------------------------------------------------

SCRIPT = "from spiritlevel.cli import main; main()"  # what pip installs as `spiritlevel`


@pytest.fixture
def interrupted(tmp_path):
    """Runs Python where Ctrl-C comes while torch is imported."""
    stub = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n"
    (tmp_path / "torch.py").write_text(stub)
    (tmp_path / "spiritlevel").write_text(SCRIPT)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(fresh.SRC)])}

    def run(*arguments):
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIMEOUT
        )

    return run


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself Ctrl-C there")
@pytest.mark.parametrize(
    "arguments",
    [("-m", "spiritlevel", "list"), ("-m", "spiritlevel.cli", "list"), ("./spiritlevel", "list")],
    ids=" ".join,
)
def test_ctrl_c_during_the_imports_of_a_command_is_one_line(interrupted, arguments):
    done = interrupted(*arguments)
    assert done.returncode == 130
    assert done.stderr == "error: interrupted. No partial files were written.\n"


@pytest.mark.skipif(os.name == "nt", reason="a process cannot send itself Ctrl-C there")
def test_ctrl_c_during_the_imports_of_another_program_is_its_own_affair(interrupted):
    code = "try:\n    from spiritlevel import measure\nexcept KeyboardInterrupt:\n    print('seen')"
    assert interrupted("-c", code).stdout == "seen\n"
