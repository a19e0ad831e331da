"""What everything else stands on: errors, files, locks, seeds."""
