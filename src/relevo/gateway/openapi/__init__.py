"""What the gateway says of its own paths: an OpenAPI document, and a page that shows it."""
