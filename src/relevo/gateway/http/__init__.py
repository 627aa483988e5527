"""HTTP/1.1 as it is spoken at the limiter: sockets, bytes, deadlines. Knows no route."""
