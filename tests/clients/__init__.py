"""What we make, opened by programs that we did not write: other versions of libraries, made by `make clients`."""
