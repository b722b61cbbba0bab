//! Credentials for upstreams, from files that other programs replace: CA certificates, a client certificate and a bearer token.
//!
//! The file names are those of a service account's volume and of a Secret of type `kubernetes.io/tls`. New files are used from the next
//! connection or request on. An unusable or missing file changes nothing; without files of a client certificate none is presented.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::future::join;
use http::HeaderValue;
use tokio::sync::watch;

use crate::edge::files::watch::{FilesView, directory};
use crate::edge::tls::{Connector, TlsError};
use crate::model::ingress::certificate::Pair;
use crate::runtime::snapshot::SnapshotCell;

const AUTHORITIES: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const TOKEN: &str = "token";

/// Newest usable credentials; clones share them.
#[derive(Debug, Clone)]
pub struct UpstreamCredentials {
    /// Verifies servers, and accepts none without CA certificates.
    pub tls: Connector,
    token: SnapshotCell<Option<HeaderValue>>,
}

impl UpstreamCredentials {
    /// Creates credentials and the task that follows the files of a directory, which does not end. Fails if TLS cannot be initialized.
    pub fn follow(folder: PathBuf) -> Result<(Self, impl Future<Output = ()> + Send + 'static), TlsError> {
        let credentials = Self { tls: Connector::verifying()?, token: SnapshotCell::new(None) };
        let (watcher, view) = directory(folder, &[AUTHORITIES, CERTIFICATE, KEY, TOKEN]);
        let updates = credentials.clone().update(view);
        Ok((credentials, async move {
            join(watcher.run(), updates).await;
        }))
    }

    /// Value of the header `Authorization`; `None` before a token was read.
    pub fn authorization(&self) -> Option<HeaderValue> {
        Option::clone(&self.token.read())
    }

    async fn update(self, mut view: watch::Receiver<FilesView>) {
        let mut last = BTreeMap::new();
        while view.changed().await.is_ok() {
            let FilesView { snapshot, fault, .. } = view.borrow_and_update().clone();
            if let Some(fault) = fault {
                tracing::warn!(reason = fault.reason(), "cannot read credentials for the upstream; the previous ones stay in use: {fault}");
            }
            if let Some(snapshot) = snapshot {
                self.apply(&last, &snapshot.files);
                last = snapshot.files;
            }
        }
    }

    /// Uses the files whose content is new.
    fn apply(&self, last: &BTreeMap<String, Bytes>, files: &BTreeMap<String, Bytes>) {
        let is_new = |name: &&str| files.get(*name) != last.get(*name);
        if [AUTHORITIES, CERTIFICATE, KEY].iter().any(is_new) {
            let trusted = files.get(AUTHORITIES).map_or(Ok(()), |authorities| self.tls.trust(authorities, own(files).as_ref()));
            if let Err(error) = trusted {
                let reason = error.reason();
                tracing::warn!(reason, "unusable certificates for the upstream; the previous ones stay in use: {error}");
            }
        }
        if is_new(&TOKEN) {
            match files.get(TOKEN).map(|token| bearer(token)) {
                Some(Some(value)) => self.token.replace(Some(value)),
                Some(None) => tracing::warn!("the token for the upstream is not the value of a header; the previous one stays in use"),
                None => {}
            }
        }
    }
}

/// The client certificate, if there is a file of it; one file without the other is unusable.
fn own(files: &BTreeMap<String, Bytes>) -> Option<Pair> {
    let content = |name: &str| files.get(name).map(|content| &content[..]).unwrap_or_default().into();
    let is_there = [CERTIFICATE, KEY].iter().any(|name| files.contains_key(*name));
    is_there.then(|| Pair { chain: content(CERTIFICATE), key: content(KEY) })
}

fn bearer(token: &[u8]) -> Option<HeaderValue> {
    let token = token.trim_ascii();
    let mut value = HeaderValue::from_bytes(&[b"Bearer ", token].concat()).ok().filter(|_| !token.is_empty())?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_without_spaces_at_its_ends_is_a_sensitive_header() {
        let value = bearer(b" abc.def-ghi\n").expect("a header");
        assert_eq!((value.as_bytes(), value.is_sensitive()), (b"Bearer abc.def-ghi".as_slice(), true));
        for unusable in [&b""[..], b" \n", b"a\nb", b"a\0b"] {
            assert_eq!(bearer(unusable), None, "{unusable:?}");
        }
    }

    #[test]
    fn unusable_or_missing_file_changes_no_credential() {
        let credentials = UpstreamCredentials { tls: Connector::verifying().expect("set up"), token: SnapshotCell::new(None) };
        let files = |list: &[(&str, &'static str)]| -> BTreeMap<String, Bytes> {
            list.iter().map(|(name, text)| ((*name).to_owned(), Bytes::from_static(text.as_bytes()))).collect()
        };
        let first = files(&[(TOKEN, "one"), (AUTHORITIES, "no certificate")]);
        credentials.apply(&BTreeMap::new(), &first);
        assert_eq!(credentials.authorization().expect("a token"), "Bearer one");
        for changed in [files(&[(TOKEN, "a\nb")]), files(&[(TOKEN, "")]), files(&[])] {
            credentials.apply(&first, &changed);
            assert_eq!(credentials.authorization().expect("a token"), "Bearer one", "{changed:?}");
        }
        credentials.apply(&first, &files(&[(TOKEN, "two\n")]));
        assert_eq!(credentials.authorization().expect("a token"), "Bearer two");
    }
}
