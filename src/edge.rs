//! IO: one outside world for each file. No decisions; typed errors whose `kind()` is what metrics and Events say.

use std::io;

pub mod acme;
pub mod conntrack;
pub mod control;
pub mod daemon;
pub mod dns;
pub mod files;
pub mod iptables;
pub mod kube;
pub mod link;
pub mod localapi;
pub mod netns;
pub mod nft;
pub mod node;
pub mod ping;
pub mod probe;
pub mod sysctl;
pub mod tls;

/// Does it again when a signal interrupts it: a socket with a timeout is not resumed after a handler has run (socket(7)), and a child that
/// ends anywhere in the program sends one (SIGCHLD).
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(fault) if fault.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
