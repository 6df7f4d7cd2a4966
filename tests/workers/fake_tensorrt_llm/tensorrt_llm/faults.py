"""What goes wrong, in all models of this process. Tests set `current` and put it back."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """All off by default."""

    repeated_diffs: bool = False
    """Text and id diffs that begin before what was already given."""
    skipped_diffs: bool = False
    """Diffs that leave out what came while nobody looked."""
    coalesced: bool = False
    """Several outputs become one."""
    lost_spaces: bool = False
    """The text has no spaces."""
    strip_leading_space: bool = False
    """The tokenizer drops the space before the first token that it decodes, as SentencePiece does."""
    no_detokenize: bool = False
    """The library makes its text whether it is asked to or not."""
    hanging_abort: bool = False
    """An abort is never carried out: the request falls silent and keeps its place."""
    background_error_at: int | None = None
    """The executor dies when a request has made so many tokens."""
    no_cached_tokens: bool = False
    """Outputs do not have the member."""
    no_stats: bool = False
    """No statistics ever arrive."""
    stats_not_implemented: bool = False
    bare_stats: bool = False
    """Statistics with nothing in them but null."""
    hanging_shutdown: bool = False


current = Faults()
