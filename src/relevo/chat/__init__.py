"""`relevo chat`: a conversation with any OpenAI-compatible server, at a terminal or through a pipe."""
