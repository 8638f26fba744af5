"""Faults to plant in the store, event logs, tracking, launching, services and champions; beside those of planted.py."""

from __future__ import annotations

from tests.golden.planted import Fault

FAULTS = [
    Fault("events: a log is never synced", "tasks/events/log.py", "os.fsync(self._descriptor)", "pass", "events/test_log.py"),
    Fault("events: the end of a stage is not synced", "tasks/events/log.py",
          """if document["event"] == "stage_ended" and document["action"] == "ran":""", "if False:", "events/test_log.py"),
    Fault("store: documents are never synced", "tasks/store/local.py",
          "os.fsync(handle.fileno())", "pass", "store/test_power_cut.py"),
    Fault("store: blobs are never synced", "tasks/store/local.py",
          "if ctypes.CDLL(None, use_errno=True).syncfs(handle) != 0:", "if False:", "store/test_power_cut.py"),
    Fault("store: a record stands before its blobs are synced", "tasks/store/blob_store.py",
          "        self.backend.sync()\n", "", "store/test_power_cut.py"),
    Fault("checkpoint: COMMIT stands before its files are synced", "tasks/store/partial.py",
          "                self._backend.sync()\n", "", "store/test_power_cut.py"),
    Fault("evaluation: the calibration error has 14 bins", "tasks/evaluation/metrics/ece.py",
          "BINS = 15", "BINS = 14", "evaluation/test_scores.py"),
    Fault("launch: a stage whose caller is dead is never killed", "tasks/launch/guard.py",
          "elif deadline and (orders or time.monotonic() > deadline):", "elif deadline and orders:", "launch/test_orphans.py"),
    Fault("recovery: a lost run is left after its third start", "flows/services/recovery.py",
          "1 <= run.run_count <= times", "1 <= run.run_count < times", "flows/services/test_recovery.py"),
    Fault("recovery: the automation counts one more start", "flows/services/recovery.py",
          "for count in range(1, times + 1)]", "for count in range(1, times + 2)]", "flows/services/test_recovery.py"),
    Fault("recovery: a run is started twice more by default", "flows/services/recovery.py",
          "TIMES = 3", "TIMES = 2", "flows/services/test_recovery.py"),
    Fault("training: orpo has no beta", "tasks/training/preference_losses.py",
          "loss = found.surprise + config.beta * _surprise(odds", "loss = found.surprise + _surprise(odds",
          "training/model/test_preference_losses.py"),
    Fault("training: simpo's margin is not subtracted", "tasks/training/preference_losses.py",
          " - config.simpo_gamma", "", "training/model/test_preference_losses.py"),
    Fault("training: kto's good and bad answers change places", "tasks/training/preference_losses.py",
          "found.marks.sign() * (baseline - gains)", "found.marks.sign() * (gains - baseline)",
          "training/model/test_preference_losses.py"),
]  # fmt: skip
