"""What other packages add, in studies."""

from plugin_packages import REFUSAL, WITH_OPTION, install, printed

USED = """
import spiritlevel as sl
from spiritlevel_lab.population.settings.sections import MeasureSettings

print(MeasureSettings.read({"options": {"my_radius": 0.3}}).arguments)
try:
    MeasureSettings.read({"options": {"my_radius": -1}})
except sl.SpiritlevelError as error:
    print(error)
"""
BROKEN = """
import spiritlevel as sl
from spiritlevel_lab.population.registry import study_names
try:
    study_names()
except sl.SpiritlevelError as error:
    print(error)
"""


def test_an_option_of_a_measure_is_one_of_a_study(tmp_path):
    install(tmp_path, "mine", WITH_OPTION, group="spiritlevel.measures")
    given, refused = printed(tmp_path, USED).splitlines()
    assert given == "{}"
    assert refused == f"The study's measure_options cannot be used: {REFUSAL}"


def test_a_broken_study_package_is_named_where_studies_are(tmp_path):
    install(tmp_path, "broken", "import nothing_of_this_name", group="spiritlevel.studies")
    assert "'spiritlevel.studies', cannot be imported: ModuleNotFoundError" in printed(
        tmp_path, BROKEN
    )
