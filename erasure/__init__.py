"""`tidelog erase`: takes the records of some keys out of everything that holds them."""
