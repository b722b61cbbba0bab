//! Client identities: WhoIs of tailscaled, with a short cache.
//!
//! An identity is used for [`CACHE_TTL`] since the start of its lookup, also while tailscaled does not answer. It is looked up again from
//! [`REFRESH_AGE`] on, while requests use the cached one. An address has one lookup at a time. Requests wait for it until [`MAX_WAIT`]
//! after its start: a hanging tailscaled delays a request by a second, and those that follow not at all.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::api::whois::WhoIs;
use crate::edge::localapi::{LocalApi, LocalApiError};
use crate::model::front_end::vhosts::identity::ClientIdentity;
use crate::model::tailnet::advertise::WithdrawalProgress;

/// Maximum age of an identity: changes of a node's user or grants apply after this.
const CACHE_TTL: Duration = Duration::from_secs(20);
/// Age from which an identity is looked up again.
const REFRESH_AGE: Duration = Duration::from_secs(10);
/// Maximum wait of a request, since the start of the lookup.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Maximum cached clients, and concurrent lookups.
const MAX_CLIENTS: usize = 4096;

/// Answer of tailscaled about an address, with the start of its lookup, from which its age counts; `None` if unknown.
pub type DatedAnswer<T> = (Instant, Option<T>);

/// WhoIs lookup of an address. Its answer may be an earlier one.
pub type WhoIsLookup<T = ClientIdentity> =
    Arc<dyn Fn(SocketAddr) -> BoxFuture<'static, Result<DatedAnswer<T>, LocalApiError>> + Send + Sync>;

type CachedIdentity = Option<Arc<ClientIdentity>>;
type Lookup = Shared<BoxFuture<'static, CachedIdentity>>;

pub(super) struct Identify {
    ask: Option<WhoIsLookup>,
    clients: Arc<Mutex<Clients>>,
}

#[derive(Default)]
struct Clients {
    /// Identities, with the starts of their lookups.
    cache: HashMap<IpAddr, (Instant, CachedIdentity)>,
    /// Lookups in progress, with their starts.
    lookups: HashMap<IpAddr, (Instant, Lookup)>,
}

impl std::fmt::Debug for Identify {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identify").field("asks", &self.ask.is_some()).finish_non_exhaustive()
    }
}

/// Lookup by a LocalAPI, with the grants to a Tailscale Service as well, if one is named.
pub fn by<T: From<WhoIs>>(api: LocalApi, service: &str) -> WhoIsLookup<T> {
    let service: Arc<str> = service.into();
    Arc::new(move |client| {
        let (api, service, start) = (api.clone(), Arc::clone(&service), Instant::now());
        Box::pin(async move { Ok((start, api.whois_of_service(client, &service).await?.map(T::from))) })
    })
}

/// Last answers about clients.
type LastAnswers<T> = Arc<Mutex<HashMap<IpAddr, DatedAnswer<T>>>>;

/// A lookup for a replica that drains. With shields up tailscaled's packet filter has no grants: a client would have neither groups nor
/// capabilities. Meanwhile the last answer about it counts, if its lookup began at most [`CACHE_TTL`] ago; without one the lookup fails.
pub fn with_grants<T: Clone + Send + 'static>(lookup: WhoIsLookup<T>, withdrawal: watch::Receiver<WithdrawalProgress>) -> WhoIsLookup<T> {
    let answers = LastAnswers::<T>::default();
    Arc::new(move |client| {
        let (answers, withdrawal) = (Arc::clone(&answers), withdrawal.clone());
        let lookup = (!withdrawal.borrow().shields_up).then(|| lookup(client));
        Box::pin(async move {
            let answer = if let Some(answer) = lookup { Some(answer.await?) } else { None };
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            // They may have gone up during the lookup.
            if let Some(answer) = answer.filter(|_| !withdrawal.borrow().shields_up) {
                store(&mut answers, client.ip(), answer.clone());
                return Ok(answer);
            }
            let last = answers.get(&client.ip()).filter(|(at, _)| at.elapsed() < CACHE_TTL);
            last.cloned().ok_or(LocalApiError::NoGrants)
        })
    })
}

/// Stores an answer; those that are too old give way if there are too many, else it is not stored.
fn store<T>(answers: &mut HashMap<IpAddr, (Instant, T)>, ip: IpAddr, answer: (Instant, T)) {
    if answers.len() >= MAX_CLIENTS {
        answers.retain(|_, (at, _)| at.elapsed() < CACHE_TTL);
    }
    if answers.len() < MAX_CLIENTS || answers.contains_key(&ip) {
        answers.insert(ip, answer);
    }
}

impl Identify {
    /// Without lookup, all clients are unknown.
    pub(super) fn new(ask: Option<WhoIsLookup>) -> Self {
        Self { ask, clients: Arc::default() }
    }

    /// Identity of a client; `None` if unknown or tailscaled is unavailable.
    pub(super) async fn who(&self, client: SocketAddr) -> CachedIdentity {
        let (ask, ip) = (self.ask.as_ref()?, client.ip());
        let (start, lookup) = {
            let mut clients = lock(&self.clients);
            let cached = clients.cache.get(&ip).map(|(at, identity)| (at.elapsed(), identity.clone()));
            let cached = cached.filter(|(age, _)| *age < CACHE_TTL);
            let is_due = cached.as_ref().is_none_or(|(age, _)| *age >= REFRESH_AGE);
            if is_due && !clients.lookups.contains_key(&ip) && clients.lookups.len() < MAX_CLIENTS {
                let lookup = look_up(ask, client, Arc::clone(&self.clients));
                tokio::spawn(lookup.clone());
                clients.lookups.insert(ip, (Instant::now(), lookup));
            }
            match cached {
                Some((_, identity)) => return identity,
                None => clients.lookups.get(&ip).cloned()?,
            }
        };
        timeout_at(start + MAX_WAIT, lookup).await.ok().flatten()
    }
}

/// Looks up a client, and stores the answer.
fn look_up(ask: &WhoIsLookup, client: SocketAddr, clients: Arc<Mutex<Clients>>) -> Lookup {
    let answer = ask(client);
    let lookup = async move {
        let answer = answer.await;
        let mut clients = lock(&clients);
        clients.lookups.remove(&client.ip());
        let answer = answer.inspect_err(|error| tracing::debug!(reason = error.reason(), "whois for {client} failed: {error}"));
        let (start, identity) = answer.ok()?;
        let identity = identity.map(Arc::new);
        store(&mut clients.cache, client.ip(), (start, identity.clone()));
        identity
    };
    lookup.boxed().shared()
}

fn lock(clients: &Mutex<Clients>) -> MutexGuard<'_, Clients> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use tokio::time::{sleep, sleep_until};

    use super::*;
    use crate::model::front_end::vhosts::identity::User;

    const HANG: std::ops::Range<u64> = 30..75;
    const REFUSAL: std::ops::Range<u64> = 75..90;

    /// tailscaled that hangs, then refuses connections, then works again. Users have the second of the lookup as their name.
    fn tailscaled(begin: Instant, running: Arc<AtomicUsize>, most: Arc<AtomicUsize>) -> WhoIsLookup {
        Arc::new(move |_| {
            let (running, most) = (Arc::clone(&running), Arc::clone(&most));
            Box::pin(async move {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let (start, second, after) = (Instant::now(), begin.elapsed().as_secs(), Duration::from_secs(5));
                if HANG.contains(&second) {
                    sleep(after).await;
                }
                running.fetch_sub(1, Ordering::SeqCst);
                if HANG.contains(&second) || REFUSAL.contains(&second) {
                    return Err(LocalApiError::Deadline { call: "whois", after });
                }
                let user = User { login: second.to_string(), ..User::default() };
                Ok((start, Some(ClientIdentity { user: Some(user), ..ClientIdentity::default() })))
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn hanging_tailscaled_delays_a_request_by_a_second_and_no_identity_is_older_than_promised() {
        let (begin, most) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let identify = Identify::new(Some(tailscaled(begin, Arc::default(), Arc::clone(&most))));
        let mut waited = Duration::ZERO;
        for second in 0..120 {
            sleep_until(begin + Duration::from_secs(second)).await;
            let sent = Instant::now();
            let requests = (1..=3).map(|port| identify.who(SocketAddr::from(([100, 64, 0, 9], port))));
            let answers = join_all(requests).await;
            let took = sent.elapsed();
            assert!(took <= MAX_WAIT + Duration::from_millis(10), "{took:?} at {second}");
            waited += took;
            for identity in answers {
                let of = identity.and_then(|identity| identity.user.as_ref()?.login.parse::<u64>().ok());
                // The last answer before the hang is of second 20.
                assert_eq!(of.is_some(), !(40..REFUSAL.end).contains(&second), "{second}");
                assert!(of.is_none_or(|of| Duration::from_secs(second - of) < CACHE_TTL), "{of:?} at {second}");
            }
        }
        assert_eq!(most.load(Ordering::SeqCst), 1, "one lookup of an address at a time");
        assert!(waited <= Duration::from_secs(9), "a lookup that hangs delays only the requests of its first second: {waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn client_has_the_grants_of_its_last_lookup_while_shields_are_up() {
        let (withdrawal, progress) = watch::channel(WithdrawalProgress::default());
        let raise = |shields_up| withdrawal.send_modify(|progress| progress.shields_up = shields_up);
        let filter = withdrawal.clone();
        let without_grants: WhoIsLookup<&str> = Arc::new(move |client| {
            let filter = filter.clone();
            Box::pin(async move {
                let start = Instant::now();
                sleep(Duration::from_secs(1)).await;
                let groups = if filter.borrow().shields_up { "none" } else { "devs" };
                Ok((start, (client.port() > 1).then_some(groups)))
            })
        });
        let lookup = with_grants(without_grants, progress);
        let of = |ip: u8, port: u16| lookup(SocketAddr::from(([100, 64, 0, ip], port)));
        let reason = async |ip: u8| of(ip, 2).await.expect_err("no answer").reason();
        let answer = async |lookup: BoxFuture<'static, Result<DatedAnswer<&'static str>, _>>| lookup.await.expect("an answer").1;
        assert_eq!((answer(of(1, 2)).await, answer(of(2, 1)).await), (Some("devs"), None));
        let during = of(1, 2);
        raise(true);
        assert_eq!(answer(during).await, Some("devs"), "they went up during the lookup");
        assert_eq!((answer(of(1, 2)).await, answer(of(2, 2)).await), (Some("devs"), None));
        assert_eq!(reason(3).await, "NoGrants", "a client without a last answer");
        sleep(CACHE_TTL).await;
        assert_eq!(reason(1).await, "NoGrants", "no right outlives its revocation");
        raise(false);
        assert_eq!(answer(of(1, 2)).await, Some("devs"));
    }

    #[tokio::test(start_paused = true)]
    async fn no_identity_is_older_than_promised_while_shields_are_up() {
        // Each second of the drain's begin, since the last lookup before it.
        for since in 0..30 {
            let (begin, (withdrawal, progress)) = (Instant::now(), watch::channel(WithdrawalProgress::default()));
            let identify = Identify::new(Some(with_grants(tailscaled(begin, Arc::default(), Arc::default()), progress)));
            for second in 0..60 {
                sleep_until(begin + Duration::from_secs(second)).await;
                withdrawal.send_modify(|progress| progress.shields_up = second > since);
                let client = identify.who(SocketAddr::from(([100, 64, 0, 9], 1))).await;
                let of = client.and_then(|client| client.user.as_ref()?.login.parse::<u64>().ok());
                assert!(of.is_none_or(|of| second - of < CACHE_TTL.as_secs()), "{of:?} at {second}, shields up from {since}");
                assert!(of.is_some() || second >= since + CACHE_TTL.as_secs() / 2, "at {second}, shields up from {since}");
            }
        }
    }
}
