//! Outputs are written as `spec.outputs` configures them. A change of `spec.outputs` changes no real object.

use alustan_api::Terraform;
use alustan_tests::{Counter, condition, scene};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

/// Module with one object, which `counter` counts, and outputs of several types.
fn module(counter: &Counter) -> String {
    let object = counter.counted_object("a");
    format!(
        "output \"endpoint\" {{ value = \"https://api.test\" }}\n\
         output \"zones\" {{ value = [\"a\", \"b\"] }}\n\
         output \"token\" {{\n  value     = \"hush\"\n  sensitive = true\n}}\n{object}"
    )
}

/// Returns a predicate that holds once run `number` is the last finished run.
fn is_over(number: i64) -> impl Fn(&Terraform) -> bool {
    move |tf| {
        tf.status
            .as_ref()
            .map(|status| status.runs.as_slice())
            .and_then(<[_]>::first)
            .is_some_and(|run| run.number == number)
    }
}

#[tokio::test]
async fn outputs_follow_their_configuration_without_an_apply() {
    Box::pin(scene("outputs-chosen", |scene| async move {
        let counter = Counter::start().await;
        scene.commit("web", &[("main.tf", &module(&counter))]).await;
        scene.config_map("theirs", &[("endpoint", "mine")]).await;
        let mut web = scene.resource("web");
        web["spec"]["outputs"] = json!({"configMapName": "theirs"});
        scene.apply(&web).await;
        let message = scene.reason("web", "OutputsOwnershipConflict").await;
        for part in ["ConfigMap theirs", "spec.outputs.configMapName"] {
            assert!(message.contains(part), "no {part:?} in {message}");
        }

        web["spec"]["outputs"] = json!({
            "secretName": "cluster",
            "configMapName": "told",
            "keys": {"server": "endpoint", "zones": "zones", "config": "token"},
            "labels": {"argocd.argoproj.io/secret-type": "cluster"},
            "annotations": {"zones": "zones", "example.com/server": "endpoint"},
            "status": ["zones", "token"],
        });
        scene.apply(&web).await;
        let first = scene.ready("web").await;
        let run = first.status.as_ref().unwrap().run.unwrap();
        let to = first.status.as_ref().unwrap().outputs.as_ref().unwrap();
        assert_eq!(to.secret_name, "cluster");
        assert_eq!(to.config_map_name.as_deref(), Some("told"));
        assert_eq!(json!(to.values), json!({"zones": ["a", "b"]}));
        let omitted = json!([{"name": "token", "reason": "OutputSensitive"}]);
        assert_eq!(json!(to.omitted), omitted);
        let inventory = first.status.as_ref().unwrap().inventory.unwrap();
        assert_eq!((inventory.count, inventory.run), (1, run));
        let data = scene.data("cluster").await;
        assert_eq!(data.len(), 3, "{:?}", data.keys());
        assert_eq!(data["server"], "https://api.test");
        assert_eq!(data["zones"], r#"["a","b"]"#);
        assert_eq!(data["config"], "hush");

        let (secrets, maps) = (scene.api::<Secret>(), scene.api::<ConfigMap>());
        let secret = secrets.get("cluster").await.unwrap();
        let map = maps.get("told").await.unwrap();
        let data = map.data.clone().unwrap();
        assert_eq!(data.keys().collect::<Vec<_>>(), ["server", "zones"]);
        assert_eq!(data["zones"], r#"["a","b"]"#);
        for meta in [&secret.metadata, &map.metadata] {
            let labels = meta.labels.as_ref().unwrap();
            assert_eq!(labels["argocd.argoproj.io/secret-type"], "cluster");
            let annotations = meta.annotations.as_ref().unwrap();
            assert_eq!(annotations["zones"], r#"["a","b"]"#);
            assert_eq!(annotations["example.com/server"], "https://api.test");
        }

        // Unchanged outputs cause no write.
        scene
            .annotate("web", alustan_api::RECONCILE_AT, "again")
            .await;
        scene.wait("web", "the next run", is_over(run + 1)).await;
        let versions = [
            secrets.get("cluster").await.unwrap().resource_version(),
            maps.get("told").await.unwrap().resource_version(),
        ];
        assert_eq!(
            versions,
            [secret.resource_version(), map.resource_version()]
        );
        let since = |tf: &Terraform| condition(tf, "Ready").unwrap().last_transition_time.clone();
        let ready_since = since(&scene.ready("web").await);

        web["spec"]["outputs"] = json!({
            "configMapName": "told-2",
            "keys": {"url": "endpoint"},
            "annotations": {"server": "endpoint"},
        });
        scene.apply(&web).await;
        let last = scene.wait("web", "the next run", is_over(run + 2)).await;
        let status = last.status.as_ref().unwrap();
        assert_eq!(status.runs[0].trigger, "outputs");
        assert!(status.outputs.as_ref().unwrap().values.is_empty());
        assert_eq!(scene.data("web-outputs").await["url"], "https://api.test");
        let map = maps.get("told-2").await.unwrap();
        assert_eq!(map.data.as_ref().unwrap()["url"], "https://api.test");
        assert_eq!(map.annotations()["server"], "https://api.test");
        assert!(!map.labels().contains_key("argocd.argoproj.io/secret-type"));
        assert!(secrets.get_opt("cluster").await.unwrap().is_none());
        assert!(maps.get_opt("told").await.unwrap().is_none());

        scene.remove_secret("web-outputs").await;
        maps.delete("told-2", &DeleteParams::default())
            .await
            .unwrap();
        let last = scene.wait("web", "the next run", is_over(run + 3)).await;
        assert_eq!(last.status.as_ref().unwrap().runs[0].trigger, "outputs");
        maps.get("told-2").await.unwrap();
        assert_eq!(scene.data("web-outputs").await["url"], "https://api.test");
        // The transition time is unchanged: the resource was Ready without interruption.
        assert_eq!(since(&last), ready_since);
        assert_eq!(counter.creations_and_destructions(), (1, 0));
        scene.delete("web", &DeleteParams::foreground()).await;
        assert_eq!(counter.creations_and_destructions(), (1, 1));
        let theirs = maps.get("theirs").await.unwrap().data.unwrap();
        assert_eq!(theirs["endpoint"], "mine");
        scene.nothing_left().await;
    }))
    .await;
}
