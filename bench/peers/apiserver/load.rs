//! Requests of several clients at a fixed rate while something happens to the proxies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::client::{Exchange, Site};
use super::content::POD;
use crate::traffic::outcome::gap;

/// Clients, each with a connection that it uses again, and how often each sends a request.
const CLIENTS: usize = 20;
const INTERVAL: Duration = Duration::from_millis(100);
/// How long the load has been there before anything happens.
const CALM: Duration = Duration::from_secs(1);

/// What the clients experienced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experience {
    pub(crate) failed: usize,
    /// Requests that another connection answered.
    pub(crate) repeated: usize,
    /// Longest time without a response.
    pub(crate) gap: Duration,
    /// How long the event took.
    pub(crate) took: Duration,
}

/// Sends requests until the event, and the time after it, are over.
pub(crate) async fn during(site: &Site, after: Duration, event: impl FnOnce() -> Result<()>) -> Result<Experience> {
    let (begun, over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let (site, over) = (site.clone(), Arc::clone(&over));
        clients.spawn(async move {
            // One after the other.
            sleep(INTERVAL * u32::try_from(number).unwrap_or_default() / 20).await;
            let (mut connection, mut exchanges) = (None, Vec::new());
            let mut due = interval(INTERVAL);
            due.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while !over.load(Ordering::Relaxed) {
                due.tick().await;
                let exchange = site.get_or_repeat(&mut connection, POD).await;
                exchanges.push((begun.elapsed(), exchange));
            }
            exchanges
        });
    }
    sleep(CALM).await;
    let happened = Instant::now();
    block_in_place(event)?;
    let took = happened.elapsed();
    sleep(after).await;
    over.store(true, Ordering::Relaxed);
    let exchanges: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    let count = |wanted: Exchange| exchanges.iter().filter(|(_, exchange)| *exchange == wanted).count();
    let answered = exchanges.iter().filter(|(_, exchange)| *exchange != Exchange::Failed).map(|(ended, _)| *ended).collect();
    Ok(Experience { failed: count(Exchange::Failed), repeated: count(Exchange::Repeated), gap: gap(answered, CALM + took + after), took })
}
