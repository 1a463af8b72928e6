//! Campaign of random actions and faults on the dev cluster, for `make soak`. docs/reliability.md describes the method.

mod faults;
mod fleet;
mod ledger;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use alustan_api::TerraformRun;
use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, watcher};
use parking_lot::Mutex;

use crate::Scene;
use faults::Fault;
use fleet::Fleet;

/// Maximum time until all resources match their specs, after the faults have ended.
const CONVERGENCE: Duration = Duration::from_mins(10);

/// Results of runs, by resource and number.
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
    let watch = tokio::spawn(record_results(scene.clone(), results.clone()));
    let mut fleet = Fleet::create(&scene, random.fork()).await;
    settle(&mut fleet, "first applies").await;

    let faults = tokio::spawn(inject_faults(scene.clone(), random.fork(), length));
    while !faults.is_finished() {
        fleet.act().await;
        tokio::time::sleep(Duration::from_millis(random.u64(500..4_000))).await;
    }
    let faults = faults.await.expect("faults");
    scene.cluster.start().await;
    let settled = settle(&mut fleet, "convergence").await;

    let actions = fleet.actions();
    let known = results.lock().clone();
    let outcome = fleet.outcome(known).await;
    let mut violations = ledger::violations(&actions, &outcome);
    fleet.delete().await;
    let actions = fleet.actions();
    let known = results.lock().clone();
    let outcome = fleet.outcome(known).await;
    violations.extend(ledger::violations(&actions, &outcome));
    assert!(!watch.is_finished(), "the watch of runs has ended");
    watch.abort();
    print_figures(&fleet, &faults, &results.lock(), settled);
    println!("objects created and destroyed: {}", actions.len());
    scene.cluster.scale_operator(1).await;
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
            results.lock().insert(key, status.result.clone());
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
