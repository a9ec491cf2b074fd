"""Sets (src/engine/gv_set.h) over arrays of numpy or torch, by setlib.c."""
import ctypes
import os
import sys

ROWS, QUERIES, SELF, SEEDS, LISTS = 0, 1, 2, 4, 5       # GvSetInput
POSITIONS, DISTANCES, CENTROIDS = 0, 1, 4               # GvSetOutput
METRICS = {"l2": 1, "ip": 2, "cosine": 3, "pearson": 4}
MATMUL = ["auto", "own", "cublas"]                      # GvMatmulSetting


def must(status, what):
    if status != 0:
        sys.exit("%s: %s failed: status %d" % (
            os.path.basename(sys.argv[0]), what, status))


def address(x):
    return x.data_ptr() if hasattr(x, "data_ptr") else x.ctypes.data


def load(path, matmul="auto"):
    """The library, which takes a card if it is for one."""
    lib = ctypes.CDLL(str(path))
    pointer, number, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    lib.set_open.restype = pointer
    lib.set_open.argtypes = [word] * 7 + [number] * 2
    lib.set_put.argtypes = [pointer, word, pointer, number, number]
    lib.set_run.argtypes = [pointer] * 4
    lib.set_get.argtypes = [pointer, word, number, number, pointer]
    lib.set_drop.argtypes = [pointer]
    must(lib.set_begin(MATMUL.index(matmul)), "the engine")
    return lib


class Set:
    """A search of nqueries or, without, k-means; error and found are those of
    the last pass."""

    def __init__(self, lib, nrows, dims, k, metric="l2", nqueries=0,
                 iterations=0, own=False, nlists=0, probes=0):
        self.lib = lib
        self.error, self.found = ctypes.c_double(), ctypes.c_int32()
        self.state = ctypes.c_int32()
        self.set = lib.set_open(METRICS[metric] if nqueries else 0, dims, k,
                                iterations, own, nlists, probes, nqueries,
                                nrows)
        if not self.set:
            sys.exit("%s: no memory for a set" % os.path.basename(sys.argv[0]))

    def put(self, what, items, first=0):
        must(self.lib.set_put(self.set, what, address(items), first,
                              len(items)), "put")

    def run(self):
        """A pass.  Returns whether there are more."""
        must(self.lib.set_run(self.set, ctypes.byref(self.error),
                              ctypes.byref(self.found),
                              ctypes.byref(self.state)), "run")
        return self.state.value < 2

    def get(self, what, items, first=0):
        """Fills an array of the host's."""
        n = len(items) if what == CENTROIDS or items.ndim == 1 else \
            items.shape[0] * items.shape[1]
        must(self.lib.set_get(self.set, what, first, n, address(items)), "get")
        return items

    def close(self):
        self.lib.set_drop(self.set)
