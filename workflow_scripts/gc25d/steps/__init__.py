"""One thin command-line program a rule.

Started as a program (`python -m gc25d.steps.…`), a step first cleans its environment: libraries
read it when they are imported, so this comes before its own imports.
"""

import sys

from gc25d.environment import clean_this_process

# While Python looks for the module that `-m` names, it has imported this package.
IGNORED = clean_this_process() if sys.argv[0] == "-m" else ()
"""Names of the variables that were removed."""
