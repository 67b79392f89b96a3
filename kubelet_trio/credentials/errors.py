"""The errors of this package.

ProviderError          a credential provider gave no usable answer
NotApplicableError     a credential provider must not be asked for this pod
"""

from __future__ import annotations


class ProviderError(Exception):
    """A credential provider gave no usable answer. The text holds nothing of its stdout."""


class NotApplicableError(Exception):
    """The pod's service account, or its absence, excludes the provider."""
