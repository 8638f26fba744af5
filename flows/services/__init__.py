"""Services that a run uses: Prefect's server, its deployments, automations and task runners, what it shows of a run, and
the listener that sends results to MLflow.

Only these modules and `flows.deployments` import Prefect.
"""
