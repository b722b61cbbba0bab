//! A watch of objects by kubectl: the latest value of a path of each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use kit::cluster::Cluster;
use kit::machine::Process;

/// A running watch.
pub(crate) struct Watch<'a> {
    cluster: &'a Cluster,
    argv: Vec<String>,
    process: RefCell<Process>,
}

impl<'a> Watch<'a> {
    /// Starts a watch of the objects with these labels. `path` is a kubectl path below an object, such as `.metadata.uid`.
    pub(crate) fn start(cluster: &'a Cluster, kind: &str, namespace: &str, labels: &str, path: &str) -> Self {
        let (program, kubeconfig) = (cluster.bin.join("kubectl").display().to_string(), cluster.control.kubeconfig.display().to_string());
        let line = format!("jsonpath={{.type}} {{.object.metadata.name}} {{.object{path}}}{{\"\\n\"}}");
        let argv = [
            "--kubeconfig",
            &kubeconfig,
            "get",
            kind,
            "-n",
            namespace,
            "-l",
            labels,
            "--watch",
            "--chunk-size=0",
            "--output-watch-events",
            "-o",
            &line,
        ];
        let argv: Vec<String> = [&[&program[..]], &argv[..]].concat().into_iter().map(str::to_owned).collect();
        Self { process: RefCell::new(spawn(cluster, &argv)), cluster, argv }
    }

    /// Values by name of the existing objects. kubectl ends when the API server closes the watch of a slow client, and is started again.
    pub(crate) fn values(&self) -> BTreeMap<String, String> {
        if self.process.borrow_mut().ended() {
            *self.process.borrow_mut() = spawn(self.cluster, &self.argv);
        }
        let output = self.process.borrow().output();
        let mut values = BTreeMap::new();
        // The last line may be incomplete.
        for line in output.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut words = line.splitn(3, ' ');
            if let (Some(event), Some(name), Some(value)) = (words.next(), words.next(), words.next()) {
                if event == "DELETED" {
                    values.remove(name);
                } else {
                    values.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        values
    }
}

fn spawn(cluster: &Cluster, argv: &[String]) -> Process {
    /// Number of the next log, which is read from its beginning.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("watch-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    cluster.control.machine.spawn(&name, &argv, &[("KUBECACHEDIR", "/run/kubectl")])
}
