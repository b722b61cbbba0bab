//! Commands of a cluster for use from outside its namespaces: `kubectl`, `helm`, `headscale`, and `node` for any program on a node.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::Cluster;

/// Writes the commands into an existing directory.
pub fn write(cluster: &Cluster, place: &Path) {
    let (bin, dir) = (cluster.bin.display(), cluster.tailnet.dir().display());
    let (control, kubeconfig) = (cluster.control.machine.pid(), cluster.control.kubeconfig.display());
    let write = |name: &str, line: String| {
        let path = place.join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).expect("written");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("executable");
    };
    write(
        "kubectl",
        format!("export KUBECACHEDIR={dir}/kubectl\nexec nsenter -t {control} -n -- {bin}/kubectl --kubeconfig={kubeconfig} \"$@\""),
    );
    let home = format!("export HELM_CACHE_HOME={dir}/helm HELM_CONFIG_HOME={dir}/helm HELM_DATA_HOME={dir}/helm");
    let build = crate::root().join("tests/servers/build").display().to_string();
    let helm = format!("bin=$({build} helm)\nexec nsenter -t {control} -n -- \"$bin/helm\" --kubeconfig={kubeconfig} \"$@\"");
    write("helm", format!("{home}\n{helm}"));
    let headscale = cluster.tailnet.control_pid();
    write("headscale", format!("exec nsenter -t {headscale} -m -u -n -p -- {bin}/headscale -c {dir}/headscale.yaml \"$@\""));
    let nodes: Vec<_> = cluster.nodes.iter().map(|node| format!("{}) pid={} ;;", node.name, node.machine.pid())).collect();
    let choose = format!("case $1 in {} *) echo 'node n1 COMMAND...' >&2; exit 2 ;; esac; shift", nodes.join(" "));
    write("node", format!("{choose}\nexec nsenter -t $pid -m -u -n -p -C -- \"$@\""));
}
