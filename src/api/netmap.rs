//! Static netmap file (`--tailnet static:FILE`): ours, for demos, tests and tailnets of other implementations.
//!
//! ```json
//! {"self": {"name": "eg-0.tail.lab", "addresses": ["100.64.0.1", "fd7a:115c:a1e0::1"]},
//!  "peers": [{"name": "db.tail.lab", "addresses": ["100.64.0.2"], "routes": ["192.168.0.0/24"]}],
//!  "services": [{"name": "web.tail.lab", "addresses": ["100.99.1.2"]}]}
//! ```

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct File {
    #[serde(rename = "self")]
    pub node: Node,
    pub peers: Vec<Node>,
    pub services: Vec<Node>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, expecting = "an object")]
pub struct Node {
    /// Its fully qualified name, with or without the final dot.
    pub name: String,
    /// Its addresses, without prefix length.
    pub addresses: Vec<String>,
    /// Other prefixes that are routed to it.
    pub routes: Vec<String>,
}
