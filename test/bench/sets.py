#!/usr/bin/env python3
"""Exact search and k-means of gpuvec's engine for processors beside
faiss-cpu's, on one core, in turns, over the same numbers.

usage: sets.py [--rounds N] [--dims N] [--seed N]

Needs gcc; takes numpy and faiss-cpu from PyPI when they are missing.  Prints
the median of each and the median ratio of neighbors in time; a neighbor that
differs from Faiss's must be at a distance that fp32 cannot tell from that of
Faiss's.
"""
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import data
import setlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH = 2048                    # rows that come at a time


def load_engine(folder):
    library = folder / "sets.so"
    sources = [*(ROOT / "src/engine").rglob("*.c"),
               *(ROOT / "src/cpu").rglob("*.c"), ROOT / "test/bench/setlib.c"]
    subprocess.run(["gcc", "-std=gnu99", "-O3", "-ffp-contract=off", "-fPIC",
                    "-shared", "-I", ROOT / "src",
                    *(s for s in sources if s.name != "gv_fault.c"), "-lm",
                    "-o", library], check=True)
    return setlib.load(library)


def run(kind, first, x):
    """A set that has finished: passes over rows, until there are no more."""
    kind.put(*first)
    while True:
        for at in range(0, len(x), BATCH):
            kind.put(setlib.ROWS, x[at:at + BATCH], at)
        if not kind.run():
            return kind


def timed(work):
    began = time.process_time()
    found = work()
    return time.process_time() - began, found


def report(what, pairs):
    print("%-44s ours %7.3f s  faiss %7.3f s  ratio %.2f" % (
        what, statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs)), flush=True)


def check_exact(found, expected, x, query, metric):
    """Positions may differ where distances are the same to fp32."""
    import numpy as np
    for q in np.nonzero((found != expected).any(axis=1))[0]:
        def distances(positions):
            rows = x[positions].astype(np.float64)
            if metric == "ip":
                return rows @ query[q].astype(np.float64)
            return ((rows - query[q]) ** 2).sum(axis=1)
        a, b = distances(found[q]), distances(expected[q])
        size = 1 + float((query[q] ** 2).sum()) + float((x[0] ** 2).sum())
        if np.abs(a - b).max() > 1e-4 * size:
            sys.exit("sets.py: query %d differs from faiss" % q)


def exact(lib, args, x, query, metric, k):
    import faiss
    import numpy as np
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    pairs, found = [], np.empty((len(query), k), np.int64)

    def search():
        made = run(setlib.Set(lib, *x.shape, k, metric, len(query)),
                   (setlib.QUERIES, query), x)
        made.get(setlib.POSITIONS, found)
        made.close()
    for _ in range(args.rounds):
        mine, _ = timed(search)
        theirs, expected = timed(lambda: faiss.knn(query, x, k, metric=kind)[1])
        pairs.append((mine, theirs))
    check_exact(found, expected, x, query, metric)
    report("exact %s, %d x %d x %d, k %d" % (metric, len(query), len(x),
                                             x.shape[1], k), pairs)


def kmeans(lib, args, x, k, iterations):
    import faiss
    import numpy as np

    def ours():
        made = run(setlib.Set(lib, *x.shape, k, iterations=iterations),
                   (setlib.SEEDS, x[:k]), x)
        made.close()
        return made.error.value

    def theirs():
        peer = faiss.Clustering(x.shape[1], k)
        peer.niter = iterations
        peer.max_points_per_centroid = len(x)
        index = faiss.IndexFlatL2(x.shape[1])
        faiss.copy_array_to_vector(x[:k].ravel(), peer.centroids)
        peer.train(x, index)
        # the pass that gives sizes and the error
        return index.search(x, 1)[0].sum(dtype=np.float64)
    found = [(timed(ours), timed(theirs)) for _ in range(args.rounds)]
    report("k-means, %d x %d, k %d, %d iterations" % (
        *x.shape, k, iterations), [(a[0], b[0]) for a, b in found])
    print("%-44s ours %.5g  faiss %.5g" % (
        "  error", found[-1][0][1], found[-1][1][1]))


def main():
    parser = data.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data.enter_venv("faiss", __file__)
    import faiss
    import numpy as np
    faiss.omp_set_num_threads(1)
    print("faiss", faiss.__version__, faiss.get_compile_options())
    random = np.random.default_rng(args.seed)

    def normal(n):
        return random.standard_normal((n, args.dims), dtype=np.float32)
    x, query = normal(100000), normal(10000)
    with tempfile.TemporaryDirectory() as folder:
        lib = load_engine(pathlib.Path(folder))
        exact(lib, args, x, query[:2000], "l2", 10)
        exact(lib, args, x, query[:2000], "ip", 10)
        exact(lib, args, x, query[:200], "l2", 1000)
        exact(lib, args, x, query[:1], "l2", 10)
        exact(lib, args, x, query, "l2", 10)
        kmeans(lib, args, x, 1024, 10)


if __name__ == "__main__":
    main()
