#!/usr/bin/env python3
"""Faiss's scan of 4-bit codes on one core, beside `check_engine --bench`
(test/unit/engine/bench_engine.c): needs faiss-cpu from PyPI.

usage: fastscan.py
"""
import time

import faiss
import numpy as np

M = 148                                   # sub-quantizers
ROUNDS = 60


def best_seconds(index, query, k):
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        index.search(query, k)
        took.append(time.perf_counter() - began)
    return min(took)


def main():
    faiss.omp_set_num_threads(1)
    random = np.random.default_rng(0)
    query = random.standard_normal((1, 2 * M)).astype(np.float32)
    print("faiss", faiss.__version__, faiss.get_compile_options())
    for rows in (9600, 256000):
        index = faiss.IndexPQFastScan(2 * M, M, 4)
        for first in range(0, rows, 9600):
            n = min(9600, rows - first)
            x = random.standard_normal((n, 2 * M)).astype(np.float32)
            if first == 0:
                index.train(x)
            index.add(x)
        for k in (10, 200):
            rate = rows * M / 2 / best_seconds(index, query, k) / 1e9
            print(f"scan m {M}, best {k} of {rows}: {rate:.2f} GB/s of codes")


if __name__ == "__main__":
    main()
