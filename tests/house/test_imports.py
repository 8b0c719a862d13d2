"""`import spiritlevel` loads torch and nothing heavy that torch does not load itself."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

EXTRAS = ["matplotlib", "pandas", "typer", "rich", "safetensors", "sklearn", "lightning"]
EXTRAS += ["transformers", "accelerate", "tensorboard", "kornia", "PIL", "ray", "peft"]
SRC = pathlib.Path(__file__).parents[2] / "src"


def run(code: str) -> str:
    """What the code prints in a fresh interpreter; the test fails if it does not end well."""
    env = os.environ | {"PYTHONPATH": str(SRC)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_extras(code: str) -> list[str]:
    return run(f"{code}\nimport sys\nprint(*(p for p in {EXTRAS} if p in sys.modules))").split()


# Each fresh interpreter takes seconds to import torch, so the modules and the extras share theirs.
def test_import_is_light():
    assert (
        loaded_extras("import spiritlevel, spiritlevel.study.data, spiritlevel.study.models") == []
    )


def test_a_heavy_import_would_be_noticed():
    # Meta-test: a package whose import loads an extra is caught.
    assert "rich" in EXTRAS
    if importlib.util.find_spec("rich") is None:
        pytest.skip("only an installed package can be loaded")
    assert loaded_extras("import spiritlevel, rich") == ["rich"]


# None in sys.modules makes every import of that name fail, as if it were not installed.
BLOCKED = f"import sys\nsys.modules.update(dict.fromkeys({[*EXTRAS, 'numpy', 'scipy']}))\n"


def test_torch_alone_is_enough():
    code = """
import spiritlevel
from spiritlevel.study.data import digits
from spiritlevel.study.models import build
x, y = digits("test")
print(tuple(build("digits_cnn", seed=0)(x).shape))
"""
    assert run(BLOCKED + code).split("\n")[0] == "(500, 10)"


def test_blocked_packages_cannot_be_imported():
    # Meta-test: the code above does run without them.
    code = "try:\n    import numpy\nexcept ImportError:\n    print('blocked')"
    assert run(BLOCKED + code).strip() == "blocked"


def test_missing_numpy_answers_with_its_pip_line():
    code = """
from spiritlevel.study.data import read_npz
try:
    read_npz("data.npz")
except ImportError as error:
    print(error)
"""
    answer = "Reading .npz files needs numpy: pip install 'spiritlevel[cli]'"
    assert run(BLOCKED + code).strip() == answer


def test_the_package_of_measures_is_reached_by_its_name():
    code = "import spiritlevel.measures as m, types; print(isinstance(m, types.ModuleType), m.get)"
    assert run(code).startswith("True <function get")
