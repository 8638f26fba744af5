"""Prefect's server, deployments, automations and task runners, what Prefect shows of a run, and the reader for
MLflow.

Only these modules and `trnflow.flows.deployments` import Prefect.
"""
