"""The verbs for batches: repartition, over, group_by, join and explain, and the aggregates that can be split."""
