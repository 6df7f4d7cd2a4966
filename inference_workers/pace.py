"""How long pieces wait for company on their way to the log: not at all when idle, up to 20 ms under load.

A request to the log is what costs, not a piece in it; so under load the pieces of all generations leave together,
once a window. The window grows with the load: 3 ms for each 1,000 pieces a second, which puts the mean wait at 7.5 ms
at 5,000 a second and leaves an idle worker's readers with none.
"""

WINDOW_S_MAX = 0.020
WINDOW_S_PER_PIECE_PER_S = 0.000_003
IDLE_PIECES_PER_S = 500.0
MEASURED_OVER_S = 0.25


def window_s(pieces_per_s: float) -> float:
    """How long after one burst the next one leaves."""
    if pieces_per_s < IDLE_PIECES_PER_S:
        return 0.0
    return min(WINDOW_S_MAX, pieces_per_s * WINDOW_S_PER_PIECE_PER_S)


class Pace:
    """Measures the load and says the window. Times are one monotonic clock's seconds."""

    __slots__ = ("_pieces", "_since_s", "window_s")

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        self._pieces = 0
        self.window_s = 0.0

    def left(self, pieces: int, now_s: float) -> None:
        """So many pieces left in a burst."""
        self._pieces += pieces
        elapsed = now_s - self._since_s
        if elapsed >= MEASURED_OVER_S:
            self.window_s = window_s(self._pieces / elapsed)
            self._pieces = 0
            self._since_s = now_s
