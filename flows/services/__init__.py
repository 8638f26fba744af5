"""Programs beside a run: Prefect's server, its deployments and task runners, and the MLflow listener.

Only these modules and `flows.deployments` import Prefect.
"""
