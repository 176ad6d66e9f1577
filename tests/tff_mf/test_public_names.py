import subprocess
import sys
import types

import tff_mf

NAMES = """
AmplifiedBands AmplifiedOptimum ArtifactError BLT BMinSep BallsInBins BallsInBinsEstimator Banded BandedInverse
BandedPlusLowRank BandedToeplitz CohortSecret CyclicPoisson Dense EstimatedEpsilon FixedEpoch Grid Guarantee Identity
InputError LearningRates Level LinearSchedule Mechanism MinSep Momentum MomentumWithRates OptimizedFor Order
Participation Plan Poisson PrefixSum RandomAllocation Sampling ScaledBLT ScaledInverse SearchStatus SensitivityResult
ShuffledEpochs SingleParticipation SpacedEpochs Timer Tree Workload adaptive_clipping_guarantee amplified_bands
balls_in_bins_gram calibrate_noise_multiplier check_mechanism compose_guarantees epsilon explain_sensitivity guarantee
least_loss load max_error max_loss optimize_amplified_banded_toeplitz optimize_amplified_blt optimize_banded
optimize_banded_inverse optimize_banded_plus_low_rank optimize_banded_toeplitz optimize_blt optimize_dense
optimize_scaled_blt optimize_scaled_inverse pattern_sensitivity plan register_mechanism restart_sensitivity rms_error
rms_loss save sensitivity zcdp_rho
""".split()  # noqa: SIM905


def test_public_names_are_these():
    public = [
        name
        for name, value in vars(tff_mf).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ]
    assert sorted(public) == NAMES


def test_a_name_is_not_both_a_module_and_a_function():
    assert callable(tff_mf.sensitivity)
    assert not any(f"tff_mf.{name}" in sys.modules for name in NAMES)


def test_import_brings_in_no_framework():
    heavy = "tensorflow tensorflow_federated tensorflow_privacy jax matplotlib dp_accounting pandas"
    program = f"import sys, tff_mf; print([name for name in {heavy.split()} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
