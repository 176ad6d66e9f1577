"""Adds up what all that CI ran has passed and failed, and prints it as one line: `N passed, N failed, N skipped`."""

import pathlib
import sys
import xml.etree.ElementTree


def tally(folder: pathlib.Path) -> tuple[int, int, int]:
    """Returns how many tests and faults passed, failed and were skipped, by the JUnit files in a folder."""
    total = failed = skipped = 0
    for path in folder.glob("*.xml"):
        for suite in xml.etree.ElementTree.parse(path).getroot().iter("testsuite"):
            total += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
    return total - failed - skipped, failed, skipped


if __name__ == "__main__":
    print("{} passed, {} failed, {} skipped".format(*tally(pathlib.Path(sys.argv[1]))))
