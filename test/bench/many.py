#!/usr/bin/env python3
"""Many queries at once: gpuvec_search beside a LATERAL join of index scans.

usage: many.py [DATA] [--queries N,...] [--recall R,...] [--k K] [--rounds N]
               [--engine ENGINE] [--metric METRIC] [--options OPTIONS]

Uses the cluster that libpq's environment variables name; test/bench/run.sh
makes it.  Queries are rows of the table, since held-out ones are few.  The two
statements take turns, in one session, and the best of the rounds counts:
queries/s of each, their ratio, and how many of LATERAL's rows gpuvec_search
has.  With --engine gpu both ask gpuvecd, whose mirror is waited for.  OPTIONS
are the index's, such as "refine = sq8".
"""
import sys

import server
import systems

SHARED = ("SELECT count(*) FROM (SELECT query, tid FROM (%s) AS a "
          "INTERSECT SELECT query, tid FROM (%s) AS b) AS c")


def parse_arguments():
    parser = systems.parser(__doc__, "cosine", recall=[.95, .99], k=10, rounds=3)
    parser.add_argument("--queries", type=server.numbers(int),
                        default=[1000, 10000])
    parser.add_argument("--engine", default="cpu", choices=["cpu", "gpu"])
    parser.add_argument("--options", default="refine = none")
    return parser.parse_args()


def statements(operator, n, k):
    """Rows (query, tid) of both, LATERAL first."""
    return ("SELECT q.id + 1 AS query, s.tid FROM asked AS q, LATERAL "
            "(SELECT ctid AS tid, t.v %s q.v AS d FROM t ORDER BY t.v %s q.v "
            "LIMIT %d) AS s WHERE q.id < %d" % (operator, operator, k, n),
            "SELECT query, tid, distance FROM gpuvec_search('t_v', "
            "(SELECT array_agg(v) FROM (SELECT v FROM asked WHERE id < %d "
            "ORDER BY id) AS a), %d)" % (n, k))


def measure(conn, args, recall, n):
    conn.execute("SET gpuvec.recall = %g" % recall)
    lateral, many = statements(
        systems.METRICS[args.metric][0], n, args.k)
    best = [float("inf")] * 2
    for _ in range(args.rounds):
        for i, statement in enumerate((lateral, many)):
            best[i] = min(best[i], server.timed(
                conn.execute, "SELECT count(*) FROM (%s) AS s" % statement)[0])
    engine = server.one(conn, "SELECT engine FROM gpuvec_last_scan()")
    found = server.one(conn, SHARED % (lateral, many))
    print("%7g %8d %10.0f %10.0f %7.2f %8.4f  %s" % (
        recall, n, n / best[0], n / best[1], best[0] / best[1],
        found / (n * args.k), engine), flush=True)


def main():
    args = parse_arguments()
    found, _ = systems.begin(args)
    import numpy as np
    n = max(args.queries)
    order = np.random.default_rng(7).permutation(found.rows)[:n]
    with server.connect() as conn:
        server.begin(conn, args.maintenance_work_mem)
        server.load(conn, "t", found.base, "real[]")
        server.load(conn, "asked", found.base[order], "real[]")
        conn.execute(server.index_statement(
            "t", "v real_%s_ops" % args.metric, args.options))
        conn.execute("VACUUM ANALYZE t")
        server.prewarm(conn, ["t"])
        conn.execute("SET enable_seqscan = off")
        conn.execute("SET gpuvec.engine = %s" % args.engine)
        conn.execute("SET maintenance_work_mem = '256MB'")
        if args.engine == "gpu":
            conn.execute("SELECT gpuvec_prewarm('t_v')")
        print("%s, %d x %d, %s, %s, k %d; queries/s" % (
            args.data, found.rows, found.dims, args.metric, args.options,
            args.k))
        print("%7s %8s %10s %10s %7s %8s" % (
            "recall", "queries", "LATERAL", "at once", "ratio", "the same"))
        for recall in args.recall:
            for queries in args.queries:
                measure(conn, args, recall, min(queries, found.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
