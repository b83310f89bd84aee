"""What a cell's figures are worth: the rules of validity."""
