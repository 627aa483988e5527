"""What the tokens of a model are: what each spells, and which of them a grammar lets through."""
