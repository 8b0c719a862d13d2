"""Record the results of a finished study, and write all pages on the papers' experiments again.

python experiments/pages.py                          # the pages, from the recorded results
python experiments/pages.py studies/002-fig-3        # record this study first
python experiments/pages.py studies/001-fig-1-paper --preset paper
python experiments/pages.py --audit lenet5.json --network "LeNet-5 on CIFAR-10"
"""

from __future__ import annotations

import argparse
import pathlib

import spiritlevel as sl
from publishing import audited
from publishing.pages import write_pages
from spiritlevel_lab import Store
from spiritlevel_lab.papers import record
from spiritlevel_lab.papers.records import save

HERE = pathlib.Path(__file__).parent
RESULTS, PAGES = HERE / "results", HERE.parent / "reproduction"


def main() -> None:
    """Record what is asked for, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="?", help="the folder of a finished study")
    parser.add_argument("--preset", default="", help="the preset it was run with")
    parser.add_argument("--note", default="", help="a sentence to add to the page")
    parser.add_argument("--audit", type=pathlib.Path, help="what `spiritlevel audit --json` wrote")
    parser.add_argument("--network", help="a short description of the audited network")
    arguments = parser.parse_args()
    if (arguments.audit is None) != (arguments.network is None):
        parser.error("--audit and --network go together")
    if arguments.study:
        with Store.open(arguments.study) as store:
            print(save(record(store, preset=arguments.preset, note=arguments.note), RESULTS))
    if arguments.audit:
        audit = sl.results.Audit.from_json(arguments.audit.read_text(encoding="utf-8"))
        made = audited.AuditRecord.of(audit, arguments.network)
        print(audited.save(made, RESULTS, arguments.audit.stem))
    for path in write_pages(RESULTS, PAGES):
        print(path)


if __name__ == "__main__":
    main()
