//! The HTTP front end alone in a process: `terminator BACKEND`. Prints the addresses of two sites' plain ports and of the first one's TLS
//! port in one line, and ends with its standard input.

use std::io::{Error, Read, Write};

use kit::front_end::front::{Front, Options, plain, service, site};
use serde_json::json;
use tailyard::model::front_end::vhosts::shares::{MOST_CONNECTIONS, Shares};
use tailyard::proxy::front_end::Limits;
use tailyard::runtime::resources;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let backend = std::env::args().nth(1).and_then(|backend| backend.parse().ok());
    let backend = service(backend.ok_or_else(|| Error::other("usage: terminator BACKEND"))?, "http");
    let mut first = site("web.tail.ts.net", &backend);
    first["listeners"]["80"] = json!("http");
    let shares = Shares::of(resources::descriptors(), usize::MAX, MOST_CONNECTIONS);
    let options = Options { limits: Limits { shares, ..Limits::default() }, ..Options::default() };
    let front = Front::with(json!({"svc:web": first, "svc:b": plain("b.tail.ts.net", &backend)}), options).await;
    let addresses = [("svc:web", 80), ("svc:b", 80), ("svc:web", 443)].map(|(service, port)| front.at(service, port).to_string());
    writeln!(std::io::stdout(), "{}", addresses.join(" "))?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}
