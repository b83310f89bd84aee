"""What every cloud of Google's needs alike: who asks, how it refuses, secrets, logs, set-up."""
