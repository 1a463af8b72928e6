//! Stories of a resource with the real observe and apply on an API server in memory. git and registry are simulated by prepared answers, the
//! Job controller and the runner by [`pods`].

mod generated;
mod operator;
mod pods;
mod simulation;

use futures::StreamExt as _;
use serde_json::json;

use crate::memory_cluster::Fault;
use simulation::Simulation;

/// Creates, changes and deletes a resource with `fault`. Asserts that each configuration was applied once, that destroy ran once and last,
/// and that no object is left. Returns the number of writes of the operator.
async fn live(fault: Option<Fault>) -> usize {
    let mut simulation = Simulation::new().await;
    simulation.cluster.inject(fault);
    let is_ready = |simulation: &Simulation| simulation.has_condition("Ready");
    simulation.run_until(is_ready, "creation").await;
    simulation.edit(&json!({"variables": {"size": 2}}));
    simulation.run_until(is_ready, "change").await;
    simulation.cluster.delete("terraforms", "web");
    let is_gone = |simulation: &Simulation| simulation.resource().is_none();
    simulation.run_until(is_gone, "deletion").await;
    let runs = &simulation.pods.reported;
    let count = |kind: &str| runs.iter().filter(|job| job.contains(kind)).count();
    assert_eq!(count("-apply-"), 2, "{fault:?}: {runs:?}");
    assert_eq!(count("-destroy-"), 1, "{fault:?}: {runs:?}");
    assert!(runs.last().unwrap().contains("-destroy-"));
    simulation.assert_nothing_left();
    simulation.cluster.writes()
}

#[tokio::test]
async fn resource_is_created_changed_and_deleted_in_memory() {
    assert!(live(None).await > 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_fault_at_each_write_keeps_the_outcome() {
    let writes = live(None).await;
    let faults = (0..writes).flat_map(|at| {
        [
            Fault::Crash(at),
            Fault::LostResponse(at),
            Fault::Conflict(at),
        ]
    });
    futures::stream::iter(faults)
        .map(|fault| tokio::spawn(live(Some(fault))))
        .buffer_unordered(4)
        .for_each(|result| async move {
            result.unwrap();
        })
        .await;
}
