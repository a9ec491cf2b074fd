#!/usr/bin/env python3
"""Codes with and without a rotation: recall at equal bytes, builds, queries.

usage: rotate.py [DATA] [--pq-dim N,...] [--refine KIND,...] [--probes N,...]
                 [--candidates N,...] [--recall R,...] [--k K] [--queries N]

Uses the cluster that libpq's environment variables name; test/bench/run.sh
makes it.  For each pq_dim and kind of refine records two tables of the same
rows, one with an index that rotates and one with one that does not: build,
bytes of index a row, recall of held-out queries with so many lists and
candidates, then by calibration's targets recall, lists, candidates and the time
of a query, the mean of three rounds in which both take turns.
"""
import sys
import time

import dataset
import server
import systems


def parse_arguments():
    parser = systems.parser(__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    numbers = server.numbers(int)
    parser.add_argument("--pq-dim", type=numbers, default=[96, 128, 192])
    parser.add_argument("--refine", type=server.numbers(str),
                        default=["none", "sq8", "half"])
    parser.add_argument("--probes", type=numbers, default=[40])
    parser.add_argument("--candidates", type=numbers, default=[20, 40, 100])
    parser.add_argument("--recall", type=server.numbers(float),
                        default=[.95, .99])
    parser.add_argument("--k", type=int, default=10)
    return parser.parse_args()


class Variant:
    """A table of the rows whose index rotates, or does not."""

    def __init__(self, conn, judge, queries, k, rotate):
        self.conn, self.judge, self.queries = conn, judge, queries
        self.rotate = rotate
        self.table = "rotated" if rotate else "plain"
        self.statement = ("SELECT id FROM %s ORDER BY v <-> %%s::real[] "
                          "LIMIT %d" % (self.table, k))

    def build(self, pq_dim, refine):
        """(seconds, bytes a row)"""
        self.conn.execute("DROP INDEX IF EXISTS %s_v" % self.table)
        before = time.monotonic()
        self.conn.execute(
            "CREATE INDEX %s_v ON %s USING gpuivfpq (v) WITH (pq_dim = %d, "
            "refine = %s, rotate = %s)" % (
                self.table, self.table, pq_dim, refine, self.rotate))
        took = time.monotonic() - before
        size = server.one(self.conn, "SELECT pg_relation_size('%s_v')"
                          % self.table)
        self.conn.execute("VACUUM " + self.table)
        return took, size / len(self.judge.base)

    def ask(self):
        """(recall, seconds a query)"""
        total = 0
        answers = []
        before = time.monotonic()
        for query in self.queries:
            answers.append(self.conn.execute(self.statement, (query,),
                                             prepare=True).fetchall())
        took = time.monotonic() - before
        for i, rows in enumerate(answers):
            total += self.judge.recall(i, [row[0] for row in rows])
        return total / len(self.queries), took / len(self.queries)

    def target(self, recall, k):
        return self.conn.execute(
            "SELECT probes, candidates FROM gpuvec_calibration('%s_v') "
            "WHERE k >= %d AND recall = %g ORDER BY k LIMIT 1" % (
                self.table, k, recall)).fetchone()


def compare(conn, args, variants, pq_dim, refine):
    for variant in variants:
        took, size = variant.build(pq_dim, refine)
        line = "%6d %-5s %-8s %6.2f s %5.0f B" % (
            pq_dim, refine, variant.table, took, size)
        for probes in args.probes:
            for candidates in args.candidates:
                conn.execute("SET gpuvec.probes = %d" % probes)
                conn.execute("SET gpuvec.candidates = %d" % candidates)
                line += "  %d/%d: %.4f" % (probes, candidates,
                                           variant.ask()[0])
        print(line, flush=True)
    conn.execute("RESET gpuvec.probes")
    conn.execute("RESET gpuvec.candidates")
    for recall in args.recall:
        conn.execute("SET gpuvec.recall = %g" % recall)
        times = {variant: [] for variant in variants}
        found = {}
        for _ in range(3):
            for variant in variants:
                found[variant], took = variant.ask()
                times[variant].append(took)
        for variant in variants:
            print("%6d %-5s %-8s %g: %.4f of lists, candidates %s, %.0f us" % (
                pq_dim, refine, variant.table, recall, found[variant],
                variant.target(recall, args.k),
                1e6 * sum(times[variant]) / 3), flush=True)


def main():
    args = parse_arguments()
    found, _ = systems.begin(args)
    import psycopg
    judge = dataset.Judge(found, "l2", args.k, args.queries)
    queries = [row.tolist() for row in found.query[:args.queries]]
    with psycopg.connect(autocommit=True) as conn:
        server.begin(conn, "1GB")
        variants = [Variant(conn, judge, queries, args.k, rotate)
                    for rotate in (False, True)]
        for variant in variants:
            server.load(conn, variant.table, found.base, "real[]")
        server.prewarm(conn, [variant.table for variant in variants])
        conn.execute("SET gpuvec.engine = cpu")
        print("%s, %d x %d, k %d, %d queries" % (
            args.data, found.rows, found.dims, args.k, len(queries)))
        for refine in args.refine:
            for pq_dim in args.pq_dim:
                compare(conn, args, variants, pq_dim, refine)
    return 0


if __name__ == "__main__":
    sys.exit(main())
