"""Regular expressions of JSON schemas: read, written as a lexer takes them, matched."""
