"""Nodes over SSH: the one place where paramiko is used."""
