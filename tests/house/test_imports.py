"""`import spiritlevel` loads torch and nothing heavy that torch does not load itself."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

import fresh

EXTRAS = ["matplotlib", "pandas", "typer", "rich", "safetensors", "sklearn", "lightning"]
EXTRAS += ["transformers", "accelerate", "tensorboard", "kornia", "PIL", "ray", "peft"]


def run(code: str) -> str:
    """What the code prints where torch is imported and nothing else of what it asks for."""
    done = fresh.run("-c", code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_extras(code: str) -> list[str]:
    return run(f"{code}\nimport sys\nprint(*(p for p in {EXTRAS} if p in sys.modules))").split()


def test_import_is_light():
    assert (
        loaded_extras("import spiritlevel, spiritlevel.inputs.data, spiritlevel.inputs.models")
        == []
    )


def test_a_heavy_import_would_be_noticed():
    # Meta-test: a package whose import loads an extra is caught.
    assert "rich" in EXTRAS
    if importlib.util.find_spec("rich") is None:
        pytest.skip("only an installed package can be loaded")
    assert loaded_extras("import spiritlevel, rich") == ["rich"]


# None in sys.modules makes every import of that name fail, as if it were not installed.
BLOCKED = f"import sys\nsys.modules.update(dict.fromkeys({[*EXTRAS, 'numpy', 'scipy']}))\n"
ALONE = """
import json
found = {}
try:
    import numpy
except ImportError:
    found["numpy"] = "blocked"
import spiritlevel
from spiritlevel.inputs.data import digits, read_npz
from spiritlevel.inputs.models import build
x, y = digits("test")
found["shape"] = list(build("digits_cnn", seed=0)(x).shape)
try:
    read_npz("data.npz")
except ImportError as error:
    found["npz"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def alone():
    """What is found where not even torch could import them; a new interpreter takes seconds."""
    env = os.environ | {"PYTHONPATH": str(fresh.SRC)}
    command = [sys.executable, "-c", BLOCKED + ALONE]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_torch_alone_is_enough(alone):
    assert alone["shape"] == [500, 10]


def test_blocked_packages_cannot_be_imported(alone):
    # Meta-test: the code above does run without them.
    assert alone["numpy"] == "blocked"


def test_missing_numpy_answers_with_its_pip_line(alone):
    answer = "Reading .npz files needs numpy: pip install 'spiritlevel[cli]'"
    assert alone["npz"] == answer


def test_the_package_of_measures_is_reached_by_its_name():
    code = "import spiritlevel.measures as m, types; print(isinstance(m, types.ModuleType), m.get)"
    assert run(code).startswith("True <function get")
