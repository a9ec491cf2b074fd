#!/usr/bin/env python3
"""gpuivfpq beside hnsw, ivfflat and exact search, in the cluster that libpq's
environment variables name.  test/bench/run.sh makes that cluster.

The rows are loaded once for each system, in the same order, so that each has
a table with one index and the planner no choice.  recall@10 is counted
against exact neighbors of queries that are not in the table.  Queries/s are
pgbench's, prepared, the query vectors in a table; all settings of all systems
are run in turn, several rounds, and medians given; the plot is of the first
number of clients.  Faiss, a library without a server, is timed by itself, in the
same rounds.
"""
import sys

import data
import library
import report
import server
import systems as compared

K = 10
QUERIES = "queries_vector"


def parse_arguments():
    parser = compared.parser(__doc__, queries=1000, clients=[1], systems=[],
                             rounds=3, seconds=2)
    parser.add_argument("--ivfflat", type=int, action="append", default=[],
                        metavar="LISTS",
                        help="one more ivfflat index, of so many lists")
    parser.add_argument("--faiss", action="store_true",
                        help="Faiss's IVF-PQ of 4 bits as well")
    parser.add_argument("--with", dest="options", action="append",
                        metavar="OPTIONS",
                        help="index options of gpuivfpq, 'lists = 500'; each "
                        "time that\nit is given makes an index")
    parser.add_argument("--no-exact", dest="exact", action="store_false",
                        help="no sequential scan, which takes a second a query "
                        "where rows are many")
    parser.add_argument("--from", dest="least", type=float, default=0,
                        metavar="RECALL", help="leave out settings that find "
                        "less than this")
    return parser.parse_args()


# ----------------------------------------------------------------------- load

def load_all(conn, args, found, systems):
    server.extensions(conn, "gpuvec_pgvector")
    server.load(conn, QUERIES, found.query, "vector")
    for s in systems:
        if s.column_type:
            server.load(conn, s.table, found.base, s.column_type)


# ---------------------------------------------------------------------- build

def build(conn, args, system):
    """CREATE INDEX, timed."""
    conn.execute("SET maintenance_work_mem = '%s'"
                 % args.maintenance_work_mem)
    system.build_s, system.workers, _ = server.build(
        conn, system.create_index())
    system.bytes = server.one(conn, "SELECT pg_relation_size(%s)",
                              system.index)
    system.info = server.index_info(conn, system.index) \
        if system.method == report.OURS else {}


# -------------------------------------------------------------------- measure

def query_text(system, metric, query_id):
    return server.nearest(system.table, compared.METRICS[metric][0],
                          QUERIES, query_id, K)


def check_plan(conn, args, system):
    """Notes whether the planner takes the index, and sees that it does when
    there is no other way."""
    if not system.method:
        return
    explain = "EXPLAIN " + query_text(system, args.metric, "0")

    def used():
        return any(system.index in line for line, in conn.execute(explain))

    system.info["in_plan"] = "yes" if used() else "only if forced"
    conn.execute("SET enable_seqscan = off")
    if not used():
        sys.exit("bench: %s cannot be used" % system.index)
    conn.execute("RESET enable_seqscan")


def point_settings(system, point):
    return dict(point.settings, **({"enable_seqscan": "off"} if system.method
                                   else {"enable_indexscan": "off"}))


def measure_recall(conn, args, system, point, truth):
    server.set_all(conn, point_settings(system, point))
    point.recall = server.recall(
        conn, query_text(system, args.metric, "%s"), truth.tolist(), K)
    conn.execute("RESET ALL")


def measure_system(args, s, truth):
    """Recall, in a session of its own."""
    with server.connect() as conn:
        check_plan(conn, args, s)
        s.points = s.sweep(s)
        for point in s.points:
            measure_recall(conn, args, s, point, truth)
        leave_out(args, s)


def leave_out(args, s):
    s.points = [p for p in s.points if p.recall >= args.least] or s.points


def measure_rates(args, s, point):
    for clients in args.clients:
        if s.column_type:
            found = server.rate(
                point_settings(s, point), query_text(s, args.metric, ":i"),
                args.queries, args.seconds, clients)
        elif clients == 1:
            found = s.library.rate(point, args.seconds)
        else:
            continue
        point.rates.setdefault(clients, []).append(found)


def measure(args, systems, truth):
    for s in systems:
        data.say("recall of %s" % s.name)
        if s.column_type:
            measure_system(args, s, truth)
        else:
            s.points = s.library.sweep(truth)
            leave_out(args, s)
    for i in range(args.rounds):
        data.say("round %d of %d" % (i + 1, args.rounds))
        for s in systems:
            for point in s.points:
                measure_rates(args, s, point)


# --------------------------------------------------------------------- output

def write(conn, args, found, systems, load_before):
    told = {**server.facts(conn, load_before, args, found, [
        "shared_buffers", "maintenance_work_mem",
        "max_parallel_maintenance_workers"]),
        "rounds": "%d, interleaved, %d s of pgbench -M prepared each, medians"
                  % (args.rounds, args.seconds)}
    path = server.write("%s-%s" % (args.data, args.metric), told,
                        report.lines(systems, args.clients),
                        report.as_json(systems))
    report.plot(told, systems, args.clients[0], path + ".png")


def main():
    args = parse_arguments()
    found, load_before = compared.begin(args,
                                        "faiss" if args.faiss else "plot")
    truth = found.truth(args.metric, K)
    systems = compared.systems(args, found.rows, args.options or [""],
                               args.ivfflat, args.faiss)
    if not args.exact:
        systems = [s for s in systems if s.method]
    with server.connect() as conn:
        data.say("loading %d x %d" % (found.rows, found.dims))
        load_all(conn, args, found, systems)
        for s in systems:
            if s.method:
                data.say("building %s" % s.name)
            if s.index:
                build(conn, args, s)
            elif s.method:
                s.library = library.Faiss(found, args, s)
        server.prewarm(conn, [s.table for s in systems])
        measure(args, systems, truth)
        write(conn, args, found, systems, load_before)


if __name__ == "__main__":
    main()
