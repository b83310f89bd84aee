"""What engines and clouds write, read in bounded memory: lines, boots, failures, templates."""
