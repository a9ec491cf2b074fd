"""The conditions that where.py searches under, which rows each of a query's
answers may have, and which of them are the nearest."""
import data
import dataset

SEED = 7
SHARES = {"50": 2, "10": 10, "3": 33, "1": 100, ".3": 333, ".1": 1000}
CLUSTERS = {"10": 10, "1": 100, ".1": 1000}     # share in %: k of k-means
RADIUS_ROWS = [0, 1, 10, 1000]
K = 10
KEYED_SHARES = [50, 10, 3, 1, .3, .1]
KEYED_CLUSTERS = {"10": 10, "1": 100}
WIDEST = 1000                                   # values of the random key
SAMPLE, ITERATIONS = 20000, 8                   # of k-means
AT_ONCE = 100                                   # queries whose products stand


class Case:
    """A condition, `%(c)s` in it standing for a query's value of it; `rows`
    gives the rows that fulfill it for such a value, None: all."""

    def __init__(self, name, kind, share, condition="", values=None,
                 rows=None, limit=K, column=None):
        self.name, self.kind, self.share = name, kind, share
        self.condition, self.values, self.rows = condition, values, rows
        self.limit, self.column = limit, column
        self.inside = None                      # rows within a radius
        self.free = None                        # the case without a condition
        self.reach, self.wanted = [], []        # of each query


# --------------------------------------------------------------------- columns

def cluster(base, k, rng):
    """(labels [n], centroids [k][d]) by Lloyd's algorithm on a sample."""
    import numpy as np
    sample = base[rng.choice(len(base), min(len(base), SAMPLE), replace=False)]
    centroids = sample[rng.choice(len(sample), k, replace=False)].copy()
    for _ in range(ITERATIONS):
        label = nearest(sample, centroids)
        for c in np.unique(label):
            centroids[c] = sample[label == c].mean(axis=0)
    return nearest(base, centroids), centroids


def nearest(x, centroids):
    """The number of each row's nearest centroid."""
    import numpy as np
    norms = (centroids * centroids).sum(1)
    return np.concatenate([
        np.argmin(norms - 2 * (x[at:at + 4096] @ centroids.T), axis=1)
        for at in range(0, len(x), 4096)]).astype(np.int32)


def farthest(query, centroids, sizes):
    """The number of the farthest centroid that has rows enough."""
    import numpy as np
    off = (centroids * centroids).sum(1) - 2 * (query @ centroids.T)
    off[:, sizes < K] = -np.inf
    return np.argmax(off, axis=1).astype(np.int32)


def clustered(shares, base, query, columns, rng, near_kind, far_kind):
    """Cases of the query's own cluster and of the farthest one, by {share in %:
    k of k-means}; adds their columns."""
    import numpy as np
    near, far = [], []
    for share, k in shares.items():
        label, centroids = cluster(base, k, rng)
        name = "k%d" % k
        columns[name] = label
        sizes = np.bincount(label, minlength=k)
        near.append(equal("near, %s %%" % share, near_kind, float(share), name,
                          columns, nearest(query, centroids)))
        far.append(equal("far, %s %%" % share, far_kind, float(share), name,
                         columns, farthest(query, centroids, sizes)))
    return near + far


# ----------------------------------------------------------------------- cases

def equal(name, kind, share, column, columns, values):
    import numpy as np
    return Case(name, kind, share, "%s = %%(c)s" % column, values.tolist(),
                lambda c: np.flatnonzero(columns[column] == c), column=column)


def make(base, query, operator):
    """(columns of the table, cases)"""
    import numpy as np
    rng = np.random.default_rng(SEED)
    columns = {"c%d" % n: rng.integers(0, n, len(base), dtype=np.int32)
               for n in SHARES.values()}
    clusters = clustered(CLUSTERS, base, query, columns, rng, "near", "far")
    rng = np.random.default_rng(SEED + 1)
    found = [equal(share + " %", "independent", float(share), "c%d" % n,
                   columns, rng.integers(0, n, len(query)))
             for share, n in SHARES.items()]
    found += clusters
    # the planner has no idea how few rows this is
    found.append(Case(
        "mod, .1 %", "independent", .1, "mod(id, 1000) = %(c)s",
        rng.integers(0, 1000, len(query)).tolist(),
        lambda c: np.arange(c, len(base), 1000)))
    found.append(Case("no row", "empty", 0, "c10 = %(c)s", [-1] * len(query),
                      lambda c: np.arange(0), column="c10"))
    for n in RADIUS_ROWS:
        case = Case("radius, %d" % n, "radius", 0,
                    "v %s %%(q)s < %%(c)s" % operator, [None] * len(query),
                    limit=max(n, K))
        case.inside = n
        found.append(case)
    found += [Case("none", "none", 100),
              Case("none, LIMIT 1000", "none", 100, limit=1000)]
    for case in found:
        if case.inside is not None:
            case.free = next(c for c in found if c.kind == "none"
                             and c.limit == case.limit)
    return columns, found


def in_range(share, columns, rng, nqueries):
    """A range of the random key, in which this share of the rows is."""
    width = max(1, round(share * WIDEST / 100))
    low = rng.integers(0, WIDEST - width + 1, nqueries)
    return Case("%g %%" % share, "keys", share,
                "r >= %%(c)s AND r < %%(c)s + %d" % width, low.tolist(),
                lambda c: ((columns["r"] >= c)
                           & (columns["r"] < c + width)).nonzero()[0])


def make_keyed(base, query):
    """(columns of the table, cases) that keys r, k10 and k100 answer; o is none."""
    import numpy as np
    rng = np.random.default_rng(SEED)
    asked = np.random.default_rng(SEED + 1)
    columns = {"r": rng.integers(0, WIDEST, len(base), dtype=np.int32),
               "o": rng.integers(0, 10, len(base), dtype=np.int32)}
    found = [in_range(s, columns, asked, len(query)) for s in KEYED_SHARES]
    found += clustered(KEYED_CLUSTERS, base, query, columns, rng,
                       "clustered", "clustered")
    for word, column in ("two keys", "k10"), ("a filter, too", "o"):
        found.append(Case(
            word + ", 1 %", "combined", 1,
            "r < 100 AND %s = %%(c)s" % column,
            asked.integers(0, 10, len(query)).tolist(),
            lambda c, column=column: np.flatnonzero(
                (columns["r"] < 100) & (columns[column] == c))))
    free = Case("none", "none", 100)
    for case in found:
        case.free = free
    return columns, [*found, free]


# ----------------------------------------------------------------------- truth

class Truth(dataset.Judge):
    """Says how many of the nearest rows that fulfill a case's condition were
    found: those no farther than the last of them, so that of equally far rows
    any will do."""

    def __init__(self, base, query, metric):
        self.base, self.query, self.metric = base, query, metric
        if metric == "cosine":
            self.base, self.query = dataset.unit(base), dataset.unit(query)

    def learn(self, cases):
        """Each case's reach and number of true rows, and radii."""
        norms = (self.base * self.base).sum(1)
        for q0 in range(0, len(self.query), AT_ONCE):
            data.say("  truth of query %d" % q0)
            off = norms - 2 * (self.query[q0:q0 + AT_ONCE] @ self.base.T)
            for i in range(len(off)):
                for case in cases:
                    self.learn_query(case, q0 + i, off[i])

    def learn_query(self, case, i, off):
        import numpy as np
        ids = case.rows(case.values[i]) if case.rows else np.arange(len(off))
        # one more than wanted: a radius ends before it
        count = min(len(ids), (case.limit if case.inside is None
                               else case.inside + 1))
        if count == 0:
            case.reach.append(-1.)
            case.wanted.append(0)
            return
        few = min(len(ids), 2 * count + 10)
        near = ids[np.argpartition(off[ids], few - 1)[:few]]
        far = np.sort(self.distances(i, near))[:count]
        if case.inside is not None:
            case.values[i] = self.radius(case.inside, far)
            far = far[:case.inside]
        case.reach.append(float(far[-1]) if len(far) else -1.)
        case.wanted.append(len(far))

    def radius(self, inside, far):
        """Between the last row inside and the first outside, as the operator
        counts."""
        low = far[inside - 1] if inside else 0
        middle = (low + far[inside]) / 2
        return float(middle / 2 if self.metric == "cosine" else middle ** .5)

    def recall(self, case, i, ids):
        if case.wanted[i] == 0:
            return 1.
        distinct = sorted(set(ids))
        if not distinct:
            return 0.
        near = self.distances(i, distinct) <= case.reach[i] * (1 + self.SLACK)
        return min(int(near.sum()), case.wanted[i]) / case.wanted[i]
