"""What `launch` and `control` share about a running cluster: where its files are, and how to ask it."""
