#!/usr/bin/env python3
"""Runs the searches of sql/docs/recipes.md as printed.

usage: recipes.py [figures [DOCUMENTS]]   (in test/cluster.sh, or by run.sh)

On made-up articles, chunks and tokens.  Plans must show the indexes (with
enable_seqscan off, for the tables are small); at gpuvec.recall = 1 answers must be those of the
same statement without any index, and those of a plainer one that sorts; at the
default most of them.  Prints 'ok' or 'not ok' and what was tried, a line each;
status 2: PyPI cannot be reached, 1: something is not ok.

figures: recall and processor time of the two searches for token vectors and of
scoring all documents, of 500 documents of 40 tokens.
"""
import os
import re
import sys

from common import check, end, enter_venv, examples, new_database, psql

DATABASE = "recipes"
ARTICLES = 3000
TOPICS = 60
WITHOUT = ["enable_indexscan", "enable_bitmapscan", "enable_indexonlyscan",
           "gpuvec.enable_custom_scan"]
SYLLABLES = ["ba", "ce", "di", "fo", "gu", "la", "me", "ni", "po", "ru", "sta",
             "tre", "vi", "zo", "kel", "mar"]


# ------------------------------------------------------------------------ data

def words(rng, topic, count):
    """Words, of which each topic has its own 30 of 500."""
    return [word((topic * 7 + int(i)) % 500)
            for i in rng.integers(0, 30, count)]


def word(i):
    return SYLLABLES[i % 16] + SYLLABLES[i // 16 % 16] + \
        SYLLABLES[i * 7 % 16] + SYLLABLES[(i * 11 + 3) % 16]


def literal(vector):
    return "[" + ",".join("%.4f" % x for x in vector) + "]"


class Data:
    def __init__(self, documents=300, tokens=20):
        import numpy
        self.rng = numpy.random.default_rng(7)
        self.centers = self.rng.standard_normal((TOPICS, 384))
        self.documents, self.tokens = documents, tokens
        # a document is about some of 200 things, and says each its own way
        self.things = self.rng.standard_normal((200, 128))

    def near(self, center, spread=1.0):
        return center + spread * self.rng.standard_normal(len(center))

    def question(self):
        topic = int(self.rng.integers(0, TOPICS))
        return literal(self.near(self.centers[topic])), \
            words(self.rng, topic, 2)

    def articles(self):
        for i in range(ARTICLES):
            topic = int(self.rng.integers(0, TOPICS))
            yield (i, " ".join(words(self.rng, topic, 3)),
                   " ".join(words(self.rng, topic, 12)),
                   literal(self.near(self.centers[topic])))

    def chunks(self):
        """Documents of 1 to 40 chunks, about two topics each."""
        for document in range(ARTICLES // 15):
            topics = self.rng.integers(0, TOPICS, 2)
            for place in range(int(self.rng.integers(1, 40))):
                yield (document, place, "text",
                       literal(self.near(self.centers[topics[place % 2]])))

    def token_rows(self):
        for document in range(self.documents):
            things = self.rng.integers(0, len(self.things), 5)
            for place in range(self.tokens):
                yield (document, place, literal(
                    self.near(self.things[things[place % 5]], .8)))

    def token_question(self):
        """Eight tokens, about four of the things."""
        things = self.rng.integers(0, len(self.things), 4)
        return [literal(self.near(self.things[things[i % 4]], .8))
                for i in range(8)]


def load(connection, table, columns, rows):
    with connection.cursor().copy("COPY %s (%s) FROM STDIN"
                                  % (table, columns)) as copy:
        for row in rows:
            copy.write_row(row)
    connection.execute("ANALYZE " + table)


# ------------------------------------------------------------------ statements

class Recipe:
    """A block of the page, prepared."""
    def __init__(self, connection, name, block, types):
        self.connection, self.name = connection, name
        connection.execute("PREPARE %s (%s) AS %s" % (name, types, block))

    def execute(self, *parameters, explain=""):
        from psycopg import sql
        return self.connection.execute(
            sql.SQL(explain + "EXECUTE " + self.name + " ({})").format(
                sql.SQL(", ").join(map(sql.Literal, parameters)))).fetchall()

    def without_index(self, *parameters):
        for setting in WITHOUT:
            self.connection.execute("SET %s = off" % setting)
        self.connection.execute("SET enable_seqscan = on")
        try:
            self.connection.execute("SET plan_cache_mode = force_custom_plan")
            plan = self.plan(*parameters)
            check("_idx" not in plan, self.name, "without an index", plan)
            return self.execute(*parameters)
        finally:
            for setting in WITHOUT + ["plan_cache_mode"]:
                self.connection.execute("RESET " + setting)
            self.connection.execute("SET enable_seqscan = off")

    def plan(self, *parameters):
        return re.sub(r"\[[-0-9.,]*\]", "[]", "\n".join(
            r[0] for r in self.execute(*parameters,
                                       explain="EXPLAIN (COSTS OFF) ")))


def rounded(rows):
    return [tuple(round(float(x), 9) for x in row) for row in rows]


def try_recipe(recipe, questions, indexes, plainer=None):
    """plainer(*parameters) gives the rows that are right."""
    connection, found, wanted = recipe.connection, 0, 0
    for mode in "force_custom_plan", "force_generic_plan":
        connection.execute("SET plan_cache_mode = " + mode)
        for recall in 0.95, 1:
            connection.execute("SET gpuvec.recall = %s" % recall)
            plan = recipe.plan(*questions[0])
            check(all(i in plan for i in indexes), recipe.name, mode, recall,
                  plan)
    connection.execute("RESET plan_cache_mode")
    for parameters in questions:
        truth = rounded(recipe.without_index(*parameters))
        if plainer:
            plain = rounded(plainer(*parameters))
            check(plain == truth, recipe.name, "a plainer statement", plain,
                  truth)
        connection.execute("SET gpuvec.recall = 1")
        rows = rounded(recipe.execute(*parameters))
        check(rows == truth and len(rows) > 0, recipe.name, "at recall 1",
              rows, truth)
        connection.execute("RESET gpuvec.recall")
        rows = rounded(recipe.execute(*parameters))
        found += len({r[0] for r in rows} & {r[0] for r in truth})
        wanted += len(truth)
    check(found >= .9 * wanted, recipe.name, "at the default", found, wanted)


def fused(connection, second):
    """Reciprocal rank fusion of two sorted lists, here."""
    def plainer(vector, text):
        near = connection.execute(
            "SELECT id FROM articles ORDER BY (embedding <=> %s) + 0, id "
            "LIMIT 50", [vector])
        scores = {}
        for rows in near, connection.execute(second, {"text": text}):
            for place, (i,) in enumerate(rows, 1):
                scores[i] = scores.get(i, 0) + 1 / (60 + place)
        best = sorted(scores.items(), key=lambda s: (-round(s[1], 12), s[0]))
        return best[:10]
    return plainer


def try_searches(connection, page, data):
    ddl, hybrid = page["Words and meaning: hybrid search"]
    connection.execute(ddl)
    load(connection, "articles", "id, title, body, embedding", data.articles())
    questions = [(vector, " or ".join(said)) for vector, said in
                 (data.question() for _ in range(8))]
    try_recipe(
        Recipe(connection, "hybrid", hybrid, "vector, text"), questions,
        ["articles_embedding_idx", "articles_words_idx"],
        fused(connection, "SELECT id FROM articles WHERE words @@ "
              "websearch_to_tsquery('english', %(text)s) ORDER BY "
              "ts_rank_cd(words, websearch_to_tsquery('english', %(text)s)) "
              "DESC, id LIMIT 50"))

    ddl, misspelled = page["Misspelled words"]
    connection.execute(ddl)
    questions = [(vector, said[0].replace("e", "ee", 1)) for vector, said in
                 (data.question() for _ in range(8))]
    try_recipe(
        Recipe(connection, "misspelled", misspelled, "vector, text"), questions,
        ["articles_embedding_idx", "articles_title_idx"],
        fused(connection, "SELECT id FROM articles WHERE "
              "word_similarity(%(text)s, title) >= .6 ORDER BY "
              "1 - word_similarity(%(text)s, title), id LIMIT 50"))

    ddl, best, always = page["Documents of many chunks"]
    connection.execute(ddl)
    load(connection, "chunks", "document, place, body, embedding",
         data.chunks())
    questions = [(data.question()[0],) for _ in range(8)]

    def by_document(vector):
        return connection.execute(
            "SELECT DISTINCT ON (d, document) document, place, d FROM ("
            "SELECT document, place, embedding <=> %s AS d, min(embedding <=> "
            "%s) OVER (PARTITION BY document) AS least FROM chunks) AS c "
            "WHERE d = least ORDER BY d, document, place LIMIT 10",
            [vector, vector]).fetchall()
    try_recipe(Recipe(connection, "best", best, "vector"), questions,
               ["chunks_embedding_idx"])
    recipe = Recipe(connection, "always", always, "vector")
    try_recipe(recipe, questions, ["chunks_embedding_idx"], by_document)
    check(all(len(recipe.execute(*q)) == 10 for q in questions), "always",
          "ten documents")


def all_documents(connection):
    def plainer(tokens):
        return connection.execute(
            "SELECT document, sum(similarity) AS score FROM (SELECT document, "
            "q.n, max(1 - (t.embedding <=> q.e)) AS similarity FROM tokens "
            "AS t, unnest(%s::vector[]) WITH ORDINALITY AS q (e, n) "
            "GROUP BY document, q.n) AS s GROUP BY document "
            "ORDER BY score DESC, document LIMIT 10", [tokens]).fetchall()
    return plainer


def load_tokens(connection, page, data):
    ddl, by_index, exactly = page["Token vectors: MaxSim"]
    connection.execute(ddl)
    load(connection, "tokens", "document, place, embedding", data.token_rows())
    return [Recipe(connection, "by_index", by_index, "vector[]"),
            Recipe(connection, "exactly", exactly, "vector[]")]


def try_tokens(connection, page, data):
    by_index, exactly = load_tokens(connection, page, data)
    questions = [(data.token_question(),) for _ in range(8)]
    try_recipe(by_index, questions, ["tokens_embedding_idx"])
    try_recipe(exactly, questions, ["gpuvec_exact_search"])
    plainer, found = all_documents(connection), 0
    for question, in questions:
        truth = dict(rounded(plainer(question)))
        rows = rounded(by_index.execute(question))
        found += len([r for r in rows if truth.get(r[0]) == r[1]])
    check(found >= 72, "by_index", "of the best by all tokens, and their "
          "scores", found, "of", 80)


# --------------------------------------------------------------------- figures

def processor(connection):
    with open("/proc/%d/stat" % connection.info.backend_pid) as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures(connection, page, documents):
    data = Data(documents, 40)
    recipes = load_tokens(connection, page, data)
    connection.execute("SET max_parallel_workers_per_gather = 0")
    questions = [data.token_question() for _ in range(20)]
    plainer = all_documents(connection)
    searches = {"by the index": recipes[0].execute,
                "gpuvec_exact_search": recipes[1].execute,
                "all documents": plainer}
    taken, found = dict.fromkeys(searches, 0), dict.fromkeys(searches, 0)
    for question in questions:
        truth = {r[0] for r in plainer(question)}
        for name, search in searches.items():
            before = processor(connection)
            rows = search(question)
            taken[name] += processor(connection) - before
            found[name] += len(truth & {r[0] for r in rows})
    for name in searches:
        print("%-20s %.3f of the ten best, %5.1f ms, %.3f of all documents"
              % (name, found[name] / 10 / len(questions),
                 1000 * taken[name] / len(questions),
                 taken[name] / taken["all documents"]))


def main():
    enter_venv(__file__)
    import psycopg
    page = examples("sql")
    database = DATABASE + "_".join(["", *sys.argv[1:2]])
    new_database(database)
    with psycopg.connect(dbname=database, autocommit=True) as connection:
        connection.execute("SET client_min_messages = warning")
        connection.execute("SET maintenance_work_mem = '256MB'")
        # tables are small, and reading them whole would be cheap
        connection.execute("SET enable_seqscan = off")
        if sys.argv[1:2] == ["figures"]:
            connection.execute("RESET enable_seqscan")
            figures(connection, page, int((sys.argv[2:] or [500])[0]))
            return
        # one is of frameworks.py, three are of stores.py
        check(sum(map(len, page.values())) == 10 + 1 + 3, "recipes.md",
              "each of its statements is tried")
        data = Data()
        try_searches(connection, page, data)
        try_tokens(connection, page, data)
    psql("DROP DATABASE " + database)
    end()


if __name__ == "__main__":
    main()
