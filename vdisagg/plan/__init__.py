"""The topology resolved to argv, environment, ports and GPUs. Pure: no file, no socket, no clock."""
