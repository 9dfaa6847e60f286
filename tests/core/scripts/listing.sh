show a && show b || show c; show d; false || show e; true && show f
