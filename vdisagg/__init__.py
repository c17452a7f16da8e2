"""Disaggregated prefill/decode serving of LLMs on plain machines."""

__version__ = "0.1.0"
