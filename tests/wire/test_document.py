"""Compare the tables of WIRE.md with proto/msg.h and the schema."""
import re

import pytest

from client import PROTO, pb
from support import numpy_net

PAGE = (PROTO / "WIRE.md").read_text()
HEADER = (PROTO / "msg.h").read_text()
ERR = (PROTO.parent / "common" / "err.h").read_text()


def section(heading):
    """Returns the text under a heading, up to the next heading of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.M | re.S)
    assert found, f"WIRE.md has no heading {heading}"
    return found[1]


def rows(text):
    return [[c.strip() for c in line.strip("|").split("|")]
            for line in text.splitlines() if re.match(r"\| [^-]", line)]


def test_limits():
    defined = {name: eval(re.sub(r"(?<=\d)u(ll)?", "", value))  # noqa: S307
               for name, value in re.findall(r"^#define (WIRE_\w+) +(\(.*?\)|\d+u)", HEADER, re.M)}
    assert len(defined) >= 14
    assert {r[0]: int(r[1]) for r in rows(section("Limits"))[1:]} == defined


def test_messages():
    written = {int(r[0]): r[1].lower() for r in rows(section("Messages"))[1:] if r[0].isdigit()}
    assert written == {f.number: f.name for f in pb.Message.DESCRIPTOR.fields}


def tables():
    """Returns the tables `field of X` as {message: [[number, name, type]]}."""
    found = re.findall(r"^\| field of (\w+) \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    return {name: [r[0].split() + [r[1]] for r in rows(body)] for name, body in found}


@pytest.mark.parametrize("name", [m for m in pb.DESCRIPTOR.message_types_by_name if m != "Message"])
def test_every_field_of(name):
    kinds = {v: k[5:].lower() for k, v in vars(
        type(pb.DESCRIPTOR.message_types_by_name["Stamp"].fields[0])).items()
        if k.startswith("TYPE_")}
    expected = []
    for f in pb.DESCRIPTOR.message_types_by_name[name].fields:
        inner = f.message_type or f.enum_type
        repeated = "repeated " if f.label == f.LABEL_REPEATED else ""
        expected.append([str(f.number), f.name, repeated + (inner.name if inner
                                                            else kinds[f.type])])
    assert tables()[name] == expected


def test_errors():
    known = {name: -int(value) for name, value in re.findall(r"X\((E\w+), (-\d+),", ERR)}
    table = {r[1].removeprefix("PS_"): int(r[0]) for r in rows(section("Errors"))[1:]}
    assert len(table) > 10
    assert table == {name: known[name] for name in table}


def test_rejections():
    known = {name: int(n) for name, n in re.findall(r"(REJECT_\w+) = (\d+)", HEADER)}
    del known["REJECT_REASONS"]
    assert {r[0]: int(r[1]) for r in rows(section("Rejections"))[1:]} == known
    assert dict(pb.Reject.items()) == known


def test_modes():
    table = {r[0]: int(r[1]) for r in rows(section("Modes"))[1:]}
    assert table == {k: v for k, v in pb.Mode.items() if v}
    assert table == {name: int(n) for name, n in re.findall(r"(MODE_\w+) = (\d+),", HEADER)}


def test_order_of_images():
    text = section("Order of images")
    written = [[int(n) for n in v.split()] for v in re.findall(r": ([\d ]{19})", text)]
    assert written == [numpy_net.order(7, 0, 10).tolist(), numpy_net.order(7, 1, 10).tolist()]
