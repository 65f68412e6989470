"""A lab for a course on distributed training: predict, run, compare."""
