"""What people and programs get to see: plain values in, tables and JSON out."""
