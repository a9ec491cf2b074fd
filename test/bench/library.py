"""Faiss's IVF-PQ of 4 bits (FastScan) with re-ranking by the rows themselves:
what a library on the same cores does, without a server, a log or a snapshot."""
import os
import time

import dataset
from systems import Point

K = 10
PROBES = [1, 2, 4, 8, 16, 32, 64, 128, 256]
CANDIDATES = 100                # that are re-ranked
TRAINING_ROWS = 256             # a list


class Faiss:
    """One index, as many lists and sub-quantizers as a rule of thumb gives;
    one thread."""

    def __init__(self, found, args, system):
        import faiss
        lists = max(16, round(4 * found.rows ** .5))
        m = max(1, found.dims // 2)
        self.base, self.query = found.base, found.query
        if args.metric == "cosine":     # the same neighbors as by l2
            self.base = dataset.unit(self.base)
            self.query = dataset.unit(self.query)
        self.index = faiss.index_factory(
            found.dims, "IVF%d,PQ%dx4fs,RFlat" % (lists, m))
        self.index.k_factor = CANDIDATES / K
        faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
        start = time.monotonic()
        self.index.train(self.base[:lists * TRAINING_ROWS])
        self.index.add(self.base)
        system.build_s = time.monotonic() - start
        system.workers = len(os.sched_getaffinity(0)) - 1
        system.bytes = found.rows * (m // 2 + 8) + lists * found.dims * 4
        system.options = "IVF%d,PQ%dx4fs, %d candidates" % (lists, m,
                                                            CANDIDATES)
        system.info = {"in_plan": "-", "version": faiss.__version__}
        faiss.omp_set_num_threads(1)

    def set(self, point):
        import faiss
        faiss.extract_index_ivf(self.index.base_index).nprobe = \
            point.settings["nprobe"]

    def sweep(self, truth):
        points = [Point("nprobe %d" % p, {"nprobe": p}, p == 32)
                  for p in PROBES]
        for point in points:
            self.set(point)
            _, got = self.index.search(self.query, K)
            point.recall = sum(
                len(set(a.tolist()) & set(b.tolist()))
                for a, b in zip(got, truth)) / (K * len(truth))
        return points

    def rate(self, point, seconds):
        """Queries/s, one after the other."""
        self.set(point)
        done, start = 0, time.monotonic()
        while time.monotonic() - start < seconds:
            i = done % len(self.query)
            self.index.search(self.query[i:i + 1], K)
            done += 1
        return done / (time.monotonic() - start)
