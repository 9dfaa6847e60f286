"""The language server: `check` in an editor, while one types."""
