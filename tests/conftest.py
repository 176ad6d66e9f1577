"""Settings of all tests. Imports nothing but hypothesis, so that floor 1 is tested without TensorFlow."""

import hypothesis

hypothesis.settings.register_profile("tff-mf", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.load_profile("tff-mf")
