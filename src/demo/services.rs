//! The demo's services: who they are, where they lead, and the files that tell the proxies so.
//!
//! The files are the formats of others: the operator's egress config, swapped into place as a kubelet does it, and the
//! static netmap of a replica.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::api::{egress, netmap};
use crate::model::base::net::Family;
use crate::model::diagnostics::load::TargetIdentity;

use super::topology::Topology;

const FIRST_MATCH_PORT: u16 = 10_000;
pub const FIRST_TARGET_PORT: u16 = 7_000;
/// How many ports each target serves; services share them.
pub const TARGET_PORTS: u16 = 16;
/// The most services that fit: match ports stay below the usual range of ephemeral ports.
pub const MAX_SERVICES: u16 = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DemoService {
    pub number: u16,
    pub target: u16,
}

impl DemoService {
    pub fn name(self) -> String {
        format!("demo-svc-{}", self.number)
    }

    /// The port of the proxies that leads to it, TCP and UDP.
    pub fn match_port(self) -> u16 {
        FIRST_MATCH_PORT + self.number % MAX_SERVICES
    }

    pub fn identity(self) -> TargetIdentity {
        TargetIdentity { target: self.target, port: FIRST_TARGET_PORT + self.number % TARGET_PORTS }
    }

    /// How its target is named: by name (both families), by IPv4 address or by IPv6 address.
    pub fn families(self) -> &'static [Family] {
        match self.number % 4 {
            1 => &[Family::V4],
            3 => &[Family::V6],
            _ => &Family::ALL,
        }
    }

    /// Whether its target is named: what the tailnet says that the name leads to is then where it leads.
    pub fn by_name(self) -> bool {
        self.families() == Family::ALL
    }

    /// Its entry in the operator's config.
    fn entry(self, topology: &Topology) -> egress::EgressService {
        let site = topology.targets.get(usize::from(self.target)).map(|site| site.tailnet.map(|ip| ip.to_string()));
        let tailnet_target = match (self.families(), site) {
            (&[Family::V4], Some([ip, _])) | (&[Family::V6], Some([_, ip])) => egress::EgressTarget { ip, fqdn: String::new() },
            _ => egress::EgressTarget { ip: String::new(), fqdn: target_name(self.target) },
        };
        let port = |protocol: &str| egress::PortMap {
            protocol: protocol.to_owned(),
            match_port: self.match_port().into(),
            target_port: self.identity().port.into(),
        };
        egress::EgressService { health_check_endpoint: String::new(), tailnet_target, ports: vec![port("TCP"), port("UDP")] }
    }
}

/// The address of a family among a site's two.
pub fn of_family(addresses: [IpAddr; 2], family: Family) -> IpAddr {
    let [v4, v6] = addresses;
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

pub fn target_letter(target: u16) -> char {
    u8::try_from(target).ok().and_then(|n| b'a'.checked_add(n)).map_or('?', char::from)
}

pub fn target_name(target: u16) -> String {
    format!("{}.demo.ts.net", target_letter(target))
}

/// The egress config's directory, as a kubelet keeps the volume of a `ConfigMap`.
#[derive(Debug)]
pub struct Volume {
    directory: PathBuf,
    version: u64,
}

impl Volume {
    /// Makes the directory with a config without services.
    pub fn make(directory: PathBuf) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let mut volume = Self { directory, version: 0 };
        volume.write_bytes(b"{}")?;
        symlink(Path::new("..data").join(egress::KEY), volume.directory.join(egress::KEY))?;
        Ok(volume)
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Puts a config of these services into place, all at once; says when it stood there.
    pub fn write(&mut self, topology: &Topology, services: impl IntoIterator<Item = DemoService>) -> io::Result<Instant> {
        let entries: BTreeMap<_, _> = services.into_iter().map(|service| (service.name(), service.entry(topology))).collect();
        self.write_bytes(&serde_json::to_vec(&entries)?)
    }

    /// Puts a config into place: a new directory beside the old one, then one rename of the link `..data`, then the old one goes.
    pub fn write_bytes(&mut self, config: &[u8]) -> io::Result<Instant> {
        let versioned = |version: u64| format!("..version_{version}");
        let old = self.directory.join(versioned(self.version));
        self.version += 1;
        let new = self.directory.join(versioned(self.version));
        std::fs::create_dir(&new)?;
        std::fs::write(new.join(egress::KEY), config)?;
        let link = self.directory.join("..data_tmp");
        symlink(versioned(self.version), &link)?;
        std::fs::rename(&link, self.directory.join("..data"))?;
        let stands = Instant::now();
        if old.exists() {
            std::fs::remove_dir_all(old)?;
        }
        Ok(stands)
    }
}

/// The static netmap of a replica: itself and the targets.
pub fn write_netmap(topology: &Topology, replica: usize, path: &Path) -> io::Result<()> {
    let node = |name: String, ips: [IpAddr; 2]| netmap::Node { name, addresses: ips.map(|ip| ip.to_string()).to_vec(), routes: Vec::new() };
    let own = topology.replicas.get(replica).map(|site| node(format!("replica-{replica}.demo.ts.net"), site.tailnet));
    let peers = (0..).zip(&topology.targets).map(|(number, site)| node(target_name(number), site.tailnet)).collect();
    let file = netmap::File { node: own.unwrap_or_default(), peers, services: Vec::new() };
    std::fs::write(path, serde_json::to_vec_pretty(&file)?)
}
