"""What mkdocstrings shows: examples as blocks of code, and all keywords of a verb."""

import re
from collections.abc import Iterator
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*(?:\n(?!\s*$).*)*", flags=re.MULTILINE)


class Examples(griffe.Extension):
    """Fence every example, from its first `>>>` to the next empty line."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the text of a docstring, before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(_fenced, obj.docstring.value)


class Keywords(griffe.Extension):
    """Show the verbs' `**shared` as what it stands for: some of the fields of `Setup`."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Change the signatures, once all classes are known."""
        setups = pkg["measures.setup"]
        for verb in _verbs(pkg):
            kind = setups[verb.parameters["shared"].annotation.slice.name]
            del verb.parameters["setup"], verb.parameters["shared"]
            for name, field in setups["Setup"].attributes.items():
                if name in kind.all_members:
                    verb.parameters.add(
                        griffe.Parameter(
                            name,
                            annotation=field.annotation,
                            kind=griffe.ParameterKind.keyword_only,
                            default=field.value,
                        )
                    )


def _verbs(module: griffe.Module) -> Iterator[griffe.Function]:
    for member in module.members.values():
        if member.is_alias:
            continue
        if member.is_module:
            yield from _verbs(member)
        elif member.is_function and any(
            decorator.callable_path == "spiritlevel.measures.verb.verb"
            for decorator in member.decorators
        ):
            yield member


def _fenced(found: re.Match[str]) -> str:
    return f"{found[1]}```pycon\n{found[0]}\n{found[1]}```"
