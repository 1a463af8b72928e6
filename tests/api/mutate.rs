//! Generated faults. The test edits every node of the schema of `spec`, in chains of ten edits from valid resources, against one operator. It
//! checks the answer of the API server or the status after each edit, and the objects, rest and deletion at the end of each chain.
//!
//! The idea is that of Acto (<https://github.com/xlab-uiuc/acto>).

mod chain;
mod edits;
mod objects;
mod oracles;
mod schema;
mod seeds;
mod world;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write as _;
use std::sync::atomic::Ordering;
use std::time::Instant;

use fastrand::Rng;
use futures::{StreamExt, stream};

use crate::mutate::chain::{Chain, Driver, Finding, Log};
use crate::mutate::edits::{ANNOTATIONS, Edit, of_annotation, of_node};
use crate::mutate::schema::nodes;
use crate::mutate::seeds::Seed;
use crate::mutate::world::World;

/// Seed of the edits, if `ALUSTAN_MUTATE_SEED` is not set.
const SEED: u64 = 7;
/// Minimum number of edits, if `ALUSTAN_MUTATE_EDITS` is not set.
const EDITS: u64 = 2_000;
/// Edits per chain.
const LENGTH: usize = 10;
/// Chains that run at the same time.
const CONCURRENCY: usize = 16;

/// Returns the number in an environment variable.
fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number")),
    )
}

/// Returns at least `count` edits in random order: each node and each annotation has one, and the others are drawn from all edits.
fn draw(count: usize, random: &mut Rng) -> Vec<Edit> {
    let nodes = nodes();
    let mut by_target: Vec<_> = nodes.iter().map(of_node).collect();
    by_target.extend(ANNOTATIONS.map(of_annotation));
    let mut rest = Vec::new();
    let mut drawn = Vec::new();
    for mut edits in by_target {
        random.shuffle(&mut edits);
        drawn.extend(edits.pop());
        rest.extend(edits);
    }
    random.shuffle(&mut rest);
    rest.truncate(count.saturating_sub(drawn.len()));
    drawn.extend(rest);
    random.shuffle(&mut drawn);
    drawn
}

/// Distributes `edits` over chains. An edit belongs to a seed with the most of the objects that contain the edited value.
fn chains(edits: Vec<Edit>, seeds: &[Seed], random: &mut Rng) -> Vec<Chain> {
    let mut by_seed: BTreeMap<usize, Vec<Edit>> = BTreeMap::new();
    for edit in edits {
        let depth = |seed: &Seed| match &edit.target {
            edits::Target::Node(node) => node.depth_in(&seed.resource["spec"]),
            edits::Target::Annotation(_) => 0,
        };
        let depths: Vec<_> = seeds.iter().map(depth).collect();
        let deepest = depths.iter().max().copied().unwrap_or_default();
        let fitting: Vec<_> = (0..seeds.len())
            .filter(|index| depths[*index] == deepest)
            .collect();
        by_seed
            .entry(*random.choice(&fitting).unwrap())
            .or_default()
            .push(edit);
    }
    let mut chains = Vec::new();
    for (seed, edits) in by_seed {
        for edits in edits.chunks(LENGTH) {
            chains.push(Chain {
                number: 0,
                seed: seeds[seed].clone(),
                edits: edits.to_vec(),
                random: random.u64(..),
            });
        }
    }
    random.shuffle(&mut chains);
    for (number, chain) in chains.iter_mut().enumerate() {
        chain.number = number;
    }
    chains
}

/// Returns writes of the operator at times at which it must not write.
fn writes_at_rest(world: &World, log: &Log) -> Vec<Finding> {
    let mut by_namespace: HashMap<String, Vec<_>> = HashMap::new();
    for (at, namespace, request) in world.writes() {
        by_namespace
            .entry(namespace)
            .or_default()
            .push((at, request));
    }
    assert!(
        !by_namespace.is_empty(),
        "the audit log has no write of the operator"
    );
    let rests = log.rests.lock();
    let found = rests.iter().flat_map(|rest| {
        let writes = by_namespace.get(&rest.namespace).into_iter().flatten();
        let writes = writes.filter(|(at, _)| *at > rest.from && *at < rest.to);
        writes.map(|(_, request)| Finding {
            oracle: "no write after rest",
            place: rest.place.clone(),
            detail: request.replace(&rest.namespace, "NAMESPACE"),
        })
    });
    found.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edits_of_every_field_are_refused_or_explained() {
    let since = Instant::now();
    let seed = variable("ALUSTAN_MUTATE_SEED").unwrap_or(SEED);
    let count = variable("ALUSTAN_MUTATE_EDITS").unwrap_or(EDITS);
    eprintln!("ALUSTAN_MUTATE_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let mut world = World::new().await;
    let edits = draw(usize::try_from(count).unwrap(), &mut random);
    let paths: BTreeSet<_> = edits.iter().map(Edit::path).collect();
    let leaves = nodes()
        .into_iter()
        .filter(|node| node.is_leaf() && paths.contains(&node.path))
        .count();
    let edited = edits.len();
    let mut chains = chains(edits, &seeds::all(&world.outside.address), &mut random);
    if let Some(only) = variable("ALUSTAN_MUTATE_CHAIN") {
        chains.retain(|chain| u64::try_from(chain.number) == Ok(only));
        assert!(!chains.is_empty(), "no chain has number {only}");
    }
    let log = Log::default();
    let queue = parking_lot::Mutex::new(chains.iter());
    stream::iter(0..CONCURRENCY)
        .for_each_concurrent(CONCURRENCY, async |_| {
            let driver = Driver {
                world: &world,
                log: &log,
            };
            loop {
                let next = queue.lock().next();
                let Some(chain) = next else { break };
                driver.execute(chain).await;
            }
        })
        .await;
    let mut findings = std::mem::take(&mut *log.findings.lock());
    let writes = writes_at_rest(&world, &log);
    for finding in &writes {
        eprintln!("{finding}");
    }
    findings.extend(writes);
    if let Err(problem) = world.check_operator() {
        findings.push(Finding {
            oracle: "the operator runs",
            place: String::new(),
            detail: problem,
        });
    }
    let of = |count: &std::sync::atomic::AtomicUsize| count.load(Ordering::Relaxed);
    // Writes to standard error directly, because the test harness captures the output of a passing test.
    writeln!(
        std::io::stderr(),
        "seed {seed}: {edited} edits of {} paths with {leaves} leaves: {} admitted, {} refused; {} chains: {} compared with an empty namespace, {} returned to \
         the seed, {} observed at rest, {} deleted; {} findings in {:.0?}",
        paths.len(),
        of(&log.admitted),
        of(&log.refused),
        chains.len(),
        of(&log.compared),
        of(&log.returned),
        log.rests.lock().len(),
        of(&log.deleted),
        findings.len(),
        since.elapsed(),
    )
    .unwrap();
    assert!(
        findings.is_empty(),
        "{} findings; repeat them with ALUSTAN_MUTATE_SEED={seed}",
        findings.len()
    );
}
