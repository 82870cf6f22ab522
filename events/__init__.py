"""Events of a job: classes with fields, a severity and a text (``str(event)``), by subject.

Everything that a person or a program receives about a job is an event first. Times and durations
are in seconds, and ranks are global unless they are called local. Nothing here writes:
``launcher.reporting`` shows events and writes them to files.

Each event has a name for files (``node.joined``) and is written as ``record.VERSION`` of the
schema. Within a version, events and fields may be added; a new field has a default, since files of
earlier releases lack it. A name, or the meaning, type or unit of a field, never changes.
"""
