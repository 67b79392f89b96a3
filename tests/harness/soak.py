"""A node's life in disorder on a real API server and runtime, and whether it diverges.

Pods are created, edited, deleted and killed at random while connections are cut and hang, the
API server is killed and started, and the agent too. At checkpoints all that is down is brought
back, and then API server, runtime and disk must come to tell the same; an `Observer` meanwhile
looks at every state that the API server tells. A seed gives the order of the steps; when they meet
the agent is the machine's to say.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import yaml

from tests.harness.agent import Agent
from tests.harness.containerd import Containerd
from tests.harness.control_plane import ControlPlane
from tests.harness.cri import POD_UID, CriClient
from tests.harness.kube import KubeCallError, KubeClient
from tests.harness.manifests import container, forever, pod
from tests.harness.observer import Observer
from tests.harness.pods import Json, condition, eventually
from tests.harness.proxy import Proxy
from tests.harness.soak_checks import (
    NODE,
    Agreement,
    DivergedError,
    Usage,
    Wanted,
    growth,
    is_running,
)

NAMESPACE = "soak"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NAMES = 12  # of pods, taken again and again
_STATIC = 3
_PAUSE = (0.1, 1.2)  # seconds between two steps
_CONVERGED = 180.0  # seconds that a checkpoint waits for all to agree
CONFIG = {"crashLoopBackOff": {"maxContainerRestartPeriod": "2s"}}
ARGUMENTS = ("--crash-loop-backoff-base", "1s")


class Soak:
    """See the module. `run` once, between `open` and `close`."""

    def __init__(
        self,
        base: Path,
        plane: ControlPlane,
        kube: KubeClient,
        containerd: Containerd,
        seed: int,
        say: Callable[[str], None] = lambda _line: None,
    ) -> None:
        self._plane, self._kube, self._say = plane, kube, say
        self._containerd = containerd
        self._random = random.Random(seed)
        self._proxy = Proxy(plane.port)
        kubeconfig = self._kubeconfig(base)
        arguments = ("--kubeconfig", str(kubeconfig), "--hostname-override", NODE, *ARGUMENTS)
        self.agent = Agent(base / "agent", containerd, config=CONFIG, arguments=arguments)
        self._cri = CriClient(containerd.socket)
        self._pods: dict[str, Wanted] = {}
        self._is_long = False
        self._edits = 0  # of static pods
        self._spared: set[str] = set()  # what is not to fail for now
        self._down: dict[str, int] = {}  # what does not work -> steps until it does
        # UIDs, and names of mirrors: whose containers something was done to
        self._touched: set[str] = set()
        self._observer = Observer(plane.admin_kubeconfig, self._touched.__contains__)
        self.usages: list[Usage] = []
        self.steps: Counter[str] = Counter()

    def _kubeconfig(self, base: Path) -> Path:
        config = yaml.safe_load(self._plane.node_kubeconfig(NODE).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._proxy.port}"
        path = base / "node.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def open(self) -> None:
        """Make the namespaces and start the agent."""
        for name in (NAMESPACE, "default", "kube-node-lease"):
            self._kube.prepare_namespace(name, self._plane.authority.certificate)
        self.agent.start()
        self._kube.wait(f"/api/v1/nodes/{NODE}", lambda n: condition(n, "Ready") == "True")

    def close(self) -> None:
        """End everything, whatever state it is in."""
        self._observer.close()
        self._proxy.resume()
        self._cri.close()
        self.agent.close()
        self._proxy.close()

    def run(
        self, *, checkpoints: int, steps: int, until: float = float("inf"), calm: int = 0
    ) -> None:
        """Do `steps` random steps before each checkpoint, then end all pods.

        Args:
            until: monotonic time at which it ends even with fewer checkpoints.
            calm: checkpoints in a row that the agent and the runtime see without being ended,
                so that it shows whether a process grows. Without any it is a short run: the runtime
                is left alone, and nothing hangs for long.
        """
        for number in range(checkpoints):
            self._spared = {"agent", "runtime"} if number % (calm + 1) < calm else set()
            self._is_long = calm > 0
            if not self._is_long:
                self._spared = {"runtime"}
            for _ in range(steps):
                self._step()
                time.sleep(self._random.uniform(*_PAUSE))
            self._checkpoint(f"checkpoint {number + 1}")
            if time.monotonic() > until:
                break
        for wanted in list(self._pods.values()):
            self._remove(wanted, grace=1)
        self._checkpoint("the end")
        eventually(lambda: not self._cri.sandboxes(), _CONVERGED, "no sandbox is left")

    # The steps

    def _step(self) -> None:
        for what, left in list(self._down.items()):
            self._down[what] = left - 1
            if left <= 1:
                self._recover(what)
        weights = {
            self._create: 6,
            self._delete: 3,
            self._force: 1,
            self._recreate: 1,
            self._label: 2,
            self._edit_secret: 1,
            self._write_static: 2,
            self._drop_static: 1,
            self._kill_container: 3,
            self._cut: 2,
            self._hang: 1,
            self._kill_server: 0.5,
            self._kill_agent: 0.7,
            self._stop_agent: 0.4,
            self._stop_runtime: 0.5,
        }
        step = self._random.choices(list(weights), list(weights.values()))[0]
        told = step()
        if told:
            self.steps[step.__name__.strip("_")] += 1
            self._say(f"{step.__name__.strip('_')} {told}")

    def _of(self, *kinds: str) -> Wanted | None:
        found = [wanted for wanted in self._pods.values() if wanted.kind in kinds]
        return self._random.choice(found) if found else None

    def _create(self) -> str:
        free = [f"pod-{n}" for n in range(_NAMES) if f"pod-{n}" not in self._pods]
        kind = self._random.choice(("steady", "steady", "needy", "needy", "succeeds", "fails"))
        if not free or "server" in self._down:
            return ""
        name = self._random.choice(free)
        if self._kube.find(f"{_PODS}/{name}") is not None:
            return ""  # still on its way out
        return self._make(name, kind)

    def _make(self, name: str, kind: str) -> str:
        wanted = Wanted(name, kind)
        if kind == "needy":
            self._put_secret(wanted)
        seconds = self._random.randint(0, 4)
        wanted.uid = self._kube.create(_PODS, _object(wanted, seconds))["metadata"]["uid"]
        if wanted.phase != "Running":
            self._touched.add(wanted.uid)
        self._pods[name] = wanted
        return f"{name} {kind}"

    def _put_secret(self, wanted: Wanted) -> None:
        secrets = f"/api/v1/namespaces/{NAMESPACE}/secrets"
        data = {"edit": str(wanted.edit)}
        self._kube.ensure(secrets, {"metadata": {"name": wanted.name}, "stringData": data})
        self._kube.patch(f"{secrets}/{wanted.name}", {"stringData": data})

    def _delete(self) -> str:
        wanted = self._of("steady", "needy", "succeeds", "fails")
        if wanted is None or "server" in self._down:
            return ""
        self._remove(wanted, grace=self._random.randint(1, 5))
        return wanted.name

    def _force(self) -> str:
        wanted = self._of("steady", "needy")
        if wanted is None or "server" in self._down:
            return ""
        self._remove(wanted, grace=0)
        return wanted.name

    def _recreate(self) -> str:
        wanted = self._of("steady", "needy")
        if wanted is None or "server" in self._down:
            return ""
        self._remove(wanted, grace=0)
        return self._make(wanted.name, "steady")

    def _remove(self, wanted: Wanted, grace: int) -> None:
        del self._pods[wanted.name]
        if wanted.kind == "static":
            self._touched.add(wanted.object_name)
            self.agent.drop(wanted.name)
            return
        try:
            self._kube.delete(f"{_PODS}/{wanted.name}", gracePeriodSeconds=grace)
        except KubeCallError as exc:
            raise DivergedError(f"{wanted.name} was gone by itself: {exc}") from exc

    def _label(self) -> str:
        wanted = self._of("steady", "needy")
        if wanted is None or "server" in self._down:
            return ""
        labels = {"edit": str(self._random.randrange(1000))}
        self._kube.patch(f"{_PODS}/{wanted.name}", {"metadata": {"labels": labels}})
        return wanted.name

    def _edit_secret(self) -> str:
        wanted = self._of("needy")
        if wanted is None or "server" in self._down:
            return ""
        wanted.edit += 1
        self._put_secret(wanted)
        return f"{wanted.name} {wanted.edit}"

    def _write_static(self) -> str:
        name = f"static-{self._random.randrange(_STATIC)}"
        # Never the same again: that would have its UID, and a mirror that begins anew.
        self._edits += 1
        wanted = Wanted(name, "static", edit=self._edits)
        # What it replaces ends, which its mirror tells without being marked as deleted.
        self._touched.add(wanted.object_name)
        self._pods[name] = wanted
        self.agent.put(_object(wanted))
        return f"{name} {wanted.edit}"

    def _drop_static(self) -> str:
        wanted = self._of("static")
        if wanted is None:
            return ""
        self._remove(wanted, grace=0)
        return wanted.name

    def _kill_container(self) -> str:
        wanted = self._of("steady", "needy")
        if wanted is None or "runtime" in self._down:
            return ""
        running = [
            c
            for c in self._cri.containers()
            if c.labels.get(POD_UID) == wanted.uid and is_running(c) and c.id not in wanted.killed
        ]
        if not running:
            return ""
        self._touched.add(wanted.uid)
        try:
            self._cri.kill(running[0].id)
        except ProcessLookupError:
            return ""
        wanted.killed.add(running[0].id)
        wanted.settled = ""
        return wanted.name

    def _cut(self) -> str:
        self._proxy.cut()
        return "connections"

    def _hang(self) -> str:
        return self._fail("wire", self._proxy.hang, 60 if self._is_long else 8)

    def _kill_server(self) -> str:
        return self._fail("server", self._plane.kill_server, 8)

    def _kill_agent(self) -> str:
        return self._fail("agent", self.agent.kill, 8)

    def _stop_agent(self) -> str:
        def stop() -> None:
            status = self.agent.stop()
            if status:
                raise DivergedError(f"the agent ended with {status}: {self.agent.tail()}")

        return self._fail("agent", stop, 8)

    def _stop_runtime(self) -> str:
        return self._fail("runtime", self._containerd.stop, 8)

    def _fail(self, what: str, begin: Callable[[], None], longest: int) -> str:
        if what in self._down or what in self._spared:
            return ""
        begin()
        self._down[what] = self._random.randint(1, longest)
        return f"for {self._down[what]} steps"

    def _recover(self, what: str) -> None:
        del self._down[what]
        if what == "wire":
            self._proxy.resume()
        elif what == "server":
            self._plane.start_server()
            eventually(self._answers, 60, "the API server answers")
        elif what == "runtime":
            self._containerd.start()
        else:
            self.agent.start()

    def _answers(self) -> bool:
        try:
            self._kube.get(_PODS)
        except (KubeCallError, OSError):
            return False
        return True

    # Whether all agree

    def _checkpoint(self, name: str) -> None:
        for what in list(self._down):
            self._recover(what)
        agreement = Agreement(self._pods, self._kube, self._cri, self.agent)
        deadline = time.monotonic() + _CONVERGED
        while faults := list(agreement.differences()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.3)
        # What crashed was restarted, and is a fault all the same.
        crashes = [
            line
            for line in self.agent.output.read_text(errors="replace").splitlines()
            if '"event":"child.' in line
        ]
        self.usages.append(Usage.of(self.agent, len(self._pods)))
        faults += self._observer.faults + crashes + growth(self.usages)
        if faults:
            raise DivergedError(f"{name}:\n" + "\n".join(faults))
        usage = self.usages[-1]
        self._say(
            f"{name}: agent {usage.pid}, {usage.pods} pods, {usage.fds} fds, "
            f"{usage.rss / 1e6:.1f} MB; {self._observer.seen} states seen"
        )


def _object(wanted: Wanted, seconds: int = 0) -> Json:
    """Return the pod to create; those that end do so after `seconds`."""
    env = [{"name": "EDIT", "value": str(wanted.edit)}]
    if wanted.kind == "static":
        return pod(wanted.name, container("main", forever(), env=env))
    if wanted.kind in ("succeeds", "fails"):
        script = f"sleep {seconds}; exit {int(wanted.kind == 'fails')}"
        return pod(
            wanted.name, container("main", script), nodeName=NODE, restartPolicy="Never",
            automountServiceAccountToken=False,
        )  # fmt: skip
    if wanted.kind == "steady":
        return pod(wanted.name, nodeName=NODE, automountServiceAccountToken=False)
    mounts = [{"name": "secret", "mountPath": "/secret"}]
    volumes = [{"name": "secret", "secret": {"secretName": wanted.name}}]
    main = container("main", forever(), volumeMounts=mounts)
    return pod(wanted.name, main, nodeName=NODE, volumes=volumes)
