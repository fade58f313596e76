"""The housekeeper and the doctor, on a real Postgres and real stores."""
