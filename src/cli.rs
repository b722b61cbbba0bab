//! Dispatch and settings of the command line.
