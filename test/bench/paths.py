#!/usr/bin/env python3
"""The smoothest path through made graphs of ten edges a key, in the cluster
that libpq's environment variables name.  test/bench/run.sh makes it; it and
this program are on one host.

usage: paths.py KEYS[,KEYS...] [--pairs N] [--edges] [--apart N] [--loaders N]

Of a key's ten neighbors six are next to it in a hidden circle and four are
anywhere, as clusters and what joins them.  The table is as
gpuvec_knn_graph_arrays returns it, with --edges as gpuvec_knn_graph does.  Keys
are numbers from 0 on, or with --apart every so many'th.  Portions of keys are
made by --loaders processes, and are the same whoever makes them.
Prints for each pair of keys what the path is and what it took: seconds,
processor seconds, and the most memory and temporary files at a time.
"""
import data
import dataset
import large
import server

TABLE = "paths"
PORTION = 1 << 18               # keys
OFFSETS = [-1, 1, -2, 2, -3, 3]
STEP = 0x9E3779B1               # of keys round the circle; an odd prime
SPREADS = 1 << 16


def parse_arguments():
    parser = server.options(data.parser(__doc__), loaders=1)
    parser.add_argument("keys", type=server.numbers(int))
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--edges", action="store_true",
                        help="a row for each edge")
    parser.add_argument("--apart", type=int, default=1)
    return parser.parse_args()


def graph(nkeys, first=0, apart=1):
    """(keys, neighbors [n][10], distances [n][10]) of every so many'th portion
    from number `first` on."""
    import numpy as np
    # of the rows around a key, by a hash of the key
    spreads = np.random.default_rng(nkeys).lognormal(0, .5, SPREADS)
    reach = np.abs(OFFSETS).tolist() + [4] * 4

    def spread(keys):
        return spreads[(keys * 0x2545F4914F6CDD1D >> 40) % SPREADS]

    for at in range(first * PORTION, nkeys, apart * PORTION):
        rng = np.random.default_rng([nkeys, at])
        keys = np.arange(at, min(at + PORTION, nkeys))[:, None]
        # the place of key i is i / STEP modulo nkeys
        near = (keys + STEP * np.array(OFFSETS)) % nkeys
        neighbors = np.hstack([near, rng.integers(0, nkeys, (len(keys), 4))])
        distances = spread(keys) * spread(neighbors) * reach
        order = np.argsort(distances, axis=1)
        yield keys[:, 0], *(np.take_along_axis(x, order, axis=1)
                            for x in (neighbors, distances))


def array_type(item, n):
    return [("bytes", ">i4"), ("ndim", ">i4"), ("nulls", ">i4"),
            ("type", ">i4"), ("n", ">i4"), ("first", ">i4"),
            ("item", [("bytes", ">i4"), ("value", item)], (n,))]


def records(portions):
    """Chunks of a binary COPY of (key, neighbors, distances)."""
    import numpy as np
    yield dataset.COPY_HEADER
    for keys, neighbors, distances in portions:
        n = neighbors.shape[1]
        made = np.zeros(len(keys), dtype=[
            ("fields", ">i2"), ("key_bytes", ">i4"), ("key", ">i8"),
            ("neighbors", array_type(">i8", n)),
            ("distances", array_type(">f8", n))])
        made["fields"], made["key_bytes"], made["key"] = 3, 8, keys
        for name, oid, items in (("neighbors", 20, neighbors),
                                 ("distances", 701, distances)):
            array = made[name]
            array["bytes"], array["ndim"], array["type"] = 20 + 12 * n, 1, oid
            array["n"], array["first"] = n, 1
            array["item"]["bytes"], array["item"]["value"] = 8, items
        yield made.tobytes()
    yield dataset.COPY_TRAILER


def load_portions(first, nkeys, args):
    with server.connect() as conn:
        server.copy_in(conn, TABLE, records(
            (keys * args.apart, neighbors * args.apart, distances)
            for keys, neighbors, distances in graph(nkeys, first,
                                                    args.loaders)))


def load(conn, nkeys, args):
    conn.execute("DROP TABLE IF EXISTS %s, %s_edges" % (TABLE, TABLE))
    conn.execute("CREATE UNLOGGED TABLE %s (key bigint, neighbors bigint[], "
                 "distances float8[])" % TABLE)
    server.in_processes(args.loaders, load_portions, nkeys, args)
    table = TABLE
    if args.edges:
        table += "_edges"
        conn.execute(
            "CREATE UNLOGGED TABLE %s AS SELECT key, neighbor, rank::int, "
            "distance FROM %s, unnest(neighbors, distances) WITH ORDINALITY "
            "AS e (neighbor, distance, rank)" % (table, TABLE))
    server.settle(conn, table, args.loaders)
    return table


def temporary_bytes(conn):
    return server.one(conn, "SELECT temp_bytes FROM pg_stat_database "
                      "WHERE datname = current_database()")


def measure(table, source, target):
    """In a session of its own, because memory of an earlier call may be kept."""
    with server.connect() as conn:
        before = temporary_bytes(conn)
        conn.execute("LOAD 'gpuvec'")
        with large.Took(conn) as took:
            steps, largest = conn.execute(
                "SELECT max(step), max(distance) FROM gpuvec_smoothest_path("
                "'%s', %d, %d)" % (table, source, target)).fetchone()
        conn.execute("SELECT pg_stat_force_next_flush()")
    with server.connect() as conn:
        written = temporary_bytes(conn) - before
    print("%12d %12d %6d %8.4f %8.1f %9.1f %8.0f %8.0f" % (
        source, target, steps, largest, took.elapsed, took.processor,
        took.own / large.MB, written / large.MB), flush=True)


def main():
    args = parse_arguments()
    data.enter_venv("bench", __file__)
    with server.connect() as conn:
        server.extensions(conn, "gpuvec")
        for nkeys in args.keys:
            took, table = server.timed(load, conn, nkeys, args)
            print("%d keys, %d MB, loaded in %.1f s\n%12s %12s %6s %8s %8s %9s %8s %8s" % (
                nkeys, server.one(conn, "SELECT pg_table_size(%s)", table)
                / large.MB, took, "source", "target", "steps", "largest", "seconds",
                "processor", "MB", "MB disk"), flush=True)
            for i in range(args.pairs):
                measure(table, *((i + 1) * STEP * prime % nkeys * args.apart
                                 for prime in (7919, 104729)))


if __name__ == "__main__":
    main()
