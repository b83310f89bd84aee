"""What `server.py doctor` looks at; nothing is changed, and nothing that sleeps is woken."""
