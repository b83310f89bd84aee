"""An endpoint that knows its own truth, and what a client's claims are held against."""
