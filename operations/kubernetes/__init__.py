"""A model on Google Kubernetes Engine, as a manifest and the commands around it."""
