use proptest::prelude::*;

use super::*;

fn second(second: u64) -> Moment {
    Moment::from_secs(second)
}

fn identity(pod: &str, process: &str) -> Identity {
    Identity::new(Some(pod.to_owned()), process)
}

fn elector(pod: &str) -> Elector {
    Elector::new(identity(pod, "1"))
}

fn record(version: &str, holder: Option<&str>, renewed: &str) -> Record {
    Record {
        version: version.to_owned(),
        holder: holder.map(str::to_owned),
        renewed: renewed.to_owned(),
        duration: DURATION,
    }
}

/// Returns a leader whose only write of the Lease was sent at `sent`.
fn leader(sent: Moment) -> Elector {
    let mut leader = elector("a");
    leader.looked(None, sent);
    leader.wrote("1", sent);
    leader
}

#[test]
fn first_replica_creates_lease_and_leads() {
    let mut first = elector("a");
    assert_eq!(first.leadership(second(0)), Leadership::Unknown);
    assert_eq!(first.next(second(0)), (second(0), Act::Read));
    first.looked(None, second(1));
    assert_eq!(first.next(second(1)), (second(1), Act::Create));
    first.wrote("1", second(1));
    assert_eq!(first.leadership(second(2)), Leadership::Leads);
    assert_eq!(
        first.next(second(2)),
        (second(4), Act::Renew("1".to_owned()))
    );
}

#[test]
fn standby_polls_lease_and_takes_it_15_seconds_after_renewal() {
    let mut standby = elector("b");
    standby.looked(Some(record("1", Some("a_1"), "x")), second(0));
    let leader = Some("a_1".to_owned());
    assert_eq!(
        standby.leadership(second(1)),
        Leadership::StandsBy { leader }
    );
    assert_eq!(standby.next(second(1)), (second(2), Act::Read));
    // A new resource version without a renewal does not extend the Lease.
    standby.looked(Some(record("2", Some("a_1"), "x")), second(2));
    standby.looked(Some(record("2", Some("a_1"), "x")), second(14));
    let take = Act::Take("2".to_owned());
    assert_eq!(standby.next(second(14)), (second(15), take.clone()));
    assert_eq!(standby.next(second(99)), (second(99), take));
    standby.looked(Some(record("3", Some("a_1"), "y")), second(15));
    assert_eq!(standby.next(second(15)), (second(17), Act::Read));
}

#[test]
fn duration_of_a_lease_has_a_bound() {
    let mut standby = elector("b");
    let mut forged = record("1", Some("a_1"), "x");
    forged.duration = Moment::from_secs(1 << 31);
    standby.looked(Some(forged.clone()), second(0));
    standby.looked(Some(forged), second(59));
    let take = Act::Take("1".to_owned());
    assert_eq!(standby.next(second(59)), (second(60), take));
}

#[test]
fn lease_without_holder_is_taken_immediately() {
    let mut standby = elector("b");
    standby.looked(Some(record("7", None, "x")), second(3));
    let take = Act::Take("7".to_owned());
    assert_eq!(standby.next(second(3)), (second(3), take));
}

#[test]
fn restarted_process_takes_lease_of_its_pod_immediately() {
    let holders = [
        ("a_1", true),
        ("a_0", true),
        ("b_1", false),
        ("a", true),
        ("process_9", false),
    ];
    for (holder, takes_immediately) in holders {
        let mut successor = Elector::new(identity("a", "2"));
        successor.looked(Some(record("7", Some(holder), "x")), second(3));
        let (due, _) = successor.next(second(3));
        assert_eq!(due == second(3), takes_immediately, "{holder}");
    }
    // Without a pod name, the replica does not recognise an earlier process of the same pod.
    let mut without_pod_name = Elector::new(Identity::new(None, "2"));
    without_pod_name.looked(Some(record("7", Some("process_1"), "x")), second(3));
    assert_eq!(without_pod_name.next(second(3)), (second(5), Act::Read));
}

#[test]
fn leader_without_renewal_stops_writing_before_takeover() {
    let mut leader = leader(second(1));
    for now in 4..20 {
        let due = leader.next(second(now));
        assert_eq!(due, (second(now), Act::Renew("1".to_owned())));
        leader.failed(second(now));
        assert_eq!(leader.may_begin(second(now)), now < 11, "{now}");
        assert_eq!(leader.must_end(), Some(second(14)));
        assert_eq!(leader.next(second(now)).0, second(now) + RETRY_DELAY);
    }
    assert_eq!(leader.leadership(second(20)), Leadership::Doubts);
    // No other replica has taken the Lease, so a late renewal succeeds and the replica leads again.
    leader.wrote("2", second(20));
    assert_eq!(leader.leadership(second(21)), Leadership::Leads);
}

#[test]
fn renewal_counts_from_time_of_request() {
    let mut slow = leader(second(1));
    slow.wrote("2", second(4));
    assert!(slow.may_begin(second(9)));
    assert!(!slow.may_begin(second(14)), "ten seconds after it was sent");
    assert_eq!(slow.must_end(), Some(second(17)));
}

#[test]
fn leader_recognises_own_renewal_after_lost_response() {
    let mut leader = leader(second(1));
    leader.failed(second(8));
    leader.refused();
    assert_eq!(leader.next(second(8)), (second(8), Act::Read));
    leader.looked(Some(record("2", Some("a_1"), "y")), second(8));
    let renew = Act::Renew("2".to_owned());
    assert_eq!(leader.next(second(8)), (second(8), renew));
    assert!(
        !leader.may_begin(second(12)),
        "when it was sent is not known"
    );
}

#[test]
fn replica_that_lost_the_lease_never_leads_again() {
    for (holder, by) in [(Some("b_1"), Some("b_1".to_owned())), (None, None)] {
        let mut leader = leader(second(1));
        leader.refused();
        leader.looked(Some(record("2", holder, "y")), second(3));
        assert!(!leader.may_begin(second(3)));
        assert_eq!(leader.must_end(), None);
        leader.wrote("3", second(3));
        leader.looked(None, second(4));
        assert_eq!(leader.leadership(second(4)), Leadership::Over { by });
        assert_eq!(leader.next(second(4)), (second(4), Act::End));
    }
}

#[test]
fn deleted_lease_is_not_taken_before_it_expires() {
    let mut standby = elector("b");
    standby.looked(Some(record("1", Some("a_1"), "x")), second(0));
    standby.looked(None, second(10));
    standby.looked(None, second(24));
    assert_eq!(standby.next(second(24)), (second(25), Act::Create));
    let mut leader = leader(second(1));
    leader.refused();
    leader.looked(None, second(4));
    assert_eq!(leader.next(second(4)), (second(4), Act::Create));
    assert_eq!(leader.leadership(second(4)), Leadership::Leads);
}

#[test]
fn resigning_leader_releases_the_lease() {
    let mut leader = leader(second(1));
    assert_eq!(leader.resign(), Some("1".to_owned()));
    assert!(!leader.may_begin(second(1)));
    let mut standby = elector("b");
    standby.looked(Some(record("1", Some("a_1"), "x")), second(0));
    assert_eq!(standby.resign(), None);
}

#[test]
fn replica_reads_lease_again_after_conflict() {
    let mut standby = elector("b");
    standby.looked(Some(record("1", None, "x")), second(0));
    standby.refused();
    assert_eq!(standby.next(second(0)), (second(0), Act::Read));
    let mut first = elector("a");
    first.looked(None, second(0));
    first.refused();
    assert_eq!(first.next(second(0)), (second(0), Act::Read));
}

/// Milliseconds of simulated real time. A replica knows only its own clock.
type Millis = u64;

/// Stored Lease: resource version, holder, renew time.
type Lease = (u64, Option<String>, u64);

/// Timeout of a call by a replica.
const CALL_TIMEOUT: Millis = 4_000;

struct Call {
    act: Act,
    sent: Moment,
    /// Time at which the API server processes the call; `None` if the call is lost or already processed.
    acts: Option<Millis>,
    answer: Option<Result<Lease, Refused>>,
    /// Time at which the replica receives the response, or times out.
    ends: Millis,
    heard: bool,
}

/// Error response: the Lease does not exist, exists already, or has another resource version.
struct Refused;

struct Replica {
    elector: Elector,
    offset: Millis,
    /// Milliseconds on the clock of the replica per second of real time.
    rate: u64,
    call: Option<Call>,
    /// Time until which the process is paused.
    paused: Millis,
    /// Latest time at which a write that the replica started may still be in progress.
    writes_until: Millis,
    alive: bool,
}

impl Replica {
    fn clock(&self, now: Millis) -> Moment {
        Moment::from_millis((now + self.offset) * self.rate / 1_000)
    }

    /// Returns the real time at which the clock of the replica shows `moment`, rounded up.
    fn time(&self, moment: Moment) -> Millis {
        let millis = u64::try_from(moment.as_millis()).unwrap();
        let since = (millis * 1_000).div_ceil(self.rate);
        since.saturating_sub(self.offset)
    }

    fn leads(&self, now: Millis) -> bool {
        self.alive && self.elector.may_begin(self.clock(now))
    }

    /// Returns the real time of the next event of the replica.
    fn next(&self, now: Millis) -> Millis {
        let Some(call) = &self.call else {
            let (due, _) = self.elector.next(self.clock(now));
            return self.time(due).max(self.paused);
        };
        let ends = call.ends.max(self.paused);
        call.acts.unwrap_or(call.ends).min(ends)
    }
}

/// Simulation of replicas that share one Lease. Calls can be lost or delayed, and processes can pause.
struct World {
    now: Millis,
    lease: Option<Lease>,
    replicas: Vec<Replica>,
    /// Calls that the API server has not processed yet, although the replica timed out or was terminated. Each call has its time of
    /// processing, operation and holder.
    late: Vec<(Millis, Act, String)>,
    chance: std::vec::IntoIter<u16>,
    /// Number of times that a replica created or took the Lease.
    leaders: usize,
}

impl World {
    fn new(replicas: &[(u16, u16)], chance: Vec<u16>) -> Self {
        let replica = |(pod, (offset, rate)): (usize, &(u16, u16))| Replica {
            elector: elector(&format!("pod{pod}")),
            offset: Millis::from(*offset),
            rate: 950 + u64::from(rate % 101),
            call: None,
            paused: 0,
            writes_until: 0,
            alive: true,
        };
        Self {
            now: 0,
            lease: None,
            replicas: replicas.iter().enumerate().map(replica).collect(),
            late: Vec::new(),
            chance: chance.into_iter(),
            leaders: 0,
        }
    }

    /// Returns a number less than `below`; 0 once the random input is used up.
    fn chance(&mut self, below: u16) -> u16 {
        self.chance.next().unwrap_or_default() % below
    }

    /// Returns a random latency, mostly 5 ms, at most 20 s.
    fn latency(&mut self) -> Millis {
        match self.chance(8) {
            0..6 => 5,
            6 => 1_500,
            _ => Millis::from(self.chance(20_000)),
        }
    }

    fn run(&mut self, until: Millis) {
        while self.now < until {
            self.step();
        }
    }

    /// Advances to the next event.
    fn step(&mut self) {
        let alive = self.replicas.iter().filter(|replica| replica.alive);
        let next = alive.map(|replica| replica.next(self.now));
        let next = next.chain(self.late.iter().map(|late| late.0)).min();
        self.now = next.unwrap_or_default().max(self.now + 1);
        let due: Vec<_> = self
            .late
            .extract_if(.., |late| late.0 <= self.now)
            .collect();
        for (_, act, holder) in due {
            let _lost_response = self.process(&act, &holder);
        }
        for index in 0..self.replicas.len() {
            if self.replicas[index].alive {
                self.turn(index);
            }
        }
        self.assert_single_writer();
    }

    /// Processes a call on the API server.
    fn process(&mut self, act: &Act, holder: &str) -> Result<Lease, Refused> {
        let version = self.lease.as_ref().map(|lease| lease.0);
        let is_accepted = match act {
            Act::Read => return self.lease.clone().ok_or(Refused),
            Act::End => false,
            Act::Create => version.is_none(),
            Act::Take(expected) | Act::Renew(expected) => {
                version.is_some_and(|current| current.to_string() == *expected)
            }
        };
        if !is_accepted {
            return Err(Refused);
        }
        let lease = (
            version.unwrap_or_default() + 1,
            Some(holder.to_owned()),
            self.now,
        );
        self.lease = Some(lease.clone());
        Ok(lease)
    }

    fn turn(&mut self, index: usize) {
        let now = self.now;
        if let Some(mut call) = self.replicas[index].call.take() {
            if call.acts.is_some_and(|acts| acts <= now) {
                let holder = self.replicas[index].elector.identity().holder();
                call.acts = None;
                call.answer = Some(self.process(&call.act, &holder));
            }
            if now < call.ends.max(self.replicas[index].paused) {
                self.replicas[index].call = Some(call);
                return;
            }
            self.ends(index, call);
        }
        let replica = &self.replicas[index];
        match replica.elector.next(replica.clock(now)) {
            // The process exits, and the kubelet restarts the container.
            (_, Act::End) => self.kill(index),
            (due, act) if replica.time(due).max(replica.paused) <= now => self.call(index, act),
            _ => {}
        }
    }

    fn call(&mut self, index: usize, act: Act) {
        let (request_latency, response_latency) = (self.latency(), self.latency());
        let is_lost = self.chance(12) == 1;
        let pause = if self.chance(40) == 1 { 30_000 } else { 0 };
        let now = self.now;
        let replica = &mut self.replicas[index];
        replica.paused = now + pause;
        replica.call = Some(Call {
            act,
            sent: replica.clock(now),
            acts: (!is_lost).then_some(now + request_latency),
            answer: None,
            ends: now + (request_latency + response_latency).min(CALL_TIMEOUT),
            heard: !is_lost && request_latency + response_latency <= CALL_TIMEOUT,
        });
    }

    fn ends(&mut self, index: usize, call: Call) {
        let now = self.now;
        let replica = &mut self.replicas[index];
        let elector = &mut replica.elector;
        let clock = Moment::from_millis((now + replica.offset) * replica.rate / 1_000);
        match (call.answer.filter(|_| call.heard), call.act) {
            (None, act) => {
                elector.failed(clock);
                let holder = elector.identity().holder();
                self.late.extend(call.acts.map(|acts| (acts, act, holder)));
            }
            (Some(Ok((version, holder, renewed))), Act::Read) => {
                let (version, renewed) = (version.to_string(), renewed.to_string());
                let lease = record(&version, holder.as_deref(), &renewed);
                elector.looked(Some(lease), clock);
            }
            (Some(Err(Refused)), Act::Read) => elector.looked(None, clock),
            (Some(Ok((version, ..))), act) => {
                elector.wrote(version.to_string(), call.sent);
                self.leaders += usize::from(!matches!(act, Act::Renew(_)));
            }
            (Some(Err(Refused)), _) => elector.refused(),
        }
    }

    /// Asserts that no write of another replica is in progress while one replica may start a write.
    fn assert_single_writer(&mut self) {
        let now = self.now;
        for replica in &mut self.replicas {
            if replica.leads(now) {
                let deadline = replica
                    .elector
                    .must_end()
                    .map(|deadline| replica.time(deadline));
                replica.writes_until = replica.writes_until.max(deadline.unwrap_or_default());
            }
        }
        let replicas = self.replicas.iter().enumerate();
        let writes = replicas.filter(|(_, replica)| replica.writes_until > now);
        let writes: Vec<usize> = writes.map(|(index, _)| index).collect();
        let leads = |index: &usize| self.replicas[*index].leads(now);
        let has_leader = writes.iter().any(leads);
        assert!(!has_leader || writes.len() == 1, "at {now}: {writes:?}");
    }

    /// Terminates a process without a release of the Lease. The kubelet restarts the container.
    fn kill(&mut self, index: usize) {
        let replica = &mut self.replicas[index];
        let Identity { pod, process } = replica.elector.identity().clone();
        let holder = replica.elector.identity().holder();
        let next = process.parse::<u32>().unwrap() + 1;
        replica.elector = Elector::new(Identity::new(pod, next.to_string()));
        replica.writes_until = self.now;
        let call = replica.call.take();
        let late = call.and_then(|call| Some((call.acts?, call.act, holder)));
        self.late.extend(late);
    }

    fn leader(&self) -> Option<usize> {
        let mut replicas = self.replicas.iter();
        replicas.position(|replica| replica.leads(self.now))
    }
}

proptest! {
    #[test]
    fn two_replicas_never_write_at_the_same_time(
        replicas in prop::collection::vec((0..30_000_u16, any::<u16>()), 2..4),
        chance in prop::collection::vec(any::<u16>(), 0..600),
        kills in prop::collection::vec((0..3_usize, 1_000..40_000_u64), 0..8),
    ) {
        let mut world = World::new(&replicas, chance);
        for (index, after) in kills {
            world.run(world.now + after);
            world.kill(index % replicas.len());
        }
        world.run(world.now + 120_000);
        prop_assert!(world.leaders > 0, "nobody ever led");
    }
}

#[test]
fn standby_leads_within_18_seconds_after_leader_crash() {
    for crash_at in (20_000..24_000).step_by(97) {
        let mut world = World::new(&[(0, 50), (700, 50)], Vec::new());
        world.run(crash_at);
        let leader = world.leader().expect("a leader");
        world.replicas[leader].alive = false;
        world.replicas[leader].writes_until = world.now;
        while world.leader().is_none() {
            world.step();
        }
        assert!(world.now < crash_at + 18_000, "{crash_at}: {}", world.now);
    }
}
