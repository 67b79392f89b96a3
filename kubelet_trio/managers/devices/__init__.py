"""Device plugins: who has which device, and what the plugins say of them.

Sources: KEP-3573 (device plugins), KEP-4680 (health of devices in a status),
pkg/kubelet/cm/devicemanager.
"""
