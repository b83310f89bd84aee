"""What several clouds need alike."""
