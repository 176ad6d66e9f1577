"""Wrong values instead of valid ones: a valid answer, or an error that names the argument.

`TFF_MF_FUZZ` multiplies the number of inputs; `make fuzz` sets it.
"""

import collections
import os
import pathlib
import sys
import time
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from api import CALLS, JUNK, named

from tff_mf.base.errors import InputError

_TIMES = int(os.environ.get("TFF_MF_FUZZ", "1"))
_HANG_SECONDS = 120.0
COUNTS: collections.Counter[str] = collections.Counter()


@pytest.mark.parametrize("called", CALLS, ids=lambda called: called.name)
def test_every_argument_is_checked(called):
    examples = (3 if called.slow else 25) * _TIMES

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=_TIMES == 1,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.data())
    def check(data):
        arguments = {name: data.draw(strategy, name) for name, strategy in called.arguments.items()}
        for name in data.draw(st.lists(st.sampled_from(list(arguments)), max_size=2, unique=True)):
            arguments[name] = data.draw(JUNK, name)
        start = time.monotonic()
        COUNTS["inputs"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                called.call(**arguments)
            COUNTS["answered"] += 1
            refusal = None
        except InputError as error:
            COUNTS["refused"] += 1
            refusal = error
        if refusal is not None:
            assert isinstance(refusal, ValueError | TypeError)
            assert named(str(refusal), arguments), str(refusal)
        assert time.monotonic() - start < _HANG_SECONDS, "hangs"

    check()
