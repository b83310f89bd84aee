"""Azure Container Apps: one app for each deployment, with one GPU for each replica."""
