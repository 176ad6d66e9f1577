import numpy as np
import pytest

import tff_mf


def test_identity_is_the_identity():
    mechanism = tff_mf.Identity()
    np.testing.assert_array_equal(mechanism.encoder(5), np.eye(5))
    np.testing.assert_array_equal(mechanism.inverse(5), np.eye(5))
    assert mechanism.cast_to_float32() == mechanism
    assert mechanism.max_rounds is None


@pytest.mark.parametrize("rounds", [0, -1, 2.5, None])
def test_bad_rounds_are_named(rounds):
    with pytest.raises(tff_mf.InputError, match="rounds="):
        tff_mf.Identity().encoder(rounds)
