#!/usr/bin/env python3
"""k-means on a card, with its rows there: this engine's set (setlib.py) beside
a plain one of torch from the same first centroids and, with --peers, beside
cuVS and Faiss, in one run.

Compiles what it needs with nvcc, makes synthetic rows of a low-dimensional
structure on the card (24 latent dimensions, 4,096 centers), runs both and
prints one table.  Errors of both results are computed by the same code, in
double.  Ours is also told as a multiple of what cuBLAS's bare product of rows
and centroids takes (yard.cuh).  Needs nvcc, gcc and a torch that sees the card;
no server.  The peers are what packpeers.py has put into a folder; cardpeers.py
says where they start from and where their rows are.
"""
import sys
import time

import torch

import cardbuild
import cardpeers
import data
import setlib

CHUNK = 1 << 17                 # rows that torch compares at once
MOST_RATIO = 1.01               # of the errors


def parse_arguments():
    parser = data.parser(__doc__)
    parser.add_argument("--rows", type=int, default=1000000)
    parser.add_argument("--dims", type=int, default=128)
    parser.add_argument("--lists", type=int, default=4096)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--matmul", choices=setlib.MATMUL, default="auto",
                        help="who multiplies, as gpuvec.matmul says it")
    parser.add_argument("--peers", metavar="FOLDER",
                        help="measure the libraries there, too")
    return parser.parse_args()


def make_rows(args):
    """[rows][dims] on the card, and the rows that clusters start from."""
    made = cardbuild.Rows(args.dims, args.seed)
    rows = made.make(args.rows)
    chosen = torch.randperm(args.rows, generator=made.generator,
                            device="cuda")[:args.lists]
    return rows, rows[chosen].clone()


def nearest(rows, centroids):
    squares = (centroids * centroids).sum(1)
    return torch.cat([
        (squares - 2 * rows[i:i + CHUNK] @ centroids.T).argmin(1)
        for i in range(0, len(rows), CHUNK)])


def torch_kmeans(rows, starts, iterations):
    centroids = starts.clone()
    for _ in range(iterations):
        which = nearest(rows, centroids)
        counts = torch.bincount(which, minlength=len(starts))
        sums = torch.zeros_like(centroids).index_add_(0, which, rows)
        there = counts > 0
        centroids[there] = sums[there] / counts[there, None]
    nearest(rows, centroids)
    return centroids


def error_of(rows, centroids):
    """Mean squared distance, in double but for the choice of the nearest."""
    torch.backends.cuda.matmul.allow_tf32 = False
    which = nearest(rows, centroids)
    return sum(float((rows[i:i + CHUNK].double() -
                      centroids[which[i:i + CHUNK]].double()).square().sum())
               for i in range(0, len(rows), CHUNK)) / len(rows)


def time_peers(args, rows, starts):
    """By name: seconds, and errors of what was found."""
    seconds, errors = {}, {}

    def add(name, work):
        times, centroids = cardpeers.timed(work, args.repeats)
        seconds[name] = min(times)
        errors[name] = error_of(rows, centroids)

    def plain(tf32):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        return torch_kmeans(rows, starts, args.iterations)

    add("torch, fp32", lambda: plain(False))
    add("torch, tf32", lambda: plain(True))
    torch.backends.cuda.matmul.allow_tf32 = False
    if args.peers:
        print(cardpeers.open_peers(args.peers))
        for name, work in cardpeers.KMEANS.items():
            add(name, lambda: work(rows, starts, args.iterations))
    return seconds, errors


def time_ours(args, lib, rows, starts):
    """Seconds of rows put and of all passes, (error, ms) of each pass of a last
    repetition, ms of the bare product; and the centroids."""
    told = {"put": [], "total": [],
            "yard": lib.bench_yard(len(rows), args.lists, args.dims) / 1e3}
    errors = None
    for repeat in range(args.repeats + 1):      # the first loads kernels
        clusters = setlib.Set(lib, *rows.shape, args.lists,
                              iterations=args.iterations)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        clusters.put(setlib.SEEDS, starts)
        clusters.put(setlib.ROWS, rows)
        torch.cuda.synchronize()
        told["put"].append(time.perf_counter() - begun)
        begun = last = time.perf_counter()
        told["pass"], more = [], True
        while more:
            more = clusters.run()
            now = time.perf_counter()
            told["pass"].append((clusters.error.value, (now - last) * 1e3))
            last = now
        if repeat > 0:
            told["total"].append(last - begun)
            if errors != [error for error, _ in told["pass"]]:
                sys.exit("errors that are not always the same")
        errors = [error for error, _ in told["pass"]]
        centroids = clusters.get(setlib.CENTROIDS, torch.empty(
            clusters.found.value, args.dims))
        clusters.close()
    return told, centroids.cuda()


def print_table(args, ours, errors, peers):
    passes = args.iterations + 1
    pass_ms = 1e3 * min(ours["total"]) / passes
    print("%s, %s: k-means, %d x %d, %d lists, %d iterations"
          % (torch.cuda.get_device_name(), time.strftime("%Y-%m-%d"),
             args.rows, args.dims, args.lists, args.iterations))
    print("%-24s %9s %9s %12s" % ("", "seconds", "ratio", "mean error"))
    best = min(ours["total"])
    print("%-24s %9.4f %9.2f %12.4f" % ("gpuvec", best, 1, errors["gpuvec"]))
    for name, seconds in peers.items():
        print("%-24s %9.4f %9.2f %12.4f"
              % (name, seconds, seconds / best, errors[name]))
    print("a pass of ours %.4f ms (mean of %d), %.2f times cuBLAS's bare "
          "product, %.4f; first pass %.3f, last %.3f; rows put in %.3f s"
          % (pass_ms, passes, pass_ms / ours["yard"], ours["yard"],
             ours["pass"][0][1], ours["pass"][-1][1], min(ours["put"])))


def main():
    args = parse_arguments()
    lib = cardbuild.library(args.matmul)
    rows, starts = make_rows(args)
    ours, centroids = time_ours(args, lib, rows, starts)
    peers, errors = time_peers(args, rows, starts)
    errors["gpuvec"] = error_of(rows, centroids)
    print_table(args, ours, errors, peers)
    said = ours["pass"][-1][0] / args.rows
    if abs(said - errors["gpuvec"]) > 1e-4 * said:
        sys.exit("the error that it says, %.6f, is another" % said)
    if errors["gpuvec"] > MOST_RATIO * errors["torch, fp32"]:
        sys.exit("the error is more than %g times torch's" % MOST_RATIO)


if __name__ == "__main__":
    main()
