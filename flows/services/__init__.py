"""Prefect's server, deployments, automations, task runners, and what Prefect shows of a run.

Only these modules and `trnflow.flows.deployments` import Prefect.
"""
