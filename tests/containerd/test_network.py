"""What a container sees of networks, names and other processes."""

from __future__ import annotations

import os
import socket
import urllib.request
from pathlib import Path

from tests.harness import (
    Agent,
    CriClient,
    container,
    eventually,
    forever,
    live_containers,
    pod,
)


def inside(cri: CriClient, name: str, *command: str) -> str:
    """Run a command in the main container of a pod."""
    return cri.run(live_containers(cri, f"{name}-node")["main"], *command)


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as response:
        text: str = response.read().decode()
        return text


def test_a_host_port_answers_real_connections(agent: Agent) -> None:
    port = free_port()
    serve = "mkdir /www; echo served > /www/index.html; exec httpd -f -p 8080 -h /www"
    web = container("main", serve, ports=[{"containerPort": 8080, "hostPort": port}])
    agent.put(pod("hostport", web, terminationGracePeriodSeconds=1))
    ready = agent.wait_ready("hostport")
    eventually(lambda: answers(f"http://{ready['status']['podIP']}:8080/"))
    assert get(f"http://{ready['status']['podIP']}:8080/") == "served\n"
    assert get(f"http://127.0.0.1:{port}/") == "served\n"
    assert get(f"http://{ready['status']['hostIP']}:{port}/") == "served\n"
    agent.drop("hostport")
    agent.wait_gone("hostport")


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


def test_a_pod_on_the_hosts_network_has_the_hosts_address(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("hostnet", hostNetwork=True))
    ready = agent.wait_ready("hostnet")
    assert ready["status"]["podIP"] == ready["status"]["hostIP"]
    assert inside(cri, "hostnet", "readlink", "/proc/self/ns/net").strip() == os.readlink(
        "/proc/self/ns/net"
    )
    assert inside(cri, "hostnet", "hostname").strip() == socket.gethostname()
    agent.drop("hostnet")
    agent.wait_gone("hostnet")


def test_the_hosts_file_is_kubernetes_own(agent: Agent, cri: CriClient) -> None:
    aliases = [{"ip": "192.0.2.7", "hostnames": ["db", "db.example"]}]
    agent.put(pod("hosts", hostAliases=aliases, hostname="front", subdomain="shop"))
    ready = agent.wait_ready("hosts")
    lines = inside(cri, "hosts", "cat", "/etc/hosts").splitlines()
    assert lines[0] == "# Kubernetes-managed hosts file."
    ip = ready["status"]["podIP"]
    assert f"{ip}\tfront.shop.default.svc.cluster.local\tfront" in lines
    assert "192.0.2.7\tdb\tdb.example" in lines
    assert inside(cri, "hosts", "hostname").strip() == "front"
    agent.drop("hosts")
    agent.wait_gone("hosts")


def test_the_hostname_is_the_pods_name_or_its_fqdn(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("named"))
    agent.put(pod("fqdn", hostname="a", subdomain="b", setHostnameAsFQDN=True))
    agent.wait_ready("named")
    agent.wait_ready("fqdn")
    assert inside(cri, "named", "hostname").strip() == "named-node"
    assert inside(cri, "fqdn", "hostname").strip() == "a.b.default.svc.cluster.local"
    for name in ("named", "fqdn"):
        agent.drop(name)
    for name in ("named", "fqdn"):
        agent.wait_gone(name)


def test_dns_follows_the_pods_policy(agent: Agent, cri: CriClient) -> None:
    own = {
        "nameservers": ["192.0.2.53"],
        "searches": ["example.org"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }
    agent.put(pod("dns-cluster"))
    agent.put(pod("dns-none", dnsPolicy="None", dnsConfig=own))
    agent.put(pod("dns-default", dnsPolicy="Default"))
    for name in ("dns-cluster", "dns-none", "dns-default"):
        agent.wait_ready(name)
    cluster = inside(cri, "dns-cluster", "cat", "/etc/resolv.conf").splitlines()
    assert "nameserver 10.96.0.10" in cluster
    searches = next(line for line in cluster if line.startswith("search "))
    assert searches.startswith("search default.svc.cluster.local svc.cluster.local cluster.local")
    assert "options ndots:5" in cluster
    assert inside(cri, "dns-none", "cat", "/etc/resolv.conf").splitlines() == [
        "search example.org",
        "nameserver 192.0.2.53",
        "options ndots:2 edns0",
    ]
    default = inside(cri, "dns-default", "cat", "/etc/resolv.conf")
    host = Path("/etc/resolv.conf").read_text().splitlines()
    for server in [line for line in host if line.startswith("nameserver")][:3]:
        assert server in default.splitlines()
    for name in ("dns-cluster", "dns-none", "dns-default"):
        agent.drop(name)
    for name in ("dns-cluster", "dns-none", "dns-default"):
        agent.wait_gone(name)


def test_processes_are_shared_as_far_as_asked_for(agent: Agent, cri: CriClient) -> None:
    agent.put(pod("shared", shareProcessNamespace=True))
    agent.put(pod("hostpid", hostPID=True, hostIPC=True))
    agent.put(pod("alone"))
    for name in ("shared", "hostpid", "alone"):
        agent.wait_ready(name)
    assert inside(cri, "shared", "cat", "/proc/1/cmdline") == "/pause\0"
    assert inside(cri, "alone", "cat", "/proc/1/cmdline").startswith("sh\0-c\0")
    for kind in ("pid", "ipc"):
        namespace = f"/proc/self/ns/{kind}"
        assert inside(cri, "hostpid", "readlink", namespace).strip() == os.readlink(namespace)
        assert inside(cri, "alone", "readlink", namespace).strip() != os.readlink(namespace)
    for name in ("shared", "hostpid", "alone"):
        agent.drop(name)
    for name in ("shared", "hostpid", "alone"):
        agent.wait_gone(name)


def test_env_and_arguments_are_expanded(agent: Agent, cri: CriClient) -> None:
    main = container(
        "main",
        forever('echo "$0 $1"'),
        args=["$(GREETING)", "$$(GREETING) $(NOBODY)"],
        env=[
            {"name": "NAME", "value": "world"},
            {"name": "GREETING", "value": "hello $(NAME)"},
        ],
        workingDir="/tmp",
    )
    agent.put(pod("env", main))
    agent.wait_ready("env")
    eventually(lambda: agent.cli("logs", "env-node"), what="a line")
    assert agent.cli("logs", "env-node") == "hello world $(GREETING) $(NOBODY)\n"
    assert "GREETING=hello world" in inside(cri, "env", "env").splitlines()
    assert inside(cri, "env", "pwd").strip() == "/tmp"
    agent.drop("env")
    agent.wait_gone("env")


def test_requests_and_limits_reach_the_cgroups(agent: Agent, cri: CriClient) -> None:
    limits = {
        "requests": {"cpu": "100m", "memory": "32Mi"},
        "limits": {"cpu": "500m", "memory": "64Mi"},
    }
    agent.put(pod("limits", container("main", forever(), resources=limits)))
    ready = agent.wait_ready("limits")
    assert ready["status"]["qosClass"] == "Burstable"
    pid = cri.container_pid(live_containers(cri, "limits-node")["main"])
    cgroup = Path(f"/proc/{pid}/cgroup").read_text()
    assert f"burstable/pod{ready['metadata']['uid']}/" in cgroup
    paths = [line.split(":") for line in cgroup.splitlines()]
    values = {
        knob: (Path("/sys/fs/cgroup") / controller / path.lstrip("/") / knob)
        for _, controllers, path in paths
        for controller in (controllers or ".",)
        for knob in ("memory.limit_in_bytes", "memory.max", "cpu.cfs_quota_us", "cpu.max")
        if (Path("/sys/fs/cgroup") / controller / path.lstrip("/") / knob).exists()
    }
    read = {knob: path.read_text().strip() for knob, path in values.items()}
    assert read.get("memory.limit_in_bytes", read.get("memory.max")) == str(64 << 20)
    assert read.get("cpu.cfs_quota_us", read.get("cpu.max", "").split(" ")[0]) == "50000"
    agent.drop("limits")
    agent.wait_gone("limits")
