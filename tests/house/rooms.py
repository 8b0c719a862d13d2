"""The two houses and their rooms, from the ground up: tests hold imports against this table.

A room imports only from rooms that stand before it in its house; the laboratory imports the
instrument, and never the other way round. `python tests/house/rooms.py` prints the map that
docs/architecture.md shows.
"""

HOUSES = {
    "spiritlevel": {
        "ground": "errors, checks of values, files, text, plugins, a user's code",
        "records": "values with their errors, the codec of all files, content and how it is shown",
        "math": "closed forms: tensors in, tensors out",
        "symmetries": "transformations of the weights that keep the function",
        "model": "all that touches a user's network, loss and data",
        "engine": "workspace, plan, passes, products, probes, refinement, certificates",
        "measures": "one folder per family: the cards, options, and what only this family computes",
        "verbs": "questions asked of a network: measure, audit, compare, spectra, weight changes",
        "results": "every record that a verb returns, in one place",
        "testing": "the contract that any measure can be run against, dense truths, networks",
        "training": "penalties and SAM change training; monitor and stopping watch it",
        "inputs": "data, built-in networks, checkpoints",
        "pages": "HTML reports and figures",
        "cli": "the command line: the only code that prints",
        "__main__": "python -m spiritlevel",
    },
    "spiritlevel_lab": {
        "statistics": "correlations, intervals, permutations: numbers in, numbers out",
        "population": "settings, runs, interventions, the store, executors",
        "claims": "rules of judgement, stated before the runs",
        "pages": "reports and figures of studies, the live page",
        "papers": "five papers: studies as data, recipes, and only the code that is special",
        "commands": "`spiritlevel study`, `watch` and `demo`",
    },
}
SOURCES = {"spiritlevel": "src/spiritlevel", "spiritlevel_lab": "lab/src/spiritlevel_lab"}
MAX_LINES = 400


def import_map() -> str:
    """The table as docs/architecture.md shows it: a room may import from the rooms below it."""
    parts = []
    for house, rooms in HOUSES.items():
        width = max(map(len, rooms)) + 2
        lines = [f"{name:{width}}{purpose}" for name, purpose in reversed(rooms.items())]
        parts.append("\n".join([f"{SOURCES[house]}/", *(f"  {line}" for line in lines)]))
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(import_map())
