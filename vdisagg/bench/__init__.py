"""Load on a cluster and what came of it: open-loop arrivals, streams timed token by token, a report."""
