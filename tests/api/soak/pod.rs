//! What a kubelet gives to a replica: its service account, in the place where Pods have it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::soak::daemon::executable;

/// Where Pods have it.
const ACCOUNTS: &str = "/var/run/secrets/kubernetes.io";

/// Writes the program that replicas are started by: it becomes the proxy, in a view of the file system of its own.
pub(crate) fn program(directory: &Path, account: &Path) -> PathBuf {
    // It is copied: the API server's certificate is written anew when the server starts, and a replica may start just then.
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
