"""Show runs to people: progress on a terminal or in a log, tables of results, and the HTML page of `trnflow report`.

Used by the command line and for Prefect's logs and pages.
"""
