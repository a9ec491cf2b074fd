#!/usr/bin/env python3
"""Two trees of gpuvec side by side: is one slower than the other?

usage: commits.py BEFORE AFTER [DATA] [--rounds N] [--queries N] [--builds N]
                  [--engine gpu]

BEFORE and AFTER are folders, say worktrees of two commits.  Each is built and
installed into a private copy of PostgreSQL with a cluster of its own
(test/cluster.sh), and both get the same rows of DATA (test/bench/data.py; when
left out clustered:100000:384:1).  Each builds its indexes in the first rounds;
then in every round each in turn answers queries (SCANS), searches for many at
once, and takes a COPY, a VACUUM and single rows.  Which one begins changes from
round to round.

Compares the processor time of the session's process, which other work on the
machine disturbs less than the time that passes.  Prints the medians
of both, the mean over rounds of AFTER / BEFORE (of logarithms) and its interval
of 95 %.  A kind has failed if the whole interval lies above 1.02; then the
program ends with 1.  --engine gpu: gpuvecd answers, on the processor, for which
both are test builds, and the times are those of the session alone.
"""
import math
import os
import statistics
import subprocess
import sys
import time

import data
import dataset
import server

SETTINGS = """
shared_buffers = 1GB
maintenance_work_mem = 512MB
max_wal_size = 8GB
checkpoint_timeout = 1h
autovacuum = off
jit = off
max_parallel_workers_per_gather = 0
max_parallel_maintenance_workers = 0
"""
SERVER = """
shared_preload_libraries = gpuvec
gpuvec.auto_calibrate = off
gpuvec.server = cpu
"""
COPIED = 2000
INSERTED = 200
TENANTS = 50
MOST_RATIO = 1.02
# of one round, which goes through the queries from where the last one ended
# what: (gpuvec.recall, table, condition, limit)
SCANS = {
    "LIMIT 10": (.95, "t", "true", 10),
    "LIMIT 10, recall .99": (.99, "t", "true", 10),
    "LIMIT 100": (.95, "t", "true", 100),
    "filter of a tenth, LIMIT 10": (.95, "t", "share < 10", 10),
    "filter of a tenth, LIMIT 100": (.95, "t", "share < 10", 100),
    "key, LIMIT 10": (.95, "keyed", "tenant = 7", 10),
}


class Tree:
    """A tree's cluster."""

    def __init__(self, folder, engine):
        settings = SETTINGS + (SERVER if engine == "gpu" else "")
        self.server = subprocess.Popen(
            [os.path.join(folder, "test/cluster.sh"), "sh", "-c",
             "echo $PGHOST $PGPORT $PGUSER; read wait"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "SETTINGS": settings, "NVCC": "",
                 "TEST_BUILD": "1" if engine == "gpu" else ""})
        for line in self.server.stdout:
            words = line.split()
            if len(words) == 3 and words[0].startswith("/"):
                break
        else:
            sys.exit(f"{folder}: test/cluster.sh failed")
        host, port, user = words
        self.conn = server.connect(host=host, port=port, user=user,
                                   dbname="postgres")
        self.pid = self.conn.info.backend_pid
        self.engine = engine
        self.taken = {}
        self.run(f"SET gpuvec.engine = {engine}")
        self.run("SET enable_seqscan = off")

    def run(self, statement, *args):
        return self.conn.execute(statement, args)

    def load(self, rows):
        columns = [server.number_column("share", 100),
                   server.number_column("tenant", TENANTS)]
        for table in ("t", "keyed"):
            server.load(self.conn, table, rows, "real[]", columns)

    def time(self, what, work):
        begin = server.processor_s(self.pid)
        work()
        self.taken.setdefault(what, []).append(
            server.processor_s(self.pid) - begin)

    def build(self):
        for table, columns in (("keyed", "v, tenant"), ("t", "v")):
            self.run(f"DROP INDEX IF EXISTS {table}_v")
            self.run("CHECKPOINT")
            self.time(f"build ({columns})", lambda: self.run(
                f"CREATE INDEX {table}_v ON {table} USING gpuivfpq ({columns})"))
            if self.engine == "gpu":
                self.run("SELECT gpuvec_prewarm(%s)", table + "_v")

    def scan(self, what, queries):
        recall, table, condition, limit = SCANS[what]
        self.run(f"SET gpuvec.recall = {recall}")
        statement = (f"SELECT id FROM {table} WHERE {condition} "
                     f"ORDER BY v <-> %s::real[] LIMIT {limit}")

        def work():
            for query in queries:
                self.conn.execute(statement, (query,), prepare=True).fetchall()
        self.time(what, work)

    def search(self, queries):
        self.time("gpuvec_search", lambda: self.run(
            "SELECT count(*) FROM gpuvec_search('t_v', %s::real[], 10)",
            queries))

    def insert(self, rows):
        for i, row in enumerate(rows):
            self.conn.execute("INSERT INTO t VALUES (%s, %s)",
                              (-1 - i, row), prepare=True)

    def change(self, rows):
        self.time("COPY", lambda: server.copy_in(
            self.conn, "t", dataset.copy_stream(rows, "real[]", -len(rows))))
        self.run("DELETE FROM t WHERE id < 0")
        # of few rows VACUUM would leave indexes alone
        self.time("VACUUM of those", lambda: self.run(
            "VACUUM (INDEX_CLEANUP on) t"))
        texts = [row.tolist() for row in rows[:INSERTED]]
        self.time("INSERT of single rows", lambda: self.insert(texts))
        self.run("DELETE FROM t WHERE id < 0")
        self.run("VACUUM ANALYZE t")

    def end(self):
        self.conn.close()
        self.server.communicate("\n")


def parse_arguments():
    parser = server.options(data.parser(__doc__), rounds=30, queries=100)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("data", nargs="?", default="clustered:100000:384:1")
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--engine", choices=("cpu", "gpu"), default="cpu")
    return parser.parse_args()


def interval(ratios):
    """(mean, lower, upper end of 95 %) of ratios, by their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    half = 2.05 * statistics.stdev(logs) / math.sqrt(len(logs)) \
        if len(logs) > 2 else math.inf
    return [math.exp(mean + step) for step in (0, -half, half)]


def compare(trees):
    """Prints the table, and returns the kinds that have failed."""
    before, after = trees
    failed = []
    print(f"{'processor time':30}  before     after     after / before")
    for what in before.taken:
        mean, low, high = interval([b / a for a, b in zip(
            before.taken[what], after.taken[what])])
        if low > MOST_RATIO:
            failed.append(what)
        print(f"{what:30} {statistics.median(before.taken[what]):8.4f} "
              f"{statistics.median(after.taken[what]):8.4f} s "
              f"{mean:8.3f}  ({low:.3f} to {high:.3f})"
              f"{' SLOWER' if low > MOST_RATIO else ''}", flush=True)
    return failed


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    found = dataset.load(args.data)
    trees = [Tree(args.before, args.engine), Tree(args.after, args.engine)]
    for tree in trees:
        tree.load(found.base)
    begin = time.time()
    for turn in range(args.rounds):
        first = turn * args.queries % len(found.query)
        queries = [query.tolist()
                   for query in found.query[first:first + args.queries]]
        for tree in trees[::1 if turn % 2 == 0 else -1]:
            if turn < args.builds:
                tree.build()
            for what in SCANS:
                tree.scan(what, queries)
            tree.search(queries)
            tree.change(found.base[:COPIED])
        if turn % 10 == 9 or turn == args.rounds - 1:
            print(f"{turn + 1} rounds, {time.time() - begin:.0f} s")
            failed = compare(trees)
    for tree in trees:
        tree.end()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
