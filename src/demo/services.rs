//! The demo's services: identities, targets, and the files that configure the proxies.
//!
//! The files are in existing formats: the operator's egress config, replaced as by a kubelet, and the static netmap of a replica.

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
/// Number of ports of each target; services share them.
pub const TARGET_PORTS: u16 = 16;
/// Maximum number of services: match ports stay below the usual range of ephemeral ports.
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

    /// Its match port on the proxies, TCP and UDP.
    pub fn match_port(self) -> u16 {
        FIRST_MATCH_PORT + self.number % MAX_SERVICES
    }

    pub fn identity(self) -> TargetIdentity {
        TargetIdentity { target: self.target, port: FIRST_TARGET_PORT + self.number % TARGET_PORTS }
    }

    /// Kind of its target: a name (both families), an IPv4 address or an IPv6 address.
    pub fn families(self) -> &'static [Family] {
        match self.number % 4 {
            1 => &[Family::V4],
            3 => &[Family::V6],
            _ => &Family::ALL,
        }
    }

    /// Whether its target is a name, resolved by the tailnet.
    pub fn by_name(self) -> bool {
        self.families() == Family::ALL
    }

    /// Its entry in the operator's egress config.
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

/// A site's address of a family.
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

/// Directory of the egress config, in a kubelet's layout of a ConfigMap volume.
#[derive(Debug)]
pub struct Volume {
    directory: PathBuf,
    version: u64,
}

impl Volume {
    /// Creates the directory with a config without services.
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

    /// Writes a config of these services atomically; returns the time of the swap.
    pub fn write(&mut self, topology: &Topology, services: impl IntoIterator<Item = DemoService>) -> io::Result<Instant> {
        let entries: BTreeMap<_, _> = services.into_iter().map(|service| (service.name(), service.entry(topology))).collect();
        self.write_bytes(&serde_json::to_vec(&entries)?)
    }

    /// Writes a config: creates a new directory, renames the link `..data`, deletes the old directory.
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

/// Writes the static netmap of a replica: itself and the targets.
pub fn write_netmap(topology: &Topology, replica: usize, path: &Path) -> io::Result<()> {
    let node = |name: String, ips: [IpAddr; 2]| netmap::Node { name, addresses: ips.map(|ip| ip.to_string()).to_vec(), routes: Vec::new() };
    let own = topology.replicas.get(replica).map(|site| node(format!("replica-{replica}.demo.ts.net"), site.tailnet));
    let peers = (0..).zip(&topology.targets).map(|(number, site)| node(target_name(number), site.tailnet)).collect();
    let file = netmap::File { node: own.unwrap_or_default(), peers, services: Vec::new() };
    std::fs::write(path, serde_json::to_vec_pretty(&file)?)
}
