"""How deep YAML is nested, asked before a document is made of it.

PyYAML's C loader makes documents by recursion that nobody counts: a few hundred thousand opening
brackets overflow the stack, and the process dies.
"""

from __future__ import annotations

_DEEPEST = 100  # levels; what people write has ten


def check_yaml_depth(text: str | bytes) -> None:
    """Raise yaml.YAMLError for a text that is no YAML, or nested too deeply."""
    import yaml  # only who has such a file needs it

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
