"""Training: methods, options, the step, and the folder of a run."""
