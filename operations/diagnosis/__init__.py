"""What is wrong with a deployment: the layers it stands on, walked until one is unhealthy."""
