#!/usr/bin/env python3
"""A k-NN graph on a card, k = 10, among the rows of near lists: how long it
takes with the rows on the card, and how much of the exact graph it has.

usage: graphcard.py [--rows N] [--dims D] [--lists L] [--probes P,P,..]
                    [--iterations I] [--peers FOLDER]

Rows have 24 latent dimensions and 4,096 centers.  Lists are made by k-means
of a tenth of the rows, whose time counts; recall is of 1,000 rows, whose
neighbors are sought among all rows.  --peers has cuVS' NN-descent make graphs of
the same rows (packpeers.py), and compares them with the quickest of ours.
cuBLAS's bare product stands beside exactcard.py's graph of all pairs instead:
rows of near lists are thousands of small products.
Needs an NVIDIA card, nvcc, gcc and torch; compiles the engine first.
"""
import time

import torch

import cardbuild
import cardpeers
import data
import setlib

K = 10
SAMPLE = 1000


def make_lists(lib, rows, nlists, iterations):
    """Centroids, on the host, and seconds."""
    dims = rows.shape[1]
    share = max(1, min(10, len(rows) // (64 * nlists)))
    torch.cuda.synchronize()
    began = time.perf_counter()
    sample = rows[::share].contiguous()
    starts = sample[::len(sample) // nlists][:nlists].contiguous()
    centroids = torch.empty(nlists, dims)
    torch.cuda.synchronize()
    clusters = setlib.Set(lib, len(sample), dims, nlists,
                          iterations=iterations)
    clusters.put(setlib.SEEDS, starts)
    clusters.put(setlib.ROWS, sample)
    while clusters.run():
        pass
    found = clusters.get(setlib.CENTROIDS, centroids[:clusters.found.value])
    clusters.close()
    return found.contiguous(), time.perf_counter() - began


class Graph(setlib.Set):
    """A search of queries that are rows themselves, numbers `own`."""

    def __init__(self, lib, rows, own, centroids, probes):
        super().__init__(lib, *rows.shape, K, "l2", len(own), own=True,
                         nlists=0 if centroids is None else len(centroids),
                         probes=probes)
        self.inputs = [(setlib.QUERIES, rows if len(own) == len(rows) else
                        rows[own].contiguous()), (setlib.SELF, own)]
        if centroids is not None:
            self.inputs.append((setlib.LISTS, centroids))
        self.inputs.append((setlib.ROWS, rows))

    def search(self):
        """Seconds."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for what, items in self.inputs:
            self.put(what, items)
        self.run()
        return time.perf_counter() - began

    def neighbors(self, query, n=1):
        return (self.get(setlib.POSITIONS, torch.empty(n, K, dtype=torch.int64),
                         query * K),
                self.get(setlib.DISTANCES,
                         torch.empty(n, K, dtype=torch.float64), query * K))


def recall_of(graph, some, truth):
    hits = 0
    for i, query in enumerate(some.tolist()):
        found = graph.neighbors(query)[0][0]
        hits += torch.isin(found, truth[i]).sum().item()
    return hits / truth.numel()


def run_graph(lib, rows, own, centroids, probes, truth, kmeans):
    began = time.perf_counter()
    graph = Graph(lib, rows, own, centroids, probes)
    made = time.perf_counter() - began
    before = cardbuild.slower_ways(lib)
    took = graph.search()
    after = cardbuild.slower_ways(lib)
    recall = recall_of(graph, *truth)
    graph.close()
    print(f"  {len(centroids)} lists, {probes} near: {took:.3f} s, with "
          f"k-means {took + kmeans:.3f}, and memory "
          f"{took + kmeans + made:.3f}; recall {recall:.4f}; other ways "
          f"{after[0] - before[0]:,} and {after[1] - before[1]:,}", flush=True)
    return took + kmeans


def main():
    parser = data.parser(__doc__)
    parser.add_argument("--rows", type=int, default=10000000)
    parser.add_argument("--dims", type=int, default=96)
    parser.add_argument("--lists", default="8192")
    parser.add_argument("--probes", default="32,64,128")
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--peers", metavar="FOLDER")
    args = parser.parse_args()
    lib = cardbuild.library()
    rows = cardbuild.Rows(args.dims, 7).make(args.rows)
    own = torch.arange(len(rows), device="cuda")
    some = own[::max(1, len(rows) // SAMPLE)][:SAMPLE].contiguous()
    graph = Graph(lib, rows, some, None, 0)
    took = graph.search()
    truth = graph.neighbors(0, len(some))[0]
    graph.close()
    print(f"{args.rows:,} x {args.dims}, k {K}; {SAMPLE} queries among all "
          f"rows {took:.3f} s", flush=True)
    ours = []
    for nlists in map(int, args.lists.split(",")):
        make_lists(lib, rows, nlists, 1)
        centroids, kmeans = make_lists(lib, rows, nlists, args.iterations)
        print(f"  k-means {kmeans:.3f} s", flush=True)
        for probes in map(int, args.probes.split(",")):
            ours.append(run_graph(lib, rows, own, centroids, probes,
                                  (some, truth), kmeans))
    if args.peers:
        print(cardpeers.open_peers(args.peers), flush=True)
        cardpeers.print_graphs(rows, some, truth.cuda(), min(ours))


if __name__ == "__main__":
    main()
