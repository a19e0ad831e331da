"""The formulas as the paper writes them: plain loops over float64, to test the library against.

Logits are arrays (M, B, C), scores are arrays (B,).
"""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(z: Array) -> Array:
    """(C,) -> (C,)."""
    e = np.exp(z - z.max())  # the shift cancels; without it exp(1e4) overflows
    return e / e.sum()


def entropy(p: Array) -> float:
    """(C,) -> a number in nats, 0 log 0 = 0."""
    return -sum(q * np.log(q) for q in p if q > 0)


def pds(logits: Array, normalize: bool = False) -> Array:
    """sum_c max_m p^m_c, over C if normalized (Eq. 8)."""
    M, B, C = logits.shape
    scores = []
    for b in range(B):
        p = [softmax(logits[m, b]) for m in range(M)]
        total = sum(max(p[m][c] for m in range(M)) for c in range(C))
        scores.append(total / C if normalize else total)
    return np.array(scores)


def bma(logits: Array) -> Array:
    """1 - max_c mean_m p^m_c (Eq. 7, turned)."""
    M, B, _ = logits.shape
    return np.array([1 - max(sum(softmax(logits[m, b]) for m in range(M)) / M) for b in range(B)])


def a2d(logits: Array) -> Array:
    """Mean over ordered pairs m != l of -A2D(p^m, p^l) (Eq. 2); a lone member is paired with itself.

    In decimals with an exponent wide enough for exp(-2e4), and with 1 - p_y as the sum of the other classes.
    """
    M, B, C = logits.shape
    pairs = [(m, k) for m in range(M) for k in range(M) if m != k] or [(0, 0)]
    scores = []
    with localcontext(prec=40):
        for b in range(B):
            e = [[Decimal(float(logits[m, b, c])).exp() for c in range(C)] for m in range(M)]

            def p(m: int, y: int, e: list[list[Decimal]] = e) -> Decimal:
                return e[m][y] / sum(e[m])

            def not_p(m: int, y: int, e: list[list[Decimal]] = e) -> Decimal:
                return sum(e[m][c] for c in range(C) if c != y) / sum(e[m])

            total = Decimal(0)
            for m, k in pairs:
                y = int(np.argmax(logits[m, b]))
                total += (p(m, y) * not_p(k, y) + p(k, y) * not_p(m, y)).ln()
            scores.append(float(total / len(pairs)))
    return np.array(scores)


def gen(logits: Array, gamma: float = 0.1, top: int = 100) -> Array:
    """sum_c p_c^gamma (1 - p_c)^gamma of the mean prediction, over the most probable classes; 1 - p as a sum."""
    M, B, C = logits.shape
    scores = []
    with localcontext(prec=40):
        power = Decimal(str(gamma))
        for b in range(B):
            e = [[Decimal(float(logits[m, b, c])).exp() for c in range(C)] for m in range(M)]
            p = [sum(e[m][c] / sum(e[m]) for m in range(M)) / M for c in range(C)]
            kept = sorted(range(C), key=lambda c: -p[c])[:top]
            terms = [(p[c] * sum(p[k] for k in range(C) if k != c)) ** power for c in kept]
            scores.append(float(sum(terms)))
    return np.array(scores)


def average_energy(logits: Array) -> Array:
    """-mean_m log sum_c exp z^m_c."""
    M, B, _ = logits.shape
    return np.array([-sum(np.logaddexp.reduce(logits[m, b]) for m in range(M)) / M for b in range(B)])


def average_entropy(logits: Array) -> Array:
    """mean_m H(p^m)."""
    M, B, _ = logits.shape
    return np.array([sum(entropy(softmax(logits[m, b])) for m in range(M)) / M for b in range(B)])


def average_max_prob(logits: Array) -> Array:
    """1 - mean_m max_c p^m_c."""
    M, B, _ = logits.shape
    return np.array([1 - sum(max(softmax(logits[m, b])) for m in range(M)) / M for b in range(B)])


def single_max_prob(logits: Array) -> Array:
    """1 - max_c p^1_c, of the first member."""
    return np.array([1 - max(softmax(z)) for z in logits[0]])


def average_max_logit(logits: Array) -> Array:
    """-mean_m max_c z^m_c."""
    M, B, _ = logits.shape
    return np.array([-sum(max(logits[m, b]) for m in range(M)) / M for b in range(B)])


def ensemble_entropy(logits: Array) -> Array:
    """H(mean_m p^m)."""
    M, B, _ = logits.shape
    return np.array([entropy(sum(softmax(logits[m, b]) for m in range(M)) / M) for b in range(B)])


def mutual_information(logits: Array) -> Array:
    """H(mean_m p^m) - mean_m H(p^m)."""
    return ensemble_entropy(logits) - average_entropy(logits)


def unique(logits: Array) -> Array:
    """Number of distinct argmax_c p^m_c."""
    M, B, _ = logits.shape
    return np.array([len({int(np.argmax(logits[m, b])) for m in range(M)}) for b in range(B)])


def pairwise_a2d(logits: Array) -> Array:
    """Mean over the pairs l < m of A2D(p^m, p^l), y = argmax p^m (Eq. 2)."""
    M, B, _ = logits.shape
    pairs = [(m, ell) for m in range(M) for ell in range(m)]
    values = []
    for b in range(B):
        total = 0.0
        for m, ell in pairs:
            total -= _a2d_of(logits[m, b], logits[ell, b])
        values.append(total / len(pairs))
    return np.array(values)


def _a2d_of(first: Array, second: Array) -> float:
    """log(p_y (1 - q_y) + q_y (1 - p_y)) with y = argmax p; 1 - p_y as the sum of the other classes."""
    p, q, y = softmax(first), softmax(second), int(np.argmax(first))
    rest = np.arange(len(p)) != y
    return float(np.log(p[y] * q[rest].sum() + q[y] * p[rest].sum()))


def divdis(logits: Array) -> float:
    """Mean over pairs of the mutual information between predictions over the batch (DivDis)."""
    M, B, C = logits.shape
    p = [[softmax(logits[m, b]) for b in range(B)] for m in range(M)]
    values = []
    for m in range(M):
        for ell in range(m):
            joint = sum(np.outer(p[m][b], p[ell][b]) for b in range(B)) / B
            left, right = joint.sum(1), joint.sum(0)
            cells = [(a, c) for a in range(C) for c in range(C) if joint[a, c] > 0]
            values.append(sum(joint[a, c] * np.log(joint[a, c] / (left[a] * right[c])) for a, c in cells))
    return float(np.mean(values))


def cross_entropy(z: Array, label: int, smoothing: float = 0.0) -> float:
    """-sum_c t_c log p_c with t the smoothed one-hot label."""
    log_p = z - np.logaddexp.reduce(z)
    return float(-(1 - smoothing) * log_p[label] - smoothing * log_p.mean())


def sed(logits: Array, labels: Array, diversity: float, smoothing: float = 0.0) -> float:
    """Main loss + diversity / (N M (M-1)) * sum over samples and pairs of alpha_n A2D (Eq. 6)."""
    M, B, _ = logits.shape
    main = np.mean([[cross_entropy(logits[m, b], labels[b], smoothing) for b in range(B)] for m in range(M)])
    losses = np.array([cross_entropy(logits[:, b].mean(0), labels[b]) for b in range(B)])
    alpha = losses / losses.mean() ** 2
    summed = pairwise_a2d(logits) * M * (M - 1) / 2
    return float(main + diversity / (B * M * (M - 1)) * (alpha * summed).sum())


def unit(x: Array) -> Array:
    """Rows (B, D) divided by their length."""
    return np.array([row / np.sqrt((row**2).sum()) for row in x])


def oas(scatter: Array, freedom: int, shrinkage: bool = True) -> Array:
    """Chen et al. (2010), Eq. 23: (1 - r) S + r tr(S) / D I."""
    D = len(scatter)
    if not shrinkage:
        return scatter
    tr, tr2 = np.trace(scatter), np.trace(scatter @ scatter)
    r = ((1 - 2 / D) * tr2 + tr**2) / ((freedom + 1 - 2 / D) * (tr2 - tr**2 / D))
    r = min(1.0, r)
    return (1 - r) * scatter + r * tr / D * np.eye(D)


def mahalanobis(train: Array, labels: Array, x: Array, shrinkage: bool = True) -> Array:
    """min_c (u - mu_c)^T S^-1 (u - mu_c), S the covariance about the class means."""
    u, means = unit(train), {c: unit(train)[labels == c].mean(0) for c in np.unique(labels)}
    apart = np.array([row - means[c] for row, c in zip(u, labels, strict=True)])
    inverse = np.linalg.inv(oas(apart.T @ apart / len(u), len(u) - len(means), shrinkage))
    return np.array([min((row - m) @ inverse @ (row - m) for m in means.values()) for row in unit(x)])


def relative_mahalanobis(train: Array, labels: Array, x: Array, shrinkage: bool = True) -> Array:
    """min_c MD_c - MD_0, MD_0 about the mean of all, with the shrinkage of the covariance within classes."""
    u = unit(train)
    apart = u - u.mean(0)
    inside = u - np.array([u[labels == c].mean(0) for c in labels])
    within = inside.T @ inside / len(u)
    shrunk = oas(within, len(u) - len(np.unique(labels)), shrinkage)
    kept = 1 - (shrunk - within)[0, 1] / -within[0, 1] if shrinkage else 1.0
    inverse = np.linalg.inv(shrunk + kept * (apart.T @ apart / len(u) - within))
    all_together = np.array([(row - u.mean(0)) @ inverse @ (row - u.mean(0)) for row in unit(x)])
    return mahalanobis(train, labels, x, shrinkage) - all_together


def knn(train: Array, labels: Array, x: Array, k: int = 10) -> Array:
    """1 - the k-th largest cosine."""
    return np.array([1 - np.sort(unit(train) @ row)[::-1][min(k, len(train)) - 1] for row in unit(x)])


def feature_norm(train: Array, labels: Array, x: Array) -> Array:
    """((log |x| - m - b.(u - mu)) / s)^2, b the regression of log |x| on u."""
    logs, apart = np.log(np.sqrt((train**2).sum(1))), unit(train) - unit(train).mean(0)
    slope = np.linalg.inv(oas(apart.T @ apart / len(train), len(train) - 1, True)) @ (apart.T @ logs / len(train))
    expected = logs.mean() + (unit(x) - unit(train).mean(0)) @ slope
    return ((np.log(np.sqrt((x**2).sum(1))) - expected) / logs.std()) ** 2


def gaussian(train: Array, labels: Array, x: Array) -> Array:
    """mahalanobis / d + feature_norm / 6, d the deviation of distances to the class without the sample itself.

    The covariance is that of the others about their own means, with the shrinkage of all.
    """
    u, N = unit(train), len(train)
    inside = u - np.array([u[labels == c].mean(0) for c in labels])
    scatter = inside.T @ inside
    shrunk = oas(scatter / N, N - len(np.unique(labels)))
    kept = (shrunk / (scatter / N))[0, 1]
    distances = []
    for n in range(N):
        others = (labels == labels[n]) & (np.arange(N) != n)
        if others.any():
            rest = np.delete(u, n, 0)
            apart = rest - np.array([rest[np.delete(labels, n) == c].mean(0) for c in np.delete(labels, n)])
            inverse = np.linalg.inv(shrunk - kept * (scatter - apart.T @ apart) / N)
            gap = u[n] - u[others].mean(0)
            distances.append(gap @ inverse @ gap)
    return mahalanobis(train, labels, x) / np.std(distances) + feature_norm(train, labels, x) / 6


def vim(train: Array, x: Array, weight: Array, bias: Array, principal: int, centred: bool = False) -> Array:
    """alpha |residual| - logsumexp, of a head that is linear in unit rows times sqrt(D)."""
    root = np.sqrt(train.shape[1])
    u, q = unit(train) * root, unit(x) * root
    origin = u.mean(0) if centred else -np.linalg.pinv(weight) @ bias
    values, vectors = np.linalg.eigh((u - origin).T @ (u - origin))
    beside = vectors[:, np.argsort(values)[: len(values) - principal]]
    alpha = (u @ weight.T + bias).max(1).mean() / np.linalg.norm((u - origin) @ beside, axis=1).mean()
    return alpha * np.linalg.norm((q - origin) @ beside, axis=1) - np.logaddexp.reduce(q @ weight.T + bias, axis=1)


def head_loss(W: Array, z: Array, labels: Array, offset: Array, strength: float) -> float:
    """-sum_b log softmax(offset_b + W z_b)_{y_b} + |W|^2 / (2 strength): W (C, D), z (B, D), offset (B, C)."""
    total = sum(W[c, d] ** 2 for c in range(W.shape[0]) for d in range(W.shape[1])) / (2 * strength)
    for b in range(len(z)):
        logits = np.array([offset[b, c] + sum(W[c, d] * z[b, d] for d in range(z.shape[1])) for c in range(len(W))])
        total -= np.log(softmax(logits)[int(labels[b])])
    return float(total)


def slope(loss, at: Array, step: float = 1e-5) -> Array:
    """The gradient of a function of an array, by central differences."""
    gradient = np.zeros_like(at)
    for index in np.ndindex(*at.shape):
        ahead, behind = at.copy(), at.copy()
        ahead[index] += step
        behind[index] -= step
        gradient[index] = (loss(ahead) - loss(behind)) / (2 * step)
    return gradient


def openood(pred, conf, label):
    """OpenOOD v1.5's metrics from the columns of its score files, by counting at every threshold."""
    inside, outside = conf[label != -1], conf[label == -1]
    thresholds = np.unique(conf)

    def area(positives, negatives):
        """Trapezoids between the points (recall, precision) of every threshold, from recall 0 at precision 1."""
        points = [(0.0, 1.0)]
        for value in thresholds[::-1] if positives is inside else thresholds:
            accepted = [
                (side >= value if positives is inside else side <= value).sum() for side in (positives, negatives)
            ]
            points.append((accepted[0] / len(positives), accepted[0] / sum(accepted)))
        return sum((x - u) * (y + v) / 2 for (u, v), (x, y) in itertools.pairwise(points))

    for value in thresholds:  # called OOD: as low as this, or lower
        if (outside <= value).mean() >= 0.95:
            fpr = (inside <= value).mean()
            break
    pairs = inside[:, None] - outside[None]
    return {
        "FPR@95": fpr,
        "AUROC": (pairs > 0).mean() + (pairs == 0).mean() / 2,
        "AUPR_IN": area(inside, outside),
        "AUPR_OUT": area(outside, inside),
        "ACC": (pred == label)[label != -1].mean(),
    }
