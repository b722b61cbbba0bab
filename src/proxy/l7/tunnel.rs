//! Connections that became something else, such as `WebSocket`s: bytes both ways until either side ends, or the listener does.

use std::sync::Arc;

use http::Response;
use http::header::{CONNECTION, HeaderValue, UPGRADE};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::model::sites::headers;

use super::Port;
use super::activity::InFlight;
use super::body::Passing;
use super::peer::Busy;
use super::request::Answer;

/// Joins the client to the backend that agreed, and tells the client.
pub(super) fn join(port: &Arc<Port>, mut answer: Response<Incoming>, theirs: OnUpgrade, in_flight: InFlight, busy: Busy) -> Answer {
    let ours = hyper::upgrade::on(&mut answer);
    let protocol = answer.headers().get(UPGRADE).cloned();
    let (mut parts, _) = answer.into_parts();
    headers::end_to_end(&mut parts.headers);
    parts.extensions.clear();
    parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        parts.headers.insert(UPGRADE, protocol);
    }
    port.counts.upgraded();
    let open = port.shared.stats.opened(&port.counts);
    let mut ended = port.tunnels.subscribe();
    let service = port.service.clone();
    tokio::spawn(async move {
        let pass = async {
            let (theirs, ours) = tokio::try_join!(theirs, ours)?;
            let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
            // That either side breaks off is how such connections end.
            let _ = copy_bidirectional(&mut theirs, &mut ours).await;
            Ok::<_, hyper::Error>(())
        };
        tokio::select! {
            passed = pass => if let Err(error) = passed {
                tracing::debug!(service, %error, "a connection could not change its protocol");
            },
            _ = ended.changed() => {}
        }
        drop((open, in_flight, busy));
    });
    Response::from_parts(parts, Passing::bytes(""))
}
