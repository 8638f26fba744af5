"""Jobs: stages of a recipe that another machine runs, with the store alone between them. `order` describes one, `carry` puts into
the store what the stages read beside artifacts, `work` runs one."""
