"""From KubeletConfiguration to what the kubelet API is told."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from kubelet_trio.agent.node_api import NodeApiSettings
from kubelet_trio.config import Settings, encode_shown_config
from kubelet_trio.server import ApiOptions


def node_api_settings(settings: Settings) -> NodeApiSettings | None:
    """Return the kubelet API that is asked for; None where `enableServer` is off."""
    config = settings.config
    if not config.enable_server:
        return None
    authentication, authorization = config.authentication, config.authorization
    return NodeApiSettings(
        address=config.address,
        port=config.port,
        read_only_port=config.read_only_port,
        cert_dir=Path(settings.flags.cert_dir),
        cert_file=config.tls_cert_file,
        key_file=config.tls_private_key_file,
        tls_bootstrap=config.server_tls_bootstrap,
        client_ca_file=authentication.x509.client_ca_file,
        min_version=config.tls_min_version,
        cipher_suites=tuple(config.tls_cipher_suites),
        anonymous=authentication.anonymous.enabled,
        webhook_authentication=authentication.webhook.enabled,
        always_allow=authorization.mode == "AlwaysAllow",
        token_ttl=authentication.webhook.cache_ttl,
        authorized_ttl=authorization.webhook.cache_authorized_ttl,
        unauthorized_ttl=authorization.webhook.cache_unauthorized_ttl,
        options=ApiOptions(
            enable_debugging_handlers=config.enable_debugging_handlers,
            enable_profiling_handler=config.enable_profiling_handler,
            enable_debug_flags_handler=config.enable_debug_flags_handler,
            enable_system_log_handler=config.enable_system_log_handler,
            enable_system_log_query=config.enable_system_log_query,
            split_log_streams=config.feature_gates.get("PodLogsQuerySplitStreams", False),
            streaming_idle_timeout=config.streaming_connection_idle_timeout,
        ),
        configz=encode_shown_config(config),
        flags={
            name.replace("_", "-"): str(value) for name, value in asdict(settings.flags).items()
        },
    )
