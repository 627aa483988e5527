"""HTTP/1.1 as it is spoken at the door: sockets, bytes, deadlines. Knows no route."""
