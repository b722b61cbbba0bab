//! Two Pods of one identity, simulated in steps of 100 ms: whatever fails, never both run tailscaled, and one does soon after a Pod works
//! and nothing else begins to fail. Where an observer passes claims, right or wrong, a Pod runs it at most until its fence.

use super::*;

mod claim;

/// Length of a step.
const STEP: Duration = Duration::from_millis(100);
/// Steps of a simulation: two minutes.
const STEPS: u32 = 1200;
/// Slowest way of a request or response, in steps.
const SLOWEST: u32 = 10;

/// Longest time in which no tailscaled runs although a Pod works: a read that just missed the last renewal, the next one, the Lease's
/// duration by the slowest clock, then a read and a write. One step more for each of both Pods.
fn longest_gap() -> Duration {
    LeaseTerms::ACTIVE_POD.lease_duration * 101 / 100 + STEP * (4 * 2 * SLOWEST + 2)
}

/// What fails, for both Pods or one.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// The Pod does nothing; the kernel's timer runs on.
    Hangs,
    /// All processes of the Pod are killed.
    Killed,
    /// The Pod stops tailscaled and releases the Lease; at the end another one replaces it.
    Leaves,
    /// Requests of the Pod do not arrive.
    Unreachable,
    /// Requests arrive, but no responses.
    Unanswered,
}

/// A fault of a Pod in a range of steps.
#[derive(Debug, Clone, Copy)]
struct Failure {
    pod: usize,
    fault: Fault,
    begin: u32,
    end: u32,
}

/// A request on its way.
struct Request {
    step: LeaseStep,
    version: Option<String>,
    sent: Instant,
    arrives: u32,
    responds: u32,
    response: Response,
}

/// Response of the API server to a request.
enum Response {
    /// None: the request did not arrive, or the response gets lost.
    None,
    Conflict,
    /// The Lease that was read or written.
    Lease(Option<LeaseRecord>),
}

struct Pod {
    candidate: LeaseCandidate,
    /// Speed of the clock, in thousandths.
    rate: u32,
    request: Option<Request>,
    next_turn: Instant,
    /// Whether the watch has noticed another holder since the last request.
    woken: bool,
    /// Time at which the kernel kills the Pod; `None` without tailscaled.
    fence: Option<Instant>,
    runs: bool,
    life: u32,
}

/// API server with the Lease, and its Pods.
struct Simulation {
    begin: Instant,
    lease: Option<LeaseRecord>,
    version: u64,
    pods: [Pod; 2],
    failures: Vec<Failure>,
    /// Durations of requests, in turn.
    delays: Vec<u32>,
    requests: usize,
    /// Step of the last write of the Lease.
    written: u32,
}

impl Pod {
    fn new(index: usize, life: u32, rate: u32, now: Instant) -> Self {
        let name = format!("pod-{index}-{life}");
        let candidate = LeaseCandidate::new(name, None, LeaseTerms::ACTIVE_POD);
        Self { candidate, rate, request: None, next_turn: now, woken: false, fence: None, runs: false, life }
    }
}

impl Simulation {
    fn new(rates: [u32; 2], failures: Vec<Failure>, delays: Vec<u32>) -> Self {
        let begin = Instant::now();
        let pods = [0, 1].map(|index| Pod::new(index, 0, rates[index], begin));
        Self { begin, lease: None, version: 0, pods, failures, delays, requests: 0, written: 0 }
    }

    /// A Pod's own time at a step.
    fn time(&self, pod: usize, step: u32) -> Instant {
        self.begin + STEP * step * self.pods[pod].rate / 1000
    }

    fn has(&self, pod: usize, step: u32, fault: impl Fn(Fault) -> bool) -> bool {
        self.failures.iter().any(|one| one.pod == pod && (one.begin..one.end).contains(&step) && fault(one.fault))
    }

    /// Whether the Pod takes part, and its requests are answered.
    fn works(&self, pod: usize, step: u32) -> bool {
        !self.has(pod, step, |_| true)
    }

    fn step(&mut self, step: u32) {
        for pod in [0, 1] {
            let now = self.time(pod, step);
            let is_fenced = self.pods[pod].fence.is_some_and(|fence| fence <= now);
            let has_left = self.failures.iter().any(|one| one.pod == pod && matches!(one.fault, Fault::Leaves) && one.end == step);
            if is_fenced || has_left || self.has(pod, step, |fault| matches!(fault, Fault::Killed)) {
                let (life, rate) = (self.pods[pod].life + 1, self.pods[pod].rate);
                self.pods[pod] = Pod::new(pod, life, rate, now);
            }
            self.serve(pod, step);
            if !self.has(pod, step, |fault| matches!(fault, Fault::Hangs | Fault::Killed)) {
                self.turn(pod, step, now);
            }
        }
    }

    /// A request arrives at the API server.
    fn serve(&mut self, pod: usize, step: u32) {
        let unreachable = self.has(pod, step, |fault| matches!(fault, Fault::Unreachable));
        let name = self.pods[pod].candidate.name().to_owned();
        let Some(request) = self.pods[pod].request.as_mut().filter(|request| request.arrives == step && !unreachable) else { return };
        let version = self.lease.as_ref().map(|lease| lease.version.clone());
        request.response = match request.step {
            // A read.
            LeaseStep::Wait(_) => Response::Lease(self.lease.clone()),
            _ if request.version != version => Response::Conflict,
            _ => {
                self.version += 1;
                self.written = step;
                let is_release = matches!(request.step, LeaseStep::Release { .. });
                let (holder, duration) =
                    if is_release { (String::new(), seconds(1)) } else { (name, LeaseTerms::ACTIVE_POD.lease_duration) };
                self.lease = Some(LeaseRecord { holder, duration, ..record("", self.version) });
                Response::Lease(self.lease.clone())
            }
        };
    }

    /// A Pod that does not hang handles its response, sends the next request, and starts or kills tailscaled.
    fn turn(&mut self, pod: usize, step: u32, now: Instant) {
        let unanswered = self.has(pod, step, |fault| matches!(fault, Fault::Unanswered));
        let leaves = self.has(pod, step, |fault| matches!(fault, Fault::Leaves));
        let delay = |number: usize| self.delays[number % self.delays.len()];
        let (arrives, responds) = (step + delay(self.requests), step + delay(self.requests) + delay(self.requests + 1));
        let one = &mut self.pods[pod];
        let retry_period = LeaseTerms::ACTIVE_POD.retry_period;
        let mut follows = None;
        if let Some(request) = one.request.take_if(|request| request.responds <= step) {
            one.next_turn = request.sent + retry_period;
            let is_read = matches!(request.step, LeaseStep::Wait(_));
            match request.response {
                _ if unanswered => {}
                Response::None => {}
                Response::Conflict => follows = Some(LeaseStep::Wait(now)),
                Response::Lease(found) if is_read => {
                    one.candidate.observe(found, now);
                    let next = one.candidate.next(!leaves, now);
                    if let LeaseStep::Wait(again) = next {
                        one.next_turn = one.next_turn.min(again);
                    }
                    follows = Some(next);
                }
                Response::Lease(written) => one.candidate.written(written.expect("it was written"), request.sent),
            }
        }
        let until = one.candidate.leading_until(now).filter(|_| !leaves);
        one.runs = until.is_some();
        one.fence = until.map(|until| until + FENCE_DELAY);
        if one.request.is_none() {
            let leads = one.candidate.leading_until(now).is_some();
            let next = match one.candidate.next(true, now) {
                LeaseStep::Renew { transitions } if leads && leaves => LeaseStep::Release { transitions },
                renew @ LeaseStep::Renew { .. } if leads => renew,
                _ => LeaseStep::Wait(now),
            };
            let is_due = (one.next_turn <= now || one.woken) && (!leaves || matches!(next, LeaseStep::Release { .. }));
            let is_write = |step: &LeaseStep| !matches!(step, LeaseStep::Wait(_));
            if let Some(step) = follows.filter(|step| is_write(step)).or_else(|| is_due.then_some(next)) {
                let version = one.candidate.version().map(str::to_owned);
                one.woken = false;
                one.request = Some(Request { step, version, sent: now, arrives, responds, response: Response::None });
                self.requests += 2;
            }
        }
    }
}

/// Faults of up to 40 s at any time.
fn failures() -> impl Strategy<Value = Vec<Failure>> {
    let fault = prop::sample::select(vec![Fault::Hangs, Fault::Killed, Fault::Leaves, Fault::Unreachable, Fault::Unanswered]);
    let one = (0..2_usize, fault, 0..STEPS, 1..400_u32);
    prop::collection::vec(one.prop_map(|(pod, fault, begin, length)| Failure { pod, fault, begin, end: begin + length }), 0..12)
}

proptest! {
    #[test]
    fn never_both_pods_run_tailscaled_and_one_does_soon_after_a_pod_works(
        rates in prop::array::uniform2(990..=1010_u32),
        failures in failures(),
        delays in (1..=SLOWEST).prop_flat_map(|slowest| prop::collection::vec(1..=slowest, 1..50)),
    ) {
        let mut simulation = Simulation::new(rates, failures, delays);
        let (mut gap, mut calm, mut works) = (Duration::ZERO, Duration::ZERO, [Duration::ZERO; 2]);
        for step in 0..STEPS {
            simulation.step(step);
            let running = simulation.pods.iter().filter(|pod| pod.runs).count();
            prop_assert!(running <= 1, "both run tailscaled at step {step}");
            gap = if running == 0 { gap + STEP } else { Duration::ZERO };
            // A Pod that fails after it took the Lease begins a wait of its own.
            calm = if simulation.failures.iter().any(|failure| failure.begin == step) { Duration::ZERO } else { calm + STEP };
            for (pod, works) in works.iter_mut().enumerate() {
                *works = if simulation.works(pod, step) { *works + STEP } else { Duration::ZERO };
                prop_assert!(gap.min(*works).min(calm) <= longest_gap(), "no tailscaled for {gap:?} at step {step}, although Pod {pod} works");
            }
        }
    }
}
