//! Findings of `tailyard doctor`.

use std::process::Output;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::cluster::chart::NAMESPACE;

/// What `tailyard doctor -o json` printed.
#[derive(Debug)]
pub struct Diagnosis {
    pub code: Option<i32>,
    checks: Vec<Value>,
}

impl Diagnosis {
    /// Reads the output of `tailyard doctor -o json`.
    pub fn read(output: &Output) -> Self {
        let checks = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            let [stdout, stderr] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
            panic!("tailyard doctor: {error}: {stdout}{stderr}")
        });
        Self { code: output.status.code(), checks }
    }

    /// Finding and text of each check of this name.
    pub fn of(&self, name: &str) -> Vec<(String, String)> {
        let text = |check: &Value, key: &str| check[key].as_str().unwrap_or_default().to_owned();
        let found = self.checks.iter().filter(|check| check["name"] == name);
        found.map(|check| (text(check, "finding"), text(check, "what"))).collect()
    }

    /// What a healthy cluster must not have: an exit code, a fault, or a warning of another check than these.
    pub fn faults(&self, may_warn: &[&str]) -> Vec<String> {
        let is_expected = |check: &Value| {
            let is = |finding: &str| check["finding"] == finding;
            is("ok") || (is("warn") && may_warn.iter().any(|name| check["name"] == *name))
        };
        let code = (self.code != Some(0)).then(|| format!("exit code {:?}", self.code));
        code.into_iter().chain(self.checks.iter().filter(|check| !is_expected(check)).map(Value::to_string)).collect()
    }
}

impl Cluster {
    /// Runs `tailyard doctor` as the administrator, where the control plane is reached.
    pub fn doctor(&self) -> Diagnosis {
        let mut command = self.control.machine.command(crate::tailyard().as_ref());
        command.args(["doctor", "-o", "json", "-n", NAMESPACE]).env("KUBECONFIG", &self.control.kubeconfig);
        command.arg("--control-ca").arg(self.tailnet.dir().join("ca.crt"));
        Diagnosis::read(&command.output().expect("nsenter"))
    }
}
