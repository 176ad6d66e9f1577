"""What a file holds becomes a record, or is refused by the table, the field and the rule."""

import csv
import json
from typing import Literal

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.base import strict_json
from tff_mf.experiments.output import typed
from tff_mf.experiments.runs import folders, names, results


class Part(typed.Record):
    rate: typed.Number = 1.0
    name: str | None = None
    kind: Literal["square", "round"] | None = None


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
        ({"rounds": True}, "rounds=True"),
        ({"rounds": 3.0}, "rounds=3.0"),
        ({"rounds": 0}, "rounds=0"),
        ({"rounds": 10**5000}, "rounds="),
        ({"seed": 2**63}, f"seed={2**63}"),
        ({"on": 1}, "on=1"),
        ({"part": {"rate": float("nan")}}, "[part]: rate=nan"),
        ({"part": {"rate": 10**400}}, "[part]: rate="),
        ({"parts": [{}, {"name": 3}]}, "[parts]: name=3"),
        ({"part": {"kind": "oval"}}, "[part]: kind='oval'"),
        ({"part": {"name": "\ud800"}, "\ud800": 1}, "file"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes, named):
    with pytest.raises(tff_mf.InputError) as raised:
        typed.convert(GOOD | changes, Whole, "file")
    assert named in str(raised.value)
    assert str(raised.value).startswith("file")


def test_a_partial_record_has_what_was_given():
    assert typed.some({"rate": 5}, Part, "file") == {"rate": 5.0}
    with pytest.raises(tff_mf.InputError, match="rate="):
        typed.some({"rate": [5]}, Part, "file")
    assert typed.some({"rate": [5, 6]}, Part, "file", listed=True) == {"rate": [5.0, 6.0]}


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '{"a": NaN}', '{"a": 1e400}', "[" * 100_000, "", '{"a": "\\'])
def test_a_file_that_is_no_strict_json_is_refused(tmp_path, text):
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(tff_mf.InputError, match=r"file=.*file\.json"):
        strict_json.read(path, "file")


@given(st.lists(st.tuples(st.floats(0, 9), st.one_of(st.none(), st.floats(0, 9))), max_size=6))
def test_metrics_are_read_as_they_were_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("metrics") / names.METRICS
    written = [
        {"round": number, "seconds": seconds, **({} if loss is None else {"loss": loss})}
        for number, (seconds, loss) in enumerate(rows, start=1)
    ]
    results.write_metrics(path, written)
    found = results.read_metrics(path)
    assert found.last_round == len(rows)
    evaluated = [row["round"] for row in written if "loss" in row]
    assert [int(row["round"]) for row in found.evaluated] == evaluated
    assert found.last_evaluated == max(evaluated, default=0)
    with path.open(newline="") as file:
        assert [dict(row) for row in csv.DictReader(file)] == list(found.rows)


def test_run_json_of_another_version_is_refused_by_the_version(tmp_path):
    (tmp_path / names.RUN_JSON).write_text(json.dumps({"version": 2}))
    with pytest.raises(tff_mf.InputError, match="version=2"):
        folders.read_record(tmp_path)


def test_equal_models_have_equal_files():
    weights = {f"layer/{index}": np.full(3, index, np.float32) for index in (2, 0, 1)}
    contents = {results.model_content(weights, {"average": np.zeros(2)}) for _ in range(20)}
    assert len(contents) == 1
    trainable, others = results.model_of(contents.pop())
    assert (list(trainable), list(others)) == (list(weights), ["average"])


def test_a_file_that_does_not_say_its_order_is_refused():
    with pytest.raises(ValueError, match="does not say in which order"):
        results.model_of(safetensors.numpy.save({"0": np.ones(2), "two": np.ones(3)}))
