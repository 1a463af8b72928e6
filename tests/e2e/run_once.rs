//! A run happens once, whatever else happens.

use alustan_tests::{Counter, scene};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::PostParams;
use serde_json::json;

#[tokio::test]
async fn a_second_pod_of_a_run_leaves_it_alone() {
    scene("second", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/made");
        scene
            .commit("web", &[("main.tf", &counter.resource("a", "/made", ""))])
            .await;
        scene.apply(&scene.resource("web")).await;
        counter.reached("/made").await;
        // The same pod once more, while the first one applies.
        let first = scene.pod_of("web-apply-1").await;
        let mut spec = first.spec.clone().unwrap();
        spec.node_name = None;
        spec.volumes
            .as_mut()
            .unwrap()
            .retain(|volume| volume.projected.is_none());
        for mounts in spec
            .containers
            .iter_mut()
            .filter_map(|it| it.volume_mounts.as_mut())
        {
            mounts.retain(|mount| !mount.mount_path.starts_with("/var/run/secrets"));
        }
        let second: Pod = serde_json::from_value(json!({
            "metadata": {"name": "second"}, "spec": spec,
        }))
        .unwrap();
        scene
            .api::<Pod>()
            .create(&PostParams::default(), &second)
            .await
            .unwrap();
        let ended = scene
            .until("the second pod to end", async || {
                let pod = scene.api::<Pod>().get("second").await.ok()?;
                let state = pod.status?.container_statuses?.pop()?.state?;
                state.terminated
            })
            .await;
        assert_eq!(ended.exit_code, 0);
        let log = scene.pod_log("second", "terraform").await;
        let wanted = format!(
            "run 1 of web-run is claimed by pod {} (uid {}); leaving it alone",
            first.name_any(),
            first.uid().unwrap()
        );
        assert!(log.contains(&wanted), "{log}");
        counter.release("/made");
        scene.ready("web").await;
        assert_eq!(counter.count("/made"), 1);
    })
    .await;
}

#[tokio::test]
async fn a_killed_controller_loses_nothing_and_applies_nothing_twice() {
    scene("killed", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/made");
        scene
            .commit("web", &[("main.tf", &counter.resource("a", "/made", ""))])
            .await;
        scene.apply(&scene.resource("web")).await;
        counter.reached("/made").await;
        scene.cluster.kill_controller().await;
        // The apply ends while nobody watches.
        counter.release("/made");
        let tf = scene.ready("web").await;
        let status = tf.status.unwrap();
        assert_eq!((counter.count("/made"), status.run), (1, Some(1)));
        assert_eq!(status.runs.len(), 1, "{:?}", status.runs);
        assert_eq!(scene.jobs("run").await, ["web-apply-1"]);
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_applies_is_not_evicted() {
    scene("evicted", |scene| async move {
        let counter = Counter::start().await;
        counter.hold("/made");
        scene
            .commit("web", &[("main.tf", &counter.resource("a", "/made", ""))])
            .await;
        scene.apply(&scene.resource("web")).await;
        counter.reached("/made").await;
        scene
            .until("the disruption budget to know the pod", async || {
                let budget = scene
                    .api::<PodDisruptionBudget>()
                    .get("web-runner")
                    .await
                    .ok()?;
                (budget.status?.current_healthy == 1).then_some(())
            })
            .await;
        // As a drain does.
        let pod = scene.pod_of("web-apply-1").await.name_any();
        let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", scene.namespace);
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction",
            "metadata": {"name": pod, "namespace": scene.namespace},
        });
        let arguments = ["create", "--raw", &path, "-f", "-"];
        let (evicted, said) = scene
            .cluster
            .output("kubectl", &arguments, Some(&eviction.to_string()))
            .await;
        assert!(!evicted, "{said}");
        for part in ["TooManyRequests", "disruption budget"] {
            assert!(said.contains(part), "no {part:?} in {said}");
        }
        counter.release("/made");
        let status = scene.ready("web").await.status.unwrap();
        assert_eq!((counter.count("/made"), status.run), (1, Some(1)));
    })
    .await;
}
