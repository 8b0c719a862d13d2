"""What would run here and fail on Windows: text in the system's encoding, forks, signals."""

import ast
import pathlib

import pytest

SRC = pathlib.Path(__file__).parents[2] / "src" / "spiritlevel"
FILES = sorted(SRC.rglob("*.py"))
EVERYWHERE = {"SIG_IGN", "SIG_DFL"}  # what Python's manual says of all systems
EVERYWHERE |= {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"}
POSIX = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}


def names_of(call):
    """What is called, as written: `os.fork`, `open`; of a longer expression only the last name."""
    return dotted(call.func) or getattr(call.func, "attr", "")


def dotted(node):
    """A name with its attributes, as written; `ast.unparse` would take seconds for all files."""
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return before and f"{before}.{node.attr}"


def is_text_without_encoding(call, called):
    name = called.rsplit(".", 1)[-1]
    given = {keyword.arg for keyword in call.keywords}
    if name == "read_text":
        return not call.args and "encoding" not in given
    if name == "write_text":
        return len(call.args) < 2 and "encoding" not in given
    if called not in ("open", "io.open", "os.fdopen"):
        return False
    modes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg == "mode")]
    return not any("b" in ast.unparse(mode) for mode in modes) and "encoding" not in given


def offences(source):
    nodes, found = list(ast.walk(ast.parse(source))), []
    tried = [each for each in nodes if isinstance(each, ast.Try)]
    guarded = {inner for each in tried for inner in each.body}  # an import that may be missing
    for node in nodes:
        if isinstance(node, ast.Call):
            name = names_of(node)
            if is_text_without_encoding(node, name):
                found.append(f"line {node.lineno}: text without encoding='utf-8'")
            if name in ("os.fork", "os.killpg", "os.setsid"):
                found.append(f"line {node.lineno}: {name} is not on Windows")
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in guarded:
            modules = {alias.name for alias in node.names} | {getattr(node, "module", None)}
            level = getattr(node, "level", 0)
            found += [f"line {node.lineno}: imports {m}" for m in modules & POSIX if not level]
        text = dotted(node) if isinstance(node, ast.Attribute) else ""
        if text.startswith("signal.SIG") and text.removeprefix("signal.") not in EVERYWHERE:
            found.append(f"line {node.lineno}: {text} is not on Windows")
    return found


def test_nothing_that_only_posix_has():
    found = {str(path): offences(path.read_text(encoding="utf-8")) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "path.read_text()",
        "(folder / 'a').read_text()",
        "path.write_text(page)",
        "open(path)",
        "open(path, mode='a')",
        "os.fork()",
        "import fcntl",
        "signal.signal(signal.SIGKILL, handler)",
    ],
)
def test_the_check_notices(line):
    assert len(offences(line)) == 1


@pytest.mark.parametrize(
    "line", ["open(path, 'rb')", "path.read_text('utf-8')", "signal.signal(signal.SIGINT, handler)"]
)
def test_the_check_lets_the_rest_pass(line):
    assert offences(line) == []
