"""What commands print: tables and sentences for people, JSON for programs, live progress, logs."""
