//! Campaign of random actions and faults on the dev cluster, for `make soak`. docs/reliability.md describes the method.

mod faults;
mod fleet;
mod ledger;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::TerraformRun;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::Scene;
use faults::Fault;
use fleet::Fleet;

/// Maximum time until all resources match their specs, after the faults have ended.
const CONVERGENCE: Duration = Duration::from_mins(10);

/// Results of runs, by resource and number. For a run that failed: the reason.
type Results = Arc<Mutex<BTreeMap<(String, i64), String>>>;

/// Runs a campaign of this length. Prints its figures. Panics if a rule of docs/reliability.md is violated, or if the resources do not converge.
/// A campaign with the same `seed` makes the same choices, at other moments of the runs.
pub async fn soak(scene: Arc<Scene>, length: Duration, seed: u64) {
    println!(
        "seed {seed}: {} resources, {} min",
        Fleet::SIZE,
        length.as_secs() / 60
    );
    let mut random = fastrand::Rng::with_seed(seed);
    scene.cluster.scale_operator(2).await;
    let results = Results::default();
    // The tasks end with this function, also if it panics.
    let mut watch = JoinSet::new();
    watch.spawn(record_results(scene.clone(), results.clone()));
    let mut fleet = Fleet::create(&scene, random.fork()).await;
    settle(&mut fleet, "first applies").await;

    let mut injector = JoinSet::new();
    injector.spawn(inject_faults(scene.clone(), random.fork(), length));
    let faults = loop {
        if let Some(faults) = injector.try_join_next() {
            break faults.expect("faults");
        }
        fleet.act().await;
        tokio::time::sleep(Duration::from_millis(random.u64(500..4_000))).await;
    };
    let settled = settle(&mut fleet, "convergence").await;

    let mut violations = BTreeSet::new();
    let mut outcome = fleet.outcome(&results).await;
    violations.extend(ledger::violations(&fleet.actions(), &outcome));
    fleet.delete().await;
    outcome = fleet.outcome(&results).await;
    let actions = fleet.actions();
    violations.extend(ledger::violations(&actions, &outcome));
    assert!(watch.try_join_next().is_none(), "the watch of runs ended");
    print_figures(&fleet, &faults, &results.lock(), settled);
    println!("| created and destroyed objects | {} |", actions.len());
    let interrupted = ledger::interrupted(&actions, &outcome);
    println!("| runs that were interrupted between two objects | {interrupted} |");
    assert!(violations.is_empty(), "{violations:#?}");
    scene.nothing_left().await;
}

/// Keeps the results of all runs. Records that are deleted later stay.
async fn record_results(scene: Arc<Scene>, results: Results) {
    let runs = watcher(scene.api::<TerraformRun>(), Config::default()).default_backoff();
    let mut runs = std::pin::pin!(runs.applied_objects());
    while let Some(run) = runs.next().await {
        // The watch continues after an error.
        let Ok(run) = run else { continue };
        let Some(status) = &run.status else { continue };
        let numbers = run.spec.number..=status.last_number.max(run.spec.number);
        for number in numbers.filter(|number| run.describes(*number)) {
            let key = (run.spec.terraform.name.clone(), number);
            let result = status.reason.as_ref().unwrap_or(&status.result);
            results.lock().insert(key, result.clone());
        }
    }
    panic!("{}: the watch of runs ended", scene.namespace);
}

/// Injects faults for `length`, with pauses. Returns their number by kind.
async fn inject_faults(
    scene: Arc<Scene>,
    mut random: fastrand::Rng,
    length: Duration,
) -> BTreeMap<Fault, usize> {
    let start = Instant::now();
    let mut counts = BTreeMap::new();
    while start.elapsed() < length {
        tokio::time::sleep(Duration::from_secs(random.u64(3..=15))).await;
        let fault = Fault::choose(&mut random);
        if fault.inject(&scene, &mut random).await {
            *counts.entry(fault).or_default() += 1;
            eprintln!("{:>5} s  {fault:?}", start.elapsed().as_secs());
        }
    }
    counts
}

/// Waits until all resources match their specs. Returns the time.
async fn settle(fleet: &mut Fleet, phase: &str) -> Duration {
    let start = Instant::now();
    loop {
        let left = fleet.unsettled().await;
        if left.is_empty() {
            return start.elapsed();
        }
        assert!(
            start.elapsed() < CONVERGENCE,
            "{phase}: after {CONVERGENCE:?}: {left:#?}"
        );
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

fn print_figures(
    fleet: &Fleet,
    faults: &BTreeMap<Fault, usize>,
    results: &BTreeMap<(String, i64), String>,
    settled: Duration,
) {
    let mut by_result: BTreeMap<&str, usize> = BTreeMap::new();
    for result in results.values() {
        *by_result.entry(result).or_default() += 1;
    }
    println!("| figure | measured |\n|---|---|");
    let row = |figure: &str, value: String| println!("| {figure} | {value} |");
    row("actions of users", list(&fleet.counts));
    let names = faults
        .iter()
        .map(|(fault, count)| (format!("{fault:?}"), *count));
    row("faults", list(&names.collect()));
    row("runs by result", list(&by_result));
    row(
        "time from the end of the last fault until all resources match their specs",
        format!("{:.0} s", settled.as_secs_f64()),
    );
}

fn list<K: std::fmt::Display + Ord>(counts: &BTreeMap<K, usize>) -> String {
    let items: Vec<String> = counts
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    items.join(", ")
}
