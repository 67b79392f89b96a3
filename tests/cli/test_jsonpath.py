"""`-o jsonpath=`: the templates of kubectl."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubelet_trio.cli.jsonpath import JsonPath, JsonPathError, relaxed

LIST: dict[str, Any] = {
    "kind": "List",
    "items": [
        {
            "metadata": {"name": "web", "labels": {"app.example/tier": "front"}},
            "status": {"ready": True, "restarts": 2, "ips": [{"ip": "10.0.0.1"}]},
        },
        {
            "metadata": {"name": "db", "labels": {"k8s-app": "db"}},
            "status": {
                "ready": False,
                "restarts": 11,
                "cpu": 1.5,
                "ips": [{"ip": "10.0.0.2"}, {"ip": "fd00::2"}],
            },
        },
    ],
    "empty": [],
    "null": None,
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain text", "plain text"),
        ("a {.kind} b", "a List b"),
        ("{.missing}", ""),
        ("before-{.missing.at.all}after", "before-after"),
        ("{.items[*].metadata.name}", "web db"),
        ("{.items[0].metadata.name}", "web"),
        ("{.items[-1].metadata.name}", "db"),
        ("{.items[0:1].metadata.name}", "web"),
        ("{.items[:2].metadata.name}", "web db"),
        ("{.items[-1:].metadata.name}", "db"),
        ("{.items[::2].metadata.name}", "web"),
        ("{.items[1::2].metadata.name}", "db"),
        ("{.items[*].status.ips[*].ip}", "10.0.0.1 10.0.0.2 fd00::2"),
        ("{.items[0].metadata}", '{"labels":{"app.example/tier":"front"},"name":"web"}'),
        ("{.items[0].status.ips}", '[{"ip":"10.0.0.1"}]'),
        ("{.items[1].status.cpu} {.items[0].status.ready}", "1.5 true"),
        (r"{.items[0].metadata.labels.app\.example/tier}", "front"),
        (r"{.items[0].metadata.labels['app\.example/tier']}", "front"),
        ("{.items[1].metadata.labels.k8s-app}", "db"),
        ("{['kind']}", "List"),
        ("{$.kind}{@.kind}{ .kind }", "ListListList"),
        ("{range .items[*]}{.metadata.name}, {end}{.kind}", "web, db, List"),
        (r'{range .items[*]}{.metadata.name}{"\t"}{end}', "web\tdb\t"),
        (r"{range .items[*]}{.metadata.name}{'\n'}{end}", "web\ndb\n"),
        (r"""{"a\"b"}{'it\'s'}{"\u00e9\x41\101\\"}""", "a\"bit'séAA\\"),
        (
            "{range .items[*]}{range .status.ips[*]}{.ip};{end}{end}",
            "10.0.0.1;10.0.0.2;fd00::2;",
        ),
        ("{range .items[*]}[{.metadata.name}, {$.status.restarts}] {end}", "[web, 2] [db, 11] "),
        ("{range .empty[*]}{.x}{end}after", "after"),
        ("{range .items[*]}{.metadata.name}", "webdb"),
        ("{.items[*]['metadata.name', 'status.restarts']}", "web db 2 11"),
        ("{.items[0,1].metadata.name}", "web db"),
        ('{.items[?(@.metadata.name=="db")].status.restarts}', "11"),
        ("{.items[?(@.metadata.name=='db')].status.restarts}", "11"),
        ("{.items[?(@.metadata.name!='db')].metadata.name}", "web"),
        ("{.items[?(@.status.restarts>2)].metadata.name}", "db"),
        ("{.items[?(@.status.restarts<=2)].metadata.name}", "web"),
        ("{.items[?(@.status.cpu)].metadata.name}", "db"),
        ("{.items[?(@.status.cpu>1)].metadata.name}", "db"),
        ("{.items[?(@.status.ready==true)].metadata.name}", "web"),
        ("{.items[?(@..ready==true)].metadata.name}", "web"),
        ('{.items[?(@.metadata.name=="a)b")].kind}', ""),
        ("{..ip}", "10.0.0.1 10.0.0.2 fd00::2"),
        ("{..ips[0].ip}", "10.0.0.1 10.0.0.2"),
        ("{...ip}", "10.0.0.1 10.0.0.2 fd00::2"),
        ("{.items[0].metadata.labels.*}", "front"),
        ('{"{"}', "{"),
        ("{.null}", "null"),
        ("{.null[0]}{.empty[*]}", ""),
    ],
)
def test_a_template_prints_what_kubectl_prints(template: str, expected: str) -> None:
    assert JsonPath(template).text(LIST) == expected


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{hello}", "unrecognized identifier hello: did you mean .hello?"),
        ("{.kind", 'unclosed action: "{.kind" has no closing }'),
        ("{.kind[0]}", "string is not array or slice"),
        ("{.items[2]}", "array index out of bounds: index 2, length 2"),
        ("{.items[0:5]}", "array index out of bounds: index 4, length 2"),
        ("{.items[1:0]}", "starting index 1 is greater than ending index 0"),
        ("{.items[a]}", "invalid array index a"),
        ("{.items[-]}", "invalid array index -"),
        ("{.items[::0]}", "step must be > 0"),
        ("{.items[0", "unterminated array: [0"),
        ('{"x}', 'unterminated quoted string: "x}'),
        ("{.items[?(@.a==1]}", "unterminated filter: [?(@.a==1]}"),
        ("{.items[?(@.a==1)}", "unclosed array expect ]"),
        ("{.items[?(@.status.restarts<>1)]}", "unrecognized filter operator <>"),
        (
            "{.items[?(@.metadata.name=~'w.*')]}",
            "regular expressions are not supported, as in kubectl: use -o json | jq",
        ),
        (
            "{.items[?(@.status.restarts=='2')]}",
            "incompatible types for comparison: number == string",
        ),
        ("{.items[?(@.status.ready>true)]}", "incompatible types for comparison: bool > bool"),
        ("{.items[?(@.status.*==2)]}", "can only compare one element at a time"),
        ("{.kind[?(@.a)]}", "string is not array or slice and cannot be filtered"),
        ("{range .items[*]}{end}{end}", "not in range, nothing to end"),
        ("{....a}", "invalid multiple recursive descent"),
        ("{+}", "cannot parse number +"),
        ("{%}", "unrecognized character in action: '%'"),
        (r'{"\U00110000"}', r"unquote string: no such character \U00110000"),
    ],
)
def test_a_wrong_template_says_what_is_wrong(template: str, message: str) -> None:
    with pytest.raises(JsonPathError) as caught:
        JsonPath(template).text(LIST)
    assert str(caught.value) == message


@given(st.text(alphabet="{}[]().,*:?@$'\"\\ab01-=<>! \n", max_size=30))
def test_any_text_is_a_template_or_refused(template: str) -> None:
    try:
        printed = JsonPath(template).text(LIST)
    except JsonPathError:
        return
    assert isinstance(printed, str)


@pytest.mark.parametrize("path", ["a.b", ".a.b", "{a.b}", "{.a.b}"])
def test_a_field_may_be_written_in_four_ways(path: str) -> None:
    assert JsonPath(relaxed(path)).text({"a": {"b": "c"}}) == "c"


def test_a_field_that_is_none_is_refused() -> None:
    with pytest.raises(JsonPathError, match="expected a field"):
        relaxed("{.a}{.b}")
