//! Builds in a separate namespace, for namespaces that enforce PodSecurity *restricted*.

use alustan_tests::{Operators, Scene, scene_with_own_operators};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::json;

const PRIVATE: &str = "private-registry.alustan.test";

/// Returns the names of the operator's objects in the build namespace.
async fn names<K>(scene: &Scene, namespace: &str) -> Vec<String>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(scene.cluster.client.clone(), namespace);
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=alustan");
    let objects = api.list(&ours).await.unwrap();
    objects.iter().map(ResourceExt::name_any).collect()
}

/// Waits until the build namespace contains no Secret of the operator.
async fn no_secrets_left(scene: &Scene, namespace: &str) {
    scene
        .until("the deletion of all build Secrets", async || {
            let secrets = names::<Secret>(scene, namespace).await;
            secrets.is_empty().then_some(())
        })
        .await;
}

/// Tests that run with the installed operator scaled to zero: see `scene_with_own_operators`.
mod own_operators {
    use super::*;

    /// Uses a private registry. One operator crashes before it creates the build Secret, another one before it deletes that Secret.
    #[tokio::test]
    async fn build_elsewhere_works_for_a_restricted_namespace() {
        scene_with_own_operators("elsewhere", |scene| async move {
        let builds = format!("{}-builds", scene.namespace);
        scene.create_namespace(&builds, "baseline").await;
        let namespaces: Api<Namespace> = Api::all(scene.cluster.client.clone());
        scene.enforce(&scene.namespace, "restricted").await;
        let operators = Operators::of(&scene)
            .await
            .with("ALUSTAN_BUILD_NAMESPACE", &builds);

        scene
            .commit("web", &[("main.tf", "output \"v\" { value = 1 }\n")])
            .await;
        let config = scene.docker_config(PRIVATE, "alustan", "alustan-test");
        let kind = "kubernetes.io/dockerconfigjson";
        scene
            .secret("regcred", kind, &[(".dockerconfigjson", &config)])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["containerRegistry"] = json!({
            "imageName": format!("{PRIVATE}/{}/web", scene.namespace),
            "secretRef": {"name": "regcred", "key": ".dockerconfigjson"},
            "builder": {"kind": "Kaniko"},
        });
        let dies = operators.start(Some("After:CreateJob:alustan-build"));
        scene.apply(&web).await;
        dies.died().await;
        let job = names::<Job>(&scene, &builds).await;
        assert_eq!(
            (job.len(), names::<Secret>(&scene, &builds).await.len()),
            (1, 0)
        );
        operators.start(Some("Before:DeleteBuildSecret:")).died().await;
        assert_eq!(names::<Secret>(&scene, &builds).await, job);
        let operator = operators.start(None);
        scene.ready("web").await;
        no_secrets_left(&scene, &builds).await;
        assert_eq!(names::<Job>(&scene, &builds).await, job);
        assert!(
            scene.jobs("build").await.is_empty(),
            "a build beside its resource"
        );

        // `builder.kind: Append` builds in a namespace that enforces PodSecurity *restricted*.
        scene.enforce(&builds, "restricted").await;
        web["spec"]["containerRegistry"]["builder"] = json!({"kind": "Append"});
        scene.apply(&web).await;
        let changed = [("main.tf", "output \"v\" { value = 2 }\n")];
        scene.commit("web", &changed).await;
        scene.ready_after_run("web", 2).await;
        no_secrets_left(&scene, &builds).await;
        assert_eq!(names::<Job>(&scene, &builds).await.len(), 2);

        // A build failure is reported on the resource.
        let broken = [(
            "main.tf",
            "terraform {\n  required_providers {\n    a = { source = \"nobody/nothing\" }\n  }\n}\n",
        )];
        scene.commit("web", &broken).await;
        let tf = scene
            .wait_for_message(
                "web",
                &format!("kubectl logs -n {builds} job/alustan-build-"),
            )
            .await;
        println!("{}", tf.status.unwrap().message);
        no_secrets_left(&scene, &builds).await;

        scene.delete("web", &DeleteParams::background()).await;
        scene.nothing_left().await;
        scene
            .until("the builds to go", async || {
                let remaining = names::<Job>(&scene, &builds).await;
                remaining.is_empty().then_some(())
            })
            .await;
        operator.kill().await;
        namespaces
            .delete(&builds, &DeleteParams::background())
            .await
            .unwrap();
    })
    .await;
    }
}
