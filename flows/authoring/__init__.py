"""Writing a first recipe for data of one's own (`trnflow new`): look at the data, choose columns and task, write."""
