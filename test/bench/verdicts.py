"""What where.py has measured, held against what is asked of gpuivfpq: a table,
JSON and a plot."""
import json
import statistics

import cases as conditions
import data
import report
import server
import systems as compared

TARGETS = [.95, .99]
# times of another system's time at most
OF_HNSW = [(30, 2 / 3), (5, 1 / 3), (0, 1 / 4)]     # from this share on, in %
OF_TABLE, OF_BTREE, OF_LIMIT, OF_BEFORE = 1.3, 1.5, 2, 1.02
# what recall may be less than asked
BELOW = {"independent": .005, "near": .01, "far": .01, "asked": .005}


def by_system(points, *names):
    """The points of some systems as one, for report.rate_at."""
    system = compared.System(names[0], None)
    system.points = [p for p in points if p.system in names]
    return system if system.points else None


def first(points, system, label=""):
    return next((p for p in points if (p.system, p.label) == (system, label)),
                None)


def hnsw_ms(points, recall):
    """(ms at this recall, '' or '<' where hnsw finds less)"""
    system = by_system(points, "hnsw relaxed", "hnsw strict")
    if system is None:
        return None, ""
    rate, _ = report.rate_at(system, recall, 1)
    if rate:
        return 1000 / rate, ""
    return 1000 / report.frontier(system, 1)[-1][1], "<"


def bounds(case, point, points):
    """[(what, measured, allowed)] of what the issue asks for; recall is met
    when not less, times when not more."""
    found = []

    def at_most(what, other, allowed):
        if other is not None:
            found.append((what, point.time / other.time, allowed))

    asked = float(point.label)
    judged = point.system in ("forced", "own choice", "beside")
    if judged or point.system.startswith("calibrated"):
        found.append(("recall", point.recall,
                      asked - BELOW.get(case.kind, 0)))
    if case.kind in ("independent", "near", "far", "empty"):
        if point.system == "forced" and case.kind != "empty":
            at = next(a for s, a in OF_HNSW if case.share >= s)
            other, less = hnsw_ms(points, point.recall)
            if not less:        # or there is no time at this recall
                found.append(("hnsw", point.time / other, at))
        if judged and "seq" not in point.plan:      # else it is the same
            at_most("seq", first(points, "sequential scan"), OF_TABLE)
        if point.system == "beside" and point.watched:
            at_most("btree", first(points, "btree and sort"), OF_BTREE)
    if case.kind == "radius" and point.system == "forced":
        at_most("no radius", first(points, "no radius", point.label), OF_LIMIT)
    if case.kind == "none" and point.system == "forced":
        at_most("plain", first(points, "plain", point.label), OF_BEFORE)
    if point.system == "planned":
        at_most("plain", first(points, "planned, plain", point.label),
                OF_BEFORE)
    return found


def is_met(bound):
    what, measured, allowed = bound
    return measured >= allowed if what == "recall" else measured <= allowed


def verdict(point, found):
    """'ok', or what is not met, with a question mark where the sample's error
    may be why."""
    missed = ["%s %.3f > %.2f" % b if b[0] != "recall" else
              "recall < %.3f%s" % (b[2], "?" * (b[1] + point.error >= b[2]))
              for b in found if not is_met(b)]
    return ", ".join(missed) or ("ok" if found else "")


# ---------------------------------------------------------------------- output

def own_table(measured):
    """A line for each point of ours: what it took, beside what others did."""
    rows = [["case", "asked", "how", "plan", "queries", "recall", "+-", "p50",
             "cpu", "p90", "hnsw", "seq", "btree", "reranked",
             "out of order", "bounds"]]
    for case, points in measured:
        for p in points:
            if not p.ours:
                continue
            hnsw, less = hnsw_ms(points, p.recall)
            others = [first(points, s) for s in ("sequential scan",
                                                 "btree and sort")]
            counts = dict(zip(server.COUNTS, map(statistics.mean,
                                                 zip(*p.counts))))
            rows.append([
                case.name, p.label, p.system, p.plan, "%d" % len(p.ms),
                "%.4f" % p.recall, "%.4f" % p.error, "%.2f" % p.p50,
                "%.2f" % p.cpu, "%.2f" % p.p90,
                less + "%.2f" % hnsw if hnsw else "-",
                *["%.2f" % o.time if o else "-" for o in others],
                *["%.0f" % counts[c] if counts else "-"
                  for c in ("reranked", "out_of_order")],
                verdict(p, bounds(case, p, points))])
    return report.table(rows, "llllrrrrrrrrrrrl")


def other_table(measured):
    rows = [["case", "system", "setting", "plan", "queries", "recall", "p50",
             "cpu"]]
    for case, points in measured:
        rows += [[case.name, p.system, p.label, p.plan, "%d" % len(p.ms),
                  "%.4f" % p.recall, "%.2f" % p.p50, "%.2f" % p.cpu]
                 for p in points if not p.ours]
    return report.table(rows, "llllrrrr")


def as_json(told, measured):
    return json.dumps({"facts": told, "cases": [
        {"name": case.name, "kind": case.kind, "share": case.share,
         "limit": case.limit, "points": [
             {"system": p.system, "label": p.label, "settings": p.settings,
              "plan": p.plan, "queries": len(p.ms), "recall": p.recall,
              "error": p.error, "p50_ms": p.p50, "cpu_ms": p.cpu,
              "p90_ms": p.p90,
              "bounds": [
                  {"of": w, "measured": m, "allowed": a, "met": is_met(
                      (w, m, a))} for w, m, a in (
                          bounds(case, p, points) if p.ours else [])]}
             for p in points]} for case, points in measured]}, indent=1) + "\n"


def plot(told, measured, by, path):
    """p50 by the share of rows, one panel for each recall asked for."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    found = [m for m in measured if m[0].name in
             [s + " %" for s in conditions.SHARES]]
    if len(found) < 2:
        return
    figure, panels = pyplot.subplots(1, len(TARGETS), figsize=(11, 5),
                                     sharey=True)
    for axes, target in zip(panels, TARGETS):
        label = "%g" % target
        lines = {"gpuivfpq": lambda p: first(p, "forced", label).time,
                 "gpuivfpq, own choice beside btrees":
                     lambda p: first(p, "beside", label).time,
                 "hnsw iterative, at gpuivfpq's recall": lambda p: hnsw_ms(
                     p, first(p, "forced", label).recall)[0],
                 "sequential scan": lambda p: first(p, "sequential scan").time,
                 "btree and sort": lambda p: first(p, "btree and sort").time}
        for (name, ms), marker in zip(lines.items(), "osD^v"):
            axes.plot([c.share for c, _ in found], [ms(p) for _, p in found],
                      marker=marker, markersize=4, label=name)
        axes.set(xscale="log", yscale="log", xlabel="% of the rows match",
                 title="recall %s asked for" % label)
        axes.invert_xaxis()
        axes.grid(True, which="both", alpha=.3)
    panels[0].set_ylabel("ms of %s, median" % (
        "processor time" if by == "cpu" else "the client's time"))
    panels[0].legend(fontsize=8)
    figure.suptitle("%s x %s, %s, %s" % (told["data"], told["dimensions"],
                                         told["metric"], told["machine"]),
                    fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def write(told, measured, by):
    path = server.output("where-%s-%s" % (told["data"], told["metric"]))
    met = [is_met(b) for case, points in measured for p in points if p.ours
           for b in bounds(case, p, points)]
    text = "\n".join(
        ["%s: %s" % fact for fact in told.items()]
        + ["", "ms; hnsw: at that recall (<: its best, which is less), it, "
           "seq and btree by " + by]
        + own_table(measured)
        + ["", "%d of %d bounds are met" % (sum(met), len(met)), ""]
        + other_table(measured)) + "\n"
    for suffix, content in ((".txt", text), (".json", as_json(told,
                                                              measured))):
        with open(path + suffix, "w") as f:
            f.write(content)
    plot(told, measured, by, path + ".png")
    data.say("\n" + text)
    data.say("written: %s.txt, .json, .png" % path)
