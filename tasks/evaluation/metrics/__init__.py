"""The functions of metrics, a file each: `train.best_metric` has the file of its metric alone in the key of train."""
