"""Runs other people's tests by pytest."""
import os
import subprocess
import sys
import xml.etree.ElementTree


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
