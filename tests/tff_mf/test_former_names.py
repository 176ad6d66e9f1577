"""Former names work for one release, with a warning."""

import pytest

import tff_mf
from tff_mf import optimize

ONCE = tff_mf.SingleParticipation()


@pytest.mark.parametrize("module", [tff_mf, optimize])
def test_optimizers_that_returned_a_result(module):
    with pytest.warns(DeprecationWarning, match=r"optimize_blt returns the mechanism, whose optimized_for says how"):
        former = module.optimize_blt_result
    result = former(rounds=20, participation=ONCE, buffers=1)
    mechanism = tff_mf.optimize_blt(rounds=20, participation=ONCE, buffers=1)
    search = mechanism.optimized_for.search
    assert result.mechanism == mechanism
    assert (result.converged, result.duality_gap) == (True, None)
    assert (result.objective, result.loss, result.message) == (search.objective, search.loss, search.message)
    assert (result.iterations, result.gradient_norm) == (search.iterations, search.gradient_norm)
    assert result.history == search.history
    with pytest.warns(DeprecationWarning, match="OptimizationResult will be removed"):
        assert isinstance(result, module.OptimizationResult)


@pytest.mark.parametrize(
    "name",
    [
        "optimize_banded_result",
        "optimize_banded_inverse_result",
        "optimize_banded_plus_low_rank_result",
        "optimize_banded_toeplitz_result",
        "optimize_dense_result",
        "optimize_structured_result",
    ],
)
def test_every_former_optimizer_is_there(name):
    with pytest.warns(DeprecationWarning, match=f"{name} will be removed in the next release"):
        assert callable(getattr(tff_mf, name))


def test_a_duality_gap_is_that_of_the_mechanism():
    with pytest.warns(DeprecationWarning, match="optimize_dense_result"):
        result = tff_mf.optimize_dense_result(rounds=9, participation=ONCE)
    assert result.duality_gap == result.mechanism.optimized_for.duality_gap <= 5e-5


@pytest.mark.parametrize(
    ("former", "current"),
    [
        ("MadeFor", "OptimizedFor"),
        ("Structured", "BandedPlusLowRank"),
        ("optimize_structured", "optimize_banded_plus_low_rank"),
    ],
)
def test_renamed_objects(former, current):
    with pytest.warns(DeprecationWarning, match=rf"tff_mf\.{former} is now tff_mf\.{current}"):
        assert getattr(tff_mf, former) is getattr(tff_mf, current)


def test_other_names_are_missing():
    for module in (tff_mf, optimize):
        with pytest.raises(AttributeError, match="nothing_like_it"):
            module.nothing_like_it  # noqa: B018
