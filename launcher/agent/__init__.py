"""One node: it attends, starts and stops its workers, reports, and ends as the verdict says.

The node follows the group; it decides nothing for it.
"""
