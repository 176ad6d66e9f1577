"""What a file holds becomes a record, or is refused by the table, the field and the rule."""

import pytest

import tff_mf
from tff_mf.base import strict_json
from tff_mf.experiments.output import typed


class Part(typed.Record):
    rate: typed.Number = 1.0
    name: str | None = None


class Whole(typed.Record):
    rounds: typed.Count
    seed: typed.Whole = 0
    on: bool = False
    part: Part = Part()
    parts: list[Part] = []  # noqa: RUF012


GOOD = {"rounds": 3, "seed": -1, "on": True, "part": {"rate": 2}, "parts": [{"name": "a"}]}


def test_what_fits_is_read():
    part = Part(rate=2.0)
    assert typed.convert(GOOD, Whole) == Whole(rounds=3, seed=-1, on=True, part=part, parts=[Part(name="a")])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"round": 3}, "'round' is not a known key; did you mean 'rounds'?"),
        ({"rounds": "3"}, "rounds='3' must be a whole number"),
        ({"rounds": True}, "rounds=True"),
        ({"rounds": 3.0}, "rounds=3.0"),
        ({"rounds": 0}, "rounds=0 must be a whole number of at least 1"),
        ({"rounds": None}, "rounds=None"),
        ({"rounds": 10**5000}, "rounds="),
        ({"seed": 2**63}, f"seed={2**63}"),
        ({"on": 1}, "on=1 must be true or false"),
        ({"part": 3}, "part=3 must be a table"),
        ({"part": {"rate": True}}, "[part]: rate=True"),
        ({"part": {"rate": float("nan")}}, "[part]: rate=nan"),
        ({"part": {"rate": float("-inf")}}, "[part]: rate=-inf"),
        ({"part": {"rate": 10**400}}, "[part]: rate="),
        ({"part": {"rates": 1}}, "[part]: 'rates'"),
        ({"parts": [{}, {"name": 3}]}, "[parts]: name=3 must be a text or null"),
        ({"part": {"name": "\ud800"}, "\ud800": 1}, "file"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, named):
    with pytest.raises(tff_mf.InputError) as raised:
        typed.convert(GOOD | changes, Whole, "file")
    assert named in str(raised.value)
    assert str(raised.value).startswith("file")


def test_a_missing_field_is_named():
    with pytest.raises(tff_mf.InputError, match="rounds=… missing"):
        typed.convert({}, Whole)


def test_a_partial_record_has_what_was_given():
    partial = typed.partial(Part)
    assert typed.given(typed.convert({"rate": 5}, partial)) == {"rate": 5.0}
    with pytest.raises(tff_mf.InputError, match="rate="):
        typed.convert({"rate": [5]}, partial)
    assert typed.given(typed.convert({"rate": [5, 6]}, typed.partial(Part, listed=True))) == {"rate": [5.0, 6.0]}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '{"a": NaN}', '{"a": 1e400}', "[" * 100_000, "", '{"a": "\\'])
def test_a_file_that_is_no_strict_json_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(tff_mf.InputError, match=r"file=.*file\.json"):
        strict_json.read(path, "file")
