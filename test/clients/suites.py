"""Runs other people's tests by pytest."""
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree

from common import USE_INDEX, check, data, need_pypi, new_database


def fetch(package):
    """The folder of the source, with tests, of a package that is installed, under
    build/clients.  Status 2 if PyPI cannot be reached."""
    version = importlib.metadata.version(package)
    name = package.replace("-", "_") + "-" + version
    folder = os.path.join(data.BUILD, "clients", name)
    if not os.path.isdir(folder):
        partial = folder + ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        with need_pypi():
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet",
                 "--disable-pip-version-check", "--no-deps", "--no-binary",
                 ":all:", "--dest", partial, "%s==%s" % (package, version)],
                check=True)
        with tarfile.open(os.path.join(partial, name + ".tar.gz")) as archive:
            archive.extractall(partial, filter="data")
        os.rename(os.path.join(partial, name), folder)
        shutil.rmtree(partial)
    return folder


def run_pytest(folder, options="", **environment):
    """Returns what came of each test, by its name: passed, skipped, or what
    went wrong."""
    with open(os.path.join(folder, "pytest.ini"), "w") as f:
        f.write("[pytest]\nasyncio_default_fixture_loop_scope = function\n" +
                options + "\n")
    report = os.path.join(folder, "report.xml")
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "--junitxml", report, folder], cwd=folder, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, **environment})
    if not os.path.exists(report):
        return {"pytest": done.stdout}
    results = {}
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = child.tag + ": " + (child.get("message") or "") + \
                    (child.text or "")[-2000:]
            elif child.tag == "skipped":
                outcome = "skipped"
        results[(case.get("classname") or "") + "." + case.get("name")] = \
            outcome
    return results


def make_database(name, ours):
    """Empty; ours: with gpuvec beside pgvector."""
    new_database(name, extension="gpuvec_pgvector" if ours else "vector",
                 settings=USE_INDEX[:1])


def compare(suite, run_tests, least):
    """Runs tests as they are, of which at least so many have to be there, and
    with our index, where those that have passed have to pass again."""
    theirs, ours = run_tests(False), run_tests(True)
    bad = [n for n, outcome in theirs.items() if outcome != "passed"]
    print("%d tests, %d fail with pgvector alone: %s"
          % (len(theirs), len(bad), ", ".join(bad)), file=sys.stderr)
    check(len(theirs) > least and len(bad) < len(theirs) / 20, suite,
          "tests as they are", len(theirs),
          theirs if len(theirs) == 1 else [theirs[n] for n in bad])
    for name, outcome in sorted(ours.items()):
        if theirs.get(name) == "passed":
            check(outcome == "passed", suite, name, outcome)
    check(set(ours) == set(theirs), suite, "the same tests",
          set(ours) ^ set(theirs))
