//! Pod environment of a replica: its service account, at the path that Pods have.

use std::fs;
use std::path::{Path, PathBuf};

use crate::soak::daemon::executable;

/// Directory of service accounts in Pods.
const ACCOUNTS: &str = "/var/run/secrets/kubernetes.io";

/// Writes the program that starts replicas: it executes the proxy in its own mount namespace.
pub(crate) fn program(directory: &Path, account: &Path) -> PathBuf {
    // Copied: the API server rewrites its certificate when it starts, and a replica may start at the same time.
    let own = directory.join("account");
    fs::create_dir_all(&own).expect("a directory");
    for file in ["namespace", "token", "ca.crt"] {
        fs::copy(account.join(file), own.join(file)).expect("a file of the account");
    }
    let script = format!(
        "#!/bin/sh\nset -e\n[ \"$1\" = mounted ] || exec unshare --mount \"$0\" mounted \"$@\"\nshift\n\
         mount -t tmpfs pod /var/run\nmkdir -p {ACCOUNTS}\nln -s {} {ACCOUNTS}/serviceaccount\nexec {} \"$@\"\n",
        own.display(),
        kit::tailyard(),
    );
    executable(directory.join("pod"), &script)
}
