"""`$(VAR)` in command, args, env values and subPathExpr.

`$(NAME)` becomes the value of NAME, or stays as it is where NAME is not defined; `$$`
becomes `$`, so `$$(NAME)` yields the text `$(NAME)`. A `$` before anything else, or an
opening that is never closed, is plain text. What a value expands to is not looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\)|(.))", re.DOTALL)


def expand(text: str, lookup: Callable[[str], str | None]) -> str:
    """Expand references; `lookup` returns None for what is not defined."""

    def replacement(match: re.Match[str]) -> str:
        escaped, name, other = match.groups()
        if escaped is not None:
            return "$"
        if name is None:
            return f"${other}"
        value = lookup(name)
        return f"$({name})" if value is None else value

    return _REFERENCE.sub(replacement, text)


def expand_from(text: str, variables: Mapping[str, str]) -> str:
    """Expand references to the given variables."""
    return expand(text, variables.get)
