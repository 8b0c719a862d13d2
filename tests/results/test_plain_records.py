"""Records in plain types: what their fields say is what is written, and all that is read."""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar

import pytest

from spiritlevel.errors import SpiritlevelError
from spiritlevel.reading import IF_ANY, UNSAVED, Misread, Plain, Saved


@dataclasses.dataclass
class Wheel(Plain):
    CALLED: ClassVar = "the wheel"

    size: float
    spokes: int = 0
    seen: object = dataclasses.field(default=None, metadata=UNSAVED)


@dataclasses.dataclass
class Cart(Saved):
    CALLED: ClassVar = "the cart"
    EXTENDED: ClassVar = True
    FORMAT: ClassVar = "cart-1"

    by_name: Mapping[str, Wheel] = dataclasses.field(metadata={"key": "wheels"})
    spare: tuple[Wheel, ...] = dataclasses.field(default=(), metadata=IF_ANY)

    def check_parts(self):
        if not self.by_name:
            raise Misread("the cart has no wheels")


def test_fields_are_written_under_their_names_and_read_back():
    cart = Cart({"left": Wheel(math.inf, 5, seen=object())})
    written = {"format": "cart-1", "wheels": {"left": {"size": "inf", "spokes": 5}}}
    assert cart.to_dict() == written
    again = Cart.from_json(cart.to_json())
    assert again.by_name == {"left": Wheel(math.inf, 5)}
    assert Cart(cart.by_name, (Wheel(1.0),)).to_dict()["spare"] == [{"size": 1.0, "spokes": 0}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"size": 1, "colour": "red"}, "the wheel has 'colour', which nothing here is called"),
        ({"size": 1, "seen": 3}, "the wheel has 'seen', which nothing here is called"),
        ({"spokes": 1}, "the wheel has no 'size'"),
        ({"size": "big"}, "the wheel.size must be a number, and is 'big'"),
        ({"size": 1, "spokes": True}, "the wheel.spokes must be a whole number, and is True"),
        ([], "the wheel must be a mapping of names to values, and is []"),
    ],
)
def test_what_was_not_written_is_refused(data, said):
    with pytest.raises(SpiritlevelError) as caught:
        Wheel.from_dict(data)
    assert str(caught.value) == said


def test_a_record_that_says_more_than_its_fields_is_read():
    wheels = {"left": {"size": 1}}
    assert Cart.from_dict({"wheels": wheels, "speed": 3}).by_name["left"].size == 1.0
    for data, said in [
        ({"format": "cart-2", "wheels": wheels}, "the cart's format is 'cart-2'"),
        ({"wheels": []}, "the cart's wheels must be a mapping of names to values, and is []"),
        ({"wheels": {}}, "the cart has no wheels"),
        ({}, "the cart has no 'wheels'"),
    ]:
        with pytest.raises(Misread) as caught:
            Cart.from_dict(data)
        assert str(caught.value) == said
