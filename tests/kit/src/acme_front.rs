//! ACME server for tailscaled's client: Pebble behind `front`, which adds the order's location.

use std::net::TcpStream;

use crate::machine::DEADLINE;
use crate::machine::Process;
use crate::tailnet::Tailnet;
use crate::wait::eventually;

/// Its address on the control server's machine, beside Pebble.
const PORT: u16 = 14443;

/// It runs as long as this.
pub struct Front {
    /// The URL of its directory.
    pub directory: String,
    _process: Process,
}

impl Front {
    /// Starts it before a running Pebble.
    pub fn start(tailnet: &Tailnet) -> Self {
        let file = |name: &str| tailnet.dir().join(name).display().to_string();
        let program = &crate::root().join("tests/kit/acme-front").display().to_string();
        let argv = ["python3", program, &PORT.to_string(), "127.0.0.1:14000", &file("hs.crt"), &file("hs.key")];
        let process = tailnet.control_machine().spawn("front", &argv, &[]);
        eventually("the front of the ACME server", DEADLINE, || TcpStream::connect((tailnet.control(), PORT)).ok());
        Self { directory: format!("https://{}:{PORT}/dir", tailnet.control()), _process: process }
    }
}
