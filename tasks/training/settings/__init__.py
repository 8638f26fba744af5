"""The settings of training, in groups; each field's docstring says what it means.

`trnflow.tasks.training.config` joins the groups into `TrainConfig`. A recipe writes all fields directly below `train:`.
"""
