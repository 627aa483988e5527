"""The processes that compute one worker's steps together: what they say to each other, and what each of them does."""
