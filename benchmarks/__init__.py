"""Speed and quality as ratios to a peer in the same run, with runs interleaved and medians compared."""
