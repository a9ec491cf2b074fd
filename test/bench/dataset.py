"""Data sets for the benchmark: found or made by name, cut to size, as binary
COPY streams."""
import os
import struct
import subprocess
import sys

import data

FOLDER = os.environ.get("GPUVEC_DATA", os.path.join(data.BUILD, "data"))
SUBSET_SEED = 1                 # of the rows taken out of GloVe
COPY_ROWS = 4096                # a chunk of a COPY stream
COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
COPY_TRAILER = struct.pack(">h", -1)


class DataSet:
    """base float32 [n][d], query float32 [nq][d], held out; known: int32
    [nq][TRUTH_K], their neighbors by L2, of a whole set."""

    def __init__(self, name, base, query, known=None):
        self.name, self.base, self.query = name, base, query
        self.rows, self.dims = base.shape
        self.known = known

    def asked(self, nqueries):
        """The same with the first queries alone."""
        return DataSet(self.name, self.base, self.query[:nqueries], self.known)

    def truth(self, metric, k):
        """int32 [nq][k]: the rows nearest to each query, exactly."""
        base, query = self.base, self.query
        if metric == "l2" and self.known is not None and k <= data.TRUTH_K:
            return self.known[:len(query), :k]
        if metric == "cosine":
            base, query = unit(base), unit(query)
        return data.exact_neighbors(base, query, k)


class Judge:
    """Says how many of the k rows that a query got are right: those no farther
    than the true k-th, so that of equal rows any will do."""

    SLACK = 1e-6        # relative; the server's distances are rounded too

    def __init__(self, found, metric, k, nqueries):
        self.base, self.query = found.base, found.query[:nqueries]
        if metric == "cosine":
            self.base, self.query = unit(self.base), unit(self.query)
        self.k = min(k, found.rows)
        truth = found.asked(nqueries).truth(metric, self.k)
        self.reach = [self.distances(i, truth[i]).max()
                      for i in range(len(truth))]

    def distances(self, i, ids):
        """float64 [len(ids)], squared."""
        import numpy as np
        delta = self.base[ids].astype(np.float64) - self.query[i]
        return (delta * delta).sum(axis=1)

    def recall(self, i, ids):
        """The share of query i's k that rows `ids` make up."""
        distinct = sorted(set(ids))
        if not distinct:
            return 0
        near = self.distances(i, distinct) <= self.reach[i] * (1 + self.SLACK)
        return min(int(near.sum()), self.k) / self.k


def unit(x):
    import numpy as np
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def split_name(name):
    """(kind, rows or None, name for data.py that makes enough of it)"""
    kind, *rest = name.split(":")
    if kind in data.GENERATED and len(rest) == 3 and \
            all(map(str.isdigit, rest)):
        return kind, int(rest[0]), name
    if kind in data.MAKERS and kind not in data.GENERATED and \
            len(rest) <= 1 and all(map(str.isdigit, rest)):
        rows = int(rest[0]) if rest else None
        return kind, rows, kind if kind == "glove" else name
    sys.exit("DATA is %s, not %s" % (data.NAMES, name))


def folders(kind, made_by):
    """Where the set may be: as a whole, or as large as it was asked for."""
    whole = [] if kind in data.GENERATED else [os.path.join(FOLDER, kind)]
    return whole + [os.path.join(FOLDER, made_by.replace(":", "-"))]


def find(kind, rows, made_by):
    """A folder that has enough rows, or None."""
    import numpy as np
    for folder in folders(kind, made_by):
        path = os.path.join(folder, "base.npy")
        if os.path.exists(path) and \
                (rows is None or len(np.load(path, mmap_mode="r")) >= rows):
            return folder
    return None


def prepare(name):
    """Makes the set if it is not there; returns its folder."""
    kind, rows, made_by = split_name(name)
    folder = find(kind, rows, made_by)
    if folder is None:
        folder = folders(kind, made_by)[-1]
        subprocess.run([sys.executable, data.__file__, made_by, folder],
                       check=True)
    return folder


def load(name):
    """The set, its first rows (GloVe: random rows, since its first ones are
    the frequent words) if the name says how many."""
    import numpy as np
    kind, rows, _ = split_name(name)
    folder = prepare(name)
    base = np.load(os.path.join(folder, "base.npy"), mmap_mode="r")
    query = np.load(os.path.join(folder, "query.npy"))
    known = np.load(os.path.join(folder, "truth.npy"))
    if rows is not None and rows > len(base):
        sys.exit("%s has only %d rows" % (folder, len(base)))
    if rows is not None and rows < len(base):
        known = None
        if kind == "glove":
            rng = np.random.default_rng(SUBSET_SEED)
            base = base[np.sort(rng.choice(len(base), rows, replace=False))]
        else:
            base = base[:rows]
    return DataSet(name, np.ascontiguousarray(base, np.float32), query, known)


def vector_records(ids, x, number=">f4"):
    """Binary COPY records of (int, vector) or, with ">f2", (int, halfvec)."""
    import numpy as np
    n, d = x.shape
    bytes = np.dtype(number).itemsize
    records = np.zeros(n, dtype=[
        ("fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i4"),
        ("v_bytes", ">i4"), ("d", ">i2"), ("unused", ">i2"),
        ("v", number, (d,))])
    records["fields"], records["id_bytes"], records["id"] = 2, 4, ids
    records["v_bytes"], records["d"], records["v"] = 4 + bytes * d, d, x
    return records


def real_records(ids, x):
    """Binary COPY records of (int, real[])."""
    import numpy as np
    n, d = x.shape
    records = np.zeros(n, dtype=[
        ("fields", ">i2"), ("id_bytes", ">i4"), ("id", ">i4"),
        ("v_bytes", ">i4"), ("ndim", ">i4"), ("nulls", ">i4"),
        ("type", ">i4"), ("d", ">i4"), ("first", ">i4"),
        ("v", [("bytes", ">i4"), ("value", ">f4")], (d,))])
    records["fields"], records["id_bytes"], records["id"] = 2, 4, ids
    records["v_bytes"], records["ndim"], records["type"] = 20 + 8 * d, 1, 700
    records["d"], records["first"] = d, 1
    records["v"]["bytes"], records["v"]["value"] = 4, x
    return records


def copy_stream(x, column_type, first_id=0):
    """Chunks of a binary COPY of (row number, row)."""
    import numpy as np
    make = {"real[]": real_records, "vector": vector_records,
            "halfvec": lambda *of: vector_records(*of, ">f2")}[column_type]
    yield COPY_HEADER
    for at in range(0, len(x), COPY_ROWS):
        part = x[at:at + COPY_ROWS]
        yield make(first_id + np.arange(at, at + len(part)), part).tobytes()
    yield COPY_TRAILER
