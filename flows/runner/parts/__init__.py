"""Divide the work of a stage into parts that are looked up or made one by one, in threads or on Prefect's task runners."""
