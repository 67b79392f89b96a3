"""What is wrong with a text, without a word of the text: it may hold keys."""

from __future__ import annotations


def yaml_problem(exc: Exception) -> str:
    """Return what YAML's reader says of a text, and where. Its own words quote the line."""
    import yaml  # whoever has such an error has it already

    if not isinstance(exc, yaml.MarkedYAMLError):
        return type(exc).__name__
    mark = exc.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    if isinstance(exc, yaml.scanner.ScannerError | yaml.parser.ParserError):
        return f"{where}{exc.problem}"
    return f"{where}an alias, an anchor or a tag that means nothing here"
