#!/usr/bin/env python3
"""What keys of an index take where it is written: its build, by the session and
by gpuvecd on the machine's processors, COPY and INSERT ... SELECT.

The same rows and three int columns, one ascending, two random, in one table of
the cluster that libpq's environment variables name; test/bench/run.sh makes that
cluster.  Each index in turn, one at a time, in every round, rows that came
rolled back.  Times are processor time, the least of all rounds: the backend's,
and gpuvecd's with it where that builds.
"""
import os
import time

import data
import dataset
import report
import server
import systems as compared

TABLE, STAGED = "keywrites", "keywrites_more"
# name, key columns, options
INDEXES = [("no key", "", ""), ("one key", ", a", ""),
           ("three keys", ", a, b, c", "")]
STEPS = ["build", "gpuvecd's", "COPY", "INSERT"]
PATIENCE_S = 30


def parse_arguments():
    parser = compared.parser(__doc__, 1)
    parser.set_defaults(data="sentences:50000", metric="cosine")
    parser.add_argument("--more", type=int, default=10000, metavar="ROWS",
                        help="that come once the index is there")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pq-dim", type=int, default=0, metavar="N",
                        help="a further index with three keys and so many "
                        "sub-quantizers")
    return parser.parse_args()


# ----------------------------------------------------------------------- times

def ticks_s(pid):
    """Processor time of a process and all its threads."""
    with open("/proc/%d/stat" % pid) as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slices_s(pid):
    """Of a process that has one thread; exact."""
    with open("/proc/%d/schedstat" % pid) as f:
        return int(f.read().split()[0]) / 1e9


class Clock:
    """A context manager: processor seconds of the backend, and of gpuvecd."""

    def __init__(self, conn, gpuvecd=None):
        self.pid, self.gpuvecd = conn.info.backend_pid, gpuvecd

    def now(self):
        return slices_s(self.pid) + (ticks_s(self.gpuvecd)
                                     if self.gpuvecd else 0)

    def __enter__(self):
        self.start = self.now()
        return self

    def __exit__(self, *_):
        self.seconds = self.now() - self.start


def find_gpuvecd(conn):
    """Its process, or None where it does not run."""
    for _ in range(PATIENCE_S):
        found = conn.execute("SELECT pid FROM gpuvec_stat"
                             " WHERE state = 'up'").fetchone()
        if found and found[0]:
            return found[0]
        time.sleep(1)
    data.say("gpuvecd does not run: its builds are left out")
    return None


# ----------------------------------------------------------------------- steps

def prepare_tables(conn, found, rows):
    server.load(conn, TABLE, found.base[:rows], "vector")
    conn.execute("CREATE SEQUENCE keywrites_a")
    conn.execute("ALTER TABLE %s ADD a int DEFAULT nextval('keywrites_a'),"
                 " ADD b int DEFAULT (1000 * random())::int,"
                 " ADD c int DEFAULT (1000 * random())::int" % TABLE)
    server.load(conn, STAGED, found.base[rows:], "vector")
    conn.execute("VACUUM ANALYZE " + TABLE)
    server.prewarm(conn, [TABLE, STAGED])


def build(conn, metric, index, clock):
    _, keys, options = index
    with clock:
        conn.execute("CREATE INDEX keywrites_v ON %s USING gpuivfpq (v vector_%s"
                     "%s)%s" % (TABLE, compared.METRICS[metric][1], keys,
                                options and " WITH (%s)" % options))
    return clock.seconds


def rolled_back(conn, action):
    with Clock(conn) as clock:
        conn.execute("BEGIN")
        action()
        conn.execute("ROLLBACK")
    return clock.seconds


def measure_round(conn, args, index, chunks, gpuvecd):
    """{step: seconds}, and the index's bytes"""
    took = {}
    server.set_all(conn, {"gpuvec.engine": "cpu"})
    took["build"] = build(conn, args.metric, index, Clock(conn))
    size = server.one(conn, "SELECT pg_relation_size('keywrites_v')")
    took["COPY"] = rolled_back(conn, lambda: server.copy_in(
        conn, "%s (id, v)" % TABLE, chunks))
    took["INSERT"] = rolled_back(conn, lambda: conn.execute(
        "INSERT INTO %s (id, v) SELECT id, v FROM %s" % (TABLE, STAGED)))
    conn.execute("DROP INDEX keywrites_v")
    if gpuvecd:
        server.set_all(conn, {"gpuvec.engine": "gpu",
                              "gpuvec.on_gpu_error": "error"})
        took["gpuvecd's"] = build(conn, args.metric, index,
                                  Clock(conn, gpuvecd))
        conn.execute("DROP INDEX keywrites_v")
    conn.execute("VACUUM " + TABLE)
    return took, size


def measure(conn, args, indexes, found, gpuvecd):
    """{name: ({step: least seconds}, bytes)}"""
    rows = found.rows - args.more
    prepare_tables(conn, found, rows)
    chunks = list(dataset.copy_stream(found.base[rows:], "vector", rows))
    best = {}
    for turn in range(args.rounds):
        data.say("round %d of %d" % (turn + 1, args.rounds))
        for index in indexes:
            took, size = measure_round(conn, args, index, chunks, gpuvecd)
            before = best.get(index[0], ({}, 0))[0]
            best[index[0]] = ({s: min(t, before.get(s, t))
                               for s, t in took.items()}, size)
    return best


# ---------------------------------------------------------------------- output

def table(best):
    """Seconds, and multiples of those without a key."""
    plain, plain_size = best[INDEXES[0][0]]
    lines = [["index", "MB", "x"] + [w for s in STEPS for w in (s + " s", "x")]]
    for name, (took, size) in best.items():
        lines.append([name, "%.2f" % (size / 1e6),
                      "%.2f" % (size / plain_size)]
                     + [w for s in STEPS for w in (
                         ("%.2f" % took[s], "%.2f" % (took[s] / plain[s]))
                         if s in took else ("-", "-"))])
    return "\n".join(report.table(lines, "l" + "r" * (len(lines[0]) - 1)))


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    dataset.split_name(args.data)
    dataset.prepare(args.data)
    if args.prepare:
        return
    import psycopg
    load_before = os.getloadavg()[0]
    found = dataset.load(args.data)
    indexes = INDEXES + ([("three keys, pq_dim %d" % args.pq_dim,
                           INDEXES[-1][1], "pq_dim = %d" % args.pq_dim)]
                         if args.pq_dim else [])
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("CREATE EXTENSION IF NOT EXISTS gpuvec_pgvector CASCADE")
        server.begin(conn, args.maintenance_work_mem)
        server.set_all(conn, {"max_parallel_maintenance_workers": 0})
        best = measure(conn, args, indexes, found, find_gpuvecd(conn))
        for name, value in server.facts(conn, load_before).items():
            print("%-40s %s" % (name, value))
    print("%d rows x %d, then %d more; the least of %d rounds" % (
        found.rows - args.more, found.dims, args.more, args.rounds))
    print(table(best))


if __name__ == "__main__":
    main()
