"""The base of every error that is a message to the user: it names the setting and the way out."""


class UserError(Exception):
    """Shown without a traceback by the two commands."""


class MissingFile(UserError, FileNotFoundError):
    """A file or folder that a setting names is not there."""


class Interrupted(Exception):
    """The run was asked to stop; the message names the signal."""
