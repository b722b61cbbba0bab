//! Timer of `select!` loops that have a deadline only at times.

use tokio::time::{Instant, sleep_until};

/// Sleeps until a time; forever without one.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
