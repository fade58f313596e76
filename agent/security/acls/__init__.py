"""What clients may do: access control lists, and the decisions that follow from them."""
