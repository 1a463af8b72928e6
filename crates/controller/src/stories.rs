//! Stories of a resource with the real observe and apply on an API server in memory. git and registry are simulated by prepared answers, the
//! Job controller and the runner by [`pods`].

mod generated;
mod operator;
mod pods;
mod simulation;
mod start;

use alustan_api::labels::{self, Component};
use alustan_core::job_retention::JobRetention;
use futures::StreamExt as _;
use serde_json::{Value, json};

use crate::memory_cluster::Fault;
use crate::observe::finished_jobs;
use pods::PodEvent;
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

/// Changes the spec, and runs until the change is applied. Returns the reads of objects by name.
async fn reads_of_a_change(simulation: &mut Simulation, size: u8) -> Vec<String> {
    simulation.cluster.take_reads();
    simulation.edit(&json!({"variables": {"size": size}}));
    let is_ready = |simulation: &Simulation| simulation.has_condition("Ready");
    simulation.run_until(is_ready, "change").await;
    let mut reads = simulation.cluster.take_reads();
    reads.retain(|read| !read.starts_with("namespaces "));
    reads
}

#[tokio::test]
async fn later_runs_read_changed_run_objects_alone() {
    let mut simulation = Simulation::new().await;
    assert!(reads_of_a_change(&mut simulation, 1).await.is_empty());
    // The second run creates the state slots, and the Role lists them.
    for size in 2..6 {
        let reads = reads_of_a_change(&mut simulation, size).await;
        assert!(reads.is_empty(), "{reads:?}");
    }
    let role = |simulation: &Simulation| {
        let role = simulation.cluster.get::<Value>("roles", "web-runner");
        role.unwrap()["rules"].clone()
    };
    let rules = role(&simulation);
    let cluster = simulation.cluster.clone();
    cluster.merge("roles", "web-runner", &json!({"rules": []}));
    cluster.delete("serviceaccounts", "web-runner");
    cluster.merge(
        "secrets",
        "web-state-slot-0",
        &json!({"data": {"data": ""}}),
    );
    let mut reads = reads_of_a_change(&mut simulation, 6).await;
    reads.sort();
    assert_eq!(reads, ["roles web-runner", "serviceaccounts web-runner"]);
    assert_eq!(role(&simulation), rules);
    assert_eq!(cluster.all::<Value>("serviceaccounts").len(), 1);
    assert!(reads_of_a_change(&mut simulation, 7).await.is_empty());
    simulation.restart().await;
    let reads = reads_of_a_change(&mut simulation, 8).await;
    assert_eq!(reads.len(), 6, "{reads:?}");
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

#[tokio::test]
async fn finished_job_beyond_the_limit_is_deleted_with_the_next_reconcile() {
    let is_ready = |simulation: &Simulation| simulation.has_condition("Ready");
    let mut simulation = Simulation::new().await;
    simulation.run_until(is_ready, "creation").await;
    simulation.edit(&json!({"variables": {"size": 2}}));
    simulation.run_until(is_ready, "change").await;
    while simulation.advance_pod(0, PodEvent::Progress) {}
    let names = |simulation: &Simulation| simulation.run_jobs().into_iter().collect::<Vec<_>>();
    assert_eq!(names(&simulation), ["web-apply-1", "web-apply-2"]);

    // Jobs that a user created with the labels of the operator.
    for (name, uid) in [("web-apply-x", "uid-web"), ("web-apply-3", "uid-other")] {
        let labels = labels::of("web", uid, Component::Run);
        let conditions = json!([{"type": "Complete", "status": "True"}]);
        simulation.cluster.put(
            "jobs",
            json!({
                "apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": name, "namespace": "team", "uid": name, "labels": labels},
                "status": {"conditions": conditions},
            }),
        );
    }
    simulation.reconcile().await;
    let ctx = simulation.operator.ctx.clone();
    *ctx.job_retention.lock() = JobRetention::new(1);
    let finished = finished_jobs(&ctx);
    let marked = ctx.job_retention.lock().mark(finished);
    assert_eq!(marked.len(), 1);
    simulation.reconcile().await;
    assert_eq!(
        names(&simulation),
        ["web-apply-2", "web-apply-3", "web-apply-x"]
    );
}
