"""Wrapping a trainer, and reaching the trainer of a launched command."""
