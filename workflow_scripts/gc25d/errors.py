"""The one exception that is a message to the user rather than a fault of the program."""


class UserError(Exception):
    """Something the user can mend: says what was found, what was expected, and the remedy.

    The command-line steps print it as one line without a traceback and exit with status 1.
    """
