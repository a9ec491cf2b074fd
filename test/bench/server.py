"""What the benchmarks do with the cluster that libpq's environment variables
name: load, warm, time, and say what it is.  test/bench/run.sh makes it."""
import datetime
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import data
import dataset


def numbers(kind):
    """The type of an argument like 1,2,3, or '' for none."""
    return lambda text: [kind(part) for part in text.split(",") if part]


# what several programs take: flag, type, metavar, help
OPTIONS = {
    "queries": ("--queries", int, "N", "of each kind, at most"),
    "rounds": ("--rounds", int, "N", "in which all take turns"),
    "seconds": ("--seconds", int, "N",
                "of pgbench, each setting and number of clients in a round"),
    "clients": ("--clients", numbers(int), "N,...", "of pgbench"),
    "recall": ("--recall", numbers(float), "RECALL,...", "gpuvec.recall"),
    "k": ("--k", int, "N", "of LIMIT"),
    "options": ("--with", str, "OPTIONS", "of indexes, 'refine = sq8'"),
    "systems": ("--systems", numbers(str), "NAME,...",
                "only those whose names begin so"),
    "maintenance_work_mem": ("--maintenance-work-mem", str, "SIZE",
                             "of sessions that build"),
    "loaders": ("--loaders", int, "N", "processes that make and copy rows"),
}


def options(made, **defaults):
    """Adds some of OPTIONS, with these defaults, to a parser."""
    for name, default in defaults.items():
        flag, kind, metavar, text = OPTIONS[name]
        made.add_argument(flag, dest=name, type=kind, default=default,
                          metavar=metavar, help=text)
    return made


def parser(doc, **defaults):
    """Of a program that test/bench/run.sh has make its data first."""
    made = data.parser(doc)
    made.add_argument("--prepare", action="store_true",
                      help="only see that programs and data are there")
    return options(made, **defaults)


def connect(**where):
    """A session, of the server that libpq's environment variables name."""
    import psycopg
    return psycopg.connect(autocommit=True, **where)


def timed(work, *args):
    """(seconds, what it returns)"""
    begin = time.monotonic()
    found = work(*args)
    return time.monotonic() - begin, found


def one(conn, query, *args):
    return conn.execute(query, args).fetchone()[0]


def extensions(conn, *names):
    """pg_prewarm, these, and what they need."""
    conn.execute("SET client_min_messages = warning")
    for name in ("pg_prewarm", *names):
        conn.execute("CREATE EXTENSION IF NOT EXISTS %s CASCADE" % name)
    conn.execute("LOAD 'gpuvec'")


def begin(conn, maintenance_work_mem):
    """Extensions and settings for programs that measure gpuvec alone."""
    extensions(conn, "gpuvec")
    need_last_scan(conn)
    set_all(conn, {"maintenance_work_mem": maintenance_work_mem,
                   "enable_seqscan": "off"})


def copy_in(conn, table, chunks):
    """COPY of what dataset.copy_stream() makes."""
    with conn.cursor().copy("COPY %s FROM STDIN (FORMAT binary)"
                            % table) as copy:
        for chunk in chunks:
            copy.write(chunk)


def in_processes(n, work, *args):
    """Runs work(i, *args) in n processes, i = 0 .. n - 1."""
    running = [multiprocessing.Process(target=work, args=(i, *args))
               for i in range(n)]
    for process in running:
        process.start()
    for process in running:
        process.join()
        if process.exitcode:
            sys.exit("bench: a process failed")


def settle(conn, table, workers):
    """Does what the first reading of a table would do, side by side: VACUUM
    (FREEZE) writes as much by one process alone."""
    set_all(conn, {"max_parallel_workers_per_gather": workers})
    conn.execute("ALTER TABLE %s SET (parallel_workers = %d)"
                 % (table, workers))
    conn.execute("SELECT count(*) FROM " + table)
    conn.execute("RESET max_parallel_workers_per_gather")
    conn.execute("ANALYZE " + table)


def load(conn, table, x, column_type, more=()):
    """A table of (row number, row), and more columns that follow from them."""
    column = "vector(%d)" % x.shape[1] if column_type == "vector" else \
        column_type
    conn.execute("CREATE TABLE %s (%s)" % (table, ", ".join(
        ["id int PRIMARY KEY", "v " + column, *more])))
    copy_in(conn, table, dataset.copy_stream(x, column_type))
    conn.execute("VACUUM ANALYZE " + table)


def load_labeled(conn, tables, x, column_type, labels, alone):
    """The same rows in each table, with columns beside, {name: array}; table
    `alone` has these alone, by key."""
    load(conn, "loaded", x, column_type)
    conn.execute("CREATE TABLE %s (id int PRIMARY KEY, %s)" % (alone, ", ".join(
        "%s %s" % (name, "float8" if column.dtype.kind == "f" else "int")
        for name, column in labels.items())))
    with conn.cursor().copy("COPY %s FROM STDIN" % alone) as copy:
        copy.write("".join("\t".join(map(repr, row)) + "\n" for row in zip(
            range(len(x)), *(column.tolist() for column in labels.values()))))
    for table in tables:
        conn.execute("CREATE TABLE %s AS SELECT a.*, v FROM %s AS a JOIN loaded"
                     " USING (id) ORDER BY id" % (table, alone))
    conn.execute("DROP TABLE loaded")


def number_column(name, count):
    """The definition of a column of numbers below `count`, as good as random,
    that follow from id."""
    return ("%s int GENERATED ALWAYS AS ((id::bigint * 2654435761 %% 4294967296"
            " >> 8) %% %d) STORED" % (name, count))


def numbers_of(ids, count):
    """What number_column() makes of an array of ids."""
    return (ids.astype("uint64") * 2654435761 % 4294967296 >> 8) % count


def prewarm(conn, tables):
    """Everything into shared buffers: heap, TOAST, indexes."""
    for (name,) in conn.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE oid IN ("
            "  SELECT unnest(array_append(array_agg(indexrelid), c.oid))"
            "  FROM pg_class c LEFT JOIN pg_index"
            "    ON indrelid IN (c.oid, c.reltoastrelid)"
            "  WHERE c.relname = ANY (%s) GROUP BY c.oid"
            "  UNION SELECT reltoastrelid FROM pg_class"
            "  WHERE relname = ANY (%s) AND reltoastrelid <> 0)",
            [tables] * 2).fetchall():
        conn.execute("SELECT pg_prewarm(%s)", [name])


def set_all(conn, settings):
    for name, value in settings.items():
        conn.execute("SELECT set_config(%s, %s, false)", [name, str(value)])


def nearest(table, operator, queries, query_id, k):
    """The statement that is measured."""
    return ("SELECT id FROM %s ORDER BY v %s "
            "(SELECT v FROM %s WHERE id = %s) LIMIT %d"
            % (table, operator, queries, query_id, k))


WATCH_SECONDS = .02           # between looks


class Phases:
    """Seconds of each phase of CREATE INDEX; a context manager."""

    def __enter__(self):
        self.seconds, self.done = {}, threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()

    def watch(self):
        with connect() as conn:
            before = time.monotonic()
            while not self.done.wait(WATCH_SECONDS):
                rows = conn.execute("SELECT phase FROM"
                                    " pg_stat_progress_create_index").fetchall()
                now = time.monotonic()
                for phase, in rows:
                    self.seconds[phase] = (self.seconds.get(phase, 0)
                                           + now - before)
                before = now


def index_statement(table, keys, options="", method="gpuivfpq"):
    """CREATE INDEX of TABLE_v."""
    return "CREATE INDEX %s_v ON %s USING %s (%s)%s" % (
        table, table, method, keys, " WITH (%s)" % options if options else "")


def index_info(conn, index):
    """What it is, by some columns of gpuvec_index_info."""
    names = ("lists", "pq_dim", "bytes")
    return dict(zip(names, conn.execute(
        "SELECT %s FROM gpuvec_index_info('%s')"
        % (", ".join(names), index)).fetchone()))


def build(conn, statement):
    """(seconds, parallel workers, seconds of each phase) of CREATE INDEX;
    pgvector tells its workers as a debug message.  Notices are printed."""
    workers = []

    def heard(diagnostic):
        text = diagnostic.message_primary or ""
        found = re.search(r"using (\d+) parallel workers", text)
        if found:
            workers.append(int(found.group(1)))
        elif diagnostic.severity_nonlocalized != "DEBUG":
            print("  %s: %s" % (diagnostic.severity, text), flush=True)

    conn.add_notice_handler(heard)
    conn.execute("SET client_min_messages = debug1")
    with Phases() as phases:
        took, _ = timed(conn.execute, statement)
    conn.execute("SET client_min_messages = warning")
    conn.remove_notice_handler(heard)
    return took, max(workers, default=0), phases.seconds


# what gpuvec_last_scan() counts, in the order of LAST_SCAN
COUNTS = ("probes", "candidates", "batches", "lists", "postings", "refined",
          "reranked", "returned", "out_of_order")
LAST_SCAN = "SELECT index::oid, %s FROM gpuvec_last_scan()" % \
    ", ".join(COUNTS)


def need_last_scan(conn):
    if one(conn, "SELECT to_regproc('gpuvec_last_scan') IS NULL"):
        sys.exit("bench: this gpuvec has no gpuvec_last_scan()")


def scan_all(conn, index, statement, judge):
    """(recall of each query [nq], mean of each count of COUNTS): runs the
    statement, which takes a query's number as %s, for all of a judge's
    queries."""
    import numpy as np
    oid = one(conn, "SELECT %s::regclass::oid", index)
    recall, counts = [], []
    for i in range(len(judge.query)):
        rows = conn.execute(statement, [i], prepare=True).fetchall()
        recall.append(judge.recall(i, [row for row, in rows]))
        scanned, *found = conn.execute(LAST_SCAN, prepare=True).fetchone()
        if scanned != oid:
            sys.exit("bench: %s was not used" % index)
        counts.append(found)
    return np.array(recall), dict(zip(
        COUNTS, np.array(counts, float).mean(axis=0).tolist()))


def recall(conn, statement, truth, k):
    """Recall@k of a statement that takes a query's number as %s and returns
    ids; `truth`: the ids of the nearest rows of each query."""
    return sum(len(set(near) & {row for row, in conn.execute(
        statement, [i], prepare=True)}) for i, near in enumerate(truth)) / (
            k * len(truth))


def processor_s(pid):
    """Processor time that a process of this host has had."""
    with open("/proc/%d/schedstat" % pid) as f:
        return int(f.read().split()[0]) / 1e9


def own_kb(pid):
    """Memory that a process of this host has for itself alone."""
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^RssAnon:\s+(\d+) kB", f.read(), re.M).group(1))


def pgbench(settings, script, clients, *options, log=None):
    """Transactions/s of all clients; prepared.  The microseconds of each go
    into a list, if there is one."""
    settings = " ".join("-c %s=%s" % s for s in settings.items())
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "script.sql")
        with open(path, "w") as file:
            file.write(script)
        if log is not None:
            options += "-l", "--log-prefix", os.path.join(folder, "log")
        out = subprocess.run(
            ["pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j",
             str(min(clients, len(os.sched_getaffinity(0)))), "-f", path,
             *options],
            env=dict(os.environ, PGOPTIONS=settings), check=True, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout
        for name in os.listdir(folder) if log is not None else ():
            if name.startswith("log"):
                with open(os.path.join(folder, name)) as file:
                    log += [int(line.split()[2]) for line in file]
    return float(re.search(r"^tps = ([\d.]+)", out, re.M).group(1))


def rate(settings, statement, nqueries, seconds, clients=1):
    """Queries/s of all clients; `statement` takes the number of a query as
    :i."""
    return pgbench(settings, "\\set i random(0, %d)\n%s;\n"
                   % (nqueries - 1, statement), clients, "-T", str(seconds))


# -------------------------------------------------------------------- machine

def machine():
    model = "unknown processor"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":")[1].strip()
                break
    return "%d cores, %s" % (len(os.sched_getaffinity(0)), model)


def extension(conn, name):
    """Its version; None: it is not there."""
    return one(conn, "SELECT (SELECT extversion FROM pg_extension"
               " WHERE extname = %s)", name)


def facts(conn, load_before, args=None, found=None, settings=()):
    """What was run where, on which data, if it was one set, and with which
    settings of the server."""
    program = os.path.basename(sys.argv[0])[:-len(".py")]
    words = ([] if program == "compare" else [program]) + sys.argv[1:]
    commit = os.environ.get("GPUVEC_COMMIT")
    told = {
        "command": "make bench BENCH='%s'" % " ".join(words),
        "date": datetime.datetime.now().strftime("%Y-%m-%d %H:%M"),
        "machine": machine(),
        "load average before, after": "%.1f, %.1f"
            % (load_before, os.getloadavg()[0]),
        "PostgreSQL": one(conn, "SHOW server_version"),
        "gpuvec": extension(conn, "gpuvec") + (
            " (%s)" % commit if commit else "") + ", gpuvec.simd = "
            + one(conn, "SHOW gpuvec.simd"),
    }
    if extension(conn, "vector"):
        told["pgvector"] = "%s (%s)" % (extension(conn, "vector"), os.environ.get(
            "PGVECTOR_OPTFLAGS", "as it is"))
    if found:
        told.update({
            "data": args.data, "rows": found.rows, "dimensions": found.dims,
            "metric": args.metric,
            "queries": "%d, not in the table" % len(found.query)})
    told.update((name, one(conn, "SHOW " + name)) for name in settings)
    return told


def output(name):
    """build/bench/NAME, without a suffix, in a folder that is there."""
    folder = os.path.join(data.BUILD, "bench")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, re.sub("[:/ ]+", "-", name))


def write(name, told, lines, found=None):
    """Prints facts and lines, and writes them and, as JSON, facts and what was
    found to build/bench; returns the files' name without a suffix."""
    path = output(name)
    text = "\n".join(["%s: %s" % fact for fact in told.items()] + ["", *lines])
    with open(path + ".txt", "w") as f:
        f.write(text + "\n")
    if found is not None:
        with open(path + ".json", "w") as f:
            json.dump({"facts": told, **found}, f, indent=1, default=str)
            f.write("\n")
    data.say("\n%s\n\nwritten: %s.txt" % (text, path))
    return path
