#!/usr/bin/env python3
"""IVFADC's experiment (Jegou, Douze, Schmid, 2011, figures 8 and 9): how often
is a query's nearest row among the first R that codes find?

For each of --bytes a code takes, gpuivfpq is built with --lists lists, one for
each row.  A scan with R candidates reranks the R rows that are nearest by their
codes, so it finds the nearest row if these have it: R@1, R@10 and R@100 are
those of the paper.  The last line is the index as it is by default.

Runs in the cluster that libpq's environment variables name, on real[] columns;
test/bench/run.sh makes that cluster.
"""
import sys

import data
import dataset
import report
import server
import systems

TABLE, QUERIES = "t_ivfadc", "queries_ivfadc"
INDEX = TABLE + "_v"
RANKS = [1, 10, 100]


def parse_arguments():
    parser = server.parser(__doc__, queries=1000, maintenance_work_mem="1GB")
    parser.add_argument("data", nargs="?", default="sift")
    parser.add_argument("--lists", type=int, default=1024)
    parser.add_argument("--bytes", type=server.numbers(int),
                        default=[8, 16, 32], metavar="N,...")
    parser.add_argument("--probes", type=server.numbers(int),
                        default=[1, 8, 64], metavar="N,...")
    return parser.parse_args()


def nearest_among(conn, judge, settings, by_codes):
    """The line's figures: R@R for RANKS, and the postings read."""
    server.set_all(conn, settings)
    shares, postings = [], 0
    for rank in RANKS:
        if by_codes:
            server.set_all(conn, {"gpuvec.candidates": rank})
        found, counts = server.scan_all(conn, INDEX, server.nearest(
            TABLE, "<->", QUERIES, "%s", 1 if by_codes else rank), judge)
        shares.append(float(found.mean()))
        postings = counts["postings"]
        if by_codes and counts["reranked"] > rank:
            sys.exit("bench: %g rows reranked, not %d"
                     % (counts["reranked"], rank))
    for name in ("candidates", "probes"):
        conn.execute("RESET gpuvec." + name)
    return shares, postings


def measure(conn, args, judge):
    points = []
    for size in args.bytes:
        data.say("codes of %d bytes" % size)
        conn.execute("DROP INDEX IF EXISTS " + INDEX)
        conn.execute(server.index_statement(
            TABLE, "v", "spill = 0, lists = %d, pq_dim = %d" % (
                args.lists, 2 * size)))
        for probes in args.probes:
            points.append((size, probes, *nearest_among(
                conn, judge, {"gpuvec.probes": probes}, True)))
    data.say("the default")
    conn.execute("DROP INDEX " + INDEX)
    conn.execute(server.index_statement(TABLE, "v"))
    points.append((server.index_info(conn, INDEX)["pq_dim"] // 2, "default",
                   *nearest_among(conn, judge, {}, False)))
    return points


def text_table(points):
    return report.table(
        [["bytes", "probes"] + ["R@%d" % r for r in RANKS] + ["postings"]] +
        [["%d" % size, str(probes)] + ["%.4f" % s for s in shares] +
         ["%.0f" % postings] for size, probes, shares, postings in points],
        "rrrrrr")


def main():
    args = parse_arguments()
    found, load_before = systems.begin(args)
    with server.connect() as conn:
        server.begin(conn, args.maintenance_work_mem)
        server.load(conn, TABLE, found.base, "real[]")
        server.load(conn, QUERIES, found.query, "real[]")
        points = measure(conn, args, dataset.Judge(found, "l2", 1,
                                                   len(found.query)))
        server.write("ivfadc-" + args.data, {
            **server.facts(conn, load_before), "rows": found.rows,
            "dims": found.dims, "queries": len(found.query),
            "lists": args.lists}, text_table(points), {"points": points})


if __name__ == "__main__":
    main()
