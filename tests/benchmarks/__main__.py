"""`python -m tests.benchmarks [NAME…]`: run benchmarks one after the other and write docs/benchmarks.md."""

import argparse
import subprocess
import sys

from tests.benchmarks import BENCHMARKS
from tests.benchmarks.stack import REPOSITORY


def main() -> int:
    """Exit code 1 when one missed a target or failed; the others run all the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--no-write", action="store_true", help="leave docs/benchmarks.md as it is")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    write = [] if chosen.no_write else ["--write"]
    codes = {}
    for name in chosen.names or BENCHMARKS:
        done = subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}", *write], cwd=REPOSITORY, check=False)
        codes[name] = done.returncode
    for name, code in codes.items():
        print(f"{name}: {'every target reached' if code == 0 else 'a target was missed, see above'}")
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main())
