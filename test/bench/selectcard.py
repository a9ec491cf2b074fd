#!/usr/bin/env python3
"""k-selection on a card beside torch.topk and, with --peers, RAFT's select_k,
data on the card.

Compiles test/bench/selectcard.cu with what it needs of gpu/, runs it, and
prints a table: microseconds by launches and by a graph's launch, the share of
what one read of the data takes at 4.2 TB/s, and RAFT's and torch's time beside.
With no torch there is no column of its; nothing else is needed but nvcc, gcc
and a card.  RAFT is what packpeers.py has put into a folder; it selects from
the same values, and is timed in the same way.

	selectcard.py					the shapes that peers were measured at
	selectcard.py --papers			the shapes of the papers' own experiments
	selectcard.py --methods			each method, beside the chosen one
	selectcard.py --values alike	from 16 to 20; few: 16 distinct ones
	selectcard.py --peers FOLDER	beside RAFT
"""
import os
import statistics
import subprocess
import sys
import tempfile

import cardbuild
import cardpeers
import data

BYTES_A_SECOND = 4.2e12


def parse_arguments():
    parser = data.parser(__doc__)
    parser.add_argument("--papers", action="store_true")
    parser.add_argument("--methods", action="store_true")
    parser.add_argument("--values", default="uniform",
                        choices=["uniform", "alike", "few"])
    parser.add_argument("--arch", default=None,
                        help="the card's, such as 90a; asked for unless said")
    parser.add_argument("--peers", metavar="FOLDER",
                        help="measure RAFT from there, too")
    parser.add_argument("--build", metavar="FOLDER",
                        help="compile to there, or use what is there")
    return parser.parse_args()


def run(program, args):
    """The card's name, and a dictionary for each line."""
    names = ["rows", "columns", "k", "method", "chosen", "us", "graph",
             "wrong"]
    out = subprocess.run(
        [program, "papers" if args.papers else "anchors",
         "methods" if args.methods else "chosen", args.values],
        stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    lines = []
    for text in out[1:]:
        line = dict(zip(names, text.split("\t")))
        for name in ("rows", "columns", "k", "chosen", "wrong"):
            line[name] = int(line[name])
        for name in ("us", "graph"):
            line[name] = float(line[name])
        lines.append(line)
    return out[0].split("\t")[1], lines


class Torch:
    """torch.topk on the same shapes, where torch is."""

    def __init__(self, kind):
        self.times = {}
        try:
            import torch
            self.torch = torch if torch.cuda.is_available() else None
        except ImportError:
            self.torch = None
        if self.torch:
            values = self.torch.rand(1 << 27, device="cuda")
            self.values = {"uniform": values, "alike": 16 + 4 * values,
                           "few": (16 * values).floor()}[kind]

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
                for line in lines}))

    def time(self, rows, columns, k):
        return self.times.get((rows, columns, k))


def print_lines(lines, peers):
    """peers: by name, what times a shape."""
    print("%-8s %-10s %-8s %-8s %9s %9s %6s %9s %9s %s" % (
        "rows", "columns", "k", "method", "us", "graph us", "read",
        *peers, ""))
    for line in lines:
        shape = (line["rows"], line["columns"], line["k"])
        read = line["rows"] * line["columns"] * 4 / BYTES_A_SECOND * 1e6
        best = min(line["us"], line["graph"] or line["us"])
        others = {name: peer.time(*shape) for name, peer in peers.items()}
        remarks = ["%.1fx %s" % (other / best, name)
                   for name, other in others.items() if other]
        if not line["chosen"]:
            remarks.append("not chosen")
        if line["wrong"]:
            remarks.append("%d ROWS WRONG" % line["wrong"])
        print("%-8d %-10d %-8d %-8s %9.1f %9.1f %6.2f %9s %9s %s"
              % (*shape, line["method"], line["us"],
                 line["graph"], read / best,
                 *("%.1f" % other if other else ""
                   for other in others.values()), ", ".join(remarks)))


def build(args):
    if args.build and os.path.exists(os.path.join(args.build, "selectcard")):
        return os.path.join(args.build, "selectcard")
    folder = args.build or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    return cardbuild.build("selectcard", ["selectcard.cu"], folder, args.arch)


def main():
    args = parse_arguments()
    if args.peers and args.values != "uniform":
        cardbuild.fail("RAFT selects from uniform values")
    args.arch = args.arch or cardbuild.card_arch()
    card, lines = run(build(args), args)
    print("card:", card)
    raft = Raft(args.peers, lines, args.arch)
    if args.peers:
        print(cardpeers.versions(args.peers))
    print_lines(lines, {"RAFT": raft, "torch": Torch(args.values)})
    sys.exit(any(line["wrong"] for line in lines))


if __name__ == "__main__":
    main()
