"""TLS towards servers that the system's authorities vouch for."""

from __future__ import annotations

import ssl


def system_tls() -> ssl.SSLContext:
    """Return a client's context. Blocks.

    As Go's, on any version of Python: from 3.13 on Python by itself refuses authorities without
    a key identifier, as many a company has.
    """
    context = ssl.create_default_context()
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
