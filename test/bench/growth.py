#!/usr/bin/env python3
"""Does an index that grew answer like a fresh one, with nobody's hand?

One row in --times is loaded and indexed.  The others come in --parts, each of
which makes the table as many times larger as the part before, with VACUUM
behind it, as autovacuum would; then the training worker is awaited.  A copy of
the table gets a fresh index.  For each value of gpuvec.recall: recall@10 of
queries that are not in the table, postings read, and the session's processor
time of a query, of both tables in turns; medians.

Runs in the cluster that libpq's environment variables name, on real[] columns;
test/bench/run.sh makes that cluster.
"""
import statistics
import time

import data
import dataset
import report
import server
import systems

GROWN, FRESH, QUERIES = "t_grown", "t_fresh", "queries_growth"
K = 10


def parse_arguments():
    parser = server.parser(__doc__, recall=[.90, .95, .99], queries=1000,
                           options="", rounds=5,
                           maintenance_work_mem="1GB")
    parser.add_argument("data", nargs="?", default="sentences:100000")
    parser.add_argument("--times", type=float, default=100)
    parser.add_argument("--parts", type=int, default=6)
    return parser.parse_args()


def await_worker(conn):
    while server.one(conn, "SELECT count(*) FROM pg_stat_activity"
                     " WHERE backend_type = 'gpuvec training'"):
        time.sleep(.1)


def grow(conn, args, base):
    """Rows at the trainings."""
    ends = [round(len(base) * args.times ** (i / args.parts - 1))
            for i in range(args.parts + 1)]
    trainings = []
    server.load(conn, GROWN, base[:ends[0]], "real[]")
    conn.execute(server.index_statement(GROWN, "v", args.options))
    for first, end in zip(ends, ends[1:]):
        data.say("%d rows" % end)
        server.copy_in(conn, GROWN, dataset.copy_stream(
            base[first:end], "real[]", first))
        conn.execute("VACUUM ANALYZE " + GROWN)
        await_worker(conn)
        trained = server.one(conn, "SELECT rows_at_training FROM "
                             "gpuvec_index_info(%s)", GROWN + "_v")
        if trained not in trainings:
            trainings.append(trained)
    return trainings


def measure(conn, args, judge):
    points = {}
    for table in (GROWN, FRESH):
        for target in args.recall:
            server.set_all(conn, {"gpuvec.recall": target})
            recall, counts = server.scan_all(
                conn, table + "_v",
                server.nearest(table, "<->", QUERIES, "%s", K), judge)
            points[table, target] = {"recall": float(recall.mean()),
                                     "counts": counts, "us": []}
    for _ in range(args.rounds):
        for (table, target), point in points.items():
            server.set_all(conn, {"gpuvec.recall": target})
            point["us"].append(query_us(conn, table, len(judge.query)))
    return points


def query_us(conn, table, nqueries):
    """Processor time of the session a query."""
    statement = server.nearest(table, "<->", QUERIES, "%s", K)
    pid = conn.info.backend_pid
    before = server.processor_s(pid)
    for i in range(nqueries):
        conn.execute(statement, [i], prepare=True).fetchall()
    return (server.processor_s(pid) - before) * 1e6 / nqueries


def text_table(args, points):
    rows = [["target", "index", "recall", "postings", "us", "times"]]
    for target in args.recall:
        us = {table: statistics.median(points[table, target]["us"])
              for table in (GROWN, FRESH)}
        for table in (GROWN, FRESH):
            point = points[table, target]
            rows.append(["%.2f" % target, table[2:], "%.4f" % point["recall"],
                         "%.0f" % point["counts"]["postings"],
                         "%.0f" % us[table],
                         "%.2f" % (us[table] / us[FRESH])])
    return report.table(rows, "llrrrr")


def main():
    args = parse_arguments()
    found, load_before = systems.begin(args)
    with server.connect() as conn:
        server.begin(conn, args.maintenance_work_mem)
        trainings = grow(conn, args, found.base)
        data.say("a fresh index")
        conn.execute("CREATE TABLE %s AS SELECT * FROM %s" % (FRESH, GROWN))
        conn.execute(server.index_statement(FRESH, "v", args.options))
        conn.execute("VACUUM ANALYZE " + FRESH)
        server.load(conn, QUERIES, found.query, "real[]")
        server.prewarm(conn, [GROWN, FRESH, QUERIES])
        points = measure(conn, args, dataset.Judge(found, "l2", K,
                                                   len(found.query)))
        server.write("growth-" + args.data, {
            **server.facts(conn, load_before),
            "rows": "%d, %g times the first" % (found.rows, args.times),
            "trained at": ", ".join(map(str, trainings)),
            "lists": "%d, fresh %d" % tuple(
                server.index_info(conn, table + "_v")["lists"]
                for table in (GROWN, FRESH))},
            text_table(args, points), {
                "points": [{"table": table, "target": target, **point}
                           for (table, target), point in points.items()]})


if __name__ == "__main__":
    main()
