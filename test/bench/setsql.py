#!/usr/bin/env python3
"""Set functions by SQL: seconds through gpuvecd and in the session alone.

usage: setsql.py [--rows N] [--dims D] [--few N]

Uses the cluster that libpq's environment variables name, whose gpuvecd has a
card (test/gpu/run.sh sets).  Makes a table of synthetic rows (data.py) and runs
each function over all of it through gpuvecd, and over its first rows, --few,
both ways, whose answers must be the same.  Prints one table; ends with status 1
where answers differ.
"""
import sys

import data
import server

SEED = 7
QUERIES = 10000
VALUES = 10000000


def parse_arguments():
    parser = data.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--few", type=int, default=20000)
    return parser.parse_args()


def works(table, queries):
    """What is measured, and the statement that does it."""
    return {
        "exact search, %d queries, k 10" % queries:
            "SELECT count(*), sum(distance) FROM gpuvec_exact_search('%s', "
            "'v', (SELECT array_agg(v ORDER BY id) FROM %s WHERE id < %d), "
            "10)" % (table, table, queries),
        "k-NN graph, k 10":
            "SELECT count(*), sum(distance) FROM "
            "gpuvec_knn_graph('%s', 'id', 'v', 10)" % table,
        "k-means, 1,024 clusters, 10 iterations":
            "SELECT count(*), sum(size), sum(centroid[1] * size) FROM "
            "gpuvec_kmeans('%s', 'v', 1024)" % table,
    }


def selections():
    return {
        "select 100 of %d" % VALUES:
            "SELECT sum(pos::int8), sum(val) FROM drawn, "
            "gpuvec_select(vals, 100)",
        "9 quantiles of %d" % VALUES:
            "SELECT sum(rank), sum(val) FROM drawn, gpuvec_quantiles(vals, "
            "(SELECT array_agg(i * %d) FROM generate_series(1::int8, 9) i))"
            % (VALUES // 10),
    }


def timed(conn, engine, statement):
    """(seconds, answer) of the second of two runs: the first one warms."""
    conn.execute("SET gpuvec.engine = " + engine)
    for _ in range(2):
        took, answer = server.timed(
            lambda: conn.execute(statement).fetchall())
    return took, answer


def compare(conn, what, statement):
    """Both ways; returns whether they agree."""
    card, answer = timed(conn, "gpu", statement)
    alone, expected = timed(conn, "cpu", statement)
    same = answer == expected
    print("%-45s %9.3f %9.3f %7.1f  %s" % (
        what, card, alone, alone / card, "same" if same else "DIFFERENT"),
        flush=True)
    return same


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    with server.connect() as conn:
        server.begin(conn, "4GB")
        rows = data.make_synthetic(1, [args.rows, args.dims, SEED])[0]
        server.load(conn, "rows", rows, "real[]")
        server.load(conn, "few", rows[:args.few], "real[]")
        conn.execute("CREATE TABLE drawn AS SELECT array_agg(random()::real) "
                     "AS vals FROM generate_series(1, %d)" % VALUES)
        print("rows x dims: %d x %d and %d x %d; seconds" % (
            args.rows, args.dims, args.few, args.dims))
        print("%-45s %9s %9s %7s" % ("", "gpuvecd", "session", "ratio"))
        same = all([compare(conn, what, statement) for what, statement in
                    [*works("few", min(QUERIES, args.few)).items(),
                     *selections().items()]])
        for what, statement in works("rows", QUERIES).items():
            took, _ = timed(conn, "gpu", statement)
            print("%-45s %9.3f" % ("all: " + what, took), flush=True)
        failed = server.one(conn, "SELECT jobs_failed FROM gpuvec_stat")
        print("by gpuvecd: %d, failed: %d" % (server.one(
            conn, "SELECT jobs_by_server FROM gpuvec_stat"), failed))
    return 0 if same and failed == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
