//! Several replicas of the operator: the leader crashes or shuts down, and another replica takes over.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use alustan_api::{Terraform, TerraformRun};
use alustan_tests::{Counter, Scene, node, scene_alone, scene_without_operator};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::approval::{approve, pending};

const SYSTEM: &str = "alustan-system";

/// Waits until the name of the leader's pod fulfils `wanted`. Returns that name.
async fn leader(
    scene: &Scene,
    (namespace, lease): (&str, &str),
    wanted: impl Fn(&str) -> bool,
) -> String {
    scene
        .until("a leader", async || {
            let holder = scene.cluster.lease_holder(namespace, lease).await?;
            wanted(&holder).then_some(holder)
        })
        .await
}

/// Returns the names of the installed operator's pods that are not being deleted.
async fn pods(scene: &Scene) -> Vec<String> {
    let api: Api<Pod> = Api::namespaced(scene.cluster.client.clone(), SYSTEM);
    let selector = "app.kubernetes.io/name=alustan,app.kubernetes.io/component=controller";
    let ours = ListParams::default().labels(selector);
    api.list(&ours)
        .await
        .unwrap()
        .into_iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .map(|pod| pod.name_any())
        .collect()
}

async fn http_get(scene: &Scene, pod: &str, path: &str) -> String {
    let path = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy{path}");
    scene.cluster.run("kubectl", &["get", "--raw", &path]).await
}

/// Copies the base image to another repository. The catalogue of the operator does not list this repository, so the earlier and the new
/// operator version each add their own runner to the images that they build.
async fn own_base(scene: &Scene) -> String {
    let registry = format!("docker://{}", node(5000));
    let from = format!("{registry}/alustan/terraform:dev");
    let to = format!("{registry}/{}/base:1", scene.namespace);
    let plain = ["--src-tls-verify=false", "--dest-tls-verify=false"];
    let copy = [&["copy"], &plain[..], &[&from, &to]].concat();
    scene.cluster.run("skopeo", &copy).await;
    format!("registry.alustan.test:5000/{}/base:1", scene.namespace)
}

/// Returns the uids of the test's Jobs by name.
async fn all_jobs(scene: &Scene) -> BTreeMap<String, String> {
    scene
        .api::<Job>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .map(|job| (job.name_any(), job.uid().unwrap_or_default()))
        .collect()
}

/// Returns the number of the last run of `name` from its run record.
async fn recorded(scene: &Scene, name: &str) -> i64 {
    let record = &scene.data(&format!("{name}-run")).await["record"];
    let record: Value = serde_json::from_str(record).unwrap();
    record["number"].as_i64().unwrap()
}

/// Tests that run while no other test runs: see `scene_alone`.
mod alone {
    use super::*;

    #[tokio::test]
    async fn ha_two_replicas_report_the_leader_and_accept_every_push() {
        scene_alone("replicas", |scene| async move {
            scene.cluster.scale_operator(2).await;
            let lease = (SYSTEM, "alustan");
            let all = pods(&scene).await;
            assert_eq!(all.len(), 2, "{all:?}");
            // A terminating replica may still be the leader, and standby replicas read the Lease only every two seconds. The test repeats
            // the check until all replicas name the same leader.
            let leads = scene
                .until("both to name the same leader", async || {
                    let leads = scene.cluster.lease_holder(lease.0, lease.1).await?;
                    for pod in &all {
                        let (role, metric) = if *pod == leads {
                            ("this replica is the leader".to_owned(), "alustan_leader 1")
                        } else {
                            (
                                format!("on standby; the leader is {leads}"),
                                "alustan_leader 0",
                            )
                        };
                        let body = http_get(&scene, pod, "/readyz").await;
                        assert!(body.starts_with("ok: "), "{body}");
                        let metrics = http_get(&scene, pod, "/metrics").await;
                        if !body.contains(&role) || !metrics.lines().any(|line| line == metric) {
                            return None;
                        }
                    }
                    all.contains(&leads).then_some(leads)
                })
                .await;

            let module = |text: &str| format!("output \"text\" {{ value = \"{text}\" }}\n");
            scene.commit("web", &[("main.tf", &module("a"))]).await;
            let mut web = scene.resource("web");
            web["spec"]["gitRepo"]["interval"] = json!("12h");
            scene.apply(&web).await;
            scene.ready("web").await;
            let second = scene.commit("web", &[("main.tf", &module("b"))]).await;
            let url = web["spec"]["gitRepo"]["url"].clone();
            let push = json!({"repository": url, "ref": "refs/heads/main"});
            let server = scene.git_server().await;
            // Each push uses a separate connection, so that each replica receives some pushes.
            for _ in 0..12 {
                assert_eq!(server.report(&push).await, json!({"resources": 1}));
            }
            scene.ready_at("web", &second).await;

            let evicted_at = Instant::now();
            let evict = ["delete", "pod", "-n", SYSTEM, "--wait=false", &leads];
            scene.cluster.run("kubectl", &evict).await;
            let next = leader(&scene, lease, |holder| holder != leads).await;
            println!(
                "{next} led {:?} after {leads} was told to go",
                evicted_at.elapsed()
            );
            assert!(evicted_at.elapsed() < Duration::from_secs(10));
            scene
                .until("a push to be heard", async || {
                    let response = server.report(&push).await;
                    (response == json!({"resources": 1})).then_some(())
                })
                .await;
        })
        .await;
    }

    /// Replaces CRD, rights and Deployment of an earlier version. Runs and builds in progress continue: nothing is lost, and nothing is
    /// done twice.
    #[tokio::test]
    async fn ha_upgrade_continues_runs_and_builds_of_an_earlier_operator() {
        Box::pin(scene_without_operator("upgrade", async |scene| {
            scene
                .cluster
                .run("hack/earlier", &["install", "before-0.1"])
                .await;
            let base = own_base(&scene).await;
            let counter = Counter::start().await;
            let all = [
                "plain", "goes", "asks", "plans", "applies", "waits", "builds",
            ];
            for name in ["web", "builds"] {
                let module = format!("# {name}\n{}", counter.counted_object("a"));
                scene.commit(name, &[("main.tf", &module)]).await;
            }
            let resource = |name: &str| {
                let repository = if name == "builds" { name } else { "web" };
                let mut resource = scene.resource_of(name, repository);
                if name != "plain" {
                    resource["spec"]["containerRegistry"]["baseImage"] = json!(base);
                }
                match name {
                    "asks" => resource["spec"]["approval"] = json!({"mode": "Manual"}),
                    "plans" => {
                        let hold = counter.command("/planned");
                        let plan = "terraform plan -detailed-exitcode -out=\"$ALUSTAN_PLAN_FILE\"";
                        let script = format!("#!/bin/bash\n{hold}\n{plan}\n");
                        resource["spec"]["scripts"] = json!({"plan": {"inline": script}});
                        resource["spec"]["approval"] = json!({"mode": "Manual"});
                    }
                    "waits" => resource["spec"]["dependsOn"] = json!([{"name": "applies"}]),
                    _ => {}
                }
                resource
            };
            for name in ["plain", "goes", "asks"] {
                scene.apply(&resource(name)).await;
            }
            for name in ["plain", "goes"] {
                scene.ready(name).await;
            }
            let (plan_id, _) = pending(&scene, "asks", None).await;
            for path in ["/made", "/destroyed", "/planned"] {
                counter.hold(path);
            }
            let uid = scene
                .begin_to_delete("goes", &DeleteParams::default())
                .await;
            for name in ["plans", "applies", "waits"] {
                scene.apply(&resource(name)).await;
            }
            counter.reached("/destroyed").await;
            counter.reached("/planned").await;
            counter.reached_times("/made", 3).await;
            let builds = scene.jobs("build").await.len();
            scene.apply(&resource("builds")).await;
            scene
                .until("a build that goes on", async || {
                    (scene.jobs("build").await.len() > builds).then_some(())
                })
                .await;
            let before = all_jobs(&scene).await;

            scene.cluster.run("hack/install", &[]).await;
            let leads = leader(&scene, (SYSTEM, "alustan"), |_| true).await;
            println!("{leads} leads");
            for path in ["/made", "/destroyed", "/planned"] {
                counter.release(path);
            }
            for name in ["plain", "applies", "waits", "builds"] {
                scene.ready_after_run(name, 1).await;
            }
            scene.deleted("goes", &uid).await;
            let (planned, tf) = pending(&scene, "plans", None).await;
            assert_eq!(tf.status.unwrap().run, Some(1));
            let (still, tf) = pending(&scene, "asks", None).await;
            assert_eq!(
                (still.as_str(), tf.status.unwrap().run),
                (plan_id.as_str(), Some(1))
            );
            for (name, plan) in [("asks", &plan_id), ("plans", &planned)] {
                approve(&scene, name, plan).await;
                scene.ready_after_run(name, 2).await;
            }

            let made = all.len();
            assert_eq!(
                counter.creations_and_destructions(),
                (made, 1),
                "{:?}",
                counter.requested_paths()
            );
            assert_eq!(
                counter.count("/planned"),
                1,
                "{:?}",
                counter.requested_paths()
            );
            for name in all.into_iter().filter(|name| *name != "goes") {
                let tf = scene.api::<Terraform>().get(name).await.unwrap();
                let status = tf.status.unwrap();
                assert_eq!(status.retry, None, "{name}");
                let others: Vec<_> = status
                    .runs
                    .iter()
                    .map(|run| run.result.as_str())
                    .filter(|result| *result != "Done" && *result != "Changes")
                    .collect();
                assert_eq!(others, Vec::<&str>::new(), "{name}");
                let approved = matches!(name, "asks" | "plans");
                let wanted = if approved { 2 } else { 1 };
                assert_eq!(recorded(&scene, name).await, wanted, "{name}");
            }
            let after = all_jobs(&scene).await;
            for (job, uid) in &before {
                let same = after.get(job).is_none_or(|now| now == uid);
                assert!(same, "{job} was made anew");
            }
            let new: Vec<_> = after
                .keys()
                .filter(|job| !before.contains_key(*job))
                .collect();
            let wanted = [
                "asks-apply-2",
                "builds-apply-1",
                "plans-apply-2",
                "waits-apply-1",
            ];
            let runs = new.iter().filter(|job| !job.starts_with("alustan-build-"));
            assert_eq!(runs.collect::<Vec<_>>(), wanted.iter().collect::<Vec<_>>());

            // Runs that ended before the upgrade have no record.
            let runs = scene.api::<TerraformRun>();
            let runs = runs.list(&ListParams::default()).await.unwrap();
            let numbers = |name: &str| -> Vec<i64> {
                let of_resource = runs.iter().filter(|run| run.spec.terraform.name == name);
                of_resource.map(|run| run.spec.number).collect()
            };
            assert_eq!(numbers("plain"), Vec::<i64>::new());
            assert_eq!((numbers("asks"), numbers("applies")), (vec![2], vec![1]));

            // Dependents are deleted first.
            for name in all.into_iter().rev().filter(|name| *name != "goes") {
                scene.delete(name, &DeleteParams::background()).await;
            }
            assert_eq!(counter.creations_and_destructions(), (made, made));
            scene.nothing_left().await;
        }))
        .await;
    }
}
