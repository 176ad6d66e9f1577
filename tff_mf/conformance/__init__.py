"""Whether an implementation of differentially private sums is one: laws that anybody's can be checked by.

A subject has `start() -> state` and `step(state, updates) -> (state, released)`. `check` runs it on made-up updates,
and judges what it releases by its claim: nothing is known of how it computes.

    class Mine:
        def start(self):
            return ...

        def step(self, state, updates):
            return state, noised_sum_of(updates)

    claim = conformance.Claim(clip_norm=1.0, noise_multiplier=0.5, divisor=100.0, rounds=200)
    print(conformance.check(Mine(), claim, like=[np.zeros((784, 10)), np.zeros(10)]))
"""

from tff_mf.conformance.check import LAWS as LAWS
from tff_mf.conformance.check import Outcome as Outcome
from tff_mf.conformance.check import Verdict as Verdict
from tff_mf.conformance.check import check as check
from tff_mf.conformance.trial import Claim as Claim
from tff_mf.conformance.trial import Released as Released
from tff_mf.conformance.trial import Subject as Subject
from tff_mf.conformance.trial import Updates as Updates
