"""PostgreSQL's types: which columns have them, how Arrow holds their values, and how they are written."""
