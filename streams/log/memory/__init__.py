"""The log in memory: the same rules, no servers, no clocks and no chance of its own.

For tests and for simulation: many loops, turned one after the other in one thread with `wait_s=0`, share one
`MemoryLog`; its faults are in the hands of the test. It may also be used from several threads.
"""

from streams.log.memory.log import MemoryLog

__all__ = ["MemoryLog"]
