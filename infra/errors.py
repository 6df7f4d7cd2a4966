"""What can go wrong in the local stack, as sentences for the person at the terminal.

StackError                 something is wrong and the message says what to do: exit code 1
├── ComponentUnavailable   a download, a package or a system library is missing or broken
├── DataFolderUnusable     the data folder cannot be read, written or is in use
├── PortTaken              somebody else listens where a part should
├── PartFailed             a part did not become ready in time
└── ProvisioningRefused    what is there contradicts what is declared
"""


class StackError(Exception):
    """One sentence that says what is wrong and what to do about it."""


class ComponentUnavailable(StackError):
    """A component could not be found, fetched or verified."""


class DataFolderUnusable(StackError):
    """The data folder is in use, unreadable or full."""


class PortTaken(StackError):
    """A port that was asked for by number is in use."""


class PartFailed(StackError):
    """A part of the stack did not become ready."""


class ProvisioningRefused(StackError):
    """What the servers hold contradicts what the schemas declare."""
