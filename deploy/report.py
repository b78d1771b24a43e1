"""The result of the checks in this folder."""

import sys


class Report:
    """Counts checks, and prints each failed one."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def check(self, holds, message):
        if holds:
            self.passed += 1
        else:
            self.failed += 1
            print(f"FAILED: {message}", file=sys.stderr)
