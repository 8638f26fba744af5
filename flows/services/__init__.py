"""Services that a run uses: Prefect's server, its deployments, automations and task runners, the tables that Prefect
shows of a run, and the listener that records a run's results in MLflow.

Only these modules and `trnflow.flows.deployments` import Prefect.
"""
