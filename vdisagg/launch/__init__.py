"""Carries a plan out: runners, the guard, up, down, status and logs."""
