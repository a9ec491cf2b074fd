#!/usr/bin/env python3
"""LangChain's own tests of a vector store, on a store with our index.

usage: langchain_store.py          (in test/cluster.sh, or by run.sh)

The store is made by the example in sql/docs/recipes.md.  Every search has to be by
the index.  Prints 'ok' or 'not ok' and what was tried, a line each; status 2:
PyPI cannot be reached, 1: something is not ok.
"""
import os
import tempfile

from common import (USE_INDEX, check, end, enter_venv, examples, index_scans,
                    new_database)
from suites import run_pytest

TESTS = '''
import os
import pytest
from langchain_tests.integration_tests import VectorStoreIntegrationTests

NAMES = {}
with open(os.environ["GPUVEC_EXAMPLE"]) as f:
    exec(f.read(), NAMES)


class TestStore(VectorStoreIntegrationTests):
    @pytest.fixture()
    def vectorstore(self):
        yield NAMES["open_store"](os.environ["GPUVEC_URL"],
                                  self.get_embeddings(), 6)


class TestSearch:
    vectorstore = TestStore.vectorstore
    get_embeddings = staticmethod(TestStore.get_embeddings)

    # the last: its table stays, and tells how often its index was searched
    def test_z(self, vectorstore):
        vectorstore.add_texts(["one", "two", "three"])
        found = vectorstore.similarity_search("two", k=1)
        assert [d.page_content for d in found] == ["two"]
'''


def main():
    enter_venv(__file__, "requirements-langchain.txt")
    block, = examples("python")["LangChain"]
    new_database("langchain", settings=USE_INDEX)
    with tempfile.TemporaryDirectory() as folder:
        example = os.path.join(folder, "example.py")
        for name, text in {"example.py": block,
                           "test_store.py": TESTS}.items():
            with open(os.path.join(folder, name), "w") as f:
                f.write(text)
        results = run_pytest(
            folder, "asyncio_mode = auto", GPUVEC_EXAMPLE=example,
            GPUVEC_URL="postgresql+psycopg://%(PGUSER)s@/langchain"
            "?host=%(PGHOST)s&port=%(PGPORT)s" % os.environ)
    for name, outcome in sorted(results.items()):
        check(outcome == "passed", "LangChain", name, outcome)
    check(len(results) > 20, "LangChain", len(results), "tests")
    scans = index_scans("langchain")
    check(len(scans) == 1 and scans[0] > 0, "LangChain",
          "scans by the last store's index", scans)
    end()


if __name__ == "__main__":
    main()
