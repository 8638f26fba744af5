"""Services that a run uses: Prefect's server, its deployments and task runners, and the listener that sends results to
MLflow.

Only these modules and `flows.deployments` import Prefect.
"""
