"""What is made of a machine and of a model's files before anything starts."""
