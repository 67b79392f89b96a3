"""`$(VAR)` in command, args, env values and subPathExpr.

`$(NAME)` becomes the value of NAME, or stays as it is where NAME is not defined; `$$`
becomes `$`, so `$$(NAME)` yields the text `$(NAME)`. A `$` before anything else, or an
opening that is never closed, is plain text. What a value expands to is not looked at again.

The text is a pod's, and so is what its variables hold: the work is linear in both, and a result
that no command could be given anyway is not made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

# Linux gives a program no argument and no variable above this (MAX_ARG_STRLEN, execve(2)).
MAX_VALUE = 128 * 1024
# ... nor more than this of all together, where the stack is unlimited by default (8 MiB).
MAX_VALUES = 2 * 1024 * 1024


def expand(text: str, lookup: Callable[[str], str | None], limit: int = MAX_VALUE) -> str:
    """Expand references; `lookup` returns None for what is not defined.

    Raises ValueError where the result has more than `limit` characters.
    """
    parts: list[str] = []
    size = 0
    for part in _parts(text, lookup):
        size += len(part)
        if size > limit:
            raise ValueError(f"expands to more than {limit} characters")
        parts.append(part)
    return "".join(parts)


def expand_from(text: str, variables: Mapping[str, str], limit: int = MAX_VALUE) -> str:
    """Expand references to the given variables. Raises ValueError as `expand` does."""
    return expand(text, variables.get, limit)


def _parts(text: str, lookup: Callable[[str], str | None]) -> Iterator[str]:
    """Yield the pieces that the expanded text consists of."""
    start = 0
    last_close = text.rfind(")")  # beyond it nothing is searched for: no opening is closed there
    while 0 <= (dollar := text.find("$", start)) < len(text) - 1:
        yield text[start:dollar]
        following = text[dollar + 1]
        start = dollar + 2
        if following == "$":
            yield "$"
        elif following == "(" and start <= last_close:
            end = text.index(")", start)
            name = text[start:end]
            value = lookup(name)
            yield f"$({name})" if value is None else value
            start = end + 1
        else:
            yield f"${following}"
    yield text[start:]
