"""Tracking in MLflow: a follower, another process, sends a run's event log.

A run never waits for MLflow's server or import (5 s), and nothing is lost or recorded twice.
"""

from trnflow.tasks.tracking.addresses import destination, tracking_address, tracking_page
from trnflow.tasks.tracking.delivery import MlflowDelivery
from trnflow.tasks.tracking.follower import send_logs

__all__ = ["MlflowDelivery", "destination", "send_logs", "tracking_address", "tracking_page"]
