"""Values of users as values of columns: exact, or refused with the row, the column and the reason."""
