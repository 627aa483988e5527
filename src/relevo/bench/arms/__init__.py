"""Ways of serving (arms) under the same open-loop traffic, one after the other: what comparisons of modes share."""
