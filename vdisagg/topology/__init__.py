"""What is wanted: the topology file, read strictly into frozen values. No side effect beyond reading."""
