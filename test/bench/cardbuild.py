"""What the programs for a card share: the compiler, the card's architecture, the
engine (by test/unit/Makefile) as a program or a library, and synthetic rows."""
import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import setlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LATENT, CENTERS = 24, 4096
PIECE = 1 << 20                 # rows that are made at once


def fail(text):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {text}")


def find_nvcc():
    """What NVCC names, or that of PATH, or of the toolkit's usual place."""
    for name in (os.environ.get("NVCC"), "nvcc", "/usr/local/cuda/bin/nvcc"):
        found = shutil.which(name) if name else None
        if found:
            return found
    fail("no nvcc: install the CUDA toolkit")


def arch_of(major, minor):
    """As nvcc names it; of 9.0 with what it alone has."""
    return f"{major}{minor}{'a' if (major, minor) == (9, 0) else ''}"


def card_arch():
    """Of the first card, without torch."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"],
            stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        found = []
    if not found:
        fail("no card: nvidia-smi names none")
    return arch_of(*map(int, found[0].split(".")))


def nvcc_flags(arch):
    return ["-std=c++17", "-O3", "-gencode",
            f"arch=compute_{arch},code=sm_{arch}"]


def run(*command):
    if subprocess.run(command).returncode != 0:
        fail("not compiled: " + " ".join(map(str, command)))


def build(name, sources, folder, arch, nvcc=None, shared=False, options=()):
    """folder/NAME, or NAME.so if shared: these sources of test/bench and the
    engines of the test build, whose ways are counted; with cuBLAS.  The
    compiler of the sources and the linker have the options."""
    nvcc = nvcc or find_nvcc()
    folder = pathlib.Path(folder)
    position = ["-Xcompiler", "-fPIC"] if shared else []
    run("make", "-s", f"-j{os.cpu_count()}", "-f", ROOT / "test/unit/Makefile",
        f"OUT={folder / 'engines'}", f"NVCC={nvcc}",
        "NVCC_FLAGS=" + " ".join([f"-arch=sm_{arch}", "-lineinfo", *position]),
        "DEBUG=-g" + " -fPIC" * shared, "engines")
    objects = []
    for source in sources:
        objects.append(folder / f"{name}-{source}.o")
        flags = nvcc_flags(arch) if source.endswith(".cu") else ["-O3"]
        run(nvcc, *flags, "-DGV_TEST_BUILD", "-DGV_HAVE_CUDA", *options,
            *position,
            "-I", ROOT, "-I", ROOT / "src", "-c",
            ROOT / "test/bench" / source, "-o", objects[-1])
    target = folder / (name + ".so" if shared else name)
    home = pathlib.Path(nvcc).resolve().parents[1]
    run(nvcc, *(["-shared", "-cudart", "shared"] if shared else
                ["-cudart", "static"]), *options, *objects,
        folder / "engines/engines.a", "-lcublas", "-ldl", "-lm", "-Xlinker",
        f"-rpath={home / 'lib64'}", "-o", target)
    return target


def library(matmul="auto"):
    """exactcard.cu and setlib.c for torch's card; prints which that is."""
    import torch
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        lib = setlib.load(build(
            "card", ["exactcard.cu", "setlib.c"], folder,
            arch_of(*torch.cuda.get_device_capability()), shared=True), matmul)
    pointer, number, word = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    lib.bench_open.restype = pointer
    lib.bench_open.argtypes = [word, word, number, number, word]
    lib.bench_yard.restype = ctypes.c_double
    lib.bench_yard.argtypes = [number, word, word]
    lib.bench_drop.argtypes = [pointer]
    lib.bench_rows.argtypes = [pointer, pointer]
    lib.bench_search.argtypes = [pointer, pointer, pointer]
    lib.bench_times.argtypes = [pointer, pointer, word, pointer]
    lib.bench_get.argtypes = [pointer, pointer, pointer]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; "
          f"compiled in {time.perf_counter() - began:.0f} s", flush=True)
    return lib


def slower_ways(lib):
    """How many queries have gone by the matrix, and slowly, until now."""
    return list((ctypes.c_int64 * 2).in_dll(lib, "gv_exact_ways"))


class Rows:
    """Synthetic rows on the card, of 24 latent dimensions about 4,096 centers;
    all that is random comes from `generator`."""

    def __init__(self, dims, seed):
        import torch
        self.torch = torch
        self.generator = torch.Generator(device="cuda").manual_seed(seed)
        self.mixing = self.normal(LATENT, dims) / LATENT ** .5
        self.centers = self.normal(CENTERS, LATENT)

    def normal(self, *shape):
        return self.torch.randn(*shape, generator=self.generator,
                                device="cuda")

    def some(self, n):
        """[n][dims], all at once."""
        which = self.torch.randint(0, CENTERS, (n,), generator=self.generator,
                                   device="cuda")
        latent = self.centers[which] + .5 * self.normal(n, LATENT)
        return latent @ self.mixing + .1 * self.normal(
            n, self.mixing.shape[1])

    def make(self, n):
        """[n][dims], by pieces, which needs less memory beside."""
        rows = self.torch.empty(n, self.mixing.shape[1], device="cuda")
        for start in range(0, n, PIECE):
            m = min(PIECE, n - start)
            rows[start:start + m] = self.some(m)
        return rows
