"""Short English texts for the sentence set of data.py, from Debian packages:
WordNet's glosses and examples, package descriptions of four releases,
dictionaries, fortunes, and the sentences of documentation.

All of it is fetched by apt from the archive that this machine is configured
for and stays under build/ (git-ignored)."""
import glob
import gzip
import html
import os
import re
import shutil
import subprocess

BUILD = os.environ.get("GPUVEC_BUILD", os.path.join(os.path.dirname(
    os.path.abspath(__file__)), "..", "..", "build"))
SUITES = ["bookworm", "bullseye", "trixie", "sid"]
DICTIONARIES = ["gcide", "foldoc", "jargon", "vera", "devil"]
PACKAGES = ["wordnet-base", "fortunes", "manpages", "manpages-dev", "perl-doc",
            "postgresql-doc-15", "git-doc", "linux-doc-6.1"] + [
                "dict-" + name for name in DICTIONARIES]
MAX_WORDS = 60                  # of a text
MIN_WORDS = 6                   # of a sentence of running text


# -------------------------------------------------------------------- fetching

def unpacked(package):
    """The folder that `package` and all others are unpacked into."""
    deb = os.path.join(BUILD, "deb")
    stamp = os.path.join(deb, "have-" + package)
    if not os.path.exists(stamp):
        os.makedirs(deb, exist_ok=True)
        subprocess.run(["apt-get", "-q", "-o", "APT::Sandbox::User=root",
                        "download", package], cwd=deb, check=True)
        for path in glob.glob(os.path.join(deb, package + "_*.deb")):
            subprocess.run(["dpkg", "-x", path, deb], check=True)
        open(stamp, "w").close()
    return deb


def debian_archive():
    """(URI, keyring) of the archive that apt uses here."""
    for path in glob.glob("/etc/apt/sources.list.d/*.sources"):
        for stanza in re.split(r"\n\s*\n", open(path).read()):
            uri = re.search(r"^URIs: (\S+/debian/?)$", stanza, re.M)
            key = re.search(r"^Signed-By: (/\S+)$", stanza, re.M)
            if uri:
                return uri.group(1), key and key.group(1)
    lines = [l for path in ["/etc/apt/sources.list"] +
             glob.glob("/etc/apt/sources.list.d/*.list")
             if os.path.exists(path) for l in open(path)]
    for line in lines:
        found = re.match(r"deb\s+(\[.*?\])?\s*(\S+/debian/?)\s", line)
        if found:
            key = re.search(r"signed-by=(\S+?)[\s\]]", found.group(1) or "")
            return found.group(2), key and key.group(1)
    raise SystemExit("texts.py: this machine's apt knows no Debian archive")


def translations():
    """Files of package descriptions, SUITES' one after another.

    The lists are fetched into a folder of our own, since a machine may be
    configured without descriptions and is not to be changed."""
    state = os.path.join(BUILD, "apt")
    lists = os.path.join(state, "lists")
    stamp = os.path.join(state, "have-" + "-".join(SUITES))
    if not os.path.exists(stamp):
        shutil.rmtree(state, ignore_errors=True)
        os.makedirs(os.path.join(lists, "partial"))
        os.makedirs(os.path.join(state, "cache", "archives", "partial"))
        uri, key = debian_archive()
        sources = os.path.join(state, "sources.list")
        with open(sources, "w") as f:
            f.writelines("deb %s %s %s main contrib non-free\n" % (
                "[signed-by=%s]" % key if key else "", uri, suite)
                for suite in SUITES)
        subprocess.run(["apt-get", "-qq", "update",
                        "-o", "Dir::Etc::sourcelist=" + sources,
                        "-o", "Dir::Etc::sourceparts=-",
                        "-o", "Dir::State::lists=" + lists,
                        "-o", "Dir::Cache=" + os.path.join(state, "cache"),
                        "-o", "Acquire::Languages=en",
                        "-o", "Acquire::GzipIndexes=false",
                        "-o", "APT::Sandbox::User=root"], check=True)
        open(stamp, "w").close()
    return [path for suite in SUITES for path in sorted(glob.glob(
        os.path.join(lists, "*_dists_%s_*_i18n_Translation-en" % suite)))]


# --------------------------------------------------------- entries, one a text

def wordnet_texts():
    """'word, word: gloss' and the example sentences of every synset."""
    folder = "/usr/share/wordnet"
    if not os.path.exists(os.path.join(folder, "data.noun")):
        folder = unpacked("wordnet-base") + folder
    texts = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in open(os.path.join(folder, "data." + part),
                         encoding="latin-1"):
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


def package_descriptions():
    """(package, synopsis, paragraphs) of the archive's packages."""
    for path in translations():
        for stanza in open(path, encoding="utf-8").read().split("\n\n"):
            found = re.search(r"^Package: (\S+)$", stanza, re.M)
            text = re.search(r"^Description-en: (.*)((?:\n .*)*)", stanza,
                             re.M)
            if found and text:
                yield (found.group(1), text.group(1),
                       re.split(r"\n \.", text.group(2)))


def package_texts():
    """Synopses and paragraphs of the package descriptions in the archive."""
    texts = []
    for package, synopsis, paragraphs in package_descriptions():
        texts.append(package + ": " + synopsis)
        for paragraph in paragraphs:
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


def dictionary_texts():
    """'headword: paragraph' of each entry, and its quotations alone.

    An entry's first line begins at the margin, all others are indented;
    quotations are indented deeper."""
    texts = []
    for name in DICTIONARIES:
        path = os.path.join(unpacked("dict-" + name),
                            "usr/share/dictd/%s.dict.dz" % name)
        word = None
        text = gzip.open(path).read().decode("utf-8", "replace")
        for paragraph in re.split(r"\n\s*\n|\n(?=\S)", text):
            head = re.match(r"(\S.*)\n?", paragraph)
            if head:
                word = re.split(r" *[\\\[(,;]", head.group(1))[0]
                # an etymology that goes on in the next lines
                inside = head.group(1).count("[") > head.group(1).count("]")
                paragraph = "[" * inside + paragraph[head.end():]
            lines = paragraph.split("\n")
            quoted = lines[0].startswith(" " * 9)
            body = dictionary_prose(" ".join(lines))
            if not word or word.startswith("00-database") or \
                    len(re.findall(r"[A-Za-z]{2,}", body)) < 3:
                continue
            texts.append(body if quoted else word + ": " + body)
    return texts


def dictionary_prose(text):
    """Without sources, pronunciation and marks of cross-references."""
    while re.search(r"\[[^][]*\]", text):
        text = re.sub(r"\[[^][]*\]", " ", text)
    text = re.sub(r"\\[^\\]*\\|</?\w+[^>]*>", " ", text)
    text = re.sub(r"\s--[A-Z].*$", " ", text)
    text = re.sub(r"^\s*(\d+\.|\(\w\))\s", " ", text)
    return " ".join(re.sub(r"[{}]", "", text).split()).strip(" ;,")


def fortune_texts():
    """Each saying, without its author, if it is no more than a paragraph."""
    texts = []
    for path in sorted(glob.glob(os.path.join(
            unpacked("fortunes"), "usr/share/games/fortunes/*.u8"))):
        if "ascii" in path:
            continue
        for saying in open(path, encoding="utf-8").read().split("\n%\n"):
            saying = re.sub(r"\n\s+-- .*", "", saying, flags=re.S)
            if 4 <= len(saying.split()) <= 2 * MAX_WORDS:
                texts.append(saying)
    return texts


# ---------------------------------------------------- sentences of running text

def plain_rst(text):
    """Paragraphs at the margin, without roles and quotes of markup."""
    text = re.sub(r":[\w:]+:`([^`<]*)[^`]*`", r"\1", text)
    text = re.sub(r"\*\*?([^*\n]+)\*\*?|``?([^`\n]+)``?_?", r"\1\2", text)
    return [p for p in re.split(r"\n\s*\n", text)
            if not re.match(r"\s*(\.\. |[-=~^#+|$])", p)]


def plain_html(text):
    text = re.sub(r"(?is)<(pre|script|style|head)\b.*?</\1>", " ", text)
    return [html.unescape(re.sub(r"<[^>]+>", "", p)) for p in
            re.findall(r"(?s)<p\b[^>]*>(.*?)</p>", text)]


def plain_pod(text):
    while re.search(r"[A-Z]<[^<>]*>", text):
        text = re.sub(r"[A-Z]<(?:[^<>|]*\|)?([^<>]*)>", r"\1", text)
    return [p for p in re.split(r"\n\s*\n", text)
            if not re.match(r"[\s=]", p)]


ROFF_MARKS = [(r"\\f(\[\w*\]|\(..|.)", ""), (r"\\s[-+]?\d", ""),
              (r"\\\(lq|\\\(rq|\\\*\(..", '"'), (r"\\\(em", "--"),
              (r"\\\(aq", "'"), (r"\\[-&|^%:/,]", lambda m: {
                  r"\-": "-"}.get(m.group(), "")),
              (r"\\e", r"\\"), (r"\\[~ ]", " "), (r"\\\(..|\\\[.*?\]", "")]


def plain_roff(text):
    """Paragraphs of a man(7) page, its fonts and marks taken out."""
    paragraphs, lines, skip = [], [], False
    for line in text.split("\n"):
        found = re.match(r"[.']\s*(\w+|\\\")\s*(.*)", line)
        if not found:
            if not skip:
                lines.append(line)
            continue
        macro, rest = found.groups()
        if macro in ("B", "I", "BR", "IR", "RB", "RI", "BI", "IB"):
            parts = re.findall(r'"[^"]*"|\S+', rest)
            lines.append((" " if len(macro) == 1 else "").join(
                p.strip('"') for p in parts))
        elif macro in ("nf", "EX", "TS", "de", "ie", "if", "ig"):
            skip = macro not in ("ie", "if")
        elif macro in ("fi", "EE", "TE") or line == "..":
            skip = False
        elif macro != "\\\"":
            paragraphs.append(" ".join(lines))
            lines = []
    paragraphs.append(" ".join(lines))
    for pattern, by in ROFF_MARKS:
        paragraphs = [re.sub(pattern, by, p) for p in paragraphs]
    return paragraphs


def is_prose(sentence):
    """A sentence: begins and ends like one, and is words rather than code."""
    words = sentence.split()
    if not MIN_WORDS <= len(words) <= MAX_WORDS or \
            not re.match(r"[A-Z\"'(]", sentence) or \
            re.search(r"copyright|licen[sc]e|@", sentence, re.I):
        return False
    plain = sum(bool(re.fullmatch(r"[\"'(]?[A-Za-z][a-z'-]*[.,;:!?)\"']*", w))
                for w in words)
    return plain >= .75 * len(words)


def sentences(paragraphs):
    for paragraph in paragraphs:
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])",
                                 " ".join(paragraph.split())):
            if sentence[-1:] in ".!?" and is_prose(sentence):
                yield sentence


def read_text(path):
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rb") as f:
        return f.read().decode("utf-8", "replace")


def document_texts():
    """The sentences of documentation packages."""
    for package in PACKAGES:
        deb = unpacked(package)
    doc = os.path.join(deb, "usr/share/doc")
    kinds = [
        (plain_rst, [doc + "/linux-doc-6.1/Documentation/**/*.rst*",
                     doc + "/linux-doc-6.1/Documentation/**/*.txt*",
                     doc + "/git-doc/**/*.txt*"]),
        (plain_html, [doc + "/postgresql-doc-15/html/*.html"]),
        (plain_pod, [deb + "/usr/share/perl/*/pod/*.pod"]),
        (plain_roff, [deb + "/usr/share/man/man[1-9]/*.gz"]),
    ]
    texts = []
    for plain, patterns in kinds:
        for pattern in patterns:
            for path in sorted(glob.glob(pattern, recursive=True)):
                if os.path.isfile(path) and not os.path.islink(path):
                    texts += sentences(plain(read_text(path)))
    return texts


# ------------------------------------------------------------------------- all

def all_texts():
    """{source: texts}"""
    return {"wordnet": wordnet_texts(), "packages": package_texts(),
            "manual pages": manual_texts(),
            "dictionaries": dictionary_texts(), "fortunes": fortune_texts(),
            "documents": document_texts()}


def distinct_texts(sources):
    """All short texts once, spaces folded; those equal but for case, marks and
    numbers dropped, since they are templates."""
    seen, texts = set(), []
    for source in sources:
        for text in source:
            words = text.split()
            text = " ".join(words)
            key = re.sub(r"[\W\d_]+", " ", text.lower()).strip()
            if key and key not in seen and len(words) <= MAX_WORDS:
                seen.add(key)
                texts.append(text)
    return texts
