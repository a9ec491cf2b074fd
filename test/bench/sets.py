#!/usr/bin/env python3
"""Exact search and k-means of gpuvec's engine for processors beside
faiss-cpu's, on one core, in turns, over the same numbers.

usage: sets.py [--rounds N] [--dims N] [--seed N]

Needs gcc; installs numpy and faiss-cpu from PyPI into build/python/ when they
are missing.  Prints the median of each and the median ratio of neighbors in
time; a neighbor that differs from Faiss's must be at a distance that fp32
cannot tell from that of Faiss's.
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ["numpy", "faiss-cpu"]
METRICS = {"l2": 1, "ip": 2}


def use_packages():
    """Run again with packages in a virtual environment, if need be."""
    try:
        import faiss
        return faiss
    except ImportError:
        pass
    home = ROOT / "build" / "python"
    python = home / "bin" / "python"
    if os.environ.get("GPUVEC_SETS_AGAIN"):
        sys.exit("sets.py: faiss-cpu is not there")
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run([python, "-m", "pip", "-q", "install", *PACKAGES],
                   check=True)
    os.environ["GPUVEC_SETS_AGAIN"] = "1"
    os.execv(python, [str(python), *sys.argv])


def compile_driver(folder):
    driver = folder / "sets"
    sources = [*(ROOT / "src/engine").rglob("*.c"),
               *(ROOT / "src/cpu").rglob("*.c"), ROOT / "test/bench/sets.c"]
    subprocess.run(["gcc", "-std=gnu99", "-O3", "-ffp-contract=off",
                    "-I", ROOT / "src", *sources, "-lm", "-o", driver],
                   check=True)
    return driver


def ours(driver, *arguments):
    """Seconds, and what was found."""
    done = subprocess.run([driver, *map(str, arguments)], check=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return float(done.stdout), done.stderr


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


def exact(driver, args, x, query, metric, k):
    import faiss
    import numpy as np
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    with tempfile.NamedTemporaryFile() as file:
        np.concatenate([query, x]).tofile(file.name)
        pairs = []
        for _ in range(args.rounds):
            mine, found = ours(driver, "exact", METRICS[metric], k,
                               x.shape[1], len(query), len(x), file.name)
            theirs, expected = timed(
                lambda: faiss.knn(query, x, k, metric=kind)[1])
            pairs.append((mine, theirs))
    found = np.frombuffer(found, np.int64).reshape(-1, k)
    check_exact(found, expected, x, query, metric)
    report("exact %s, %d x %d x %d, k %d" % (metric, len(query), len(x),
                                             x.shape[1], k), pairs)


def kmeans(driver, args, x, k, iterations):
    import faiss
    import numpy as np
    with tempfile.NamedTemporaryFile() as file:
        np.concatenate([x[:k], x]).tofile(file.name)
        pairs = []
        for _ in range(args.rounds):
            mine, found = ours(driver, "kmeans", iterations, k, x.shape[1],
                               len(x), file.name)
            peer = faiss.Clustering(x.shape[1], k)
            peer.niter = iterations
            peer.max_points_per_centroid = len(x)
            index = faiss.IndexFlatL2(x.shape[1])

            def train():
                faiss.copy_array_to_vector(x[:k].ravel(), peer.centroids)
                peer.train(x, index)
                # the pass that gives sizes and the error
                return index.search(x, 1)[0].sum(dtype=np.float64)
            theirs, error = timed(train)
            pairs.append((mine, theirs))
    report("k-means, %d x %d, k %d, %d iterations" % (
        *x.shape, k, iterations), pairs)
    print("%-44s ours %.5g  faiss %.5g" % (
        "  error", np.frombuffer(found, np.float64)[0], error))


def main():
    faiss = use_packages()
    import numpy as np
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    faiss.omp_set_num_threads(1)
    print("faiss", faiss.__version__, faiss.get_compile_options())
    random = np.random.default_rng(args.seed)

    def normal(n):
        return random.standard_normal((n, args.dims), dtype=np.float32)
    x, query = normal(100000), normal(10000)
    with tempfile.TemporaryDirectory() as folder:
        driver = compile_driver(pathlib.Path(folder))
        exact(driver, args, x, query[:2000], "l2", 10)
        exact(driver, args, x, query[:2000], "ip", 10)
        exact(driver, args, x, query[:200], "l2", 1000)
        exact(driver, args, x, query[:1], "l2", 10)
        exact(driver, args, x, query, "l2", 10)
        kmeans(driver, args, x, 1024, 10)


if __name__ == "__main__":
    main()
