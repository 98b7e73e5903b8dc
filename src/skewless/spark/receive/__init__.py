"""Records from sockets as a streaming DataFrame: `receive` is the verb, `source` the data source of Spark."""
