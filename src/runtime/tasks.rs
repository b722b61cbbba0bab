//! Named tasks: one that ends unexpectedly ends the process, with its name in the last line.
