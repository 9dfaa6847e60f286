"""The output that people and programs read: text and JSON. Pure functions from readings and plans to strings."""
