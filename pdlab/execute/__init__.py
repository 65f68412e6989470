"""The executor: the interpreter that keeps, for each value, the tensor."""
