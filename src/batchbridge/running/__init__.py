"""The wrapping of a trainer, and of the trainer of a launched command."""
