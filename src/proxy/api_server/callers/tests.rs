use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::*;
use crate::edge::localapi::LocalApiError;
use crate::model::tailnet::advertise::WithdrawalProgress;
use crate::proxy::api_server::lookups::MAX_LOOKUPS;
use crate::proxy::front_end::identify::with_grants;

const SERVICE: &str = "svc:kube";
/// Duration of a lookup.
const LOOKUP_WAIT: Duration = Duration::from_millis(20);

/// tailscaled, and the callers that look up clients by it.
struct Stage {
    callers: Callers,
    netmap: watch::Sender<Option<Arc<NetMap>>>,
    answers: Arc<Answering>,
    site: Arc<ApiServerSite>,
}

#[derive(Default)]
struct Answering {
    fails: std::sync::atomic::AtomicBool,
    running: AtomicUsize,
    most: AtomicUsize,
    /// Addresses and times of lookups.
    lookups: std::sync::Mutex<Vec<(IpAddr, Instant)>>,
}

impl Stage {
    fn new() -> Self {
        let (netmap, changes) = watch::channel(None);
        let answers = Arc::<Answering>::default();
        let lookup: WhoIsLookup<WhoIs> = {
            let answers = Arc::clone(&answers);
            Arc::new(move |client: SocketAddr| {
                let answers = Arc::clone(&answers);
                Box::pin(async move {
                    let start = Instant::now();
                    answers.lookups.lock().expect("no panic").push((client.ip(), start));
                    answers.most.fetch_max(answers.running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    sleep(LOOKUP_WAIT).await;
                    answers.running.fetch_sub(1, Ordering::SeqCst);
                    if answers.fails.load(Ordering::SeqCst) {
                        return Err(LocalApiError::Deadline { call: "whois", after: LOOKUP_WAIT });
                    }
                    let mut whois = WhoIs::default();
                    whois.user_profile.login_name = client.ip().to_string();
                    Ok((start, Some(whois)))
                })
            })
        };
        Self { callers: Callers::new(Box::new(move |_| Arc::clone(&lookup)), changes), netmap, answers, site: Arc::default() }
    }

    /// Identifies the clients of all connections at once; each connection has the port of its position.
    async fn identify(&self, connections: &[ConnectionCaller], clients: usize) {
        let of = |(at, connection)| async move {
            let client = client(at % clients);
            let caller = self.callers.identify(connection, (Some(client), SERVICE), &self.site).await.expect("a caller");
            assert_eq!(caller.user(), Some(&*client.ip().to_string()));
        };
        join_all(connections.iter().enumerate().map(of)).await;
    }

    fn lookups(&self) -> Vec<(IpAddr, Instant)> {
        std::mem::take(&mut *self.answers.lookups.lock().expect("no panic"))
    }

    fn change(&self) {
        self.netmap.send_replace(Some(Arc::default()));
    }
}

fn client(number: usize) -> SocketAddr {
    let [.., high, low] = number.to_be_bytes();
    ([100, 64, high, low], 50_000).into()
}

fn connections(count: usize) -> Vec<ConnectionCaller> {
    (0..count).map(|_| ConnectionCaller::default()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn change_of_the_netmap_looks_up_each_address_once_and_few_at_a_time(clients in 1..300_usize, each in 1..4_usize, changes in 1..4_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(async {
            let (stage, connections) = (Stage::new(), connections(clients * each));
            for _ in 0..changes {
                stage.change();
                stage.identify(&connections, clients).await;
                let lookups = stage.lookups();
                let addresses: BTreeSet<IpAddr> = lookups.iter().map(|(address, _)| *address).collect();
                assert_eq!((lookups.len(), addresses.len()), (clients, clients), "one lookup of each address");
                stage.identify(&connections, clients).await;
                assert!(stage.lookups().is_empty());
            }
            assert!(stage.answers.most.load(Ordering::SeqCst) <= MAX_LOOKUPS);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn lookups_of_open_streams_are_distributed_after_a_change_of_the_netmap() {
    const CLIENTS: usize = 400;
    let stage = Arc::new(Stage::new());
    let connections = Arc::new(connections(CLIENTS));
    stage.identify(&connections, CLIENTS).await;
    let mut streams = JoinSet::new();
    for at in 0..CLIENTS {
        let (stage, connections) = (Arc::clone(&stage), Arc::clone(&connections));
        streams.spawn(async move {
            stage.callers.revocation(&connections[at], (Some(client(at)), SERVICE), || Some(Arc::clone(&stage.site))).await;
        });
    }
    sleep(Duration::from_secs(30)).await;
    stage.lookups();
    stage.change();
    let start = Instant::now();
    sleep(CACHE_TTL).await;
    let mut by_half_second = [0; 20];
    for (_, at) in stage.lookups() {
        by_half_second[usize::try_from((at - start).as_millis() / 500).expect("small")] += 1;
    }
    assert_eq!(by_half_second.iter().sum::<usize>(), CLIENTS);
    assert!(by_half_second.iter().all(|lookups| *lookups < CLIENTS / 4), "{by_half_second:?}");
    assert!(streams.try_join_next().is_none(), "no right was lost");
}

#[tokio::test(start_paused = true)]
async fn streams_outlive_a_short_failure_of_tailscaled_and_no_long_one() {
    let (stage, connections) = (Stage::new(), connections(1));
    for (failure, ends) in [(60, false), (240, false), (3600, true)] {
        stage.answers.fails.store(false, Ordering::SeqCst);
        sleep(CACHE_TTL).await;
        stage.identify(&connections, 1).await;
        stage.answers.fails.store(true, Ordering::SeqCst);
        let begin = Instant::now();
        let revocation = stage.callers.revocation(&connections[0], (Some(client(0)), SERVICE), || Some(Arc::clone(&stage.site)));
        let ended = tokio::time::timeout(Duration::from_secs(failure), revocation).await.is_ok();
        assert_eq!(ended, ends, "{failure} s");
        let longest = MAX_UNCONFIRMED + REVOCATION_INTERVAL + SPREAD_PERIOD;
        assert!(!ends || (MAX_UNCONFIRMED..longest).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_tailscaled_delays_no_client_for_longer_than_a_lookup() {
    let (_netmap, changes) = watch::channel(None);
    let silent: WhoIsLookup<WhoIs> = Arc::new(|_| Box::pin(std::future::pending()));
    let callers = Callers::new(Box::new(move |_| Arc::clone(&silent)), changes);
    let (connections, site, begin) = (connections(500), Arc::default(), Instant::now());
    let of = |(at, connection)| callers.identify(connection, (Some(client(at)), SERVICE), &site);
    let answers = join_all(connections.iter().enumerate().map(of)).await;
    assert!(answers.iter().all(|answer| *answer == Err(ApiServerRefusal::Unidentified)));
    assert!(begin.elapsed() <= Duration::from_secs(6), "{:?}", begin.elapsed());
}

#[tokio::test(start_paused = true)]
async fn no_identity_is_older_than_promised_while_shields_are_up() {
    for (since, interval) in (0..15).flat_map(|since| (1..20).map(move |interval| (since, interval))) {
        let (begin, (_netmap, changes)) = (Instant::now(), watch::channel(None));
        let (withdrawal, progress) = watch::channel(WithdrawalProgress::default());
        let lookup: WhoIsLookup<WhoIs> = Arc::new(move |_| {
            let mut whois = WhoIs::default();
            whois.user_profile.login_name = begin.elapsed().as_secs().to_string();
            Box::pin(async move { Ok((Instant::now(), Some(whois))) })
        });
        let lookup = with_grants(lookup, progress);
        let callers = Callers::new(Box::new(move |_| Arc::clone(&lookup)), changes);
        let (connection, site) = (ConnectionCaller::default(), Arc::default());
        for second in (0..60).step_by(interval) {
            tokio::time::sleep_until(begin + Duration::from_secs(second)).await;
            withdrawal.send_modify(|progress| progress.shields_up = second > since);
            let caller = callers.identify(&connection, (Some(client(0)), SERVICE), &site).await;
            let of = caller.ok().and_then(|caller| caller.user()?.parse::<u64>().ok());
            assert!(of.is_none_or(|of| second - of < 20), "{of:?} at {second}, shields up from {since}, every {interval} s");
        }
    }
}
