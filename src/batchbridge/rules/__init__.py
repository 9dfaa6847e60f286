"""The rules that hold in every framework, and the nearest legal numbers."""
