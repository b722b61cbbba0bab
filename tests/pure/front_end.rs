//! TLS and HTTP terminator on real sockets: clients as tailscaled forwards them, backends of every protocol.

mod api_server;
mod balance;
mod changes;
mod cluster;
mod flood;
mod heads;
mod limits;
mod messages;
mod protocols;
mod seams;
mod stalls;
mod upgrades;
