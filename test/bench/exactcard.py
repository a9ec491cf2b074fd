#!/usr/bin/env python3
"""Exact search on a card beside torch's products and topk and, with --peers,
beside Faiss and cuVS, in one run, over the same synthetic numbers, which are made
on the card.  graphcard.py has cuVS' NN-descent, too.

usage: exactcard.py [--rows N] [--queries N] [--small] [--no-graph]
                    [--no-torch] [--peers FOLDER]
                    [--matmul auto|own|cublas]

Needs an NVIDIA card, nvcc, gcc and torch.  Compiles the engine first.  Prints
queries/s with rows' half copies made each time and with halves that stay, the
ratio to torch, and how many queries needed a slower way.  Of 48 queries neighbors and
distances are compared with brute force in double; the program fails where
they differ.  --peers: what packpeers.py has put into FOLDER; "same" is the
share of their neighbors that are ours.  --matmul: who multiplies, as
gpuvec.matmul says it.  Ours is also told as a multiple of what cuBLAS's bare
product of all queries and rows takes (yard.cuh).
"""
import ctypes
import statistics
import sys

import torch

import cardbuild
import cardpeers
import data
from setlib import MATMUL, METRICS, must

SAMPLE = 48


def make(n, nqueries, dims, seed, normal):
    """Rows and queries, of length 1 if normal."""
    made = cardbuild.Rows(dims, seed)
    x, q = made.some(n), made.some(nqueries)
    if normal:
        x = torch.nn.functional.normalize(x)
        q = torch.nn.functional.normalize(q)
    return x, q


def timed(work, repeats):
    return statistics.median(cardpeers.timed(work, repeats)[0])


def brute_force(x, q, k, metric, own):
    """Positions and distances in double, of a few queries."""
    positions, distances = [], []
    for i in range(len(q)):
        parts = []
        for rows in x.split(1 << 17):
            rows, one = rows.double(), q[i].double()
            if metric == "pearson":
                rows = rows - rows.mean(1, keepdim=True)
                one = one - one.mean()
            if metric == "l2":
                parts.append(((rows - one) ** 2).sum(1).sqrt())
            elif metric == "ip":
                parts.append(-(rows @ one))
            else:
                parts.append(1 - (rows @ one) / (rows.norm(dim=1) *
                                                 one.norm()))
        all_distances = torch.cat(parts)
        if own is not None:
            all_distances[own[i]] = float("inf")
        best = all_distances.topk(k, largest=False)
        positions.append(best.indices)
        distances.append(best.values)
    return torch.stack(positions), torch.stack(distances)


class Ours:
    def __init__(self, lib, metric, x, nqueries, k):
        self.lib, self.x, self.k, self.n = lib, x, k, nqueries
        self.bench = lib.bench_open(METRICS[metric], x.shape[1], len(x),
                                    nqueries, k)
        if not self.bench:
            sys.exit("exactcard.py: no memory, no card, or no cuBLAS")
        self.rows()

    def rows(self):
        must(self.lib.bench_rows(self.bench, self.x.data_ptr()), "rows")

    def search(self, q, own=None):
        must(self.lib.bench_search(self.bench, q.data_ptr(),
                                   None if own is None else own.data_ptr()),
             "search")

    def times(self, q, n):
        """Seconds of n searches as C sees them, without Python's share."""
        times = (ctypes.c_double * n)()
        must(self.lib.bench_times(self.bench, q.data_ptr(), n, times),
             "searches")
        return list(times)

    def get(self):
        positions = torch.empty(self.n, self.k, dtype=torch.int64,
                                device="cuda")
        distances = torch.empty(self.n, self.k, dtype=torch.float64,
                                device="cuda")
        must(self.lib.bench_get(self.bench, positions.data_ptr(),
                                distances.data_ptr()), "results")
        return positions, distances

    def yard(self):
        """Seconds of cuBLAS's bare product."""
        return self.lib.bench_yard(self.n, *self.x.shape) / 1e6

    def close(self):
        self.lib.bench_drop(self.bench)


def check(ours, x, q, metric, own=None):
    """Of a sample: recall, and the largest relative error of a distance."""
    positions, distances = ours.get()
    some = torch.arange(0, len(q), max(1, len(q) // SAMPLE),
                        device="cuda")[:SAMPLE]
    want, far = brute_force(x, q[some], ours.k, metric,
                            None if own is None else own[some])
    recall = (positions[some] == want).double().mean().item()
    error = ((distances[some] - far).abs() /
             far.abs().clamp(min=1e-9)).max().item()
    print(f"  recall {recall:.4f}, distances within {error:.1e} of double's "
          f"({len(some)} queries)")
    if recall < 1 or not error < 1e-9:
        print("  DIFFERENT NEIGHBORS")
        return False
    return True


def torch_search(x, squares, q, k, dtype):
    """As johnson-2017, 5.1: tiles of products, and a selection of each."""
    best = None
    xs = x.to(dtype)
    qs = q.to(dtype)
    tile = max(1 << 14, (1 << 31) // (4 * len(q)))
    for first in range(0, len(x), tile):
        last = first + tile
        scores = squares[first:last] - 2 * (qs @ xs[first:last].T).float()
        near = scores.topk(min(k, scores.shape[1]), largest=False)
        found = (near.values, near.indices + first)
        if best is not None:
            values = torch.cat([best[0], found[0]], 1)
            indices = torch.cat([best[1], found[1]], 1)
            near = values.topk(k, largest=False)
            found = (near.values, indices.gather(1, near.indices))
        best = found
    return best


def print_peer(name, nqueries, seconds, ours, same):
    print(f"  {name:11s} {nqueries / seconds:12,.0f} queries/s "
          f"{1e3 * seconds:9.3f} ms   ours is {seconds / ours:.1f} times "
          f"as fast; same {same:.4f}")


def peers(args, x, q, expected, ours, repeats):
    """Others beside ours, seconds, and its neighbors expected [n][k]."""
    k = expected.shape[1]
    squares = (x * x).sum(1)
    half = x.half()
    for name, rows, dtype, tf32 in (("torch half", half, torch.float16, False),
                                    ("torch tf32", x, torch.float32, True)):
        if not args.torch:
            break
        torch.backends.cuda.matmul.allow_tf32 = tf32

        def search():
            return torch_search(rows, squares, q, k, dtype)[1]
        print_peer(name, len(q), timed(search, repeats), ours,
                   cardpeers.share_of_same(search(), expected))
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, make in cardpeers.EXACT.items():
        if not args.peers:
            break
        search = make(x, q, k)
        print_peer(name, len(q), timed(search, repeats), ours,
                   cardpeers.share_of_same(search(), expected))


def graph_peers(x, expected, ours):
    """Graphs of all rows, once each; expected [n][k] as above."""
    k = expected.shape[1]
    for name in cardpeers.EXACT:
        seconds, graph = cardpeers.exact_graph(name, x, k)
        print(f"  {name:26s} {seconds:8.3f} s   ours is "
              f"{seconds / ours:.1f} times as fast; same "
              f"{cardpeers.share_of_same(graph, expected):.4f}")


def product_share(x, q, seconds):
    terms = 2.0 * len(x) * len(q) * x.shape[1]
    return terms / seconds / 1e12


def print_yard(yard, ours):
    print(f"  cuBLAS's bare product {1e3 * yard:.3f} ms: ours is "
          f"{ours / yard:.2f} times that")


def run_batch(lib, what, metric, x, q, args):
    k = 10
    ours = Ours(lib, metric, x, len(q), k)
    before = cardbuild.slower_ways(lib)

    def whole():
        ours.rows()
        ours.search(q)
    stays = timed(lambda: ours.search(q), args.repeats)
    each = timed(whole, args.repeats)
    print(f"{what}: {len(q):,} queries, {metric}, k {k}")
    print(f"  halves stay {len(q) / stays:12,.0f} queries/s "
          f"{1e3 * stays:9.3f} ms {product_share(x, q, stays):5.0f} TFLOP/s")
    print(f"  made anew   {len(q) / each:12,.0f} queries/s "
          f"{1e3 * each:9.3f} ms")
    print_yard(ours.yard(), stays)
    after = cardbuild.slower_ways(lib)
    print(f"  slower ways: {after[0] - before[0]:,} by the matrix, "
          f"{after[1] - before[1]:,} slowly, of all runs")
    good = check(ours, x, q, metric)
    expected, _ = ours.get()
    ours.close()
    if metric == "l2":
        peers(args, x, q, expected, stays, 2)
    sys.stdout.flush()
    return good


def run_few(lib, what, x, q, args):
    good = True
    for n in (1, 4, 8, 16):
        ours = Ours(lib, "l2", x, n, 10)
        some = q[:n].contiguous()
        seconds = timed(lambda: ours.search(some), 50)
        times = ours.times(some, 300)
        print(f"{what}: {n} queries, half copies stay: {1e6 * seconds:.0f} us "
              f"({2e-12 * len(x) * x.shape[1] / seconds:.2f} TB/s), from C "
              f"{1e6 * statistics.median(times):.1f} and "
              f"{1e6 * min(times):.1f} at least")
        print_yard(ours.yard(), statistics.median(times))
        good &= check(ours, x, some, "l2")
        expected, _ = ours.get()
        ours.close()
        if n in (1, 16):
            peers(args, x, some, expected, seconds, 20)
    sys.stdout.flush()
    return good


def run_graph(lib, what, x, args):
    own = torch.arange(len(x), device="cuda")
    ours = Ours(lib, "l2", x, len(x), 10)
    before = cardbuild.slower_ways(lib)
    seconds = timed(lambda: ours.search(x, own), 1)
    after = cardbuild.slower_ways(lib)
    print(f"{what}: k-NN graph, k 10: {seconds:.3f} s "
          f"{product_share(x, x, seconds):.0f} TFLOP/s")
    print_yard(ours.yard(), seconds)
    print(f"  slower ways: {after[0] - before[0]:,} by the matrix, "
          f"{after[1] - before[1]:,} slowly")
    good = check(ours, x, x, "l2", own)
    expected, _ = ours.get()
    ours.close()
    if args.peers:
        graph_peers(x, expected, seconds)
    sys.stdout.flush()
    return good


def main():
    parser = data.parser(__doc__)
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--queries", type=int, default=10000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true",
                        help="a twentieth of the rows, to see that it works")
    parser.add_argument("--no-graph", dest="graph", action="store_false")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--peers", metavar="FOLDER",
                        help="measure the libraries there, too")
    parser.add_argument("--matmul", choices=MATMUL, default="auto")
    args = parser.parse_args()
    share = 20 if args.small else 1
    good = True
    lib = cardbuild.library(args.matmul)
    if args.peers:
        print(cardpeers.open_peers(args.peers), flush=True)
    n = args.rows or 1000000 // share
    x, q = make(n, args.queries, 128, 7, False)
    name = f"{n:,} x 128"
    good &= run_batch(lib, name, "l2", x, q, args)
    if args.graph:
        good &= run_graph(lib, name, x, args)
    del x, q
    n = args.rows or 819285 // share
    x, q = make(n, args.queries, 384, 1, True)
    name = f"{n:,} x 384"
    for metric in ("l2", "cosine", "pearson", "ip"):
        good &= run_batch(lib, name, metric, x, q, args)
    good &= run_few(lib, name, x, q, args)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
