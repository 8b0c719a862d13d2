"""Calls with one wrong argument each."""

import spiritlevel as sl
from hostile import garbage


def refused_calls(functions, number) -> int:
    """How many calls refuse the wrong value of this number, each in another place.

    Args:
        functions: with arguments that fit, of which one at a time is replaced.
        number: of the value among `garbage.values()`.
    """
    refused = 0
    for function, arguments in functions.items():
        for name in arguments:
            value = garbage.values()[number]
            try:
                function(**(arguments | {name: value}))
            except sl.SpiritlevelError:
                refused += 1
            except Exception as error:
                text = f"{function.__qualname__}({name}={garbage.name(value)}) raised"
                raise AssertionError(f"{text} {type(error).__name__}: {error}") from error
    return refused
