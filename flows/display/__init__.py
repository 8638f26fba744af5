"""Show runs to people: progress bars, log lines and tables.

Used by the command line and by Prefect's task logs.
"""
