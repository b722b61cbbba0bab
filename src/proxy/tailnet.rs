//! The replica's tailnet: netmaps from a supervised tailscaled or from a file.

pub mod auth_key_watch;
pub mod config_values;
pub mod daemon;
pub mod peer_warmup;
pub mod recent_peers;
pub mod start;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::watch;

use crate::api::netmap::File;
use crate::edge::files::watch::{FilesView, file};
use crate::model::base::netmap::NetMap;

/// Watches a static netmap file until all receivers are dropped. An unreadable or invalid file changes nothing.
pub fn follow_file(path: &Path) -> (watch::Receiver<Option<Arc<NetMap>>>, impl Future<Output = ()> + Send + 'static) {
    let (sender, netmap) = watch::channel(None);
    let (watcher, mut views, name) = file(path);
    let path = path.to_owned();
    let follow = async move {
        let reading = async {
            while views.changed().await.is_ok() {
                let view = views.borrow_and_update().clone();
                match read(&view, &name) {
                    Ok(Some(netmap)) => drop(sender.send_replace(Some(Arc::new(netmap)))),
                    Ok(None) => {}
                    Err(fault) => {
                        tracing::warn!(path = %path.display(), "ignored an invalid netmap; the previous one stays in force: {fault}");
                    }
                }
            }
        };
        tokio::join!(watcher.run(), reading);
    };
    (netmap, follow)
}

fn read(view: &FilesView, name: &str) -> Result<Option<NetMap>, String> {
    if let Some(fault) = &view.fault {
        return Err(fault.to_string());
    }
    let Some(bytes) = view.snapshot.as_ref().and_then(|snapshot| snapshot.files.get(name)) else { return Ok(None) };
    let file: File = serde_json::from_slice(bytes).map_err(|fault| format!("not a netmap: {fault}"))?;
    let (netmap, faults) = NetMap::from_file(&file);
    for fault in faults {
        tracing::warn!("ignored a part of the netmap: {fault}");
    }
    Ok(Some(netmap))
}
