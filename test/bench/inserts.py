#!/usr/bin/env python3
"""How fast do rows come into a table with an index?  gpuivfpq beside hnsw,
ivfflat and no index at all (but the primary key, which all tables have), in
the cluster that libpq's environment variables name.  test/bench/run.sh makes
that cluster.

The first part of the rows is loaded before the indexes are made.  The others
come in slices, one for each round and number of sessions: every system in
turn gets the same slice, by COPY, split among that many sessions that begin
together.  Sessions are processes of their own, and send bytes that were made
before.  Then, in as many rounds, slices by INSERTs of one row, each a
transaction, with synchronous_commit off, from a table of all rows.  Rates are
medians.

Recall@10 of queries that are not in the table is counted before the slices,
among the rows loaded, and behind them, among all that came: who is fast by
leaving out rows, or links between them, loses there.
"""
import multiprocessing
import statistics
import sys
import time

import data
import dataset
import report
import server
import systems as compared

K = 10
KEY_VALUES = 1000               # of a random key
PATIENCE_S = 60                 # for sessions to be ready
STAGED, QUERIES = "inserts_rows", "inserts_queries"
# what a default setting does not find could hide what was lost
CAREFUL = {"hnsw": {"hnsw.ef_search": 100}, "ivfflat": {"ivfflat.probes": 20}}


def parse_arguments():
    parser = compared.parser(__doc__, queries=500, clients=[1, 2, 16],
                             systems=[], options="", rounds=3)
    parser.add_argument("--loaded", type=float, default=.5, metavar="SHARE",
                        help="of the rows, before the indexes are made")
    parser.add_argument("--single", type=int, default=1000, metavar="ROWS",
                        help="of a slice of single INSERTs, by the first "
                        "number of\nsessions; 0: none")
    parser.add_argument("--keys", type=int, default=0, metavar="N",
                        help="one more index of gpuivfpq, with so many int4 "
                        "keys, which\nall tables have as columns: id and "
                        "random ones")
    return parser.parse_args()


class Slices:
    """The rows that are not loaded, cut up."""

    def __init__(self, args, rows):
        self.next = round(rows * args.loaded)
        left = rows - self.next - args.rounds * args.single
        self.rows = left // (args.rounds * len(args.clients))
        if self.rows < max(args.clients):
            sys.exit("bench: %d rows are too few" % rows)

    def take(self, rows):
        """The first row of the next slice."""
        first, self.next = self.next, self.next + rows
        return first


# ----------------------------------------------------------------------- copy

def session(table, chunks, ready, results):
    """A process: copies as soon as all are ready, and tells from when to
    when."""
    with server.connect() as conn:
        ready.wait(PATIENCE_S)
        start = time.monotonic()
        server.copy_in(conn, table, chunks)
        results.put((start, time.monotonic()))


def copy(system, found, first, rows, clients):
    """What rows first .. first + rows - 1, by so many sessions, cost."""
    context = multiprocessing.get_context("fork")
    ready, results = context.Barrier(clients + 1), context.SimpleQueue()
    cuts = [first + rows * i // clients for i in range(clients + 1)]
    sessions = [context.Process(target=session, args=(
        system.table, list(dataset.copy_stream(
            found.base[a:b], system.column_type, a)), ready, results))
        for a, b in zip(cuts, cuts[1:])]
    for s in sessions:
        s.start()
    before = wal_bytes()
    ready.wait(PATIENCE_S)
    for s in sessions:
        s.join()
    written = wal_bytes() - before
    if any(s.exitcode for s in sessions):
        sys.exit("bench: a session failed")
    times = [results.get() for _ in sessions]
    took = max(end for _, end in times) - min(start for start, _ in times)
    return {"rows": rows, "seconds": took, "rate": rows / took,
            "wal": written / rows}


def wal_bytes():
    with server.connect() as conn:
        return int(server.one(
            conn, "SELECT pg_current_wal_insert_lsn() - '0/0'"))


# --------------------------------------------------------------------- insert

def insert(system, first, rows, clients):
    """Rows/s of single INSERTs."""
    with server.connect() as conn:
        conn.execute("CREATE SEQUENCE inserts_next MINVALUE 0 START %d"
                     % first)
        found = server.pgbench(
            {"synchronous_commit": "off"},
            "INSERT INTO %s SELECT id, v FROM %s"
            " WHERE id = (SELECT nextval('inserts_next')::int);\n"
            % (system.table, STAGED), clients, "-t", str(rows // clients))
        conn.execute("DROP SEQUENCE inserts_next")
    return found


# -------------------------------------------------------------------- measure

def prepare(conn, args, found, systems, loaded):
    server.extensions(conn, "gpuvec_pgvector")
    server.set_all(conn, {"maintenance_work_mem": args.maintenance_work_mem})
    server.load(conn, QUERIES, found.query, "vector")
    server.load(conn, STAGED, found.base, "vector")
    for s in systems:
        data.say("loading and building %s" % s.name)
        server.load(conn, s.table, found.base[:loaded], s.column_type,
                    [server.number_column(name, KEY_VALUES)
                     for name in key_columns(args)])
        if s.index:
            s.build_s, _, _ = server.build(conn, s.create_index())
            s.bytes = server.one(conn, "SELECT pg_relation_size(%s)", s.index)
    server.prewarm(conn, [STAGED] + [s.table for s in systems])


def key_columns(args):
    """Names of the columns that are keys beside id."""
    return ["k%d" % i for i in range(1, args.keys)]


def measure_recall(conn, args, judge, system):
    server.set_all(conn, {**CAREFUL.get(system.method, {}),
                          "enable_seqscan": "off"})
    statement = server.nearest(system.table, compared.METRICS[args.metric][0],
                               QUERIES, "%s", K)
    recall = sum(judge.recall(i, [row for row, in conn.execute(
        statement, [i], prepare=True)]) for i in range(len(judge.query)))
    conn.execute("RESET ALL")
    if server.one(conn, "SELECT count(*) FROM " + system.table) != \
            len(judge.base):
        sys.exit("bench: rows of %s are missing" % system.table)
    return recall / len(judge.query)


def verify(conn, system):
    faults = conn.execute("SELECT * FROM gpuvec_verify_index(%s)",
                          [system.index]).fetchall()
    if faults:
        sys.exit("bench: %s: %s" % (system.index, faults[0]))


def judge_all(args, found, systems, rows):
    """Recall among the first rows, which are all that came."""
    judge = dataset.Judge(dataset.DataSet(
        found.name, found.base[:rows], found.query), args.metric, K,
        args.queries)
    with server.connect() as conn:
        for s in (s for s in systems if s.index):
            s.info["recall"].append(measure_recall(conn, args, judge, s))


def measure(args, found, systems, slices):
    """Fills s.info: recall [before, behind], copies {clients: [...]}, single
    [rows/s]."""
    for s in systems:
        s.info = {"recall": [], "copies": {c: [] for c in args.clients},
                  "single": []}
    judge_all(args, found, systems, slices.next)
    for i in range(args.rounds):
        data.say("round %d of %d" % (i + 1, args.rounds))
        for clients in args.clients:
            first = slices.take(slices.rows)
            for s in systems:
                s.info["copies"][clients].append(
                    copy(s, found, first, slices.rows, clients))
        if args.single > 0:
            first = slices.take(args.single // args.clients[0]
                                * args.clients[0])
            for s in systems:
                s.info["single"].append(
                    insert(s, first, args.single, args.clients[0]))
    judge_all(args, found, systems, slices.next)


# --------------------------------------------------------------------- output

def median(copies, what):
    return statistics.median(c[what] for c in copies)


def ratio(rate, others):
    return "%.2f x" % (rate / others) if others else "-"


def rates(system, clients):
    """Median rows/s of COPY, or of INSERT when clients is None."""
    if clients is None:
        return statistics.median(system.info["single"])
    return median(system.info["copies"][clients], "rate")


def rate_table(args, systems):
    def by_name(start):
        return next((s for s in systems if s.name.startswith(start)), None)

    rows = [["system", "by", "sessions", "rows/s", "of hnsw", "of no index",
             "WAL a row", "rounds"]]
    for clients in args.clients + ([None] if args.single else []):
        others = [o and rates(o, clients)
                  for o in (by_name("hnsw"), by_name("no index"))]
        for s in systems:
            found = rates(s, clients)
            copies = s.info["copies"].get(clients)
            rows.append(
                [s.name, "COPY" if copies else "INSERT",
                 "%d" % (clients or args.clients[0]), "%.0f" % found]
                + [ratio(found, o) for o in others]
                + ["%.0f" % median(copies, "wal") if copies else "-",
                   " ".join("%.0f" % r for r in (
                       [c["rate"] for c in copies] if copies else
                       s.info["single"]))])
    return report.table(rows, "llrrrrrl")


def index_table(systems):
    return report.table([["index", "build s", "MB", "recall@10 before",
                          "behind"]] + [
        [s.name, "%.2f" % s.build_s, "%.2f" % (s.bytes / 1e6)]
        + ["%.4f" % r for r in s.info["recall"]]
        for s in systems if s.index], "lrrrr")


def write(args, told, systems):
    server.write("inserts-%s-%s" % (args.data, args.metric), told, [
        *rate_table(args, systems), "", *index_table(systems)],
        report.as_json(systems))


def facts(conn, args, found, loaded, slices, load_before):
    return {
        **server.facts(conn, load_before, args, found, [
            "shared_buffers", "fsync", "wal_level", "full_page_writes"]),
        "loaded before": loaded,
        "inserted": "%d slices of %d rows by COPY, %d of %d by INSERT"
                    % (args.rounds * len(args.clients), slices.rows,
                       args.rounds, args.single),
        "rounds": "%d, interleaved, medians" % args.rounds,
    }


def chosen(args, rows):
    """The systems; one without an index is called so, or exact."""
    found = compared.systems(args, rows, [args.options])
    if args.keys:
        found.insert(1, compared.gpuivfpq(
            compared.METRICS[args.metric][1], args.options,
            ["id"] + key_columns(args)))
    for s in found:
        if not s.method:
            s.name = "no index"
    return found


def main():
    args = parse_arguments()
    found, load_before = compared.begin(args)
    systems = chosen(args, found.rows)
    slices = Slices(args, found.rows)
    loaded = slices.next
    with server.connect() as conn:
        prepare(conn, args, found, systems, loaded)
    measure(args, found, systems, slices)
    with server.connect() as conn:
        for s in systems:
            if s.method == report.OURS:
                verify(conn, s)
        write(args, facts(conn, args, found, loaded, slices, load_before),
              systems)


if __name__ == "__main__":
    main()
