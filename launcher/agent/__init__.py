"""One node: it attends, starts and stops its workers, reports, and ends as the verdict says.

It obeys the group; it never decides for it.
"""
