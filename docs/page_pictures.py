"""The pictures that tutorials and guides produce, drawn again by their own code and commands.

python docs/page_pictures.py
python docs/page_pictures.py docs/uses/pruning.md
"""

from __future__ import annotations

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from typing import Any

DOCS = pathlib.Path(__file__).parent.resolve()
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\(\.\./(pictures/[\w/-]+\.png)\)")


def draw(page: pathlib.Path) -> None:
    """Run what a page shows, and keep those pictures of it that it shows as well."""
    text, names = page.read_text(encoding="utf-8"), dict[str, Any]()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for language, body in BLOCK.findall(text):
            if language == "python":
                exec(compile(body, page.name, "exec"), names)
                continue
            for command in re.findall(r"^\$ spiritlevel (.+)$", body, flags=re.MULTILINE):
                run = [sys.executable, "-m", "spiritlevel", *shlex.split(command)]
                subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        for path in SHOWN.findall(text):
            if os.path.exists(os.path.basename(path)):
                print(shutil.copy(os.path.basename(path), DOCS / path))
        os.chdir(DOCS)


def main() -> None:
    """Draw those of the pages that are named, or of all that show one."""
    pages = [pathlib.Path(name).resolve() for name in sys.argv[1:]] or sorted(
        page
        for folder in ("tutorials", "guides", "uses")
        for page in (DOCS / folder).glob("*.md")
        if SHOWN.search(page.read_text(encoding="utf-8"))
    )
    for page in pages:
        draw(page)


if __name__ == "__main__":
    main()
