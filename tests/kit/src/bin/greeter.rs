//! Answers each TCP connection with one line and closes it: `greeter PORT ANSWER`.
//!
//! The listen backlog is 128. The backlog of busybox's `nc -ll` is 2: on a busy machine connections overflow it, which the client considers
//! established and which are never answered.

use std::io::{Error, Write};
use std::net::{Ipv6Addr, TcpListener};

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let port = arguments.next().and_then(|port| port.parse().ok()).ok_or_else(|| Error::other("usage: greeter PORT ANSWER"))?;
    let answer = arguments.next().unwrap_or_default();
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))?;
    for mut stream in listener.incoming().flatten() {
        // A client that is gone needs no answer.
        let _ = writeln!(stream, "{answer}");
    }
    Ok(())
}
