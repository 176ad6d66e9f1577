"""DP-FTRL for least squares (Kairouz et al. (2021), algorithm 2), beside DP-FTRL on gradients with the same guarantee.

    python docs/least_squares.py

Records (x, y) with ‖x‖ ≤ 1 and |y| ≤ 1 come one at a time, and a model θ is released after each:

    θ ← argmin over ‖θ‖ ≤ R of θᵀWθ − 2sᵀθ + (λ/2)·‖θ‖², with s and W the noised sums of y·x and x·xᵀ so far.

One stream holds both sums: one Gaussian release rather than two. Row t is (y·x, svec(x·xᵀ)) / √2, with svec the upper
triangle whose off-diagonal entries are multiplied by √2, so that its norm is that of the matrix:

    ‖row‖² = (y²·‖x‖² + ‖x‖⁴) / 2 ≤ 1, and it is 1 where ‖x‖ = |y| = 1.

The paper draws each entry on and above the diagonal of W's noise with one standard deviation, and takes twice the
privacy loss of one tree: the same norm, because ‖x·xᵀ‖ in Frobenius norm bounds its upper triangle. With svec the noise
off the diagonal is smaller by √2 for the same guarantee.

Guarantee: zero-out of one record, which is in one row. Released: all n models. (ε, δ) is that of `tff_mf.guarantee` for
one participation; for replacing a record, μ doubles (for W alone √2 would do, because ⟨x·xᵀ, x'·x'ᵀ⟩ ≥ 0). Norms are
bounded by scaling records down. The noise here is NumPy's, in float64: for experiments, not for releases.
"""

import numpy as np

import tff_mf

ROUNDS, DIMENSION, RADIUS = 2048, 8, 2.0
EPSILON, DELTA = 2.0, 1e-6
ONCE = tff_mf.SingleParticipation()
RATES = 2.0 ** np.arange(-6, 5)


def svec(matrix):
    """The upper triangles of symmetric matrices `[..., p, p]`, with the norm of the whole matrix."""
    rows, columns = np.triu_indices(matrix.shape[-1])
    return matrix[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


def unsvec(vector, dimension):
    """The symmetric matrix of an `svec`."""
    rows, columns = np.triu_indices(dimension)
    matrix = np.zeros((dimension, dimension))
    matrix[rows, columns] = matrix[columns, rows] = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    return matrix


def bounded(x, y):
    """Records scaled down to ‖x‖ ≤ 1 and |y| ≤ 1."""
    return x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), np.clip(y, -1.0, 1.0)


def statistics(x, y):
    """The rows of the stream, float64 `[n, p + p(p + 1)/2]`, of norm at most 1."""
    x, y = bounded(x, y)
    return np.concatenate([y[:, None] * x, svec(x[:, :, None] * x[:, None, :])], axis=1) / np.sqrt(2.0)


def minimizer(quadratic, linear, radius):
    """Returns argmin over ‖θ‖ ≤ radius of θᵀQθ − 2⟨l, θ⟩ for a symmetric Q, which noise may have made indefinite."""
    values, vectors = np.linalg.eigh(quadratic)
    along = vectors.T @ linear

    def solution(shift):
        return along / (values + shift)

    low = max(0.0, -values[0]) + 1e-12 * (1 + abs(values).max())
    if np.linalg.norm(solution(low)) > radius:
        high = low + np.linalg.norm(linear) / radius + abs(values).max()
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if np.linalg.norm(solution(middle)) > radius else (low, middle)
        return vectors @ solution(high)
    return vectors @ solution(low)


def least_squares(x, y, noise, *, spread):
    """Algorithm 2: the models after each round, `[n, p]`, given the noise of the stream's prefix sums, `[n, …]`.

    λ/2 is the size of the noise in W, `spread` (its standard deviation times √p) a round: known without the data.
    """
    dimension = x.shape[1]
    sums = np.sqrt(2.0) * (np.cumsum(statistics(x, y), axis=0) + noise)
    models = [
        minimizer(unsvec(row[dimension:], dimension) + size * np.eye(dimension), row[:dimension], RADIUS)
        for row, size in zip(sums, spread, strict=True)
    ]
    return np.array(models)


def on_gradients(x, y, noise, *, rate):
    """Algorithm 1 on the same records: θ ← −rate·(noised sum of clipped gradients), within the ball."""
    x, y = bounded(x, y)
    theta, total, models = np.zeros(x.shape[1]), np.zeros(x.shape[1]), []
    for row, target, extra in zip(x, y, noise, strict=True):
        gradient = (row @ theta - target) * row
        total += gradient / max(1.0, np.linalg.norm(gradient))
        theta = -rate * (total + extra)
        theta *= min(1.0, RADIUS / np.linalg.norm(theta)) if np.any(theta) else 1.0
        models.append(theta)
    return np.array(models)


def records(rounds, seed):
    """Directions of different size, and a model that explains most of y."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rounds, DIMENSION)) / np.sqrt(1.0 + np.arange(DIMENSION))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, x @ np.linspace(0.6, -0.6, DIMENSION) + 0.1 * generator.normal(size=rounds)


def excess_risk(models, rounds=50_000):
    """Mean squared error of models `[..., p]` less that of the best model, on records of their own."""
    x, y = bounded(*records(rounds, seed=10**6))
    second, first = x.T @ x / rounds, x.T @ y / rounds
    away = models - np.linalg.solve(second, first)
    return np.einsum("...i,ij,...j->...", away, second, away)


def compare(mechanisms, *, rounds=ROUNDS, seeds=5, epsilon=EPSILON):
    """Returns {name: (σ, risk of the last model, mean risk of all, the same two on gradients)}."""
    found = {}
    width = DIMENSION + DIMENSION * (DIMENSION + 1) // 2
    for name, mechanism in mechanisms.items():
        if mechanism is None:
            sigma, sums = 0.0, np.zeros((rounds, rounds))
        else:
            sigma = tff_mf.calibrate_noise_multiplier(mechanism, rounds, ONCE, epsilon=epsilon, delta=DELTA)
            sums = np.cumsum(mechanism.cast_to_float32().inverse(rounds), axis=0)
        spread = np.sqrt(2.0 * DIMENSION) * sigma * np.linalg.norm(sums, axis=1)
        ours, theirs = [], []
        for seed in range(seeds):
            x, y = records(rounds, seed)
            noise = sigma * sums @ np.random.default_rng([seed, 1]).normal(size=(rounds, width))
            risks = excess_risk(least_squares(x, y, noise, spread=spread))
            ours.append((risks[-1], np.mean(risks)))
            paths = (excess_risk(on_gradients(x, y, noise[:, :DIMENSION], rate=rate)) for rate in RATES)
            theirs.append([(risks[-1], np.mean(risks)) for risks in paths])
        # The gradients' rate is the best one in hindsight, which is not private.
        best = np.min(np.mean(theirs, axis=0), axis=0)
        found[name] = (sigma, *np.mean(ours, axis=0), *best)
    return found


def main(rounds=ROUNDS, seeds=5):
    mechanisms = {
        "no noise": None,
        "identity": tff_mf.Identity(),
        "tree, vanilla (the paper's)": tff_mf.Tree(rounds, variant="vanilla"),
        "tree, full": tff_mf.Tree(rounds, variant="full"),
        "BLT": tff_mf.optimize_blt(rounds=rounds, participation=ONCE, buffers=4),
    }
    print(f"excess risk of the last model and of all models; epsilon {EPSILON}, n = {rounds}, p = {DIMENSION}")
    print(f"{'':41}{'statistics':>18}{'gradients':>18}")
    for name, (sigma, *risks) in compare(mechanisms, rounds=rounds, seeds=seeds).items():
        print(f"{name:28} sigma {sigma:6.2f}", *(f"{risk:8.4f}" for risk in risks))


if __name__ == "__main__":
    main()
