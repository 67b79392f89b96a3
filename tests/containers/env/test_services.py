from __future__ import annotations

from lightkube.models.core_v1 import (
    Container,
    EnvVar,
    Pod,
    PodSpec,
    Service,
    ServicePort,
    ServiceSpec,
)
from lightkube.models.meta_v1 import ObjectMeta

from kubelet_trio.containers import container_env, service_variables
from kubelet_trio.objects import ServiceFacts
from kubelet_trio.objects.services import service_facts


def service(name: str, namespace: str, ip: str, *ports: ServicePort) -> Service:
    return Service(
        metadata=ObjectMeta(name=name, namespace=namespace),
        spec=ServiceSpec(clusterIP=ip, ports=list(ports) or [ServicePort(port=443, name="https")]),
    )


def facts(*services: Service) -> list[ServiceFacts]:
    return [found for s in services if (found := service_facts(s)) is not None]


KUBERNETES = service("kubernetes", "default", "10.96.0.1")
WEB = service(
    "web-app",
    "shop",
    "10.0.0.7",
    ServicePort(port=80, name="http-alt"),
    ServicePort(port=53, protocol="UDP", name="dns"),
)


def test_the_variables_of_a_service() -> None:
    assert service_variables(facts(WEB), "shop", links=True) == {
        "WEB_APP_SERVICE_HOST": "10.0.0.7",
        "WEB_APP_SERVICE_PORT": "80",
        "WEB_APP_SERVICE_PORT_HTTP_ALT": "80",
        "WEB_APP_SERVICE_PORT_DNS": "53",
        "WEB_APP_PORT": "tcp://10.0.0.7:80",
        "WEB_APP_PORT_80_TCP": "tcp://10.0.0.7:80",
        "WEB_APP_PORT_80_TCP_PROTO": "tcp",
        "WEB_APP_PORT_80_TCP_PORT": "80",
        "WEB_APP_PORT_80_TCP_ADDR": "10.0.0.7",
        "WEB_APP_PORT_53_UDP": "udp://10.0.0.7:53",
        "WEB_APP_PORT_53_UDP_PROTO": "udp",
        "WEB_APP_PORT_53_UDP_PORT": "53",
        "WEB_APP_PORT_53_UDP_ADDR": "10.0.0.7",
    }


def hosts(namespace: str, *services: Service, links: bool = True) -> dict[str, str]:
    found = service_variables(facts(*services), namespace, links=links)
    return {name: value for name, value in found.items() if name.endswith("_SERVICE_HOST")}


def test_every_pod_is_told_of_the_api_server_and_of_its_own_namespace_if_it_wants() -> None:
    other = service("db", "other", "10.0.0.9")
    master = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    assert hosts("shop", KUBERNETES, WEB, other) == {**master, "WEB_APP_SERVICE_HOST": "10.0.0.7"}
    assert hosts("shop", KUBERNETES, WEB, other, links=False) == master
    assert hosts("default", KUBERNETES, WEB) == master


def test_a_namespaces_own_kubernetes_hides_the_api_servers() -> None:
    own = service("kubernetes", "aaa", "10.0.0.5")
    assert hosts("aaa", KUBERNETES, own) == {"KUBERNETES_SERVICE_HOST": "10.0.0.5"}
    own = service("kubernetes", "shop", "10.0.0.5")
    assert hosts("shop", KUBERNETES, own) == {"KUBERNETES_SERVICE_HOST": "10.0.0.5"}


def test_services_without_an_address_count_for_nothing() -> None:
    assert facts(service("a", "shop", "None"), service("b", "shop", "")) == []


def test_an_address_of_ipv6_is_in_brackets_where_a_port_follows() -> None:
    found = service_variables(facts(service("six", "shop", "fd00::1")), "shop", links=True)
    assert found["SIX_PORT"] == "tcp://[fd00::1]:443"
    assert found["SIX_SERVICE_HOST"] == "fd00::1"


def test_a_container_may_refer_to_them_and_its_own_go_before() -> None:
    container = Container(
        name="main",
        env=[
            EnvVar(name="URL", value="https://$(KUBERNETES_SERVICE_HOST)"),
            EnvVar(name="KUBERNETES_SERVICE_HOST", value="own"),
            EnvVar(name="LATER", value="$(KUBERNETES_SERVICE_HOST)"),
        ],
    )
    pod = Pod(metadata=ObjectMeta(name="p", namespace="shop"), spec=PodSpec(containers=[container]))
    around = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "OTHER": "x"}
    assert container_env(pod, container, services=around).variables == {
        "URL": "https://10.96.0.1",
        "KUBERNETES_SERVICE_HOST": "own",
        "LATER": "own",
        "OTHER": "x",
    }
