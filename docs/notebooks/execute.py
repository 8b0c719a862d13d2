"""Run notebooks without Jupyter, and store what their cells print, show and draw.

python docs/notebooks/execute.py                                  # all of them, in place
python docs/notebooks/execute.py docs/notebooks/a-population.ipynb --out tried.ipynb
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

HERE = pathlib.Path(__file__).parent
DPI = 80  # of the stored pictures: they are part of the repository


def executed(book: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its code cells run in order, as one program in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    code = (cell for cell in book["cells"] if cell["cell_type"] == "code")
    for number, cell in enumerate(code, start=1):
        cell["outputs"] = _outputs("".join(cell["source"]), names, number)
        cell["execution_count"] = number
    return book


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What Jupyter would show below a cell: its prints, its figures, its last value."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value = None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(text)})
    for picture in _pictures():
        data = {"image/png": picture}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    if value is not None:
        shown = {"text/plain": _lines(repr(value))}
        if hasattr(value, "_repr_html_"):
            shown["text/html"] = _lines(value._repr_html_())
        shared = {"execution_count": number, "metadata": {}, "output_type": "execute_result"}
        outputs.append({"data": shown, **shared})
    return outputs


def _pictures() -> list[str]:
    """The figures that a cell has left open, which are then closed."""
    if "matplotlib.pyplot" not in sys.modules:
        return []
    from matplotlib import pyplot

    made = []
    for number in pyplot.get_fignums():
        file = io.BytesIO()
        pyplot.figure(number).savefig(file, format="png", dpi=DPI, metadata={"Software": None})
        made.append(base64.b64encode(file.getvalue()).decode("ascii"))
    pyplot.close("all")
    return made


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Run the notebook that is named, or each of them in a process of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebook", type=pathlib.Path, nargs="?")
    parser.add_argument("--out", type=pathlib.Path, help="where to write it (default: in place)")
    asked = parser.parse_args()
    if asked.notebook is None:
        for path in sorted(HERE.glob("*.ipynb")):
            subprocess.run([sys.executable, __file__, path], check=True)
        return
    path, out = asked.notebook.resolve(), (asked.out or asked.notebook).resolve()
    os.environ["MPLBACKEND"] = "agg"
    with tempfile.TemporaryDirectory() as folder:
        before = pathlib.Path.cwd()
        os.chdir(folder)
        book = executed(json.loads(path.read_text(encoding="utf-8")))
        os.chdir(before)
    text = json.dumps(book, indent=1, ensure_ascii=False)
    out.write_text(f"{text}\n", encoding="utf-8")
    print(out)


if __name__ == "__main__":
    main()
