"""What is deployed, looked at: health, load, logs, details, the dashboard, alert rules."""
