//! A small HTTP server with limits.
