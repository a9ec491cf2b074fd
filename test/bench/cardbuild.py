"""What the programs for a card share: the compiler, the card's architecture,
the engine's parts as a program or a library, and synthetic rows."""
import os
import pathlib
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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


def run_all(commands):
    """Side by side; returns the numbers of those that failed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda command: subprocess.run(command).returncode,
                        commands)
        return [i for i, status in enumerate(done) if status != 0]


def compile_all(nvcc, folder, sources, arch, shared):
    """Objects in folder, in the order of sources: .cu and .c."""
    commands, objects = [], []
    for source in sources:
        objects.append(folder / f"{source.parent.name}-{source.name}.o")
        if source.suffix == ".cu":
            command = [nvcc, *nvcc_flags(arch), "-fmad=false", "-lineinfo",
                       "-I", ROOT]
            command += ["-Xcompiler", "-fPIC"] if shared else []
        else:
            command = ["gcc", "-std=gnu99", "-O3", "-ffp-contract=off"]
            command += ["-fPIC"] if shared else []
        commands.append([*command, "-I", ROOT / "src", "-c", source, "-o",
                         objects[-1]])
    failed = run_all(commands)
    if failed:
        fail("not compiled: " + ", ".join(
            str(sources[i].relative_to(ROOT)) for i in failed))
    return objects


def build(name, kernels, folder, arch, nvcc=None, shared=False):
    """folder/NAME, or NAME.so if shared: test/bench/NAME.cu, the kernels that
    the patterns `kernels` name by their paths below gpu/, and of the portable
    engine what they need; with cuBLAS where they have products."""
    nvcc = nvcc or find_nvcc()
    folder = pathlib.Path(folder)
    card = [ROOT / "test/bench" / (name + ".cu")]
    for pattern in kernels:
        found = sorted((ROOT / "gpu").glob(pattern + ".cu"))
        if not found:
            fail(f"there is no gpu/{pattern}.cu")
        card += found
    # gv_fault.c is for the test build alone
    portable = [source for part in ("engine", "cpu")
                for source in sorted((ROOT / "src" / part).rglob("*.c"))
                if source.name != "gv_fault.c"]
    objects = compile_all(nvcc, folder, card + portable, arch, shared)
    archive, target = folder / "portable.a", folder / name
    kind = ["-cudart", "static"]
    if shared:
        target = folder / (name + ".so")
        kind = ["-shared", "-cudart", "shared"]
    libraries = ["-ldl", "-lm"]
    if "product/*" in kernels:
        home = pathlib.Path(nvcc).resolve().parents[1]
        libraries += ["-lcublas", "-Xlinker", f"-rpath={home / 'lib64'}"]
    for command in (["ar", "rcs", archive, *objects[len(card):]],
                    [nvcc, *kind, *objects[:len(card)], archive, *libraries,
                     "-o", target]):
        if run_all([command]):
            fail(f"{target.name} cannot be linked")
    return target


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
