"""The errors of plugin registration."""

from __future__ import annotations


class RegistrationError(Exception):
    """A plugin cannot be registered, or is not any more; the text says why. It is retried."""
