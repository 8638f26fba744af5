"""The store's acceptance scenarios: one file each, on local stores and an S3 server process, all ending as `ending.check_ending`
says. Nightly ones (`make test-nightly`) are the same with more cases.

| | scenario | local | S3 | elsewhere |
|---|---|---|---|---|
| 1 | edit what matters, and what does not | test_01 | nightly | the nine real stages: tests/test_pipeline.py |
| 2 | code that makes equal bytes | test_02 | nightly | tests/flows/runner/test_runner.py |
| 3 | undeclared module or file | test_03 | nightly | every way to read: tests/keys/test_file_audit.py |
| 4 | SIGKILL anywhere | test_04, 20 points; nightly: 50 | 5 points; nightly: 50 | processes: tests/launch/test_orphans.py |
| 5 | many starters on one key | test_05 | test_05 | leases alone: tests/store/test_lease.py |
| 6 | damage | test_06 | test_06: remote, cache, both; most nightly | `verify --repair`: tests/store/test_verify.py |
| 7 | stopped and killed training | test_07 | | tests/training/test_resume.py; MLflow: tests/tracking/test_tracking.py |
| 8 | libraries, compiler, flags, data | test_08 | nightly | tests/flows/runner/test_environment.py |
| 9 | two projects and a collector | test_09 | nightly | tests/store/test_collect.py |
| 10 | keys and explanations | test_10 (needs no store) | | tests/keys/test_fingerprint.py, tests/keys/test_explain.py |
| | bad input | test_bad_input | test_bad_input_s3 | tests/store/test_store.py |
"""
