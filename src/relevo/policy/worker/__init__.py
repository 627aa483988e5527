"""What one worker decides: what it takes in, what each step computes, whose blocks go."""
