"""Decoding JSON and YAML that others wrote: errors, nesting, messages without content."""

from __future__ import annotations

import msgspec

# All exceptions of decoding JSON from another party or a damaged disk. msgspec checks UTF-8 only
# in strings that it builds, and raises RecursionError after some thousand nested brackets, also
# in fields that it skips.
JSON_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_DEEPEST = 100  # levels of YAML; documents of people have about 10


def check_yaml_depth(text: str | bytes) -> None:
    """Raise yaml.YAMLError if a text is not YAML or nested too deeply; call it before loading."""
    # PyYAML's C loader builds documents by unlimited recursion: some hundred thousand opening
    # brackets overflow the stack and kill the process. Its parser does not recurse.
    import yaml  # deferred: most nodes read no YAML here

    depth = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _DEEPEST:
                problem = f"nested more than {_DEEPEST} levels deep"
                mark = event.start_mark
                raise yaml.parser.ParserError(None, None, problem, mark)  # type: ignore[arg-type]  # C mark
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def yaml_problem(exc: Exception) -> str:
    """Return message and position of a YAML error without quoting the text, which may be secret."""
    import yaml  # loaded already: the error is from it

    if not isinstance(exc, yaml.MarkedYAMLError):
        return type(exc).__name__
    mark = exc.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    # Only these messages never contain the text; str(exc) quotes the line.
    if isinstance(exc, yaml.scanner.ScannerError | yaml.parser.ParserError):
        return f"{where}{exc.problem}"
    return f"{where}an alias, an anchor or a tag that means nothing here"
