"""Events of a job: classes with fields, a severity and a text (``str(event)``), by subject.

Everything that a person or a program receives about a job is an event first. Times and durations
are in seconds, and ranks are global unless they are called local. Add fields at the end, so that
readers of fields by name keep working. Nothing here writes: ``launcher.reporting`` shows events.
"""
