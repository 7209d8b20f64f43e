#!/usr/bin/env python3
"""Write tests/goldens/quality/statistics.json: what scipy, statsmodels, numpy and rbo say of intervals, tests, power and
distances.

Where a library has the formula, its answer is taken (Wilson, McNemar, Holm, Student, quantiles, permutation, bootstrap, KL,
rank-biased overlap). Tango's interval is found by maximising the restricted likelihood numerically, not by its closed form;
power is the exact sum over all outcomes, not the normal approximation; resampling draws the product's own indices, so that
intervals can be compared to the last digits.
"""

import json
import pathlib

import numpy as np
import rbo
from scipy import optimize, special, stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import proportion_confint

ROOT = pathlib.Path(__file__).resolve().parents[2]
Z = stats.norm.ppf(0.975)
RESAMPLES = 10_000


def wilson() -> list:
    rows = []
    for k, n in [(0, 1), (1, 1), (0, 20), (20, 20), (7, 10), (81, 263), (15, 148), (1219, 1319), (1, 14042), (3.5, 9.25)]:
        low, high = proportion_confint(k, n, method="wilson")
        rows.append([k, n, low, high])
    return rows


def mcnemar() -> list:
    rows = []
    for lost, won in [(0, 0), (1, 0), (0, 5), (6, 0), (3, 3), (2, 9), (10, 25), (59, 6), (480, 560), (2000, 2100)]:
        p = stats.binomtest(lost, lost + won, 0.5).pvalue if lost + won else 1.0
        rows.append([lost, won, p])
    return rows


def tango_score(delta: float, lost: int, won: int, n: int) -> float:
    """(won - lost - n delta) by its standard deviation at the likeliest share of lost ones, given the difference."""
    floor = max(0.0, -delta)
    ceiling = 0.5 * (1.0 - delta)

    def loss(q: float) -> float:
        rest = n - lost - won
        terms = [(won, q + delta), (lost, q), (rest, 1.0 - 2.0 * q - delta)]
        return -sum(special.xlogy(count, max(p, 0.0)) if count else 0.0 for count, p in terms)

    found = optimize.minimize_scalar(loss, bounds=(floor, ceiling), method="bounded", options={"xatol": 1e-13})
    q = min([floor, ceiling, found.x], key=loss)
    variance = n * (2.0 * q + delta * (1.0 - delta))
    return (won - lost - n * delta) / np.sqrt(variance)


def tango() -> list:
    rows = []
    for lost, won, n in [(0, 0, 44), (1, 0, 44), (0, 1, 44), (5, 3, 100), (12, 2, 54), (9, 30, 250), (40, 41, 1319), (0, 8, 60)]:
        observed = (won - lost) / n
        low = optimize.brentq(lambda d: tango_score(d, lost, won, n) - Z, -1 + 1e-9, observed - 1e-9, xtol=1e-12)
        high = optimize.brentq(lambda d: tango_score(d, lost, won, n) + Z, observed + 1e-9, 1 - 1e-9, xtol=1e-12)
        rows.append([lost, won, n, low, high])
    return rows


def holm() -> list:
    rows = []
    for p in [[0.04], [0.01, 0.04, 0.03, 0.005], [0.2, 0.2, 0.9, 0.001, 0.0499], [0.01] * 7]:
        rows.append({"p": p, "adjusted": multipletests(p, method="holm")[1].tolist()})
    return rows


def power(n: int, difference: float, rate: float) -> float:
    """Of the exact McNemar test at 5%: all numbers of flips, and of those all that are lost."""
    flips = np.arange(n + 1)
    of_flips = stats.binom.pmf(flips, n, rate)
    share = 0.5 * (1.0 + difference / rate)
    total = 0.0
    for m in flips[of_flips > 1e-12]:
        k = np.arange(m + 1)
        p = np.minimum(1.0, 2.0 * np.minimum(stats.binom.cdf(k, m, 0.5), stats.binom.sf(k - 1, m, 0.5)))
        total += of_flips[m] * stats.binom.pmf(k[p < 0.05], m, share).sum()
    return total


def detect() -> list:
    rows = []
    for difference, rate in [(0.05, 0.05), (0.05, 0.10), (0.04, 0.20), (0.10, 0.15), (0.02, 0.05), (0.03, 0.04)]:
        low, high = 8, 16
        while power(high, difference, rate) < 0.8:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if power(middle, difference, rate) >= 0.8 else (middle, high)
        rows.append([difference, rate, high])
    return rows


def student() -> list:
    return [[p, df, stats.t.ppf(p, df)] for df in (1, 2, 9, 29.5, 1318) for p in (0.001, 0.025, 0.4, 0.9, 0.975)]


def splitmix(seed: int, count: int) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, count + 1, dtype=np.uint64)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def bootstrap() -> list:
    rows = []
    rng = np.random.default_rng(7)
    for n, seed in [(3, 1), (12, 2), (40, 2**63 + 5)]:
        units = np.column_stack([rng.gamma(2.0, 1.0, n), rng.integers(1, 9, n), rng.gamma(2.2, 1.0, n), rng.integers(1, 9, n)])
        index = ((splitmix(seed, n * RESAMPLES) >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(int)
        sums = units[index.reshape(RESAMPLES, n)].sum(axis=1)
        level = stats.norm.cdf(np.sqrt(n / (n - 1)) * stats.t.ppf(0.025, n - 1))
        ratio = sums[:, 0] / sums[:, 1]
        difference = sums[:, 2] / sums[:, 3] - ratio
        rows.append({
            "seed": str(seed), "units": units.tolist(),
            "ratio": np.quantile(ratio, [level, 1 - level]).tolist(),
            "difference": np.quantile(difference, [level, 1 - level]).tolist(),
        })
    return rows


def library_bootstrap() -> dict:
    """scipy's own bootstrap with its own random numbers: the product's differs by the noise of resampling."""
    rng = np.random.default_rng(11)
    values = rng.exponential(1.0, 400)
    weights = rng.integers(1, 5, 400).astype(float)
    result = stats.bootstrap((values, weights), lambda v, w, axis: v.sum(axis=axis) / w.sum(axis=axis), paired=True,
                             vectorized=True, n_resamples=100_000, batch=5_000, method="percentile", rng=rng)
    return {"values": values.tolist(), "weights": weights.tolist(), "interval": list(result.confidence_interval)}


def swaps() -> list:
    """Exact: all 2^n ways to swap."""
    rows = []
    rng = np.random.default_rng(5)
    for shift in (0.0, 0.4, 1.0):
        reference = rng.normal(0.0, 1.0, 12)
        other = reference + rng.normal(shift, 1.0, 12)
        result = stats.permutation_test((reference, other), lambda x, y, axis: (y - x).sum(axis=axis), vectorized=True,
                                        permutation_type="samples", n_resamples=np.inf, alternative="two-sided")
        rows.append({"reference": reference.tolist(), "other": other.tolist(), "p": result.pvalue})
    return rows


def clustered() -> list:
    rows = []
    rng = np.random.default_rng(3)
    for n, alike, level in [(30, 0.0, 0.8), (30, 1.0, 0.8), (200, 0.6, 0.8), (40, 0.0, 0.97), (120, 0.0, 0.98)]:
        chances = rng.integers(1, 8, n)
        base = rng.uniform(0.6, 1.0, n)
        hits = rng.binomial(chances, alike * (base > 0.8) + (1 - alike) * level)
        rate = hits.sum() / chances.sum()
        variance = np.sum((hits - rate * chances) ** 2) / chances.sum() ** 2 * n / (n - 1)
        effective = min(chances.sum(), rate * (1 - rate) / variance)
        informing = min((hits > 0).sum(), (hits < chances).sum())
        if informing < 6:
            effective = min(effective, n)
        else:
            effective *= (stats.norm.ppf(0.975) / stats.t.ppf(0.975, informing - 1)) ** 2
        low, high = proportion_confint(rate * effective, effective, method="wilson")
        rows.append({"hits": hits.tolist(), "chances": chances.tolist(), "interval": [low, high]})
    return rows


def quantiles() -> list:
    values = sorted(np.random.default_rng(1).normal(size=23).tolist())
    return [{"values": values, "p": p, "quantile": np.quantile(values, p)} for p in (0.0, 0.01, 0.5, 0.77, 0.99, 1.0)]


def distances() -> list:
    rows = []
    rng = np.random.default_rng(2)
    for vocab, noise in [(5, 0.5), (64, 0.01), (64, 1.0), (64, 1e-4), (300, 3.0)]:
        logits = rng.normal(0.0, 3.0, vocab)
        pair = [special.log_softmax(logits), special.log_softmax(logits + noise * rng.normal(size=vocab))]
        # What the product gets: float32, which sums to 1 but for rounding.
        pair = [logprobs.astype(np.float32) for logprobs in pair]
        p, q = (special.softmax(logprobs.astype(np.float64)) for logprobs in pair)
        ranks = [np.argsort(-logprobs, kind="stable")[:20].tolist() for logprobs in pair]
        rows.append({
            "reference": pair[0].tolist(), "other": pair[1].tolist(),
            "kl": special.rel_entr(p, q).sum(), "kl_terms": special.kl_div(p, q).sum(),
            "rank_overlap": rbo.RankingSimilarity(*ranks).rbo_ext(p=0.9),
            "best": [ranks[0][0], ranks[1][0]],
        })
    return rows


def main() -> None:
    goldens = {
        "wilson": wilson(), "mcnemar": mcnemar(), "tango": tango(), "holm": holm(), "detect": detect(), "student": student(),
        "bootstrap": bootstrap(), "library_bootstrap": library_bootstrap(), "swaps": swaps(), "clustered": clustered(),
        "quantiles": quantiles(), "distances": distances(),
    }
    folder = ROOT / "tests/goldens/quality"
    folder.mkdir(parents=True, exist_ok=True)
    text = "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in goldens.items()) + "\n}\n"
    (folder / "statistics.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
