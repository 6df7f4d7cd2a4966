"""Nothing outlives the supervisor: a guard process that stops the parts when the supervisor is gone.

A supervisor that is killed with SIGKILL can stop nothing, and a part may have children of its own
that would live on. So a shell of 1 MB in a session of its own holds the reading end of a pipe. The
supervisor writes the process groups that run now, one line each time they change. When the pipe
ends, for whatever reason, the guard sends SIGTERM to every group of the last line, and SIGKILL to
what is left after the grace. (PR_SET_PDEATHSIG would reach the direct children only.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable

GRACE_S = 5

SCRIPT = """
groups=
while read -r line; do groups=$line; done
for group in $groups; do kill -s TERM -- "-$group"; done 2>/dev/null
waited=0
while [ $waited -lt $(($1 * 10)) ]; do
  alive=
  for group in $groups; do if kill -s 0 -- "-$group"; then alive=yes; fi; done 2>/dev/null
  [ -z "$alive" ] && exit 0
  sleep 0.1
  waited=$((waited + 1))
done
for group in $groups; do kill -s KILL -- "-$group"; done 2>/dev/null
"""


class Guard:
    """The guard process of one supervisor."""

    def __init__(self, grace_s: int = GRACE_S) -> None:
        reading, self._pipe = os.pipe()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", SCRIPT, "turnlog-guard", str(grace_s)],
            stdin=reading,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(reading)

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    def protect(self, groups: Iterable[int]) -> None:
        """From now on the guard stops these process groups, and only these, should we vanish."""
        line = " ".join(str(group) for group in groups)
        with contextlib.suppress(BrokenPipeError):
            os.write(self._pipe, f"{line}\n".encode())

    def dismiss(self) -> None:
        """End the guard after the parts have been stopped."""
        self.protect(())
        os.close(self._pipe)
        try:
            self._process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
