"""Two configurations or specifications: differences, conversions, scales, edits."""
