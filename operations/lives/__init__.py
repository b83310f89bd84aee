"""The life of a deployment: set up, agreed to, made, followed, changed, ended."""
