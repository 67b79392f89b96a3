"""h2, set up for gRPC."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.settings

STREAM_WINDOW = 1 << 20
CONNECTION_WINDOW = 1 << 22
MAX_STREAMS = 1000  # of a client at a time; h2 hangs up on one that ignores this
_DEFAULT_WINDOW = 65535


class H2(h2.connection.H2Connection):
    # h2 remembers how each of the last 65536 streams ended: some 10 MB in a day of calls.
    MAX_CLOSED_STREAMS = 256


def open_h2(*, client: bool) -> H2:
    """Return a connection with its first frames queued."""
    config = h2.config.H2Configuration(
        client_side=client,
        header_encoding=None,
        # Ours are right by construction; what gRPC needs of theirs is checked by its layer.
        validate_outbound_headers=False,
        normalize_outbound_headers=False,
        validate_inbound_headers=False,
        normalize_inbound_headers=False,
    )
    codes = h2.settings.SettingCodes
    values = {codes.INITIAL_WINDOW_SIZE: STREAM_WINDOW}
    values |= {codes.ENABLE_PUSH: 0} if client else {codes.MAX_CONCURRENT_STREAMS: MAX_STREAMS}
    connection = H2(config)
    connection.local_settings = h2.settings.Settings(client=client, initial_values=values)
    connection.initiate_connection()
    connection.increment_flow_control_window(CONNECTION_WINDOW - _DEFAULT_WINDOW)
    return connection
