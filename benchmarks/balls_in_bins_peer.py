"""Samples the losses of balls-in-bins sampling in jax_privacy 2.0.0, in a separate Python: JSON in, JSON out."""

import json
import sys
import time

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation

if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    strategy = batch_selection.BallsInBinsSampling(iterations=case["rounds"], cycle_length=case["bins"])
    began = time.process_time()
    losses, outputs = sample_generation.get_privacy_loss_sample(
        strategy, case["sigma"], np.array(case["column"]), 1, case["positive"], case["samples"]
    )
    seconds = (time.process_time() - began) / case["samples"]
    needed = delta_calculation.minimum_samples_to_calibrate(0.9 * case["delta"], case["delta"])
    print(json.dumps({"losses": losses.tolist(), "outputs": outputs.T.tolist(), "seconds": seconds, "needed": needed}))
