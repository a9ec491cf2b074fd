#!/usr/bin/env python3
"""What an index of very many rows takes, from its first row to a cold start,
in the cluster that libpq's environment variables name.  test/bench/run.sh
makes that cluster; it and this program are on one host.

In turn: COPY of most rows into a table; CREATE INDEX with each --memory, the
last of which stays; recall and queries/s; COPY of the other rows; DELETE of
some and VACUUM; gpuvec_verify_index; recall and queries/s again; a restart
with caches empty, of the server and, by posix_fadvise, of the system; with
--graph, tables of graphs by the index, in arrays and in pairs, at the highest
recall.

Processor time is that of the session and of all workers that it had, from
/proc; elapsed time on a busy machine is of little worth.  Memory of a build is
what its processes have for themselves alone, together, at most, above what the
session had before; and shared memory segments.

Ends with status 1 where something is not as it ought to be: a build that
exceeds maintenance_work_mem by more than a quarter and 8 MB for each process,
recall more than .01 below what was asked for, faults in the index.
"""
import glob
import json
import os
import subprocess
import sys
import threading
import time

import data
import dataset
import report
import server
import systems as compared

K = 10
TABLE, INDEX, QUERIES = "large", "large_v", "large_queries"
RECALLS = [.95, .99]
SLACK = .01                     # of recall
GRAPH_ROWS = 200                # that are judged
GRAPHS = [("gpuvec_knn_graph_arrays", "large_graph_arrays", "neighbors", ""),
          ("gpuvec_knn_graph", "large_graph", "array_agg(neighbor)",
           "GROUP BY key")]     # function, table, a key's neighbors
OWN_MB = 8                      # of a process, beside maintenance_work_mem
LOOK_SECONDS = .05              # between looks at memory
TICK = os.sysconf("SC_CLK_TCK")
MB = 1 << 20
# of the table, and their units
COLUMNS = {"elapsed": 1, "processor": 1, "own": MB, "segments": MB}


def parse_arguments():
    parser = compared.parser(__doc__, queries=1000, options="", clients=[1, 2],
                             seconds=5)
    parser.add_argument("--memory", type=server.numbers(str),
                        default=["64MB", "4GB"], metavar="SIZE,...",
                        help="maintenance_work_mem, a build each")
    parser.add_argument("--copied", type=float, default=.02, metavar="SHARE",
                        help="of the rows, into the indexed table")
    parser.add_argument("--deleted", type=int, default=50, metavar="N",
                        help="one of N rows, before VACUUM")
    parser.add_argument("--io-concurrency", type=server.numbers(int),
                        default=[1, 32], metavar="N,...",
                        help="effective_io_concurrency of cold queries")
    parser.add_argument("--graph", type=int, default=0, metavar="K",
                        help="a graph of so many neighbors, too")
    return parser.parse_args()


# ---------------------------------------------------------------- what it took

def children(pid):
    with open("/proc/%d/task/%d/children" % (pid, pid)) as f:
        return [int(child) for child in f.read().split()]


def stat(pid):
    """Fields of /proc/PID/stat from the third on."""
    with open("/proc/%d/stat" % pid) as f:
        return f.read().rsplit(")", 1)[1].split()


def ticks(pid):
    """Clock ticks that a process has had."""
    return sum(map(int, stat(pid)[11:13]))


def is_worker(pid):
    with open("/proc/%d/cmdline" % pid) as f:
        return "parallel worker" in f.read()


class Took:
    """A context manager: elapsed seconds; of a session and its parallel
    workers processor seconds, and the most memory that they had at a time, for
    themselves and in shared segments, above what there was before."""

    def __init__(self, conn):
        self.pid = conn.info.backend_pid

    def __enter__(self):
        self.postmaster = int(stat(self.pid)[1])
        self.own_before = server.own_kb(self.pid) * 1024
        self.segments_before = segment_bytes()
        self.own = self.segments = 0
        self.ticks = {}         # by worker, as far as it was seen
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.begin, self.before = time.monotonic(), ticks(self.pid)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.elapsed = time.monotonic() - self.begin
        used = ticks(self.pid) - self.before
        self.done.set()
        self.thread.join()
        self.processor = (used + sum(self.ticks.values())) / TICK

    def watch(self):
        while not self.done.wait(LOOK_SECONDS):
            own = server.own_kb(self.pid) * 1024 - self.own_before
            for pid in children(self.postmaster):
                try:
                    if is_worker(pid):
                        own += server.own_kb(pid) * 1024
                        self.ticks[pid] = ticks(pid)
                except (OSError, AttributeError):   # it has ended
                    pass
            segments = segment_bytes() - self.segments_before
            if own + segments > self.own + self.segments:
                self.own, self.segments = own, segments

    def as_json(self):
        return {"elapsed": self.elapsed, "processor": self.processor,
                "own": self.own, "segments": self.segments,
                "processes": 1 + len(self.ticks)}


def segment_bytes():
    """Of dynamic shared memory."""
    found = 0
    for path in glob.glob("/dev/shm/PostgreSQL.*"):
        try:
            found += os.stat(path).st_blocks * 512
        except OSError:
            pass
    return found


# ----------------------------------------------------------------------- truth

def among(truth, there):
    """[nq] the K nearest, as sets, of rows for which there(ids) is true; the
    nearest TRUTH_K are enough for that."""
    found = [near[there(near)][:K] for near in truth]
    if any(len(near) < K for near in found):
        sys.exit("bench: too many rows are left out")
    return [set(near.tolist()) for near in found]


def measure_recall(conn, statement, truth):
    """{recall asked for: recall}"""
    found = {}
    for asked in RECALLS:
        server.set_all(conn, {"gpuvec.recall": asked})
        found[asked] = server.recall(conn, statement, truth, K)
    conn.execute("RESET gpuvec.recall")
    return found


# ----------------------------------------------------------------------- steps

class Large:
    """All of it; `told` is what was found, `wrong` what ought not to be."""

    def __init__(self, args, found):
        self.args, self.found = args, found
        self.loaded = round(found.rows * (1 - args.copied))
        self.truth = found.truth(args.metric, data.TRUTH_K)
        self.told, self.wrong = {}, []

    def say(self, what, told):
        self.told[what] = told
        data.say("%s: %s" % (what, json.dumps(told)))

    def must(self, good, complaint):
        if not good:
            self.wrong.append(complaint)
            data.say("WRONG: " + complaint)

    def load(self, conn):
        server.load(conn, QUERIES, self.found.query, "vector")
        with Took(conn) as took:
            server.load(conn, TABLE, self.found.base[:self.loaded], "vector")
        self.say("load", {**took.as_json(), "rows": self.loaded, "bytes":
                          server.one(conn, "SELECT pg_table_size(%s)", TABLE)})

    def build(self, conn, memory):
        conn.execute("DROP INDEX IF EXISTS " + INDEX)
        conn.execute("CHECKPOINT")
        server.set_all(conn, {"maintenance_work_mem": memory})
        limit = server.one(conn, "SELECT pg_size_bytes(%s)", memory)
        ops = "vector_" + compared.METRICS[self.args.metric][1]
        with Took(conn) as took:
            _, _, phases = server.build(conn, server.index_statement(
                TABLE, "v " + ops, self.args.options))
        self.say("build in " + memory, {
            **took.as_json(), "phases": phases,
            **server.index_info(conn, INDEX)})
        used = took.own + took.segments
        most = 1.25 * limit + OWN_MB * MB * (1 + len(took.ticks))
        self.must(used <= most, "a build in %s had %.0f MB"
                  % (memory, used / MB))

    def recall(self, conn, what, there):
        found = measure_recall(conn, self.statement("%s"),
                               among(self.truth, there))
        self.say("recall, " + what, found)
        for asked, recall in found.items():
            self.must(recall >= asked - SLACK, "%s: recall %.4f where %g was "
                      "asked for" % (what, recall, asked))

    def rates(self, what):
        """By recall asked for: queries/s of each number of clients, and a
        session's processor time of a query, in microseconds."""
        self.say("queries/s, " + what, {
            asked: {"rates": [server.rate(
                {"gpuvec.recall": asked, "enable_seqscan": "off"},
                self.statement(":i"), self.args.queries, self.args.seconds,
                clients) for clients in self.args.clients],
                "processor us": self.processor_us(asked)}
            for asked in RECALLS})

    def statement(self, query_id):
        return server.nearest(TABLE, compared.METRICS[self.args.metric][0],
                              QUERIES, query_id, K)

    def processor_us(self, asked):
        with server.connect() as conn:
            server.set_all(conn, {"gpuvec.recall": asked,
                                  "enable_seqscan": "off"})
            for _ in range(2):      # the second one counts
                before = ticks(conn.info.backend_pid)
                for i in range(self.args.queries):
                    conn.execute(self.statement("%s"), [i],
                                 prepare=True).fetchall()
            used = ticks(conn.info.backend_pid) - before
        return used / TICK / self.args.queries * 1e6

    def copy(self, conn):
        rows = self.found.base[self.loaded:]
        chunks = dataset.copy_stream(rows, "vector", self.loaded)
        with Took(conn) as took:
            server.copy_in(conn, TABLE, chunks)
        self.say("copy", {**took.as_json(), "rows": len(rows)})

    def vacuum(self, conn):
        with Took(conn) as took:
            n = conn.execute("DELETE FROM %s WHERE id %% %d = 0" % (
                TABLE, self.args.deleted)).rowcount
        self.say("delete", {**took.as_json(), "rows": n})
        with Took(conn) as took:
            conn.execute("VACUUM " + TABLE)
        dead, pending = conn.execute("SELECT dead, pending FROM"
                                     " gpuvec_index_info(%s)",
                                     [INDEX]).fetchone()
        self.say("vacuum", {**took.as_json(), "dead": dead,
                            "pending": pending})
        self.must(pending == 0, "%d rows are pending" % pending)

    def verify(self, conn):
        with Took(conn) as took:
            faults = conn.execute("SELECT * FROM gpuvec_verify_index(%s)",
                                  [INDEX]).fetchall()
        self.say("verify", {**took.as_json(), "faults": len(faults)})
        self.must(not faults, "verify: %s" % (faults[:1],))

    def graph(self, conn):
        asked = RECALLS[-1]
        server.set_all(conn, {"gpuvec.recall": asked})
        for function, table, *neighbors in GRAPHS:
            with Took(conn) as took:
                conn.execute(
                    "CREATE TABLE %s AS SELECT * FROM %s('%s', 'id', 'v', %d,"
                    " '%s', 'index')" % (table, function, TABLE,
                                         self.args.graph, self.args.metric))
            recall = self.judge_graph(conn, table, *neighbors)
            self.say(function, {**took.as_json(), "recall": recall})
            self.must(recall >= asked - SLACK,
                      "%s has a recall of %.4f" % (function, recall))

    def judge_graph(self, conn, table, neighbors, grouped):
        """Recall of GRAPH_ROWS rows beside an exact search."""
        import numpy as np
        k = self.args.graph
        server.set_all(conn, {"enable_indexscan": "off"})
        found = dict(conn.execute(
            "SELECT key, %s FROM %s WHERE key IN"
            " (SELECT id FROM %s ORDER BY hashint4(id) LIMIT %d) %s"
            % (neighbors, table, TABLE, GRAPH_ROWS, grouped)).fetchall())
        keys = np.array(sorted(found))
        # some are deleted, and each is its own
        exact = data.exact_neighbors(self.found.base, self.found.base[keys],
                                      2 * k + 1)
        hits = 0
        for key, near in zip(keys.tolist(), exact):
            near = near[self.stayed(near) & (near != key)][:k]
            hits += len(set(near.tolist()) & set(found[key]))
        return hits / (k * len(keys))

    def stayed(self, ids):
        return ids % self.args.deleted != 0


# ------------------------------------------------------------------------ cold

def restart():
    """The server, with nothing of its files in memory."""
    with server.connect() as conn:
        conn.execute("CHECKPOINT")
        folder = server.one(conn, "SHOW data_directory")
    owner = os.stat(folder)

    def pg_ctl(*words):
        subprocess.run(["pg_ctl", "-D", folder, "-w", "-s", *words],
                       check=True, stdin=subprocess.DEVNULL,
                       start_new_session=True, cwd=folder,
                       **({"user": owner.st_uid, "group": owner.st_gid,
                           "extra_groups": []} if os.geteuid() == 0 else {}))

    pg_ctl("-m", "fast", "stop")
    forget(folder)
    pg_ctl("-l", os.path.join(folder, "server.log"), "start")


def forget(folder):
    """All files of a folder, by the system's cache."""
    for path in glob.glob(os.path.join(folder, "**"), recursive=True):
        if os.path.isfile(path):
            with open(path, "rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure_cold(large):
    """Milliseconds of queries, one after the other, in a new session."""
    for asked, io in [(asked, io) for asked in RECALLS
                      for io in large.args.io_concurrency]:
        restart()
        with server.connect() as conn:
            server.set_all(conn, {"gpuvec.recall": asked,
                                  "effective_io_concurrency": io,
                                  "enable_seqscan": "off"})
            took = []
            for i in range(large.args.queries):
                took.append(1000 * server.timed(lambda: conn.execute(
                    large.statement("%s"), [i], prepare=True).fetchall())[0])
        large.say("cold, ms a query at %g, effective_io_concurrency %d"
                  % (asked, io), {
                      "first": took[0], "next 9": sum(took[1:10]) / 9,
                      "next 90": sum(took[10:100]) / 90,
                      "last 100": sum(took[-100:]) / 100,
                      "of all": sum(took) / len(took)})


# ---------------------------------------------------------------------- output

def lines_of(large):
    rows = [["step", "elapsed s", "processor s", "memory MB", "segments",
             "else"]]
    for step, found in large.told.items():
        rows.append([step] + [
            "%.1f" % (found[k] / unit) if k in found else "-"
            for k, unit in COLUMNS.items()] + [
            ", ".join("%s %s" % (k, short(v)) for k, v in found.items()
                      if k not in COLUMNS)])
    return report.table(rows, "lrrrrl") + [
        "wrong: " + complaint for complaint in large.wrong]


def short(value):
    if isinstance(value, dict):
        return " ".join("%s %s" % (k, short(v)) for k, v in value.items())
    if isinstance(value, list):
        return "/".join(map(short, value))
    return "%.4g" % value if isinstance(value, float) else str(value)


def run(args, large):
    with server.connect() as conn:
        server.extensions(conn, "gpuvec_pgvector")
        server.set_all(conn, {"enable_seqscan": "off"})
        large.load(conn)
        for memory in args.memory:
            large.build(conn, memory)
            large.recall(conn, "built in " + memory,
                         lambda ids: ids < large.loaded)
        server.prewarm(conn, [TABLE])
        large.rates("warm")
        large.copy(conn)
        large.vacuum(conn)
        large.verify(conn)
        large.recall(conn, "after COPY and VACUUM", large.stayed)
        large.rates("after COPY and VACUUM")
    measure_cold(large)
    if args.graph:
        with server.connect() as conn:
            server.set_all(conn, {"maintenance_work_mem": args.memory[-1]})
            large.graph(conn)


def main():
    args = parse_arguments()
    found, load_before = compared.begin(args)
    large = Large(args, found)
    try:
        run(args, large)
    finally:
        with server.connect() as conn:
            conn.execute("LOAD 'gpuvec'")
            server.write("large-%s-%s" % (args.data, args.metric),
                         {**server.facts(conn, load_before, args, found, [
                             "shared_buffers", "fsync",
                             "max_parallel_maintenance_workers"]),
                          "index options": args.options or "-",
                          "clients": ", ".join(map(str, args.clients))},
                         lines_of(large),
                         {"steps": large.told, "wrong": large.wrong})
    sys.exit(bool(large.wrong))


if __name__ == "__main__":
    main()
