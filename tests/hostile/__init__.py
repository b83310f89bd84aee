"""An endpoint that means no good, and every tool that reads one."""
