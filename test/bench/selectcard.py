#!/usr/bin/env python3
"""k-selection on a card beside torch.topk and, with --peers, RAFT's select_k,
data on the card.

Compiles test/bench/selectcard.cu with what it needs of gpu/, runs it, and
prints a table: microseconds by launches and by a graph's launch, the share of
what one read of the data takes at 4.2 TB/s, the goal, and RAFT's and torch's
time beside.  With no torch there is no column of its; nothing else is needed
but nvcc, gcc and a card.  RAFT is what packpeers.py has put into a folder; it
selects from the same values, and is timed in the same way.

	selectcard.py					the shapes of the goals and of peers
	selectcard.py --papers			the shapes of the papers' own experiments
	selectcard.py --methods			each way at the same shapes
	selectcard.py --hard			sorted, reversed, all equal, few values
	selectcard.py --cliff			about powers of two
	selectcard.py --peers FOLDER	beside RAFT
	selectcard.py --table			the quickest of each class, written to
									gpu/select/gv_select_table.h
"""
import argparse
import datetime
import os
import re
import statistics
import subprocess
import sys
import tempfile

import cardbuild
import cardpeers

TABLE = cardbuild.ROOT / "gpu/select/gv_select_table.h"
KERNELS = ["select/*", "common/*"]
BYTES_A_SECOND = 4.2e12
LETTERS = {"team": "t", "threshold": "h", "warp": "w", "sample": "s",
           "radix": "r"}
# (rows, columns, k): goal, microseconds
GOALS = {
    (1, 1000000, 10): 12, (1, 1000000, 100): 15, (1, 1000000, 2048): 25,
    (1, 100000000, 10): 115, (1, 100000000, 100): 120,
    (1, 100000000, 1024): 135,
    (1000, 100000, 10): 120, (1000, 100000, 100): 125,
    (1000, 100000, 1024): 140, (1000, 100000, 2048): 150,
    (10000, 1024, 10): 20, (10000, 1024, 100): 30,
}


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("papers", "methods", "hard", "cliff", "table"):
        parser.add_argument("--" + name, action="store_true")
    parser.add_argument("--arch", default=None,
                        help="the card's, such as 90a; asked for unless said")
    parser.add_argument("--peers", metavar="FOLDER",
                        help="measure RAFT from there, too")
    parser.add_argument("--build", metavar="FOLDER",
                        help="compile to there, or use what is there")
    return parser.parse_args()


def run(program, works):
    """The card's name, and a dictionary for each line."""
    names = ["work", "input", "rows", "columns", "k", "way", "us", "graph",
             "wrong", "missed"]
    out = subprocess.run([program] + works, stdout=subprocess.PIPE, text=True,
                         check=True).stdout.splitlines()
    lines = []
    for text in out[1:]:
        line = dict(zip(names, text.split("\t")))
        for name in ("rows", "columns", "k", "wrong", "missed"):
            line[name] = int(line[name])
        for name in ("us", "graph"):
            line[name] = float(line[name])
        lines.append(line)
    return out[0].split("\t")[1], lines


class Torch:
    """torch.topk on the same shapes, where torch is."""

    def __init__(self):
        self.times = {}
        try:
            import torch
            self.torch = torch if torch.cuda.is_available() else None
        except ImportError:
            self.torch = None
        if self.torch:
            self.values = self.torch.rand(1 << 27, device="cuda")

    def time(self, rows, columns, k):
        shape = (rows, columns, k)
        if not self.torch or rows * columns > self.values.numel():
            return None
        if shape not in self.times:
            self.times[shape] = self.measure(*shape)
        return self.times[shape]

    def measure(self, rows, columns, k):
        torch = self.torch
        x = self.values[:rows * columns].view(rows, columns)
        times, calls = [], 1
        for i in range(-2, 7):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(calls):
                torch.topk(x, k, dim=1, largest=False, sorted=True)
            end.record()
            end.synchronize()
            us = begin.elapsed_time(end) * 1000 / calls
            if i < 0:
                calls = max(1, min(20, int(2000 / (us + 1))))
            else:
                times.append(us)
        return statistics.median(times)


class Raft:
    """RAFT's select_k at the shapes of lines, where its folder is given."""

    def __init__(self, folder, lines, arch):
        self.times = {}
        if folder:
            program = cardpeers.compile_select(folder, arch)
            self.times = cardpeers.raft_select(program, sorted({
                (line["rows"], line["columns"], line["k"])
                for line in lines if line["input"] == "random"}))

    def time(self, rows, columns, k):
        return self.times.get((rows, columns, k))


def print_lines(lines, peers):
    """peers: by name, what times a shape."""
    print("%-11s %-8s %-10s %-8s %-14s %9s %9s %6s %6s %9s %9s %s" % (
        "input", "rows", "columns", "k", "way", "us", "graph us", "read",
        "goal", *peers, ""))
    for line in lines:
        shape = (line["rows"], line["columns"], line["k"])
        read = line["rows"] * line["columns"] * 4 / BYTES_A_SECOND * 1e6
        best = min(line["us"], line["graph"] or line["us"])
        random = line["input"] == "random"
        goal = GOALS.get(shape, "") if random else ""
        others = {name: peer.time(*shape) if random else None
                  for name, peer in peers.items()}
        remarks = []
        if goal:
            remarks.append("ok" if best <= goal else "MISSED")
        remarks += ["%.1fx %s" % (other / best, name)
                    for name, other in others.items() if other]
        if line["wrong"]:
            remarks.append("%d ROWS WRONG" % line["wrong"])
        if line["missed"]:
            remarks.append("%d rows again" % line["missed"])
        print("%-11s %-8d %-10d %-8d %-14s %9.1f %9.1f %6.2f %6s %9s %9s %s"
              % (line["input"], *shape, line["way"], line["us"],
                 line["graph"], read / best, goal,
                 *("%.1f" % other if other else ""
                   for other in others.values()), ", ".join(remarks)))


def classes(text, name):
    """The numbers of one array of the table's header."""
    found = re.search(r"%s\[\w+\] = \{\n([^}]*)\}" % name, text).group(1)
    return [int(number) for number in found.replace("\n", "").split(",")]


def write_table(card, lines):
    """Each class's quickest; where none was measured, its neighbor's."""
    with open(TABLE) as file:
        text = file.read()
    rows, columns, ks = (classes(text, "gv_table_" + name)
                         for name in ("rows", "columns", "ks"))
    best = {}
    for line in lines:
        cell = (line["rows"], line["columns"], line["k"])
        us = line["graph"] or line["us"]
        if cell not in best or us < best[cell][0]:
            best[cell] = (us, LETTERS[line["way"]])

    def letter(r, c, k):
        for cell in ([(rows[r], columns[c], k_) for k_ in ks[k::-1]
                      if k_ > 2048 or ks[k] <= 2048 or columns[c] < ks[k]] +
                     [(rows_, columns[c], ks[k]) for rows_ in rows[r::-1]] +
                     [(rows_, columns_, ks[k]) for rows_ in rows[r::-1]
                      for columns_ in columns[c::-1]
                      if columns_ > 16384 or columns[c] <= 16384]):
            if cell in best:
                return best[cell][1]
        return "r"

    body = ""
    for r in range(len(rows)):
        body += "\t{\n"
        for c in range(len(columns)):
            body += '\t\t"%s",\n' % "".join(letter(r, c, k)
                                            for k in range(len(ks)))
        body += "\t},\n"
    head = text.index("static const char *const gv_table_ways")
    begin = text.index("{\n", head) + 2
    end = text.index("};", begin)
    text = text[:begin] + body + text[end:]
    text = re.sub(r" \* Card: .*", " * Card: %s.  Date: %s." % (
        card, datetime.date.today().isoformat()), text)
    with open(TABLE, "w") as file:
        file.write(text)
    print("wrote", TABLE)


def build(args):
    if args.build and os.path.exists(os.path.join(args.build, "selectcard")):
        return os.path.join(args.build, "selectcard")
    folder = args.build or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    return cardbuild.build("selectcard", KERNELS, folder, args.arch)


def main():
    args = parse_arguments()
    args.arch = args.arch or cardbuild.card_arch()
    works = [name for name in ("papers", "methods", "hard", "cliff", "table")
             if getattr(args, name)] or ["anchors"]
    card, lines = run(build(args), works)
    print("card:", card)
    shown = [line for line in lines if line["work"] != "table"]
    if shown:
        raft = Raft(args.peers, shown, args.arch)
        if args.peers:
            print(cardpeers.versions(args.peers))
        print_lines(shown, {"RAFT": raft, "torch": Torch()})
    if args.table:
        write_table(card, [line for line in lines if line["work"] == "table"])
    sys.exit(any(line["wrong"] for line in lines))


if __name__ == "__main__":
    main()
