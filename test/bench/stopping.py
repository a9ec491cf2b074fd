#!/usr/bin/env python3
"""Would a query's probing better stop by a rule than after a fixed number of
lists?  A study of lists alone: no server, no codes, every row in a probed list
counts as found.

usage: stopping.py FOLDER [--rows N] [--cosine] [--lists N] [--parents N]

FOLDER is a data set of test/bench/data.py (base.npy and query.npy are read).
Rows are assigned as the index does it, to the nearest of rows / 100 centroids
and to a second list by the SOAR rule.  For each rule the program finds the
constant that reaches a recall@10 on held-out queries, and says how many copies
are read then, on average, beside the fixed number of probes that reaches the
same recall.  Weights of fitted rules come from rows of the table as queries;
a second table takes the constants from there too, as calibration would.

Every rule is a number for a query and the i-th nearest list; lists are probed
in order of distance until it exceeds a constant.  d_i is the distance of the
i-th nearest centroid, n_i the copies in that list, D the k-th best distance
found in lists before the i-th.  A scan has scores in place of distances, so D
is of distances with the error of codes (--lost; 0: exact ones).

  fixed        i
  ratio        d_i^2 / d_1^2
  difference   d_i^2 - d_1^2
  ranked       ln i + 5 ln (d_i^2 / d_1^2)
  regression   ln i - w f, f of d_1, d_2/d_1, d_10/d_1, d_50/d_1 and the spread
               of d_1 .. d_50; w fitted to ln of the lists a query needs
  gain         -ln of the neighbors expected in list i, a Poisson regression
               on ln i, d_i^2/d_1^2, ln of it and the features above
  patience     lists since D last changed
  bound        d_i - D
  ranked, D    ln i + 5 ln (d_i^2 / d_1^2) + 5 ln (d_i^2 / D^2); that is,
               d_i^2 i^0.1 / (d_1 D)
  fitted, D    ln i + b ln (d_i^2 / d_1^2) + c ln (d_i^2 / D^2)
               + e ln (1 + patience); b, c, e read least at recall .95
  gain, D      the regression of `gain`, and ln n_i, d_i / D, ln of it, and
               ln (1 + patience)
  oracle       the least reading that any choice of a number of lists for each
               query can have; needs the answer
"""
import argparse
import json
import os
import sys

import data
import dataset
import report

K = 10
TARGETS = [.90, .95, .98, .99]
ROWS_A_LIST = 100
SECOND_AMONG = 16               # lists, and the weight of the SOAR rule
SECOND_WEIGHT = 1.5
ITERATIONS = 12
CHUNK = 2048
MAX_LISTS_PROBED = 1000
THRESHOLDS = 600
RESAMPLES = 300
WEIGHTS = [0, .25, .5, .75, 1, 2, 3, 4, 5, 6, 8, 12, 16]
SEED = 5


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, help="random ones; default: all")
    parser.add_argument("--cosine", action="store_true",
                        help="scale vectors to length one")
    parser.add_argument("--lists", type=int, help="default: rows / 100")
    parser.add_argument("--parents", type=int, default=1,
                        help="train the lists of each of so many parents by\n"
                        "themselves, as the index does (sqrt lists); default:"
                        "\nall lists at once")
    parser.add_argument("--calibration", type=int, default=2000,
                        metavar="ROWS", help="of the table, as queries")
    parser.add_argument("--lost", type=float, default=.11, metavar="SHARE",
                        help="of the squared residuals that codes lose; the\n"
                        "default is that of 2 bits a dimension")
    parser.add_argument("--json", metavar="FILE", help="all figures, also")
    return parser.parse_args()


# ---------------------------------------------------------------------- lists

def squared(x):
    import numpy as np
    return np.einsum("...j,...j->...", x, x)


def chunks(n):
    return (slice(at, min(at + CHUNK, n)) for at in range(0, n, CHUNK))


def nearest_centroid(x, centroids):
    """int [n]; |x - c|^2 is least where <x, c> - |c|^2 / 2 is greatest."""
    import numpy as np
    half = squared(centroids) / 2
    return np.concatenate([np.argmax(x[c] @ centroids.T - half, axis=1)
                           for c in chunks(len(x))])


def means(x, assigned, nlists):
    """float32 [nlists][d], and the counts; a list without rows gets zeros."""
    import numpy as np
    order = np.argsort(assigned, kind="stable")
    counts = np.bincount(assigned, minlength=nlists)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    sums = np.zeros((nlists, x.shape[1]))
    used = counts > 0
    sums[used] = np.add.reduceat(x[order].astype(np.float64), starts[used])
    return (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), counts


def kmeans(x, nlists, rng):
    """float32 [nlists][d].  Between iterations the centroids of the smallest
    lists move into those above twice the mean, so that lists are even."""
    import numpy as np
    centroids = x[rng.choice(len(x), nlists, replace=False)].copy()
    for i in range(ITERATIONS):
        assigned = nearest_centroid(x, centroids)
        centroids, counts = means(x, assigned, nlists)
        by_size = np.argsort(counts)
        large = by_size[counts[by_size] > 2 * len(x) / nlists][::-1]
        if i < ITERATIONS - 3:
            for small, big in zip(by_size, large):
                members = np.flatnonzero(assigned == big)
                centroids[small] = x[rng.choice(members)]
    return centroids


def two_levels(x, nlists, nparents, rng):
    """float32 [nlists][d]: each parent gets lists by its share of the rows,
    trained on its rows alone."""
    import numpy as np
    parent = nearest_centroid(x, kmeans(x, nparents, rng))
    found, before = [], 0
    for p in range(nparents):
        own = x[parent == p]
        after = before + len(own)
        n = nlists * after // len(x) - nlists * before // len(x)
        if len(own):
            found.append(kmeans(own, min(max(n, 1), len(own)), rng))
        before = after
    return np.concatenate(found)


def assign(x, centroids):
    """int [n][2]: each row's nearest list, and its second by the SOAR rule."""
    import numpy as np
    lists = np.empty((len(x), 2), np.int64)
    half = squared(centroids) / 2
    for c in chunks(len(x)):
        score = half - x[c] @ centroids.T
        near = np.argpartition(score, SECOND_AMONG, axis=1)[:, :SECOND_AMONG]
        first = np.argmin(np.take_along_axis(score, near, 1), axis=1)
        residual = x[c][:, None, :] - centroids[near]
        r = residual[np.arange(len(near)), first]
        along = np.einsum("ijk,ik->ij", residual, r) ** 2 / np.maximum(
            squared(r), 1e-30)[:, None]
        cost = squared(residual) + SECOND_WEIGHT * along
        np.put_along_axis(cost, first[:, None], np.inf, 1)
        lists[c, 0] = near[np.arange(len(near)), first]
        lists[c, 1] = near[np.arange(len(near)), np.argmin(cost, axis=1)]
    return lists


class Index:
    """Lists and what is in them."""

    def __init__(self, x, nlists, nparents, rng):
        import numpy as np
        self.x = x
        self.centroids = kmeans(x, nlists, rng) if nparents == 1 else \
            two_levels(x, nlists, nparents, rng)
        nlists = self.nlists = len(self.centroids)
        self.lists = assign(x, self.centroids)
        rows = np.repeat(np.arange(len(x)), 2)
        copies = self.lists.ravel()
        order = np.argsort(copies, kind="stable")
        self.size = np.bincount(copies, minlength=nlists)
        # members int [nlists][largest], filled up with -1
        self.members = np.full((nlists, self.size.max()), -1)
        at = np.arange(len(rows)) - np.repeat(
            np.cumsum(self.size) - self.size, self.size)
        self.members[copies[order], at] = rows[order]
        data.say("largest list %.1f times the mean"
                 % (self.size.max() / self.size.mean()))
        self.mean = x.mean(axis=0)
        self.residual = float(np.mean(np.concatenate([
            squared(x[c] - self.centroids[self.lists[c, 0]])
            for c in chunks(len(x))])))


# -------------------------------------------------------------------- queries

class Probing:
    """What probing meets, list by list in order of distance; nq queries, P
    lists.

    d2       [nq][P]    squared distances of the centroids
    size     [nq][P]    copies in the lists
    best     [nq][P]    k-th best squared distance among rows found in the
                        lists before this one (the first: infinite)
    found    [nq][K]    which list, from 0, first has the j-th neighbor
    """

    def __init__(self, index, query, lost, itself=None):
        import numpy as np
        nq, n = len(query), len(index.x)
        p = min(index.nlists, MAX_LISTS_PROBED)
        truth = neighbors(index.x, query, itself)
        norms, cnorms = squared(index.x), squared(index.centroids)
        self.d2, self.size, self.best = (np.empty((nq, p), np.float32)
                                         for _ in range(3))
        rng = np.random.default_rng(SEED)
        self.found = np.empty((nq, K), int)
        rank = np.empty(index.nlists, int)
        for q0 in range(0, nq, 50):
            q = query[q0:q0 + 50]
            qnorm = squared(q)[:, None]
            to_rows = np.maximum(norms - 2 * (q @ index.x.T) + qnorm, 0)
            to_lists = cnorms - 2 * (q @ index.centroids.T) + qnorm
            # a score's error is 2 <q, e>, e what the code loses of a residual
            error = 2 * np.sqrt(squared(q - index.mean) * lost
                                * index.residual / q.shape[1])
            for j in range(len(q)):
                i, row = q0 + j, to_rows[j]
                order = np.argsort(to_lists[j])
                rank[order] = np.arange(index.nlists)
                first = rank[index.lists].min(axis=1)
                self.found[i] = first[truth[i]]
                order = order[:p]
                self.d2[i] = np.maximum(to_lists[j][order], 1e-12)
                self.size[i] = index.size[order]
                row += error[j] * rng.standard_normal(n, np.float32)
                if itself is not None:
                    row[itself[i]] = np.inf
                self.best[i] = best_found(index.members[order], row, first)
        self.d1 = self.d2[:, :1]
        self.read = np.cumsum(self.size, axis=1, dtype=np.float64)

    def features(self):
        """[nq][6], of a query: what is known before the first list is read."""
        import numpy as np
        last = min(49, self.d2.shape[1] - 1)
        near = self.d2[:, :last + 1]
        return np.stack([
            np.ones(len(near)), np.log(near[:, 0]),
            np.log(near[:, 1] / near[:, 0]),
            np.log(near[:, min(9, last)] / near[:, 0]),
            np.log(near[:, last] / near[:, 0]),
            np.log(near.std(axis=1) / near[:, 0] + 1e-6)], axis=1)

    def ranks(self):
        import numpy as np
        return np.broadcast_to(np.arange(1., self.d2.shape[1] + 1),
                               self.d2.shape)


def neighbors(x, query, itself):
    """int [nq][K]; for rows of the table as queries, without themselves."""
    import numpy as np
    if itself is None:
        return data.exact_neighbors(x, query, K)
    truth = data.exact_neighbors(x, query, K + 1)
    keep = truth != itself[:, None]
    keep[keep.all(axis=1), K] = False       # hidden behind K + 1 equal rows
    return truth[keep].reshape(len(query), K)


def best_found(members, distance, first):
    """float [P]: the k-th best distance in the lists before each; members [P]
    [largest].  A row counts in the first of its lists only."""
    import numpy as np
    p = len(members)
    new = (members >= 0) & (first[members] == np.arange(p)[:, None])
    d = np.where(new, distance[members], np.inf)
    if d.shape[1] > K:
        d = np.partition(d, K - 1, axis=1)[:, :K]
    best, out = np.full(K, np.inf), np.empty(p)
    for i in range(p):
        out[i] = best[-1]
        if d[i].min() < best[-1]:
            best = np.sort(np.concatenate([best, d[i]]))[:K]
    return out


# ---------------------------------------------------------------------- rules

def ratio(at):
    return at.d2 / at.d1


def patience(at):
    """Lists since the k-th best changed; 0 until there are k rows."""
    import numpy as np
    p = at.best.shape[1]
    changed = np.ones(at.best.shape, bool)
    changed[:, 1:] = at.best[:, 1:] != at.best[:, :-1]
    changed |= np.isinf(at.best)
    last = np.maximum.accumulate(np.where(changed, np.arange(p), 0), axis=1)
    return (np.arange(p) - last).astype(float)


def distance_ratio(at):
    """d_i / D; next to nothing until there are k rows."""
    import numpy as np
    return np.maximum(np.sqrt(at.d2) / np.sqrt(np.maximum(at.best, 1e-12)),
                      1e-12)


def gain_features(at, with_found):
    """[nq][P][f]"""
    import numpy as np
    query = np.broadcast_to(at.features()[:, None, :],
                            at.d2.shape + (6,))
    own = [np.log(at.ranks()), np.log(ratio(at)), ratio(at) - 1]
    if with_found:
        near = np.clip(distance_ratio(at), .25, 8)
        own += [np.log(at.size + 1), np.log(near), near,
                np.log1p(patience(at))]
    return np.concatenate([query, np.stack(own, axis=2)], axis=2)


def fit_regression(at):
    """Weights [6] of a query's features: least squares to the mean logarithm
    of the places where its neighbors are."""
    import numpy as np
    need = np.log1p(np.sort(at.found, axis=1)[:, K // 2:]).mean(axis=1)
    return np.linalg.lstsq(at.features(), need, rcond=None)[0]


def fit_gain(at, with_found, depth=300):
    """Weights of gain_features: Poisson regression of the neighbors that a
    list is the first to have, by Newton's method."""
    import numpy as np
    depth = min(depth, at.d2.shape[1])
    gained = np.zeros(at.d2.shape)
    inside = at.found < at.d2.shape[1]
    np.add.at(gained, (np.nonzero(inside)[0], at.found[inside]), 1)
    f = gain_features(at, with_found)[:, :depth]
    f, y = f.reshape(-1, f.shape[2]), gained[:, :depth].ravel()
    weights = np.zeros(f.shape[1])
    weights[0] = np.log(y.mean())
    for _ in range(30):
        expected = np.exp(np.clip(f @ weights, -30, 5))
        gradient = f.T @ (y - expected) - 1e-3 * weights
        curvature = (f * expected[:, None]).T @ f
        curvature[np.diag_indices_from(curvature)] += 1e-3
        step = np.linalg.solve(curvature, gradient)
        weights += step * min(1, 2 / np.abs(step).max())
    return weights


def ranked(b, c=0, e=0):
    """ln i + b ln (d_i^2 / d_1^2) + c ln (d_i^2 / D^2) + e ln (1 + p)"""
    import numpy as np

    def statistic(at):
        s = np.log(at.ranks()) + b * np.log(ratio(at))
        if c:
            s += 2 * c * np.log(distance_ratio(at))
        if e:
            s += e * np.log1p(patience(at))
        return s
    return statistic


def fit_ranked(at):
    """[b, c, e] of `fitted, D`: each changed in turn as long as that lessens
    the reading at recall .95."""
    def cost(weights):
        return Curve(at, ranked(*weights)(at)).read_at(.95)

    best = [5, 5, 0]
    least, better = cost(best), True
    while better:
        better = False
        for i in range(len(best)):
            for value in WEIGHTS:
                tried = best[:i] + [value] + best[i + 1:]
                read = cost(tried)
                if read < least:
                    best, least, better = tried, read, True
    return best


def rules(learn_from):
    """What was fitted, and [(name, f(Probing) -> [nq][P])]."""
    import numpy as np
    fitted = fit_ranked(learn_from)
    w = fit_regression(learn_from)
    g, gd = fit_gain(learn_from, False), fit_gain(learn_from, True)
    told = {"regression": w.tolist(), "gain": g.tolist(),
            "fitted, D": fitted, "gain, D": gd.tolist()}
    return told, [
        ("fixed", lambda at: at.ranks()),
        ("ratio", ratio),
        ("difference", lambda at: at.d2 - at.d1),
        ("ranked", ranked(5)),
        ("regression", lambda at: np.log(at.ranks())
         - (at.features() @ w)[:, None]),
        ("gain", lambda at: -(gain_features(at, False) @ g)),
        ("patience", patience),
        ("bound", lambda at: np.sqrt(at.d2)
         - np.sqrt(np.maximum(at.best, 0))),
        ("ranked, D", ranked(5, 5)),
        ("fitted, D", ranked(*fitted)),
        ("gain, D", lambda at: -(gain_features(at, True) @ gd)),
    ]


# ----------------------------------------------------------------- comparison

class Curve:
    """Recall and reading of a rule at many constants.

    hits, read float [nq][T]: of each query at each constant t[T], ascending.
    """

    def __init__(self, at, statistic, constants=None):
        import numpy as np
        # the first list is always read; once over the constant, always over
        s = np.where(np.isfinite(statistic), statistic, -1e30)
        s = np.maximum.accumulate(s[:, 1:], axis=1)
        if constants is None:
            # denser where few lists are probed
            share = np.linspace(0, 1, THRESHOLDS) ** 2.5
            constants = np.unique(np.quantile(s[s > -1e29], share))
        probed = np.stack([1 + np.searchsorted(row, constants, side="right")
                           for row in s])
        self.t, self.probed = constants, probed
        self.hits = (at.found[:, :, None] < probed[:, None, :]).mean(axis=1)
        self.read = np.take_along_axis(at.read, probed - 1, 1)

    def read_at(self, target, of=slice(None)):
        return self.at(target, self.read, of)

    def constant_at(self, target, of=slice(None)):
        return self.at(target, None, of)

    def at(self, target, what, of):
        """Copies read, or the constant, where recall first is the target;
        straight between constants; infinite if that is never."""
        import numpy as np
        recall = self.hits[of].mean(axis=0)
        value = self.t if what is None else what[of].mean(axis=0)
        i = int(np.argmax(recall >= target))
        if recall[i] < target:
            return float("inf")
        if i == 0:
            return float(value[0])
        share = (target - recall[i - 1]) / (recall[i] - recall[i - 1])
        return float(value[i - 1] + share * (value[i] - value[i - 1]))


def oracle(at, targets):
    """Copies read by the best number of lists for each query: neighbors are
    taken in order of copies to be read for each one more, along the convex
    hull of each query's own curve."""
    import numpy as np
    steps = []
    for found, read in zip(at.found, at.read):
        places, counts = np.unique(found[found < len(read)],
                                   return_counts=True)
        x = np.concatenate([[0], read[places]])
        y = np.concatenate([[0], np.cumsum(counts)])
        i = 0
        while i + 1 < len(x):
            slope = (y[i + 1:] - y[i]) / (x[i + 1:] - x[i])
            j = i + 1 + int(np.argmax(slope))
            steps.append((slope[j - i - 1], x[j] - x[i], y[j] - y[i]))
            i = j
    steps = np.array(sorted(steps, reverse=True))
    recall = np.cumsum(steps[:, 2]) / (K * len(at.found))
    read = np.cumsum(steps[:, 1]) / len(at.found)
    return [float(np.interp(t, recall, read)) if recall[-1] >= t
            else float("inf") for t in targets]


def compare(held, found_rules, rng):
    """[{rule, target, read, saved, low, high}]: at equal recall, constants
    from the held-out queries themselves; 95 % intervals by resampling them."""
    import numpy as np
    curves = [(name, Curve(held, rule(held))) for name, rule in found_rules]
    fixed = curves[0][1]
    nq = len(held.found)
    samples = [rng.integers(0, nq, nq) for _ in range(RESAMPLES)]
    base = {t: [fixed.read_at(t, s) for s in samples] for t in TARGETS}
    out = []
    for name, curve in curves:
        for t in TARGETS:
            read, fixed_read = curve.read_at(t), fixed.read_at(t)
            again = [1 - curve.read_at(t, s) / b
                     for s, b in zip(samples, base[t])]
            low, high = np.nanpercentile(again, [2.5, 97.5])
            out.append({"rule": name, "target": t, "read": read,
                        "saved": 1 - read / fixed_read,
                        "low": low, "high": high,
                        "constant": curve.constant_at(t)})
    for t, read in zip(TARGETS, oracle(held, TARGETS)):
        out.append({"rule": "oracle", "target": t, "read": read,
                    "saved": 1 - read / fixed.read_at(t)})
    return out


def calibrated(learn_from, held, found_rules):
    """[{rule, target, recall, read}] on held-out queries, with the constants
    that reach the target on rows of the table."""
    import numpy as np
    out = []
    for name, rule in found_rules:
        own = Curve(learn_from, rule(learn_from))
        for t in TARGETS:
            constant = own.constant_at(t)
            if not np.isfinite(constant):
                out.append({"rule": name, "target": t, "recall": None})
                continue
            there = Curve(held, rule(held), np.array([constant]))
            out.append({"rule": name, "target": t, "constant": constant,
                        "recall": float(there.hits.mean()),
                        "read": float(there.read.mean())})
    return out


# --------------------------------------------------------------------- output

def names(results):
    return list(dict.fromkeys(r["rule"] for r in results))


def equal_recall_table(results, rows):
    """Share of the table read, and what that saves of the fixed number's."""
    lines = [["rule"] + ["%.2f" % t for t in TARGETS]]
    for name in names(results):
        line = [name]
        for r in (r for r in results if r["rule"] == name):
            cell = "%.2f%%" % (100 * r["read"] / rows)
            if name != "fixed":
                cell += " %+.0f" % (-100 * r["saved"])
            if name != "fixed" and "low" in r:
                cell += " (%+.0f %+.0f)" % (-100 * r["high"], -100 * r["low"])
            line.append(cell)
        lines.append(line)
    return report.table(lines, "lrrrr")


def calibrated_table(results, rows):
    lines = [["rule"] + ["%.2f" % t for t in TARGETS]]
    for name in names(results):
        lines.append([name] + [
            "-" if r["recall"] is None else
            "%.4f %.2f%%" % (r["recall"], 100 * r["read"] / rows)
            for r in results if r["rule"] == name])
    return report.table(lines, "lrrrr")


def main():
    args = parse_arguments()
    args.folder = os.path.abspath(args.folder)
    data.enter_venv("synthetic", __file__)
    import numpy as np
    rng = np.random.default_rng(SEED)
    base, query = (np.load(os.path.join(args.folder, part + ".npy"))
                   for part in ("base", "query"))
    if args.rows and args.rows < len(base):
        base = base[np.sort(rng.choice(len(base), args.rows, replace=False))]
    if args.cosine:
        base, query = dataset.unit(base), dataset.unit(query)
    nlists = args.lists or len(base) // ROWS_A_LIST
    data.say("%s: %d x %d, %d lists" % (args.folder, *base.shape, nlists))
    index = Index(base, nlists, args.parents, rng)
    itself = rng.choice(len(base), args.calibration, replace=False)
    data.say("probing for %d held-out queries" % len(query))
    held = Probing(index, query, args.lost)
    data.say("probing for %d rows of the table" % len(itself))
    learn_from = Probing(index, base[itself], args.lost, itself)
    weights, found_rules = rules(learn_from)
    equal = compare(held, found_rules, rng)
    applied = calibrated(learn_from, held, found_rules)
    data.say("\ncopies read / rows of the table where held-out recall@10 is "
             "the target;\nmore or less than fixed, in %, with a 95 % "
             "interval\n")
    data.say("\n".join(equal_recall_table(equal, len(base))))
    data.say("\nrecall@10 of held-out queries and share read, constants "
             "from rows of the table\n")
    data.say("\n".join(calibrated_table(applied, len(base))))
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"folder": args.folder, "rows": len(base),
                       "dims": base.shape[1], "lists": nlists,
                       "weights": weights, "equal_recall": equal,
                       "calibrated": applied}, f, indent=1)
            f.write("\n")


if __name__ == "__main__":
    main()
