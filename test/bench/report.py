"""The benchmark's figures as text, JSON and a plot."""
import math
import statistics

OURS = "gpuivfpq"


TARGETS = [.95, .99]            # recall at which all systems are compared


def rate(point, clients):
    return statistics.median(point.rates[clients])


def has_rates(system, clients):
    return all(clients in p.rates for p in system.points)


def frontier(system, clients):
    """[(recall, queries/s)], ascending recall, only settings that no other
    setting of the system beats in both."""
    points = sorted(((p.recall, rate(p, clients)) for p in system.points),
                    key=lambda p: (-p[0], -p[1]))
    best, kept = 0, []
    for recall, speed in points:
        if speed > best:
            best = speed
            kept.append((recall, speed))
    return kept[::-1]


def rate_at(system, recall, clients):
    """(queries/s at this recall, how it was found), or (None, why not):
    straight between settings on a logarithmic scale."""
    line = frontier(system, clients)
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
    """None where it was left out."""
    return next((p for p in system.points if p.default), None)


def targets_table(systems, clients):
    """Queries/s at each of TARGETS, and how many times as many ours has."""
    ours = next((s for s in systems if s.method == OURS), systems[0])
    rows = [["system"] + [word for t in TARGETS
                          for word in ("at %.2f" % t, "ours")]]
    for s in systems:
        if not has_rates(s, clients):
            continue
        row = [s.name]
        for target in TARGETS:
            speed, own = (rate_at(x, target, clients)[0] for x in (s, ours))
            row += ["%.0f" % speed if speed else "never",
                    "%.1f x" % (own / speed) if speed and own else "-"]
        rows.append(row)
    return table(rows, "l" + "rr" * len(TARGETS))


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


def sweep_table(systems, clients):
    rows = [["system", "setting", "recall@10", "clients", "queries/s", "ms",
             "rounds"]]
    for s in systems:
        for p in s.points:
            for n in clients:
                if n not in p.rates:
                    continue
                rows.append([s.name, p.label + (" *" if p.default else ""),
                             "%.4f" % p.recall, "%d" % n,
                             "%.0f" % rate(p, n),
                             "%.3f" % (1000 * n / rate(p, n)),
                             " ".join("%.0f" % r for r in p.rates[n])])
    return table(rows, "llrrrrl")


def lines(systems, clients):
    lines = build_table(systems)
    lines += ["", "* = default"] + sweep_table(systems, clients)
    for n in clients:
        lines += ["", "%d clients, queries/s at a recall" % n]
        lines += targets_table(systems, n)
    return lines


def as_json(systems):
    return {"systems": [
        {"name": s.name, "options": s.options, "build_s": s.build_s,
         "workers": s.workers, "bytes": s.bytes,
         "info": s.info, "points": [vars(p) for p in s.points]}
        for s in systems]}


def plot(facts, systems, clients, path, k=10):
    """recall@k to the right, queries/s upwards; rings mark defaults."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(8, 5.5))
    for s, marker in zip(systems, "osD^vPX*"):
        if not has_rates(s, clients):
            continue
        line = frontier(s, clients)
        drawn, = axes.plot(*zip(*line), marker=marker, markersize=4,
                           label=s.name, linewidth=1.5)
        point = default_point(s)
        if point:
            axes.plot([point.recall], [rate(point, clients)], "o",
                      markersize=11, fillstyle="none",
                      color=drawn.get_color())
    axes.set_yscale("log")
    axes.set_xlim(left=max(.5, axes.get_xlim()[0]))
    axes.set_xlabel("recall@%d" % k)
    axes.set_ylabel("queries/s, %s" % ("one client" if clients == 1 else
                                       "%d clients" % clients))
    axes.set_title("%s, %s x %s, %s\n%s" % (
        facts["data"], facts["rows"], facts["dimensions"], facts["metric"],
        facts["machine"]), fontsize=9)
    axes.grid(True, which="both", alpha=.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
