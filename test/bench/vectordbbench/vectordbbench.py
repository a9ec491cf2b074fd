#!/usr/bin/env python3
"""VectorDBBench's filter cases: gpuivfpq with a key beside pgvector's hnsw.

usage: vectordbbench.py DATA [OPTION...]            (test/bench/run.sh calls it)

VectorDBBench, pinned here, loads, builds, searches and measures: its
NewIntFilterPerformanceCase (id >= a value; the rate is the share of the rows
that are filtered out) and its LabelFilterPerformanceCase (label = a value; the
rate is the share that has the label).  Its own data are on the network; the one
that its cases name is replaced by DATA, written as parquet files, and with them
there nothing is fetched: sockets to other machines are refused (offline.py).

Each system has a database of its own in the cluster that libpq's environment
variables name, and settings take turns case by case.  hnsw is VectorDBBench's
PgVector: m 16, ef_construction 64, iterative_scan relaxed_order.  The default,
sentences:200000, is for a quiet host: 45 runs of a minute or two.

As VectorDBBench has it: the table is (id bigint PRIMARY KEY, embedding vector,
label varchar), ids and labels are constants of a prepared statement, and q/s are
those of Python processes, which share the processors with the server.  Not as it
has it: VACUUM ANALYZE after the build, so that plans know how many rows have a
label.  A planner may take the primary key or read the table: the last column
says so, and such answers are exact.  test/clients/vectordbbench.py runs a tiny
set and checks what comes out.
"""
import json
import os
import pwd
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
import data                                             # noqa: E402
import dataset                                          # noqa: E402
import report                                           # noqa: E402
import server                                           # noqa: E402

VERSION = "2.0.0"
# without what it needs for other databases and for its web page
PACKAGES = (["--no-deps", "vectordb-bench==" + VERSION, "ir_datasets",
             "cloudpickle"],
            ["environs<16", "h5py", "hdrhistogram", "numpy", "pandas",
             "pgvector", "polars", "psutil", "psycopg[binary]", "pyarrow",
             "pydantic>=2,<3", "pytz", "tqdm", "ujson"])
METRIC = "cosine"
INTS = [.01, .5, .9, .99]
LABELS = [.001, .01, .05, .2, .5]
OURS, HNSW = "gpuivfpq", "hnsw"


def parse_arguments():
    parser = server.parser(__doc__, queries=1000, k=100, recall=[.95, .99],
                           clients=[1, 2], seconds=10, maintenance_work_mem="1GB")
    parser.add_argument("data", nargs="?", default="sentences:200000")
    numbers, counts = server.numbers(float), server.numbers(int)
    parser.add_argument("--ints", type=numbers, default=INTS)
    parser.add_argument("--labels", type=numbers, default=LABELS)
    parser.add_argument("--ef-search", type=counts, default=[100, 200, 400])
    parser.add_argument("--set", action="append", default=[],
                        metavar="NAME=VALUE", help="of both databases")
    parser.add_argument("--folder", help="of the parquet files")
    parser.add_argument("--json", help="where results are written, too")
    return parser.parse_args()


# ---------------------------------------------------------------------- cases

def int_filter(rate):
    from vectordb_bench.backend.filter import NewIntFilter
    return NewIntFilter(filter_rate=rate, int_value=0)


def label_filter(share):
    from vectordb_bench.backend.filter import LabelFilter
    return LabelFilter(label_percentage=share)


def write_set(args, found):
    """The folder of the set; made anew, as it may have had other cases."""
    import parquet
    folder = args.folder or os.path.join(
        dataset.FOLDER, "vectordbbench-" + args.data.replace(":", "-"))
    parquet.make(
        found, METRIC, folder,
        {int_filter(rate).groundtruth_file: int(found.rows * rate)
         for rate in args.ints},
        {(label_filter(share).label_value,
          label_filter(share).groundtruth_file): share
         for share in args.labels})
    return folder


def replace_data(args, found, folder):
    """What VectorDBBench's cases know as this set is ours from now on."""
    from vectordb_bench.backend import dataset as theirs
    from vectordb_bench.backend.cases import MetricType
    name = theirs.DatasetWithSizeType.CohereSmall
    theirs.DatasetWithSizeMap[name] = theirs.ParquetDatasetManager(
        data=theirs.CustomDataset(
            name=args.data, size=found.rows, dim=found.dims, dir=folder,
            file_num=1, metric_type=MetricType.COSINE, use_shuffled=False,
            with_gt=True))
    return name


def cases(args, name):
    """[(what is asked, VectorDBBench's type of it, its arguments)], those with
    the same table one after the other."""
    from vectordb_bench.backend.cases import CaseType
    return [("id, %g %% pass" % (100 - 100 * rate),
             CaseType.NewIntFilterPerformanceCase,
             {"dataset_with_size_type": name, "filter_rate": rate})
            for rate in args.ints] + \
           [("label, %g %% pass" % (100 * share),
             CaseType.LabelFilterPerformanceCase,
             {"dataset_with_size_type": name, "label_percentage": share})
            for share in args.labels]


# -------------------------------------------------------------------- systems

def systems(args):
    """[(name, [(setting's name, configuration)])]"""
    from clients import GpuvecConfig
    from vectordb_bench.backend.cases import MetricType
    from vectordb_bench.backend.clients.pgvector.config import (
        PgVectorHNSWConfig)
    return [
        (OURS, [
            ("recall %g" % r,
             GpuvecConfig(metric_type=MetricType.COSINE, recall=r))
            for r in args.recall]),
        (HNSW, [
            ("ef_search %d" % ef, PgVectorHNSWConfig(
                metric_type=MetricType.COSINE, m=16, ef_construction=64,
                ef_search=ef))
            for ef in args.ef_search])]


def make_databases(args, names):
    with server.connect() as conn:
        for name in names:
            conn.execute("DROP DATABASE IF EXISTS " + name)
            conn.execute("CREATE DATABASE " + name)
            for setting in args.set + [
                    "maintenance_work_mem=" + args.maintenance_work_mem]:
                conn.execute("ALTER DATABASE %s SET %s = '%s'"
                             % (name, *setting.split("=")))
            with server.connect(dbname=name) as own:
                own.execute("CREATE EXTENSION gpuvec_pgvector CASCADE")


def make_runner(args, database, config, case):
    """VectorDBBench's runner of one case."""
    from clients import Runner, address
    from vectordb_bench.backend.clients import DB
    from vectordb_bench.backend.data_source import DatasetSource
    from vectordb_bench.backend.task_runner import RunningStatus
    from vectordb_bench.models import (CaseConfig, ConcurrencySearchConfig,
                                       TaskConfig)

    _, kind, custom = case
    return Runner(
        run_id=database, ca=kind.case_cls(custom),
        status=RunningStatus.PENDING, dataset_source=DatasetSource.S3,
        config=TaskConfig(
            db=DB.PgVector, db_case_config=config,
            db_config=address(
                os.environ["PGHOST"], int(os.environ.get("PGPORT", 5432)),
                os.environ.get("PGUSER") or pwd.getpwuid(os.getuid())[0],
                database),
            case_config=CaseConfig(
                case_id=kind, custom_case=custom, k=args.k,
                concurrency_search_config=ConcurrencySearchConfig(
                    num_concurrency=args.clients,
                    concurrency_duration=args.seconds))))


def plan(runner, k):
    """The nodes of the statement's plan, and whether a key answers it."""
    import numpy as np
    from psycopg import sql
    with runner.db.init():
        runner.db.prepare_filter(runner.ca.filters)
        lines = [line for line, in runner.db.cursor.execute(
            sql.SQL("EXPLAIN (COSTS OFF) ") + runner.db._search,
            (np.asarray(runner.ca.dataset.test_data[0]), k)).fetchall()]
    nodes = [line.replace("->", "").strip().split(" on ")[0]
             for line in lines[1:] if "->" in line or line[0] != " "]
    keyed = any(line.strip().startswith("Index Cond") for line in lines)
    return nodes[-1] + (", Index Cond" if keyed else "")


# ----------------------------------------------------------------------- main

def measure(args, name):
    """[{}]: a case and a setting each."""
    results, loaded = [], set()
    for case in cases(args, name):
        for system, settings in systems(args):
            for setting, config in settings:
                runner = make_runner(args, "vdb_" + system, config, case)
                load = (system, case[1]) not in loaded
                loaded.add((system, case[1]))
                data.say("%s, %s %s" % (case[0], system, setting))
                got = runner.run(drop_old=load)
                results.append({
                    "case": case[0], "system": system, "setting": setting,
                    "recall": float(got.recall),
                    "p50_ms": 1000 * float(got.serial_latency_p50),
                    "p99_ms": 1000 * float(got.serial_latency_p99),
                    "qps": [float(q) for q in got.conc_qps_list],
                    "insert_s": got.insert_duration if load else None,
                    "build_s": got.optimize_duration if load else None,
                    "plan": plan(runner, args.k)})
                print(table(args, results[-1:]), flush=True)
    return results


def peer(results, ours):
    """What hnsw does at our recall: its fastest setting that finds as much,
    else its best, which is marked."""
    found = [r for r in results
             if r["case"] == ours["case"] and r["system"] == HNSW]
    enough = [r for r in found if r["recall"] >= ours["recall"] - .005]
    return (max(enough, key=lambda r: r["qps"][-1]), "") if enough else \
        (max(found, key=lambda r: r["recall"], default=None), "less: ")


def ratio(results, ours):
    if ours["system"] == HNSW:
        return ""
    other, mark = peer(results, ours)
    return "" if other is None else "%s%.2f" % (
        mark, ours["qps"][-1] / other["qps"][-1])


def table(args, results):
    head = ["case", "system", "asked", "recall", "p50 ms", "p99 ms"] + \
        ["q/s, %d" % n for n in args.clients] + ["/ hnsw's", "plan"]
    lines = [head] + [
        [r["case"], r["system"], r["setting"], "%.4f" % r["recall"],
         "%.2f" % r["p50_ms"], "%.2f" % r["p99_ms"]] +
        ["%.0f" % q for q in r["qps"]] + [ratio(results, r), r["plan"]]
        for r in results]
    return "\n".join(report.table(
        lines, "lll" + "r" * (len(head) - 4) + "l"))


def main():
    args = parse_arguments()
    dataset.split_name(args.data)
    if sys.version_info < (3, 11):
        sys.exit("vectordbbench: it needs Python 3.11")
    data.go_on_in(os.path.join(data.BUILD, "vectordbbench"), __file__,
                  "have-" + VERSION, "", *PACKAGES)
    dataset.prepare(args.data)
    if args.prepare:
        return
    os.environ["LOG_FILE"] = os.path.join(data.BUILD, "vectordbbench.log")
    os.environ.setdefault("LOG_LEVEL", "WARNING")
    load_before = os.getloadavg()[0]
    found = dataset.load(args.data)
    found.query = found.query[:args.queries]
    folder = write_set(args, found)
    make_databases(args, ["vdb_" + system for system, _ in systems(args)])
    results = measure(args, replace_data(args, found, folder))
    with server.connect(dbname="vdb_" + OURS) as conn:
        conn.execute("LOAD 'gpuvec'")
        told = server.facts(conn, load_before)
    for name, value in told.items():
        print("%-40s %s" % (name, value))
    for r in results:
        if r["build_s"] is not None:
            print("%s, %s: insert %.0f s, build %.1f s" % (
                r["case"].split(",")[0], r["system"], r["insert_s"],
                r["build_s"]))
    print(table(args, results))
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    import offline                                      # noqa: F401
    main()
