#!/usr/bin/env python3
"""Does an index give the recall that was asked for?

For each data set gpuivfpq is built with its defaults; then, for each value of
gpuvec.recall, recall@10 and recall@100 of queries that are not in the table
are measured and compared with the value: within means not below it and not
more than .02 above.  A value outside by less than the 95 % error that a sample
of queries brings is marked with a question mark.  A found row counts when it
is no farther than the true k-th, so of equal rows any will do.  Queries/s are
pgbench's, prepared, one client, the query vectors in a table, in several
rounds; medians.

A data set is as data.py names it, with /cosine or /l2 behind it (default: l2).
Runs in the cluster that libpq's environment variables name, on real[] columns;
test/bench/run.sh makes that cluster.
"""
import os
import statistics
import sys

import data
import dataset
import report
import server
import systems

SETS = ["sentences:100000", "glove:100000/cosine", "clustered:50000:64:1"]
TARGETS = [.80, .90, .95, .98, .99]
ABOVE = .02                     # a recall so much higher costs for nothing
TABLE, INDEX, QUERIES = "t_targets", "t_targets_v", "queries_targets"


def parse_arguments():
    parser = server.parser(__doc__, recall=TARGETS, options="", queries=1000,
                           rounds=3, seconds=2, maintenance_work_mem="1GB")
    parser.add_argument("sets", nargs="*", default=SETS,
                        metavar="SET[/METRIC]")
    parser.add_argument("--k", type=server.numbers(int), default=[10, 100],
                        metavar="N,...")
    return parser.parse_args()


def split_set(text):
    """(name, metric)"""
    name, _, metric = text.partition("/")
    metric = metric or "l2"
    if metric not in systems.METRICS:
        sys.exit("%s: the metric is one of %s"
                 % (text, ", ".join(systems.METRICS)))
    dataset.split_name(name)
    return name, metric


def load_and_build(conn, args, found, metric):
    """Loads, builds, returns what the index is."""
    conn.execute("DROP TABLE IF EXISTS %s, %s" % (TABLE, QUERIES))
    server.load(conn, TABLE, found.base, "real[]")
    server.load(conn, QUERIES, found.query, "real[]")
    conn.execute(server.index_statement(
        TABLE, "v real_" + systems.METRICS[metric][1], args.options))
    server.prewarm(conn, [TABLE, QUERIES])
    return server.index_info(conn, INDEX)


def measure_recall(conn, judge, metric, target):
    """One line of the result, without its speed."""
    import numpy as np
    server.set_all(conn, {"gpuvec.recall": target})
    recall, found = server.scan_all(
        conn, INDEX, server.nearest(TABLE, systems.METRICS[metric][0],
                                    QUERIES, "%s", judge.k), judge)
    mean = float(recall.mean())
    error = float(1.96 * recall.std() / np.sqrt(len(recall)))
    off = distance_off(mean, target)
    return {"target": target, "k": judge.k, "recall": mean, "error": error,
            "off": off, "within_error": abs(off) <= error,
            "share": found["postings"] / len(judge.base), "counts": found,
            "rates": []}


def distance_off(recall, target):
    """How far below (negative) or above the range; 0 within it."""
    return min(0, recall - target) + max(0, recall - target - ABOVE)


def verdict(point):
    if point["off"] == 0:
        return "within"
    return "%s by %.4f%s" % ("low" if point["off"] < 0 else "high",
                             abs(point["off"]),
                             "?" if point["within_error"] else "")


def measure_set(conn, args, text):
    name, metric = split_set(text)
    found = dataset.load(name).asked(args.queries)
    data.say("%s: loading, building" % text)
    told = load_and_build(conn, args, found, metric)
    nqueries = len(found.query)
    points = []
    for k in args.k:
        data.say("%s: recall@%d" % (text, k))
        judge = dataset.Judge(found, metric, k, nqueries)
        points += [measure_recall(conn, judge, metric, t)
                   for t in args.recall]
    conn.execute("RESET gpuvec.recall")
    for i in range(args.rounds):
        data.say("%s: round %d of %d" % (text, i + 1, args.rounds))
        for p in points:
            p["rates"].append(server.rate(
                {"gpuvec.recall": p["target"], "enable_seqscan": "off"},
                server.nearest(TABLE, systems.METRICS[metric][0], QUERIES,
                               ":i", p["k"]), nqueries, args.seconds))
    return {"set": text, "rows": found.rows, "dims": found.dims,
            "queries": nqueries, **told, "points": points}


# --------------------------------------------------------------------- output

def text_table(sets):
    rows = [["set", "k", "target", "recall", "+-", "verdict", "queries/s",
             "probes", "candidates", "read %"]]
    for s in sets:
        for p in s["points"]:
            rows.append([
                s["set"], "%d" % p["k"], "%.2f" % p["target"],
                "%.4f" % p["recall"], "%.4f" % p["error"], verdict(p),
                "%.0f" % statistics.median(p["rates"]),
                "%.0f" % p["counts"]["probes"],
                "%.0f" % p["counts"]["candidates"],
                "%.2f" % (100 * p["share"])])
    return report.table(rows, "lrrrrlrrrr")


def write(args, told, sets):
    """build/bench/targets.txt and .json, named by the set if it is one."""
    points = [p for s in sets for p in s["points"]]
    within = sum(p["off"] == 0 for p in points)
    unsure = sum(p["off"] != 0 and p["within_error"] for p in points)
    server.write(
        "targets" if len(sets) > 1 else "targets-" + sets[0]["set"], told,
        text_table(sets) + ["", "%d of %d within [target, target + %.2f], %d "
                            "more (?) by the 95 %% error of so many queries" % (
                                within, len(points), ABOVE, unsure)],
        {"above": ABOVE, "sets": sets})


def main():
    args = parse_arguments()
    names = [split_set(s)[0] for s in args.sets]
    data.enter_venv("bench", __file__)
    for name in names:
        dataset.prepare(name)
    if args.prepare:
        return
    load_before = os.getloadavg()[0]
    with server.connect() as conn:
        server.begin(conn, args.maintenance_work_mem)
        sets = [measure_set(conn, args, s) for s in args.sets]
        write(args, {
            **server.facts(conn, load_before),
            "index options": args.options or "defaults",
            "rounds": "%d, interleaved, %d s of pgbench -M prepared -c 1 "
                      "each, medians" % (args.rounds, args.seconds)}, sets)


if __name__ == "__main__":
    main()
