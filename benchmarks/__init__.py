"""What Tidelog does per second and per CPU second, against the raw object store of the same run (`make bench`)."""
