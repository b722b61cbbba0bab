//! Pebble and its DNS server, on the control server's machine.

use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::json;

use crate::machine::DEADLINE;
use crate::machine::Process;
use crate::tailnet::Tailnet;
use crate::wait::eventually;

/// A running Pebble.
pub struct Pebble {
    address: IpAddr,
    ca: PathBuf,
    config: PathBuf,
    bin: PathBuf,
    process: Option<Process>,
    manner: Manner,
    /// Output of earlier processes.
    before: String,
    _dns: Process,
}

/// Behaviour of the server.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Percentage of nonces that Pebble rejects.
    pub bad_nonces: u8,
    /// How long its certificates are valid, in seconds.
    pub lifetime: u64,
    /// Maximum delay of a challenge validation, in seconds.
    pub slow: u8,
    /// Percentage of orders that use a valid authorization of the account, if there is one.
    pub reuse: u8,
}

impl Default for Manner {
    fn default() -> Self {
        Self { bad_nonces: 5, lifetime: 90 * 86_400, slow: 0, reuse: 0 }
    }
}

impl Pebble {
    pub fn start(tailnet: &Tailnet, manner: Manner) -> Self {
        let machine = tailnet.control_machine();
        let bin = crate::servers::servers(&["pebble", "pebble-challtestsrv"]);
        let program = |name: &str| bin.join(name).display().to_string();
        let dns = [
            &program("pebble-challtestsrv"),
            "-dnsserver",
            ":8053",
            "-management",
            ":8055",
            "-http01",
            "",
            "-https01",
            "",
            "-tlsalpn01",
            "",
            "-doh",
            "",
        ];
        let dns = machine.spawn("dns", &dns, &[]);
        let config = tailnet.dir().join("pebble.json");
        let pebble = Self {
            address: tailnet.control(),
            ca: tailnet.dir().join("ca.crt"),
            config,
            bin,
            process: None,
            manner,
            before: String::new(),
            _dns: dns,
        };
        pebble.with(tailnet)
    }

    fn with(mut self, tailnet: &Tailnet) -> Self {
        let file = |name: &str| tailnet.dir().join(name).display().to_string();
        let config = json!({"pebble": {
            "listenAddress": "0.0.0.0:14000", "managementListenAddress": "0.0.0.0:15000",
            "certificate": file("hs.crt"), "privateKey": file("hs.key"), "httpPort": 80, "tlsPort": 443,
            "ocspResponderURL": "", "externalAccountBindingRequired": false, "retryAfter": {"authz": 1, "order": 1},
            "profiles": {"default": {"description": "the only one", "validityPeriod": self.manner.lifetime}},
        }});
        fs::write(&self.config, config.to_string()).expect("written");
        self.run(tailnet);
        self
    }

    /// Starts it (again): it remembers nothing.
    pub fn run(&mut self, tailnet: &Tailnet) {
        let machine = tailnet.control_machine();
        let (program, config) = (self.bin.join("pebble").display().to_string(), self.config.display().to_string());
        let Manner { bad_nonces, slow, reuse, .. } = self.manner;
        let (nonces, slow, reuse) = (bad_nonces.to_string(), slow.to_string(), reuse.to_string());
        let sleep = if self.manner.slow == 0 { ("PEBBLE_VA_NOSLEEP", "1") } else { ("PEBBLE_VA_SLEEPTIME", slow.as_str()) };
        let env = [sleep, ("PEBBLE_AUTHZREUSE", reuse.as_str()), ("PEBBLE_WFE_NONCEREJECT", &nonces)];
        self.process = Some(machine.spawn("pebble", &[&program, "-config", &config, "-dnsserver", "127.0.0.1:8053"], &env));
        // Pebble opens the two ports one after the other.
        for port in [14000, 15000] {
            eventually("Pebble", DEADLINE, || std::net::TcpStream::connect((self.address, port)).ok());
        }
    }

    /// Ends it.
    pub fn stop(&mut self) {
        self.before = self.log();
        self.process = None;
    }

    /// Suggests to renew this certificate in the hour before this one.
    pub fn suggest_now(&self, tailnet: &Tailnet, chain: &[u8]) {
        let time = |ago: u64| {
            let at = std::time::SystemTime::now() - std::time::Duration::from_secs(ago);
            k8s_openapi::jiff::Timestamp::try_from(at).expect("a time").to_string()
        };
        let window = json!({"suggestedWindow": {"start": time(7200), "end": time(3600)}});
        let chain = String::from_utf8_lossy(chain);
        let leaf = &chain[..chain.find("-----END CERTIFICATE-----").expect("PEM") + "-----END CERTIFICATE-----".len()];
        let body = json!({"certificate": leaf, "ariResponse": window.to_string()}).to_string();
        let url = format!("https://{}:15000/set-renewal-info/", self.address);
        let mut curl = tailnet.control_machine().command(std::path::Path::new("curl"));
        let output = curl.args(["--silent", "--fail", "--insecure", "--data", &body, &url]).output().expect("curl");
        assert!(output.status.success(), "{output:?}");
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://{}:14000/dir", self.address)
    }

    /// The CA of Pebble's own TLS certificate.
    pub fn ca(&self) -> PathBuf {
        self.ca.clone()
    }

    /// The output so far.
    pub fn log(&self) -> String {
        self.process.as_ref().map_or_else(|| self.before.clone(), Process::output)
    }

    /// How many proofs of a name it has accepted.
    pub fn proofs(&self) -> usize {
        self.log().matches("set VALID by completed challenge").count()
    }

    /// How many certificates it has issued.
    pub fn issued(&self) -> usize {
        self.log().matches("Issued certificate serial").count()
    }
}
