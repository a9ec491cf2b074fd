"""What is compared: each system's table, index, and the settings swept."""
import os
import re
import sys

import data
import dataset
import server

METRICS = {
    # name: (operator, suffix of the operator classes)
    "l2": ("<->", "l2_ops"),
    "cosine": ("<=>", "cosine_ops"),
}
RECALLS = [.8, .9, .97, .98, .99]
PROBES = [4, 8, 16, 32, 64, 128, 256, 512]
CANDIDATES = [30, 100, 200]
BOTH = [(32, 60), (64, 60), (128, 100), (256, 100), (256, 200)]
EF_SEARCH = [10, 20, 40, 80, 120, 200, 400, 800]
IVFFLAT_PROBES = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 100]


def parser(doc, metric="l2", **defaults):
    """Of a program about one data set, with some of server.OPTIONS."""
    made = server.parser(doc, maintenance_work_mem="1GB", **defaults)
    made.add_argument("data", nargs="?", default="sentences:100000",
                      help=data.NAMES)
    made.add_argument("--metric", choices=METRICS, default=metric)
    return made


def begin(args, kind="bench"):
    """Sees that programs of this kind and the data are there, and ends with
    --prepare; else (data set, load of the machine before)."""
    dataset.split_name(args.data)
    data.enter_venv(kind, sys.argv[0])
    dataset.prepare(args.data)
    if args.prepare:
        sys.exit()
    load_before = os.getloadavg()[0]
    found = dataset.load(args.data)
    if isinstance(args.queries, int):
        found = found.asked(args.queries)
        args.queries = len(found.query)
    return found, load_before


class Point:
    """One setting of one system, and what was measured with it."""

    def __init__(self, label, settings, default=False):
        self.label, self.settings, self.default = label, settings, default
        self.recall = None
        self.rates = {}         # {clients: [queries/s, one a round]}


class System:
    """A table with at most one index."""

    def __init__(self, name, column_type, method=None, ops=None, options="",
                 sweep=None, keys=()):
        self.name, self.column_type = name, column_type
        self.method, self.ops, self.options = method, ops, options
        self.keys = keys        # further columns of the index
        self.table = "t_" + re.sub(r"\W+", "_", name)
        self.index = self.table + "_v" if method and column_type else None
        self.sweep = sweep      # called when the index is built
        self.build_s = self.bytes = self.workers = self.info = None
        self.points = []

    def create_index(self):
        return server.index_statement(
            self.table, ", ".join(["v " + self.ops, *self.keys]),
            self.options, self.method)


def setting(name, values, default=None):
    return [Point("%s %s" % (name.split(".")[1], v), {name: v}, v == default)
            for v in values]


def sweep_gpuivfpq(system):
    """Recall asked for; probes at default candidates, the reverse, and some
    of both."""
    lists = system.info["lists"]
    return [Point("default", {}, True)] + \
        setting("gpuvec.recall", RECALLS) + \
        setting("gpuvec.probes", [p for p in PROBES if p < lists]) + \
        setting("gpuvec.candidates", CANDIDATES) + \
        [Point("probes %d, candidates %d" % (p, c),
               {"gpuvec.probes": p, "gpuvec.candidates": c})
         for p, c in BOTH if p < lists]


def sweep_hnsw(_):
    return setting("hnsw.ef_search", EF_SEARCH, default=40)


def sweep_exact(_):
    return [Point("sequential scan", {}, True)]


def ivfflat_lists(rows):
    """pgvector's advice is rows / 1000 up to 1M rows; not below 100."""
    return max(100, rows // 1000)


def gpuivfpq(suffix, options, keys=()):
    words = ["gpuivfpq"] + [options] * bool(options) + \
        ["%d keys" % len(keys)] * bool(keys)
    return System(" ".join(words), "vector", "gpuivfpq", "vector_" + suffix,
                  options, sweep_gpuivfpq, keys)


def hnsw(suffix):
    return System("hnsw 16/64", "vector", "hnsw", "vector_" + suffix,
                  "m = 16, ef_construction = 64", sweep_hnsw)


def ivfflat(suffix, lists):
    def sweep(_):
        return setting("ivfflat.probes",
                       [p for p in IVFFLAT_PROBES if p <= lists], default=1)
    return System("ivfflat %d" % lists, "vector", "ivfflat",
                  "vector_" + suffix, "lists = %d" % lists, sweep)


def faiss_scan():
    """No table: library.py's."""
    return System("faiss", None, "faiss")


def exact():
    return System("exact", "vector", sweep=sweep_exact)


def systems(args, rows, options, ivfflat_sizes=(), with_faiss=False):
    """All that one run compares: ours first, an index for each of these options,
    and of the others those whose names args.systems begins with, if any."""
    suffix = METRICS[args.metric][1]
    others = [hnsw(suffix),
              *[ivfflat(suffix, lists)
                for lists in [ivfflat_lists(rows), *ivfflat_sizes]],
              *[faiss_scan()] * with_faiss, exact()]
    return [s for s in [*(gpuivfpq(suffix, o) for o in options), *others]
            if not args.systems or any(map(s.name.startswith, args.systems))]
