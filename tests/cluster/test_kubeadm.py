"""A cluster as kubeadm makes it: its files, places and ports, and `kubelet` is this agent.

Two machines of namespaces. Certificates and kubeconfigs are kubeadm's own work, the control plane
is etcd, kube-apiserver, kube-controller-manager and kube-scheduler in images made here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from tests.harness import BUSYBOX, Json, eventually
from tests.harness.kubeadm_files import (
    IMAGES,
    MANIFESTS,
    bootstrap_config,
    bootstrap_objects,
    init_config,
    kubelet_config,
    manifests,
)
from tests.harness.kubeadm_node import KubeadmNode, missing_programs

TOKEN = "abcdef.0123456789abcdef"
FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
KUBECTL = ("kubectl", "--kubeconfig=/etc/kubernetes/admin.conf")
REFUSAL = "--container-runtime: Kubernetes 1.27 removed it"
COMPONENTS = sorted(IMAGES)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[KubeadmNode, KubeadmNode]]:
    if lacks := missing_programs():
        pytest.skip(f"kubeadm's cluster: {', '.join(lacks)}")
    with (
        KubeadmNode("control", "10.240.9.2") as control,
        KubeadmNode("worker", "10.240.9.3") as worker,
    ):
        control.connect(worker)
        control.add_images()
        yield control, worker


def must(node: KubeadmNode, *words: str) -> str:
    ran = node.run(*words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def ask(node: KubeadmNode, *words: str) -> Json:
    """Return what kubectl gets; nothing while it is not there."""
    ran = node.run(*KUBECTL, "get", *words, "-o", "json")
    found: Json = json.loads(ran.stdout) if ran.returncode == 0 else {}
    return found


def is_ready(found: Json) -> bool:
    conditions = found.get("status", {}).get("conditions", ())
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def wait_for(node: KubeadmNode, *words: str, wanted: Callable[[Json], bool] = is_ready) -> Json:
    seen: Json = {}

    def found() -> bool:
        nonlocal seen
        seen = ask(node, *words)
        return bool(seen) and wanted(seen)

    try:
        eventually(found, 120, f"{words} as wanted")
    except Exception as exc:
        exc.add_note(f"{seen.get('status')}\n{node.agent_log()[-5000:]}")
        raise
    return seen


def by_token(requests: Json) -> list[Json]:
    return [r for r in requests["items"] if r["spec"]["username"] == "system:bootstrap:abcdef"]


def is_healthy(node: KubeadmNode) -> bool:
    """Ask what kubeadm waits for."""
    return node.shell("busybox wget -qO- http://127.0.0.1:10248/healthz || true") == "ok"


@pytest.fixture(scope="module")
def control(machines: tuple[KubeadmNode, KubeadmNode]) -> KubeadmNode:
    """The first machine, with its control plane."""
    node = machines[0]
    socket = node.containerd.endpoint
    node.write("/etc/kubeadm.yaml", init_config(node.name, node.address, socket))
    for phase in ("certs", "kubeconfig"):
        must(node, "kubeadm", "init", "phase", phase, "all", "--config=/etc/kubeadm.yaml")
    node.write("/var/lib/kubelet/config.yaml", kubelet_config(socket))
    node.write("/var/lib/kubelet/instance-config.yaml", f'containerRuntimeEndpoint: "{socket}"\n')
    node.write(FLAGS, 'KUBELET_KUBEADM_ARGS=""\n')
    for name, manifest in manifests(node.address).items():
        node.write(f"{MANIFESTS}/{name}.yaml", json.dumps(manifest))
    must(node, "systemctl", "restart", "kubelet")
    eventually(lambda: is_healthy(node), 60, "healthz on 10248")
    return node


@pytest.fixture(scope="module")
def worker(machines: tuple[KubeadmNode, KubeadmNode], control: KubeadmNode) -> KubeadmNode:
    """The second machine, where all that a join writes is there, and the service not started."""
    node = machines[1]
    objects = {"apiVersion": "v1", "kind": "List", "items": bootstrap_objects(TOKEN)}
    control.write("/etc/bootstrap.json", json.dumps(objects))
    wait_for(control, "namespace", "kube-system", wanted=bool)
    must(control, *KUBECTL, "apply", "-f", "/etc/bootstrap.json")
    authority = control.read("/etc/kubernetes/pki/ca.crt")
    encoded = base64.b64encode(authority.encode()).decode()
    server = f"https://{control.address}:6443"
    node.write("/etc/kubernetes/pki/ca.crt", authority)
    node.write("/etc/kubernetes/bootstrap-kubelet.conf", bootstrap_config(server, encoded, TOKEN))
    node.shell(f"mkdir -p {MANIFESTS}")
    node.write("/var/lib/kubelet/config.yaml", kubelet_config(node.containerd.endpoint))
    return node


def sign(control: KubeadmNode, request: Json) -> None:
    """Sign a request with the cluster's CA, and approve it.

    The controller manager does neither before 1.25: it wants the usage of key encipherment, which
    requests for elliptic-curve keys no more have. One that is approved only, it marks as failed.
    """
    control.write("/etc/asked.pem", base64.b64decode(request["spec"]["request"]).decode())
    control.write("/etc/asked.ext", "extendedKeyUsage = clientAuth\n")
    # Not by a library: the serial number of kubeadm's CA is 0, which newer ones refuse to read.
    authority = "-CA /etc/kubernetes/pki/ca.crt -CAkey /etc/kubernetes/pki/ca.key"
    words = f"-req -in /etc/asked.pem {authority} -set_serial 2 -days 1 -extfile /etc/asked.ext"
    signed = must(control, "openssl", "x509", *words.split())
    request["status"] = {"certificate": base64.b64encode(signed.encode()).decode()}
    control.write("/etc/signed.json", json.dumps(request))
    name = request["metadata"]["name"]
    path = f"/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/status"
    must(control, *KUBECTL, "replace", "--raw", path, "-f", "/etc/signed.json")
    must(control, *KUBECTL, "certificate", "approve", name)


def test_the_control_plane_comes_up_as_static_pods(control: KubeadmNode) -> None:
    node = wait_for(control, "node", "control")
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.2+kubelet-trio"
    for component in COMPONENTS:
        mirror = wait_for(control, "pod", "-n", "kube-system", f"{component}-control")
        assert mirror["metadata"]["annotations"]["kubernetes.io/config.source"] == "file"
        assert mirror["metadata"]["ownerReferences"][0]["kind"] == "Node"
        assert mirror["spec"]["priorityClassName"] == "system-node-critical"
        assert mirror["spec"]["hostNetwork"]


def test_kubeadm_may_annotate_the_node(control: KubeadmNode) -> None:
    socket = control.containerd.endpoint
    annotation = f"kubeadm.alpha.kubernetes.io/cri-socket={socket}"
    must(control, *KUBECTL, "annotate", "node", "control", annotation)
    must(control, "systemctl", "restart", "kubelet")
    eventually(lambda: is_healthy(control), 60, "healthz on 10248")
    found = wait_for(control, "node", "control")
    assert found["metadata"]["annotations"][annotation.partition("=")[0]] == socket


def test_a_join_by_token_follows_a_refusal_and_its_cure(
    control: KubeadmNode, worker: KubeadmNode
) -> None:
    old = f"--container-runtime=remote --container-runtime-endpoint={worker.containerd.endpoint}"
    worker.write(FLAGS, f'KUBELET_KUBEADM_ARGS="{old} --register-with-taints=a=b:NoExecute"\n')
    must(worker, "systemctl", "restart", "kubelet")
    eventually(lambda: REFUSAL in worker.agent_log(), 60, "the flag refused")
    # What the message says; the service is started again by itself.
    worker.shell(f"sed -i 's/--container-runtime=remote//' {FLAGS}")
    asked = wait_for(control, "csr", wanted=lambda found: bool(by_token(found)))
    sign(control, by_token(asked)[0])
    joined = wait_for(control, "node", "worker")
    assert {"key": "a", "value": "b", "effect": "NoExecute"} in joined["spec"]["taints"]
    assert "kubelet-client-current.pem" in worker.read("/etc/kubernetes/kubelet.conf")
    assert worker.shell("readlink /var/lib/kubelet/pki/kubelet-client-current.pem")
    # kubeadm removes it once it has joined; the agent does not need it again.
    worker.shell("rm /etc/kubernetes/bootstrap-kubelet.conf")


def test_the_scheduler_runs_a_pod_on_the_worker(control: KubeadmNode, worker: KubeadmNode) -> None:
    wait_for(control, "node", "worker")
    must(control, *KUBECTL, "taint", "node", "worker", "a-")
    must(control, *KUBECTL, "taint", "node", "control", "a=b:NoSchedule")
    wait_for(control, "serviceaccount", "default", wanted=lambda a: bool(a.get("secrets")))
    must(
        control, *KUBECTL, "run", "hello", f"--image={BUSYBOX}", "--image-pull-policy=Never",
        "--", "sleep", "inf",
    )  # fmt: skip
    assert wait_for(control, "pod", "hello")["spec"]["nodeName"] == "worker"


def test_a_restart_of_the_service_restarts_no_container(control: KubeadmNode) -> None:
    before = control.containers()
    assert len(before) == len(COMPONENTS)
    must(control, "systemctl", "restart", "kubelet")
    eventually(lambda: is_healthy(control), 60, "the agent healthy again")
    assert control.containers() == before


def test_a_manifest_is_replaced_as_an_upgrade_does(control: KubeadmNode) -> None:
    def config_hash(pod: Json) -> str:
        return str(pod["metadata"]["annotations"]["kubernetes.io/config.hash"])

    place = f"{MANIFESTS}/kube-scheduler.yaml"
    name = ("pod", "-n", "kube-system", "kube-scheduler-control")
    before = config_hash(ask(control, *name))
    kept = control.containers()
    manifest = json.loads(control.read(place))
    manifest["spec"]["containers"][0]["command"].append("--v=1")
    # Written elsewhere and then renamed, as kubeadm moves an upgraded manifest into its place.
    control.write("/etc/kubernetes/tmp/kube-scheduler.yaml", json.dumps(manifest))
    control.shell(f"mv /etc/kubernetes/tmp/kube-scheduler.yaml {place}")
    wait_for(control, *name, wanted=lambda pod: config_hash(pod) != before and is_ready(pod))
    assert len(kept & control.containers()) == len(COMPONENTS) - 1


def test_reset_leaves_nothing(control: KubeadmNode, worker: KubeadmNode) -> None:
    wait_for(control, "node", "worker")
    must(worker, "kubeadm", "reset", "--force", f"--cri-socket={worker.containerd.endpoint}")
    assert worker.run("systemctl", "is-active", "kubelet").returncode == 3
    assert " /var/lib/kubelet/" not in worker.read("/proc/self/mountinfo")
    assert worker.shell("ls -A /var/lib/kubelet").split() == []
