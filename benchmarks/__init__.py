"""Speed, as ratios to a peer in the same run: interleaved, medians."""
