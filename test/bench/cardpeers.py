"""What others do of the same work on the same card: RAFT, cuVS and Faiss, from
a folder where packpeers.py or pip (--target) has put them.

open_peers() makes the folder importable; then one function a peer, each over
torch tensors that lie on the card, with results there, too.  torch is imported
first, because the CUDA libraries that it brings are those the peers take.
"""
import contextlib
import ctypes
import glob
import importlib.metadata
import io
import os
import pathlib
import subprocess
import sys
import time

import cardbuild

BENCH = pathlib.Path(__file__).resolve().parent
CUDA_LIBRARIES = ["libcudart.so.13", "libnvJitLink.so.13", "libcublasLt.so.13",
                  "libcublas.so.13", "libcusparse.so.12", "libcusolver.so.12",
                  "libcurand.so.10", "libnvrtc.so.13", "libnccl.so.2"]
SELECT_LIBRARIES = ["librmm", "rapids_logger"]
PACKAGES = {"RAFT": "libraft-cu13", "cuVS": "libcuvs-cu13",
            "Faiss": "faiss-gpu-cu13-cuvs"}
GRAPH_ROWS = 100000             # whose neighbors are asked for in one call
# of NN-descent's graphs, and of those they are made out of, which it rounds up
DEGREES = [(16, 24), (32, 48), (64, 96)]


def versions(folder):
    """Names with versions of what is in folder."""
    found = {d.name: d.version for d in
             importlib.metadata.distributions(path=[str(folder)])}
    return ", ".join("%s %s" % (name, found.get(package, "missing"))
                     for name, package in PACKAGES.items())


def open_peers(folder):
    """Makes what is in folder importable; returns names with versions."""
    import nvidia
    folder = str(pathlib.Path(folder).resolve())
    sys.path.insert(0, folder)
    for name in CUDA_LIBRARIES:
        for home in nvidia.__path__:
            found = glob.glob(os.path.join(home, "*", "lib", name))
            if found:
                ctypes.CDLL(found[0], ctypes.RTLD_GLOBAL)
                break
    return versions(folder)


def timed(work, repeats):
    """(seconds of so many times, after one more, what the last one gave)"""
    import torch
    found, times = work(), []
    for _ in range(repeats):
        torch.cuda.synchronize()
        began = time.perf_counter()
        found = work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return times, found


# ----------------------------------------------------------------- selection

def compile_select(folder, arch, nvcc=None):
    """folder/selectpeer, from RAFT's headers there; unless it is there."""
    folder = pathlib.Path(folder).resolve()
    program = folder / "selectpeer"
    if program.exists():
        return program
    paths, links = [], []
    for name in ("libraft/include", "libraft/include/rapids",
                 "librmm/include", "rapids_logger/include"):
        paths += ["-I", folder / name]
    for name in SELECT_LIBRARIES:
        links += ["-L", folder / name / "lib64"]
    rpath = ":".join("$ORIGIN/%s/lib64" % name for name in SELECT_LIBRARIES)
    subprocess.run([nvcc or cardbuild.find_nvcc(),
                    *cardbuild.nvcc_flags(arch), "--extended-lambda",
                    "--expt-relaxed-constexpr", "-Xcompiler",
                    "-Wno-deprecated-declarations", *paths,
                    "-cudart", "static", BENCH / "selectpeer.cu", *links,
                    "-lrmm", "-lrapids_logger", "-Xlinker", "-rpath",
                    "-Xlinker", rpath, "-o", program], check=True)
    return program


def raft_select(program, shapes):
    """Microseconds by (rows, columns, k), of those that RAFT takes."""
    numbers = [str(n) for shape in shapes for n in shape]
    out = subprocess.run([program, *numbers], stdout=subprocess.PIPE,
                         text=True, check=True).stdout
    times = {}
    for line in out.splitlines():
        rows, columns, k, us, wrong = line.split("\t")
        times[int(rows), int(columns), int(k)] = float(us)
        if int(wrong):
            print("RAFT, %s x %s, k %s: %s wrong" % (rows, columns, k, wrong))
    return times


# -------------------------------------------------------------- exact search

def faiss_search(x, q, k):
    """A function that returns positions [nq][k], nearest first, by L2."""
    import faiss
    import faiss.contrib.torch_utils    # takes tensors where it is imported
    resources = faiss.StandardGpuResources()
    return lambda: faiss.knn_gpu(resources, q, x, k, use_cuvs=False)[1]


def cuvs_search(x, q, k):
    """The same; norms of rows are made here, once."""
    import torch
    from cuvs.common import Resources
    from cuvs.neighbors import brute_force
    resources = Resources()
    index = brute_force.build(x, resources=resources)
    resources.sync()
    positions = torch.empty(len(q), k, dtype=torch.int64, device="cuda")
    distances = torch.empty(len(q), k, device="cuda")

    def search():
        brute_force.search(index, q, k, neighbors=positions,
                           distances=distances, resources=resources)
        resources.sync()
        return positions
    return search


EXACT = {"Faiss": faiss_search, "cuVS": cuvs_search}


# -------------------------------------------------------------- k-NN graphs

def without_own(graph, first, k):
    """[n][k] of [n][>= k]: rows from `first` on, less themselves."""
    import torch
    own = torch.arange(first, first + len(graph), device=graph.device)
    there = graph != own[:, None]
    # the k first that are another row, in their order
    order = (~there).to(torch.int8).argsort(dim=1, stable=True)[:, :k]
    return graph.gather(1, order)


def exact_graph(name, x, k):
    """Seconds and [n][k] by exact search of all rows, in pieces."""
    import torch
    pieces = []
    torch.cuda.synchronize()
    began = time.perf_counter()
    for first in range(0, len(x), GRAPH_ROWS):
        some = x[first:first + GRAPH_ROWS]
        found = EXACT[name](x, some, k + 1)()
        pieces.append(without_own(found, first, k))
    torch.cuda.synchronize()
    return time.perf_counter() - began, torch.cat(pieces)


def share_of_same(found, expected):
    """Of two [n][k], whatever the order."""
    return sum((a[:, :, None] == b[:, None, :]).any(2).float().sum().item()
               for a, b in zip(found.split(10000), expected.split(10000))
               ) / expected.numel()


def nn_descent_graph(x, k, degree, between):
    """Seconds and [n][k] of cuVS NN-descent: the build alone, which leaves the
    graph [n][degree] in the host's memory, made out of one of `between`."""
    import numpy as np
    import torch
    from cuvs.common import Resources
    from cuvs.neighbors import nn_descent
    resources = Resources()
    parameters = nn_descent.IndexParams(graph_degree=degree,
                                        intermediate_graph_degree=between,
                                        return_distances=False)
    graph = np.zeros((len(x), degree), np.uint32)
    torch.cuda.synchronize()
    began = time.perf_counter()
    nn_descent.build(parameters, x, graph=graph, resources=resources)
    resources.sync()
    seconds = time.perf_counter() - began
    found = []
    for first in range(0, len(x), GRAPH_ROWS):
        some = torch.from_numpy(graph[first:first + GRAPH_ROWS].astype(
            np.int64)).cuda()
        found.append(without_own(some, first, k))
    return seconds, torch.cat(found)


def print_graphs(x, numbers, expected, ours):
    """What NN-descent takes, and how many it has of the neighbors [n][k] that are
    expected of some rows; ours: seconds beside."""
    k = expected.shape[1]
    nn_descent_graph(x[:20000], k, *DEGREES[0])     # loads kernels
    for degree, between in DEGREES:
        seconds, graph = nn_descent_graph(x, k, degree, between)
        print("cuVS NN-descent, %d x %d, k %d, degree %d of %d: %.2f s, "
              "accuracy %.4f, ours is %.1f times as fast" % (
                  *x.shape, k, degree, between, seconds,
                  share_of_same(graph[numbers], expected), seconds / ours),
              flush=True)


# ------------------------------------------------------------------ k-means

def cuvs_kmeans(x, starts, iterations):
    """Centroids, from starts."""
    from cuvs.cluster import kmeans
    # an error that changes by less than tol ends it: never
    parameters = kmeans.KMeansParams(n_clusters=len(starts),
                                     init_method="Array", tol=1e-30,
                                     max_iter=iterations)
    centroids = starts.clone()
    kmeans.fit(parameters, x, centroids=centroids)
    return centroids


def cuvs_balanced_kmeans(x, starts, iterations):
    """Centroids, from starts of its own."""
    import torch
    from cuvs.cluster import kmeans
    parameters = kmeans.KMeansParams(n_clusters=len(starts),
                                     hierarchical=True,
                                     hierarchical_n_iters=iterations)
    centroids = torch.empty_like(starts)
    kmeans.fit(parameters, x, centroids=centroids)
    return centroids


def faiss_kmeans(x, starts, iterations):
    """From starts; the rows are in the host's memory, which x is copied to
    when this is called first."""
    import faiss
    import torch
    host = faiss_kmeans.host
    if host is None or host[0] is not x:
        host = faiss_kmeans.host = (x, x.cpu().numpy())
    n, dims = x.shape
    parameters = faiss.Clustering(dims, len(starts))
    parameters.niter = iterations
    parameters.max_points_per_centroid = n
    faiss.copy_array_to_vector(starts.cpu().numpy().ravel(),
                               parameters.centroids)
    config = faiss.GpuIndexFlatConfig()
    config.use_cuvs = False
    index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), dims, config)
    parameters.train(host[1], index)
    found = faiss.vector_to_array(parameters.centroids).reshape(-1, dims)
    return torch.from_numpy(found).cuda()


faiss_kmeans.host = None


def faiss_card_kmeans(x, starts, iterations):
    """Faiss's contributed k-means, with rows on the card; it picks starts."""
    import faiss
    import faiss.contrib.torch.clustering as clustering
    data = clustering.DatasetAssignGPU(faiss.StandardGpuResources(), x)
    with contextlib.redirect_stdout(io.StringIO()):
        return clustering.kmeans(len(starts), data, niter=iterations,
                                 verbose=False)


KMEANS = {"cuVS, the same starts": cuvs_kmeans,
          "cuVS, balanced": cuvs_balanced_kmeans,
          "Faiss, rows in the host": faiss_kmeans,
          "Faiss, rows on the card": faiss_card_kmeans}
