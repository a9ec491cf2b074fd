#!/usr/bin/env python3
"""gpuivfpq through gpuvecd beside pgvector's hnsw, for many clients at once, in
the cluster that libpq's environment variables name; test/gpu/run.sh makes it.

One table of (id, vector); the systems' indexes are made, measured and dropped
in turn.  recall@10 is of queries that are not in the table, against exact
search.  Queries/s are pgbench's with prepared statements; a query is taken at
random from a table of queries by its key, the same for all systems.  Beside
them: look-ups by primary key, which is what a statement costs at least.

gpuivfpq is measured at gpuvec.recall = RECALL and at explicit settings; for
these, where a query's time goes.  With --match its
index has a key, and beside these are the same queries of rows with one value
of it, which 1 of so many rows has, as good as at random; each query asks for a
value of its own.
"""
import os
import shlex
import statistics
import sys

import data
import dataset
import report
import server

K = 10
CLIENTS = [1, 16, 64]
EF_SEARCH = [40, 100, 200]
TABLE, QUERIES = "items", "queries"
# microseconds and counts of gpuvec_last_scan that tell where the time goes
PARTS = ["probes", "candidates", "postings", "refined", "reranked", "batches",
         "batch_size", "queued_us", "engine_us", "trip_us"]


def parse_arguments():
    parser = server.options(
        data.parser(__doc__), systems=["gpuivfpq", "hnsw"],
        options="refine = sq8", clients=CLIENTS, queries=1000, seconds=5)
    parser.add_argument("data", help="sentences[:ROWS] or synthetic:N:D:SEED")
    parser.add_argument("--recall", type=float, default=.95)
    parser.add_argument("--setting", action="append", default=[],
                        metavar="PROBES/CANDIDATES",
                        help="one more setting of gpuivfpq")
    parser.add_argument("--ef", type=server.numbers(int), default=EF_SEARCH)
    parser.add_argument("--workers", type=int, default=15,
                        help="of a parallel build")
    parser.add_argument("--match", type=server.numbers(int), default=[],
                        metavar="VALUES,...",
                        help="of keys in turn; 100: 1 %% of the rows match")
    return parser.parse_args()


# ----------------------------------------------------------------------- load

def key(count):
    """The name of the column that has so many values."""
    return "r%d" % count


def load(conn, found, more=()):
    """The table, with more columns that follow from id, and the queries;
    seconds that the table took."""
    server.extensions(conn, "gpuvec_pgvector")
    for table, columns in (TABLE, more), (QUERIES, ()):
        conn.execute("CREATE TABLE %s (%s)" % (table, ", ".join(
            ["id int", "v vector(%d)" % found.dims, *columns])))
    # in the row, so that no system pays for fetching it from elsewhere
    conn.execute("ALTER TABLE %s ALTER v SET STORAGE PLAIN" % QUERIES)

    took, _ = server.timed(server.copy_in, conn, TABLE,
                           dataset.copy_stream(found.base, "vector"))
    server.copy_in(conn, QUERIES, dataset.copy_stream(found.query, "vector"))
    for table in (TABLE, QUERIES):
        conn.execute("ALTER TABLE %s ADD PRIMARY KEY (id)" % table)
        conn.execute("VACUUM ANALYZE " + table)
    return took


def create_index(conn, system, workers, options="", keys=()):
    """What making the index took and gave; `keys` are columns."""
    conn.execute("SET max_parallel_maintenance_workers = %d" % workers)
    # as many as that, whatever the table's size
    conn.execute("ALTER TABLE %s SET (parallel_workers = %d)"
                 % (TABLE, workers))
    wal = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')"
    before = server.one(conn, wal)
    took, workers, phases = server.build(
        conn, server.index_statement(
            TABLE, ", ".join(["v vector_l2_ops", *keys]), options, system))
    data.say("".join("  %.2f s %s\n" % (seconds, phase)
                     for phase, seconds in phases.items()).rstrip("\n"))
    told = {"system": system, "build_s": took, "phases": phases,
            "workers": workers, "options": options,
            "MB": server.one(conn, "SELECT pg_relation_size('%s_v')"
                             % TABLE) / 1e6,
            "wal_MB": float(server.one(conn, wal) - before) / 1e6}
    if system == report.OURS:
        told.update(server.index_info(conn, TABLE + "_v"))
    server.prewarm(conn, [TABLE, QUERIES])
    return told


def mirror(conn):
    """Brings the index into gpuvecd: seconds and bytes."""
    took, _ = server.timed(conn.execute,
                           "SELECT gpuvec_prewarm('%s_v')" % TABLE)
    row = conn.execute("SELECT state, bytes, postings, rows FROM gpuvec_mirrors "
                       "WHERE index = '%s_v'::regclass" % TABLE).fetchone()
    if row is None or row[0] != "ready":
        sys.exit("card: there is no mirror: %s" % (row,))
    return {"mirror_s": took, "mirror_MB": row[1] / 1e6, "postings": row[2],
            "rows": row[3], "mirror_GB_per_s": row[1] / took / 1e9}


# --------------------------------------------------------------------- recall

def from_table(query_id, match=0, value=""):
    """For one of the queries; of rows whose key has this value, unless match,
    the number of values, is 0."""
    return "SELECT id FROM %s %sORDER BY v <-> " \
        "(SELECT v FROM %s WHERE id = %s) LIMIT %d" % (
            TABLE, "WHERE %s = %s " % (key(match), value)
                       if match else "", QUERIES, query_id, K)


def check_plan(conn, statement):
    plan = conn.execute("EXPLAIN " + statement).fetchall()
    if not any(TABLE + "_v" in line for line, in plan):
        sys.exit("card: the planner does not take the index")


def measure_recall(conn, settings, truth, asked, parts=(), match=0):
    """(recall, mean of each part of gpuvec_last_scan) of a statement that takes
    a query's number as %(i)s and, of `match` values of a key, one as
    %(value)s."""
    server.set_all(conn, settings)
    hits, sums = 0, [[] for _ in parts]
    last = "SELECT %s FROM gpuvec_last_scan()" % ", ".join(parts)
    for i, nearest in enumerate(truth):
        rows = conn.execute(asked, {"i": i, "value": match and i % match},
                            prepare=True).fetchall()
        hits += len({r for r, in rows} & set(nearest.tolist()))
        if parts:
            for s, value in zip(sums, conn.execute(
                    last, prepare=True).fetchone()):
                s.append(value or 0)
    conn.execute("RESET ALL")
    return (hits / sum(map(len, truth)),
            {p: statistics.mean(s) for p, s in zip(parts, sums)})


# ---------------------------------------------------------------------- speed

def script_of(found, match=0):
    """pgbench's, for the queries that are asked."""
    return ("\\set i random(0, %d)\n" % (len(found.query) - 1)
            + "\\set value :i %% %d\n" % match * (match > 0)
            + from_table(":i", match, ":value") + ";\n")


def pgbench(script, settings, clients, seconds):
    """{clients, queries/s, p50 and p99 ms (one client: of each query)}"""
    times = [] if clients == 1 else None
    told = {"clients": clients, "queries_per_s": server.pgbench(
        settings, script, clients, "-T", str(seconds), log=times)}
    if times:
        times.sort()
        told["p50_ms"] = times[len(times) // 2] / 1e3
        told["p99_ms"] = times[len(times) * 99 // 100] / 1e3
    return told


STAT = ("SELECT searches_by_server, searches_in_sessions, fallbacks, batches, "
        "largest_batch, latency_p50_us, latency_p99_us FROM gpuvec_stat")


def measure_speed(conn, args, script, settings, ours):
    """One line for each number of clients; ours with gpuvecd's figures."""
    lines = []
    for clients in args.clients:
        before = conn.execute(STAT).fetchone() if ours else None
        told = pgbench(script, settings, clients, args.seconds)
        if ours:
            after = conn.execute(STAT).fetchone()
            batches = after[3] - before[3]
            told.update(by_server=after[0] - before[0],
                        in_sessions=after[1] - before[1],
                        fallbacks=after[2] - before[2],
                        mean_batch=(after[0] - before[0]) / max(batches, 1),
                        latency_p50_us=after[5], latency_p99_us=after[6])
        lines.append(told)
    return lines


def measure_point(conn, args, truth, label, settings, script, ours, match=0):
    settings = dict(settings, enable_seqscan="off")
    data.say("measuring " + label)
    recall, parts = measure_recall(
        conn, settings, truth, from_table("%(i)s", match, "%(value)s"),
        PARTS if ours else (), match)
    return {"label": label, "settings": settings, "recall": recall,
            "parts": parts, "speed": measure_speed(
                conn, args, script, settings, ours)}


def our_points(args):
    yield "recall %s" % args.recall, {"gpuvec.recall": args.recall}
    for pair in args.setting:
        probes, candidates = map(int, pair.split("/"))
        yield "probes %d, candidates %d" % (probes, candidates), {
            "gpuvec.probes": probes, "gpuvec.candidates": candidates}


def measure_system(conn, args, found, truth, system):
    data.say("building %s" % system)
    ours = system == report.OURS
    told = create_index(conn, system, args.workers,
                        args.options if ours else "",
                        [key(n) for n in args.match if ours])
    if ours:
        told.update(mirror(conn))
    data.say("  " + ", ".join("%s %s" % (k, "%.2f" % v if isinstance(v, float)
                                         else v) for k, v in told.items()))
    conn.execute("SET enable_seqscan = off")
    check_plan(conn, from_table("0"))
    script = script_of(found)
    points = our_points(args) if ours else \
        (("ef %d" % ef, {"hnsw.ef_search": ef}) for ef in args.ef)
    told["points"] = [measure_point(conn, args, truth, label, settings,
                                    script, ours)
                      for label, settings in points]
    for match in args.match if ours else []:
        told["points"].append(measure_point(
            conn, args, matching_truth(found, len(truth), match),
            "recall %s, 1 of %d" % (args.recall, match),
            {"gpuvec.recall": args.recall},
            script_of(found, match), ours, match))
    conn.execute("DROP INDEX %s_v" % TABLE)
    return told


# --------------------------------------------------------------------- output

def speed_table(told):
    rows = [["system", "setting", "recall", "clients", "queries/s", "p50 ms",
             "p99 ms", "batch", "in sessions"]]

    def add(system, label, recall, lines):
        for line in lines:
            rows.append([system, label, recall, "%d" % line["clients"],
                         "%.0f" % line["queries_per_s"]] +
                        ["%.3f" % line[k] if k in line else ""
                         for k in ("p50_ms", "p99_ms")] +
                        ["%.1f" % line["mean_batch"] if "mean_batch" in line
                         else "", "%d" % line["in_sessions"]
                         if "in_sessions" in line else ""])

    add("primary key", "", "", told["floor"])
    for s in told["systems"]:
        for p in s["points"]:
            add(s["system"], p["label"], "%.4f" % p["recall"], p["speed"])
    return report.table(rows, "llrrrrrrr")


def build_table(told):
    names = ["build_s", "workers", "MB", "wal_MB", "lists", "pq_dim", "mirror_s",
             "mirror_MB", "mirror_GB_per_s"]
    rows = [["system"] + names]
    for s in told["systems"]:
        rows.append([s["system"]] + [
            "" if n not in s else "%.2f" % s[n] if isinstance(s[n], float)
            else str(s[n]) for n in names])
    return report.table(rows, "l" + "r" * len(names))


def parts_table(told):
    """A query of one client: what it took, in all and where.  The trip is from
    the session to gpuvecd and back, with the queue and the engine in it."""
    rows = [["gpuivfpq, one client"] + PARTS + ["p50 us", "socket",
                                                "session"]]
    for s in told["systems"]:
        for p in s["points"]:
            if not p["parts"]:
                continue
            trip, inside = p["parts"]["trip_us"], sum(
                p["parts"][n] for n in ("queued_us", "engine_us"))
            p50 = [line["p50_ms"] * 1e3 for line in p["speed"]
                   if "p50_ms" in line]
            rows.append([p["label"]] + ["%.1f" % p["parts"][n] for n in PARTS]
                        + ["%.0f" % t for t in p50[:1] or [0]]
                        + ["%.0f" % (trip - inside),
                           "%.0f" % (p50[0] - trip) if p50 else ""])
    return report.table(rows, "l" + "r" * (len(rows[0]) - 1))


def write(args, facts, told):
    server.write("card-" + args.data, facts, [
        *build_table(told), "", *parts_table(told), "", *speed_table(told)],
        told)


def matching_truth(found, nqueries, match):
    """[nqueries] the nearest rows to query i of those whose key is i % match."""
    import numpy as np
    keys = server.numbers_of(np.arange(found.rows), match)
    truth = [None] * nqueries
    for value in range(min(match, nqueries)):
        rows = np.flatnonzero(keys == value)
        near = data.exact_neighbors(found.base[rows],
                                     found.query[value:nqueries:match], K)
        truth[value::match] = list(rows[near])
    return truth


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    dataset.prepare(args.data)
    found = dataset.load(args.data)
    truth = found.asked(args.queries).truth("l2", K)
    load_before = os.getloadavg()[0]
    with server.connect() as conn:
        data.say("loading %d x %d" % (found.rows, found.dims))
        told = {"load_s": load(conn, found, [
            server.number_column(key(n), n) for n in args.match]),
            "systems": []}
        data.say("  %.1f s" % told["load_s"])
        told["floor"] = measure_speed(
            conn, args, "\\set i random(0, %d)\nSELECT id FROM %s WHERE "
            "id = :i;\n" % (found.rows - 1, TABLE), {}, False)
        for system in args.systems:
            told["systems"].append(
                measure_system(conn, args, found, truth, system))
        write(args, {
            **server.facts(conn, load_before),
            "command": "test/gpu/run.sh bench -- " + " ".join(
                shlex.quote(a) for a in sys.argv[1:]),
            "gpuvec": "%s, gpuvecd on %s" % (
                server.extension(conn, "gpuvec"),
                server.one(conn, "SELECT engine || ', ' || device "
                           "FROM gpuvec_stat")),
            "data": args.data, "rows": found.rows, "dimensions": found.dims,
            "queries": "%d in turn for recall, pgbench -M prepared from a "
                       "table of %d" % (len(truth), len(found.query)),
            "load s": "%.1f" % told["load_s"]}, told)


if __name__ == "__main__":
    main()
