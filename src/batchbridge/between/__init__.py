"""Reading against reading: `diff`, `convert`, `scale`, and `doctor` for what a framework said.

No framework is imported.
"""
