#!/usr/bin/env python3
"""How much of a table must be read?  Number of lists and second copies.

For each number of lists, with one copy of a row and with two, an index is
built and gpuvec.probes raised until recall@10 of queries that are not in the
table reaches each target; the least share of the table that does is written
down.  Share: copies read / rows of the table, as gpuvec_last_scan() counts
them, so with two copies it can pass 1.  Candidates are many, so that only the
lists decide.  A found row counts when it is no farther than the true tenth.

Runs in the cluster that libpq's environment variables name, on real[] columns;
test/bench/run.sh makes that cluster.
"""
import json

import data
import dataset
import report
import server
import systems

K = 10
ROWS_A_LIST = [1000, 300, 100, 50]
SPILL = [0, 1]
TARGETS = [.90, .95, .98, .99]
STEP = 1.5                      # of probes, until the last target is reached
TABLE, INDEX, QUERIES = "t_lists", "t_lists_v", "queries_lists"


def parse_arguments():
    parser = systems.parser(__doc__, 1000)
    parser.add_argument("--rows-a-list", type=server.numbers(int),
                        default=ROWS_A_LIST, metavar="N,...")
    parser.add_argument("--spill", type=server.numbers(int), default=SPILL,
                        metavar="0,1")
    parser.add_argument("--targets", type=server.numbers(float),
                        default=TARGETS, metavar="RECALL,...")
    parser.add_argument("--candidates", type=int, default=400)
    return parser.parse_args()


class Line:
    """One index: points by number of probes."""

    def __init__(self, lists, spill):
        self.lists, self.spill = lists, spill
        self.name = "%d lists, %s" % (
            lists, "two copies" if spill else "one copy")
        self.bytes = None
        self.points = {}        # probes: {recall, share, ...}
        self.reached = {}       # target: point, None where no number does


def build(conn, args, line):
    conn.execute("DROP INDEX IF EXISTS " + INDEX)
    conn.execute("CREATE INDEX %s ON %s USING gpuivfpq (v real_%s) "
                 "WITH (lists = %d, spill = %d)"
                 % (INDEX, TABLE, systems.METRICS[args.metric][1], line.lists,
                    line.spill))
    line.bytes = server.one(conn, "SELECT pg_relation_size(%s)", INDEX)


def measure(conn, args, line, judge, probes):
    """The point at so many probes, measured once.  max_probes keeps a scan
    that got fewer than ten rows from going on."""
    if probes not in line.points:
        server.set_all(conn, {"gpuvec.probes": probes,
                              "gpuvec.max_probes": probes,
                              "gpuvec.candidates": args.candidates})
        recall, counts = server.scan_all(
            conn, INDEX, server.nearest(
                TABLE, systems.METRICS[args.metric][0], QUERIES, "%s", K),
            judge)
        line.points[probes] = {
            "probes": probes, "recall": float(recall.mean()),
            "share": counts["postings"] / len(judge.base), "counts": counts}
    return line.points[probes]


def reach(conn, args, line, judge):
    """Finds the fewest probes for each target: steps up to it, then halves
    what lies between; recall is taken to rise with probes."""
    for target in args.targets:
        low, high = 0, 1
        while measure(conn, args, line, judge, high)["recall"] < target:
            if high == line.lists:
                break
            low, high = high, min(line.lists, max(high + 1, int(high * STEP)))
        while high - low > 1:
            middle = (low + high) // 2
            if measure(conn, args, line, judge, middle)["recall"] < target:
                low = middle
            else:
                high = middle
        point = measure(conn, args, line, judge, high)
        line.reached[target] = point if point["recall"] >= target else None


def measure_all(conn, args, judge, rows):
    lines = []
    for rows_a_list in args.rows_a_list:
        for spill in args.spill:
            line = Line(max(1, round(rows / rows_a_list)), spill)
            data.say("building: " + line.name)
            build(conn, args, line)
            server.prewarm(conn, [TABLE, QUERIES])
            data.say("probing: " + line.name)
            reach(conn, args, line, judge)
            lines.append(line)
    return lines


# --------------------------------------------------------------------- output

def text_table(args, lines):
    """Share of the table read, in %, and the probes, at each target."""
    rows = [["lists", "copies", "MB"] + ["%.2f" % t for t in args.targets]]
    for line in lines:
        rows.append(["%d" % line.lists, "%d" % (1 + line.spill),
                     "%.1f" % (line.bytes / 1e6)] + [
            "-" if p is None else "%.2f (%d)" % (100 * p["share"],
                                                 p["probes"])
            for p in line.reached.values()])
    return report.table(rows, "rrr" + "r" * len(args.targets))


def as_json(told, lines):
    return json.dumps({"facts": told, "indexes": [{
        "lists": line.lists, "spill": line.spill, "bytes": line.bytes,
        "points": [line.points[p] for p in sorted(line.points)],
        "reached": {"%.3f" % t: p and p["probes"]
                    for t, p in line.reached.items()}}
        for line in lines]}, indent=1) + "\n"


def plot(told, lines, path):
    """Share read to the right, recall@10 upwards; a color for each number of
    lists, dashed with one copy."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    colors = {n: "C%d" % i for i, n in enumerate(
        dict.fromkeys(line.lists for line in lines))}
    for line in lines:
        points = [line.points[p] for p in sorted(line.points)]
        axes.plot([100 * p["share"] for p in points],
                  [p["recall"] for p in points],
                  "-" if line.spill else "--", marker=".", markersize=5,
                  color=colors[line.lists], label=line.name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=max(.6, axes.get_ylim()[0]))
    axes.set_xlabel("copies read / rows of the table, %")
    axes.set_ylabel("recall@10")
    axes.set_title("%s, %s x %s, %s, %s candidates" % tuple(
        told[f] for f in ("data", "rows", "dimensions", "metric",
                          "candidates")), fontsize=9)
    axes.grid(True, which="both", alpha=.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def write(args, told, lines):
    path = server.output("lists-%s-%s" % (args.data, args.metric))
    text = "\n".join(
        ["%s: %s" % fact for fact in told.items()]
        + ["", "share of the table read, in % (probes), at recall@10"]
        + text_table(args, lines)) + "\n"
    with open(path + ".txt", "w") as f:
        f.write(text)
    with open(path + ".json", "w") as f:
        f.write(as_json(told, lines))
    plot(told, lines, path + ".png")
    data.say("\n" + text)
    data.say("written: %s.txt, .json, .png" % path)


def main():
    args = parse_arguments()
    found, load_before = systems.begin(args)
    import psycopg
    judge = dataset.Judge(found, args.metric, K, args.queries)
    with psycopg.connect(autocommit=True) as conn:
        server.begin(conn, args.maintenance_work_mem)
        data.say("loading %d x %d" % (found.rows, found.dims))
        server.load(conn, TABLE, found.base, "real[]")
        server.load(conn, QUERIES, found.query[:args.queries], "real[]")
        lines = measure_all(conn, args, judge, found.rows)
        write(args, {
            **server.facts(conn, load_before),
            "data": args.data, "rows": found.rows, "dimensions": found.dims,
            "metric": args.metric, "candidates": args.candidates,
            "queries": "%d, not in the table" % len(judge.query)}, lines)


if __name__ == "__main__":
    main()
