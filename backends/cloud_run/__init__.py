"""Google Cloud Run: one service for each deployment, with one GPU for each instance."""
