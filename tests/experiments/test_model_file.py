"""The file of a trained model: equal models have equal files, which are read in the model's order."""

import numpy as np
import pytest
import safetensors.numpy

from tff_mf.experiments.runs import results


def test_equal_models_have_equal_files():
    weights = {f"layer/{index}": np.full(3, index, np.float32) for index in (2, 0, 1)}
    contents = {results.model_content(weights, {"average": np.zeros(2)}) for _ in range(20)}
    assert len(contents) == 1
    trainable, others = results.model_of(contents.pop())
    assert (list(trainable), list(others)) == (list(weights), ["average"])


def test_a_file_that_does_not_say_its_order_is_refused():
    with pytest.raises(ValueError, match="does not say in which order"):
        results.model_of(safetensors.numpy.save({"0": np.ones(2), "two": np.ones(3)}))
