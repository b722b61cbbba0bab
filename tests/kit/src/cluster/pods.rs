//! Pods as the machine sees them: their processes, by their control groups.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::Cluster;
use super::images::TOOLS;

/// The Pod `client` for commands of a test.
pub fn client() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "client"}, "spec": {"terminationGracePeriodSeconds": 0,
        "containers": [{"name": "client", "image": TOOLS, "imagePullPolicy": "Never"}]}})
}

/// A Pod of this name and label `app`, on a given node or any, that answers each connection with a greeting.
pub fn greeter(name: &str, node: Option<&str>, port: u16, greeting: &str) -> Value {
    let container = json!({"name": name, "image": TOOLS, "imagePullPolicy": "Never", "command": ["greeter", port.to_string(), greeting]});
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]}});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

/// The UID of a Pod, which changes when the Pod is replaced.
pub fn uid(cluster: &Cluster, namespace: &str, pod: &str) -> String {
    field(cluster, namespace, pod, "{.metadata.uid}")
}

/// The node of a Pod.
pub fn node(cluster: &Cluster, namespace: &str, pod: &str) -> String {
    field(cluster, namespace, pod, "{.spec.nodeName}")
}

/// A field of a Pod, by its path.
pub fn field(cluster: &Cluster, namespace: &str, pod: &str, path: &str) -> String {
    cluster.kubectl(&["get", "pod", "-n", namespace, pod, "-o", &format!("jsonpath={path}")])
}

/// The processes of a Pod of this name, or all of them, by their ids outside.
pub fn processes(uid: &str, name: Option<&str>) -> Vec<i32> {
    let group = format!("/pod{uid}");
    let pids = fs::read_dir("/proc").expect("/proc").filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.parse().ok());
    let inside = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&group));
    let named = |pid: &i32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.is_none_or(|name| comm.trim() == name)
    };
    pids.filter(|pid| inside(pid) && named(pid)).collect()
}

/// Whether a process executes no further instruction of its program: it is a zombie, is exiting, or SIGKILL is pending.
pub fn is_ending(pid: i32) -> bool {
    /// Of `include/linux/sched.h`.
    const PF_EXITING: u64 = 0x4;
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let (status, stat) = (read("status"), read("stat"));
    let mask = |name: &str| u64::from_str_radix(status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0").trim(), 16);
    let kill = 1 << (Signal::SIGKILL as i32 - 1);
    let is_killed = ["SigPnd:", "ShdPnd:"].iter().any(|name| mask(name).expect("hexadecimal") & kill != 0);
    // After the name, which may contain spaces: state, five ids, flags.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let flags: u64 = fields.get(6).map_or(PF_EXITING, |flags| flags.parse().expect("a number"));
    is_killed || flags & PF_EXITING != 0 || fields.first() == Some(&"Z")
}

/// Sends a signal to the processes of a Pod of this name, or to all of them; there must be one.
pub fn signal(uid: &str, name: Option<&str>, signal: Signal) {
    let found = processes(uid, name);
    assert!(!found.is_empty(), "no {name:?} runs in the Pod {uid}");
    for pid in found {
        // One of several may go with another.
        let _ = kill(Pid::from_raw(pid), signal);
    }
}
