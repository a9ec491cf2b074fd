"""The benchmark's figures as text, JSON and a plot."""
import json
import math
import statistics

OURS = "gpuivfpq"


def rate(point):
    return statistics.median(point.rates)


def frontier(system):
    """[(recall, queries/s)], ascending recall, only settings that no other
    setting of the system beats in both."""
    points = sorted(((p.recall, rate(p)) for p in system.points),
                    key=lambda p: (-p[0], -p[1]))
    best, kept = 0, []
    for recall, speed in points:
        if speed > best:
            best = speed
            kept.append((recall, speed))
    return kept[::-1]


def rate_at(system, recall):
    """(queries/s at this recall, how it was found), or (None, why not):
    straight between settings on a logarithmic scale."""
    line = frontier(system)
    if recall > line[-1][0]:
        return None, "never reaches %.4f, at most %.4f" % (recall, line[-1][0])
    if recall <= line[0][0]:
        return line[0][1], "its fastest setting, recall %.4f" % line[0][0]
    for (r0, s0), (r1, s1) in zip(line, line[1:]):
        if recall <= r1:
            share = (recall - r0) / (r1 - r0)
            return (math.exp(math.log(s0) + share * math.log(s1 / s0)),
                    "between recall %.4f and %.4f" % (r0, r1))
    raise AssertionError("recall lies on the line")


def default_point(system):
    return next(p for p in system.points if p.default)


def ratios(systems):
    """[{...}]: each system of ours at its default beside each index of
    pgvector at the same recall."""
    out = []
    for ours in (s for s in systems if s.method == OURS):
        point = default_point(ours)
        for other in systems:
            if other.method in (None, OURS):
                continue
            speed, how = rate_at(other, point.recall)
            out.append({
                "ours": ours.name, "recall": point.recall,
                "queries_per_s": rate(point), "other": other.name,
                "other_queries_per_s": speed, "how": how,
                "speed_ratio": speed and rate(point) / speed,
                "size_ratio": other.bytes / ours.bytes,
                "build_ratio": other.build_s / ours.build_s})
    return out


def table(rows, align):
    """Lines of a text table; the first row is the head."""
    widths = [max(len(r[i]) for r in rows) for i in range(len(align))]
    lines = ["  ".join(c.ljust(w) if a == "l" else c.rjust(w)
                       for c, w, a in zip(row, widths, align)).rstrip()
             for row in rows]
    return [lines[0], "-" * len(lines[0])] + lines[1:]


def build_table(systems):
    rows = [["index", "options", "build s", "workers", "MB", "in plan"]]
    for s in systems:
        if s.method:
            rows.append([s.name, s.options or "-", "%.1f" % s.build_s,
                         "%d" % s.workers, "%.1f" % (s.bytes / 1e6),
                         s.info["in_plan"]])
    return table(rows, "llrrrl")


def sweep_table(systems):
    rows = [["system", "setting", "recall@10", "queries/s", "ms", "rounds"]]
    for s in systems:
        for p in s.points:
            rows.append([s.name, p.label + (" *" if p.default else ""),
                         "%.4f" % p.recall, "%.0f" % rate(p),
                         "%.3f" % (1000 / rate(p)),
                         " ".join("%.0f" % r for r in p.rates)])
    return table(rows, "llrrrl")


def ratio_lines(found):
    lines = []
    for r in found:
        speed = "speed: %s" % r["how"] if r["speed_ratio"] is None else \
            "%.1f times as fast (%.0f against %.0f queries/s, %s)" % (
                r["speed_ratio"], r["queries_per_s"],
                r["other_queries_per_s"], r["how"])
        lines.append("%s at recall %.4f beside %s: %s; its index is %.1f "
                     "times as large, its build took %.2f times as long" %
                     (r["ours"], r["recall"], r["other"], speed,
                      r["size_ratio"], r["build_ratio"]))
    return lines


def text(facts, systems):
    lines = ["%s: %s" % (k, v) for k, v in facts.items()]
    lines += [""] + build_table(systems)
    lines += ["", "* = default"] + sweep_table(systems)
    lines += [""] + ratio_lines(ratios(systems))
    return "\n".join(lines) + "\n"


def as_json(facts, systems):
    return json.dumps({
        "facts": facts,
        "systems": [{
            "name": s.name, "index": s.method and s.create_index(),
            "build_s": s.build_s, "workers": s.workers, "bytes": s.bytes,
            "info": s.info,
            "points": [{"label": p.label, "settings": p.settings,
                        "default": p.default, "recall": p.recall,
                        "queries_per_s": rate(p), "rounds": p.rates}
                       for p in s.points]} for s in systems],
        "ratios": ratios(systems)}, indent=1) + "\n"


def plot(facts, systems, path):
    """recall@10 to the right, queries/s upwards; rings mark defaults."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    for s, marker in zip(systems, "osD^vPX*"):
        line = frontier(s)
        drawn, = axes.plot(*zip(*line), marker=marker, markersize=4,
                           label=s.name, linewidth=1.5)
        point = default_point(s)
        axes.plot([point.recall], [rate(point)], "o", markersize=11,
                  fillstyle="none", color=drawn.get_color())
    axes.set_yscale("log")
    axes.set_xlim(left=max(.5, axes.get_xlim()[0]))
    axes.set_xlabel("recall@10")
    axes.set_ylabel("queries/s, one client")
    axes.set_title("%s, %s x %s, %s\n%s" % (
        facts["data"], facts["rows"], facts["dimensions"], facts["metric"],
        facts["machine"]), fontsize=9)
    axes.grid(True, which="both", alpha=.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
