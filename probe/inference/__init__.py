"""What follows from the measurements: the verdict on every head."""
