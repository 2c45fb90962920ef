"""Every error that a user can cause.

The command line prints `str(error)` and exits with `exit_code`; no traceback reaches a user. A message says what was
wrong, where, and what to do.
"""


class PolyKVError(Exception):
    """Base of all errors that input, files or settings can cause."""

    exit_code = 2


class FormatError(PolyKVError):
    """A file (GGUF, pool file, template) is malformed: `<file>: <key or tensor>: <reason>`."""

    def __init__(self, where: object, what: str, reason: str) -> None:
        # File names and keys come from untrusted files: escape control characters before they meet a terminal.
        parts = [str(p).encode("unicode_escape").decode("ascii")[:200] for p in (where, what) if str(p)]
        super().__init__(": ".join([*parts, reason]))


class UnsupportedError(PolyKVError):
    """Well-formed input that this build or backend cannot run, with the reason."""


class ConfigError(PolyKVError):
    """An option or argument has a bad value, or two of them contradict each other."""


class MismatchError(PolyKVError):
    """A pool or block belongs to another model, tier, table or rope; names the field that differs.

    models: names of the model of the file and of the session's, for people (two models may have one name). advice: what
    to do, when it is not what the default says.
    """

    def __init__(
        self, field: str, have: object, want: object, models: tuple[str, str] | None = None, advice: str = ""
    ) -> None:
        self.field = field
        # A name comes from an untrusted file: `repr` escapes control characters before they meet a terminal.
        theirs, ours = ("", "") if models is None else (f" (model {m!r:.100})" for m in models)
        super().__init__(
            f"{field} differs: the file{theirs} has {have!r}, this session{ours} has {want!r}; "
            + (advice or "start the session as it was when the file was written, or write the file again")
        )


class NotFiniteError(PolyKVError):
    """A model gave NaN or infinity where numbers are needed."""


class CapacityError(PolyKVError):
    """The cache or the context is full; says how much is needed and how much there is."""


class PromptError(PolyKVError):
    """A prompt, chat message list or template cannot be used."""


class DownloadError(PolyKVError):
    """A model could not be brought here (offline, wrong checksum, unknown name)."""


class StrictError(PolyKVError):
    """`--strict`: something was reported (fallback, changed type, skipped feature) that strict mode forbids."""

    exit_code = 3
