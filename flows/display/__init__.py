"""Show runs to people: progress, tables of results, the page of `trnflow report`. Also used for Prefect's logs and pages."""
