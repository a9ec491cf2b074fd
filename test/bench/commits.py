#!/usr/bin/env python3
"""Two trees of gpuvec side by side: is one slower than the other?

usage: commits.py BEFORE AFTER [DATA] [--rounds N] [--queries N] [--workers N,...]

BEFORE and AFTER are folders, say worktrees of two commits.  Each is built and
installed into a private copy of PostgreSQL with a cluster of its own
(test/cluster.sh).  Both get the same rows of DATA (test/bench/data.py; when
left out clustered:100000:384:1), and in every round each in turn builds the
index with each number of workers, answers queries at recall .95, in the
session, LIMIT 10 and 100, and takes a COPY of 2,000 rows into the index.  Which
one begins changes from round to round.  Prints medians, and the median over
rounds of AFTER / BEFORE, which other work on the machine disturbs less.
"""
import argparse
import os
import statistics
import subprocess
import sys
import time

import data
import dataset

if __name__ == "__main__":
    data.enter_venv("commits", __file__)

import psycopg
import server

SETTINGS = """
shared_buffers = 1GB
maintenance_work_mem = 512MB
max_wal_size = 8GB
checkpoint_timeout = 1h
autovacuum = off
jit = off
max_parallel_workers_per_gather = 0
"""
COPIED = 2000


class Tree:
    """A tree's cluster."""

    def __init__(self, folder):
        self.server = subprocess.Popen(
            [os.path.join(folder, "test/cluster.sh"), "sh", "-c",
             "echo $PGHOST $PGPORT $PGUSER; read wait"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "SETTINGS": SETTINGS, "NVCC": ""})
        for line in self.server.stdout:
            words = line.split()
            if len(words) == 3 and words[0].startswith("/"):
                break
        else:
            sys.exit(f"{folder}: test/cluster.sh failed")
        host, port, user = words
        self.conn = psycopg.connect(host=host, port=port, user=user,
                                    dbname="postgres", autocommit=True)
        self.taken = {}

    def run(self, statement, *args):
        return self.conn.execute(statement, args)

    def load(self, rows):
        server.load(self.conn, "t", rows, "real[]")

    def took(self, what, seconds):
        self.taken.setdefault(what, []).append(seconds)

    def build(self, workers):
        self.run("DROP INDEX IF EXISTS t_e")
        self.run(f"SET max_parallel_maintenance_workers = {workers}")
        self.run("CHECKPOINT")
        begin = time.perf_counter()
        self.run("CREATE INDEX t_e ON t USING gpuivfpq (v)")
        self.took(f"build, {workers} workers", time.perf_counter() - begin)

    def scan(self, queries, k):
        self.run("SET gpuvec.recall = 0.95")
        statement = f"SELECT id FROM t ORDER BY v <-> %s::real[] LIMIT {k}"
        times = []
        for query in queries:
            begin = time.perf_counter()
            self.conn.execute(statement, (query,), prepare=True).fetchall()
            times.append(time.perf_counter() - begin)
        self.took(f"LIMIT {k}", statistics.median(times))

    def insert(self, rows):
        chunks = list(dataset.copy_stream(rows, "real[]", -len(rows)))
        begin = time.perf_counter()
        server.copy_in(self.conn, "t", chunks)
        self.took("COPY", time.perf_counter() - begin)
        self.run("DELETE FROM t WHERE id < 0")
        self.run("VACUUM t")

    def end(self):
        self.conn.close()
        self.server.communicate("\n")


def parse_arguments():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("data", nargs="?", default="clustered:100000:384:1")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--workers", default="0,1")
    return parser.parse_args()


def compare(trees):
    before, after = trees
    print(f"{'':20}  before     after     after / before")
    for what in before.taken:
        ratios = [b / a for a, b in zip(before.taken[what],
                                        after.taken[what])]
        print(f"{what:20} {statistics.median(before.taken[what]):9.4f} "
              f"{statistics.median(after.taken[what]):9.4f} s "
              f"{statistics.median(ratios):8.3f}  "
              f"({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


def main():
    args = parse_arguments()
    found = dataset.load(args.data)
    texts = [query.tolist() for query in found.query[:args.queries]]
    trees = [Tree(args.before), Tree(args.after)]
    for tree in trees:
        tree.load(found.base)
    for turn in range(args.rounds):
        for tree in trees[::1 if turn % 2 == 0 else -1]:
            for workers in args.workers.split(","):
                tree.build(int(workers))
            for k in (10, 100):
                tree.scan(texts, k)
            tree.insert(found.base[:COPIED])
        compare(trees)
    for tree in trees:
        tree.end()


if __name__ == "__main__":
    main()
