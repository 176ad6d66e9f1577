"""The first noise of a subject, in a process of its own: `-m tff_mf.conformance.first_noise MODULE:FUNCTION FILE`."""

import importlib
import sys

import numpy as np

from tff_mf.conformance.probe import Probe


def main() -> None:
    """Writes it to a file."""
    module, _, function = sys.argv[1].partition(":")
    subject, claim, like = getattr(importlib.import_module(module), function)()
    probe = Probe(subject, claim, like, 1)
    np.save(sys.argv[2], probe.step(subject.start(), probe.quiet).sums)


if __name__ == "__main__":
    main()
