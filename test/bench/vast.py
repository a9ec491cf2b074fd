#!/usr/bin/env python3
"""An index of a hundred million rows and more, in the cluster that libpq's
environment variables name: made by many processes at once, nothing kept.

usage: vast.py ROWS[,ROWS...] DIMS SEED [OPTION...]

large.py asks more of fewer rows.  Here rows are made in portions, by as many
processes as --loaders says, each of which copies its own into one unlogged
table; no file of ours has them.  Then CREATE INDEX; where gpuvecd is, its
mirror; the exact neighbors of held-out queries, by gpuvec_exact_search; recall,
and queries/s of pgbench's clients; queries at once, by gpuvec_search.  With
--queries 0 an index is only made.  With --graph, a graph by each index, which
is counted and not kept.

Rows are as those of data.py's synthetic sets.
"""
import json
import os

import data
import dataset
import large
import server

K = 10
TABLE, INDEX, QUERIES = "vast", "vast_v", "vast_queries"
PORTION = 1 << 17               # rows
RECALLS = [.95, .99]
JUDGED = 200                    # rows of a graph
TURNS = 3                       # of queries at once


def parse_arguments():
    parser = server.options(data.parser(__doc__), maintenance_work_mem="12GB",
                            queries=1000, clients=[1, 16, 64], seconds=5,
                            loaders=max(1, len(os.sched_getaffinity(0)) - 2))
    parser.add_argument("rows", type=server.numbers(int),
                        help="of one table after another")
    for name in ("dims", "seed"):
        parser.add_argument(name, type=int)
    parser.add_argument("--type", default="vector",
                        choices=["vector", "halfvec"])
    parser.add_argument("--workers", type=int, default=8,
                        help="max_parallel_maintenance_workers")
    parser.add_argument("--with", dest="options", action="append",
                        help="index options; each time that it is given makes"
                        " an index")
    parser.add_argument("--at-once", type=server.numbers(int),
                        default=[1000, 10000], metavar="N,...",
                        help="queries of gpuvec_search")
    parser.add_argument("--graph", type=int, default=0, metavar="K",
                        help="a graph of so many neighbors, too")
    args = parser.parse_args()
    args.options = args.options or [""]
    return args


def say(what, **told):
    data.say("%s: %s" % (what, json.dumps(told)))


# ------------------------------------------------------------------------ rows

class Rows:
    """Portion p is the same whoever makes it; queries are portion -1."""

    def __init__(self, dims, seed):
        import numpy as np
        self.seed = seed
        self.structure = data.synthetic_structure(
            np.random.default_rng([seed]), dims)

    def portion(self, p, count):
        """float32 [count][dims]"""
        import numpy as np
        return data.synthetic_rows(np.random.default_rng([self.seed, p + 2]),
                                   *self.structure, count)


def load_portions(first, args, nrows):
    """What one process loads: every so many'th portion from the first on."""
    rows = Rows(args.dims, args.seed)
    with server.connect() as conn:
        for at in range(first * PORTION, nrows, args.loaders * PORTION):
            part = rows.portion(at // PORTION, min(PORTION, nrows - at))
            server.copy_in(conn, TABLE,
                           dataset.copy_stream(part, args.type, at))


def load_queries(conn, args):
    server.load(conn, QUERIES, Rows(args.dims, args.seed).portion(
        -1, max([args.queries] + args.at_once)), args.type)


def load(conn, args, nrows):
    conn.execute("DROP TABLE IF EXISTS " + TABLE)
    conn.execute("CREATE UNLOGGED TABLE %s (id int, v %s(%d))"
                 % (TABLE, args.type, args.dims))
    loaded, _ = server.timed(server.in_processes, args.loaders, load_portions,
                             args, nrows)
    settled, _ = server.timed(server.settle, conn, TABLE, args.loaders)
    say("load", rows=nrows, seconds=loaded, first_reading=settled,
        bytes=server.one(conn, "SELECT pg_table_size(%s)", TABLE))


# ----------------------------------------------------------------------- steps

def build(conn, args, options):
    conn.execute("DROP INDEX IF EXISTS " + INDEX)
    server.set_all(conn, {
        "maintenance_work_mem": args.maintenance_work_mem,
        "max_parallel_maintenance_workers": args.workers})
    with large.Took(conn) as took:
        _, _, phases = server.build(conn, server.index_statement(
            TABLE, "v %s_l2_ops" % args.type, options))
    say("build", **took.as_json(), phases=phases,
        **server.index_info(conn, INDEX))
    for row in conn.execute("SELECT recall, probes, candidates FROM"
                            " gpuvec_calibration(%s) WHERE k = %s",
                            [INDEX, K]).fetchall():
        say("calibration", recall=row[0], probes=row[1], candidates=row[2])


def graph(conn, args, nrows):
    """Of JUDGED rows exact neighbors are found, too; each is its own nearest."""
    judged = "id %% %d = 0" % max(nrows // JUDGED, 1)
    with large.Took(conn) as took:
        keys, distance, found = conn.execute(
            "SELECT count(*), avg(distances[%d]), json_object_agg(key,"
            " neighbors) FILTER (WHERE %s) FROM gpuvec_knn_graph_arrays('%s',"
            " 'id', 'v', %d, 'l2', 'index')" % (
                args.graph, judged.replace("id", "key"), TABLE,
                args.graph)).fetchone()
    say("graph", **took.as_json(), keys=keys, mean_distance=distance)
    ids, vectors = conn.execute(
        "SELECT array_agg(id ORDER BY id), array_agg(v::real[] ORDER BY id)"
        " FROM %s WHERE %s" % (TABLE, judged)).fetchone()
    hits = 0
    for query, row in conn.execute(
            "SELECT query, id FROM gpuvec_exact_search('%s', 'v', %%s::real[],"
            " %d, 'l2') JOIN %s ON ctid = tid"
            % (TABLE, args.graph + 1, TABLE), [vectors]).fetchall():
        hits += row in found[str(ids[query - 1])]
    say("graph's recall", recall=hits / args.graph / len(ids))


def mirror(conn):
    took, _ = server.timed(conn.execute,
                           "SELECT gpuvec_prewarm('%s')" % INDEX)
    say("mirror", seconds=took, mirrors=[
        list(map(str, row)) for row in
        conn.execute("SELECT * FROM gpuvec_mirrors").fetchall()])


def exact(conn, args):
    """[queries] the K nearest rows, as sets of TIDs."""
    found = [set() for _ in range(args.queries)]
    took, rows = server.timed(lambda: conn.execute(
        "SELECT query, tid::text FROM gpuvec_exact_search('%s', 'v', (%s), %d,"
        " 'l2')" % (TABLE, asked(args.queries), K)).fetchall())
    for query, tid in rows:
        found[query - 1].add(tid)
    say("exact search", seconds=took)
    return found


def asked(n):
    return ("SELECT array_agg(v::real[]) FROM (SELECT v FROM %s WHERE id < %d"
            " ORDER BY id) AS q" % (QUERIES, n))


def nearest(query_id, what="id"):
    return server.nearest(TABLE, "<->", QUERIES, query_id, K).replace(
        "SELECT id", "SELECT " + what, 1)


def measure(conn, args, truth):
    for recall in RECALLS:
        server.set_all(conn, {"gpuvec.recall": recall})
        found = server.recall(conn, nearest("%s", "ctid::text"), truth, K)
        rates = {clients: server.rate(
            {"gpuvec.recall": recall, "enable_seqscan": "off"},
            nearest(":i"), args.queries, args.seconds, clients)
            for clients in args.clients}
        say("asked for %g" % recall, recall=found,
            queries_a_second=rates, at_once={
                n: at_once(conn, n) for n in args.at_once})


def at_once(conn, n):
    """Queries/s of gpuvec_search, the best of some turns."""
    statement = ("SELECT count(*) FROM gpuvec_search('%s', (%s), %d)"
                 % (INDEX, asked(n), K))
    return n / min(server.timed(conn.execute, statement)[0]
                   for _ in range(TURNS))


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    with server.connect() as conn:
        server.extensions(conn, "gpuvec_pgvector")
        server.set_all(conn, {"enable_seqscan": "off"})
        load_queries(conn, args)
        for nrows in args.rows:
            load(conn, args, nrows)
            truth = exact(conn, args) if args.queries else None
            for options in args.options:
                build(conn, args, options)
                if args.graph:
                    graph(conn, args, nrows)
                if truth is None:
                    continue
                if server.one(conn, "SHOW gpuvec.server") != "off":
                    mirror(conn)
                measure(conn, args, truth)


if __name__ == "__main__":
    main()
