"""What people read: tables, charts, pages, files."""
