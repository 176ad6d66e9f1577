"""Texts that are the same in each report."""

NOT_COVERED = [
    "the choice of settings, and any tuning",
    "the vocabulary, and anything else that was made from the clients' data before the run",
    "evaluation, which is on clients that do not train and is released without noise",
    "clients that evaluate, as far as their metrics give them away",
]

# Kinds of sampling that amplify where cohorts are secret, and of which a report states no amplified ε at all.
IN_SECRET = ("balls_in_bins", "b_min_sep", "random_allocation")
NOT_IN_SECRET = (
    "an amplified ε: sampling={kind!r} amplifies only where the rounds of a client are drawn independently of those of "
    "others, once for the run, and stay secret; here they follow from a seed, and the cohorts are logged"
)

_ACCOUNTING = "float64 for the parameters as cast to float32; every figure is rounded up"

ARITHMETIC = {
    "noise": "float32, continuous Gaussian; the standard deviation is rounded up",
    "accounting": _ACCOUNTING,
    "severity": "critical for an adversary who knows all other updates: low bits of float32 sums and normals can give "
    "away that a client took part, and the statement does not cover them",
}

ARITHMETIC_ON_GRID = {
    "noise": "integers in units of the grid: normals are rounded inside the recursion, and added to exact sums",
    "accounting": f"{_ACCOUNTING}; what the errors of the noise cost is part of μ, and what lies beyond its tail of δ",
    "severity": "theoretical: the proof takes the words of the generator for random ones",
}

AS_REAL_NUMBERS = (
    "the guarantee is about real numbers, and floats are released: an adversary who knows all other updates can read "
    "in low bits that a client took part; --grid auto closes that"
)

CAVEATS = (
    "This says how much anybody can learn about one client from everything that the training published, whatever else "
    "they know. A small number means: very little more than if the client had stayed away. It does not say that the "
    "model is fair or right, and it protects nobody from conclusions that hold for people like them. It holds only if "
    "what is assumed above is true, and only for this run: every further run on the same clients adds to it."
)
