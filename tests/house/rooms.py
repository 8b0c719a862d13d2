"""The rooms of the package, from the ground up: the layout test and CONTRIBUTING's map read this.

A room imports only from rooms that stand before it in this table. `python tests/house/rooms.py`
prints the map.
"""

ROOMS = {
    "errors": "errors: what was needed, what came, what to do next",
    "need": "one check of a value, one shape of error",
    "plain_text": "text from outside, harmless for a terminal and a spreadsheet",
    "user_code": "a user's code by 'module:name', and which of it a file may name",
    "plugins": "measures and studies that other packages add",
    "reading": "records to JSON and back, by the fields of their classes",
    "content": "what records tell and pages consist of: tables, sentences, figures' data",
    "notebooks": "how records look as text and in a notebook, and the page they become",
    "records": "Measurement, Report, Cost, Status, Progress: what the rooms hand to each other",
    "files": "files written completely or not at all",
    "math": "closed forms: tensors in, tensors out",
    "symmetries": "moves of the weights that keep the function",
    "model": "all that touches a user's model and data: surface, batches, state, losses, layers",
    "engine": "workspace, plan, data pass, sweep, certificate, products, probes, Lanczos",
    "measures": "one folder per family: the cards, and what only this family computes",
    "api": "the verbs measure, preflight, cards",
    "analysis": "questions asked of a network: audit, compare, spectra, neurons, landscape",
    "results": "every record that a verb returns, in one place",
    "testing": "the contract that every measure has to keep, and dense truths to compare with",
    "training": "penalties and SAM change training; monitor and stopping watch it; integrations",
    "study": "populations: settings, runs, store, statistics; data, models, interventions",
    "pages": "HTML reports, figures, and the live page",
    "papers": "the five papers' experiments; known below only through the registry of studies",
    "cli": "the command line: the only code that prints",
    "__main__": "python -m spiritlevel",
}
MAX_LINES = 400


def import_map() -> str:
    """The table as CONTRIBUTING shows it: a room may import from the rooms below it."""
    width = max(map(len, ROOMS)) + 2
    return "\n".join(f"{name:{width}}{purpose}" for name, purpose in reversed(ROOMS.items()))


if __name__ == "__main__":
    print(import_map())
