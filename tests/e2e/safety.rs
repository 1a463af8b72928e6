//! What pods may do, and what nobody may read.

use alustan_tests::{around, scene};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, DeleteParams};
use serde_json::{Value, json};

/// A pod of a Job as a new one, without what belongs to its own namespace and life.
fn anew(pod: &Pod) -> Value {
    let mut spec = serde_json::to_value(pod.spec.as_ref().unwrap()).unwrap();
    let fields = spec.as_object_mut().unwrap();
    for field in ["nodeName", "serviceAccount", "serviceAccountName"] {
        fields.remove(field);
    }
    spec["automountServiceAccountToken"] = json!(false);
    let volumes = spec["volumes"].as_array_mut().unwrap();
    volumes.retain(|volume| volume.get("projected").is_none());
    for kind in ["containers", "initContainers"] {
        for container in spec[kind].as_array_mut().into_iter().flatten() {
            let mounts = container["volumeMounts"].as_array_mut().unwrap();
            mounts.retain(|mount| {
                !mount["name"]
                    .as_str()
                    .unwrap()
                    .starts_with("kube-api-access")
            });
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "again"}, "spec": spec})
}

#[tokio::test]
async fn every_pod_but_the_builders_is_admitted_where_restricted_is_enforced() {
    scene("restricted", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        scene.apply(&scene.resource_by_kaniko("web")).await;
        scene.ready("web").await;
        let strict = format!("{}-strict", scene.namespace);
        scene.create_namespace(&strict, "restricted").await;
        let run = anew(&scene.pod_of("web-apply-1").await);
        let build = anew(&scene.pod_of(&scene.jobs("build").await[0]).await);
        let mut prepare = build.clone();
        prepare["spec"]["containers"] = prepare["spec"]["initContainers"].take();
        let runner = scene.would_create(&strict, &run).await;
        let prepared = scene.would_create(&strict, &prepare).await;
        let whole = scene.would_create(&strict, &build).await;
        let namespaces: Api<Namespace> = Api::all(scene.cluster.client.clone());
        namespaces
            .delete(&strict, &DeleteParams::background())
            .await
            .unwrap();
        assert!(runner.0, "{}", runner.1);
        assert!(prepared.0, "{}", prepared.1);
        assert!(
            !whole.0 && whole.1.contains("violates PodSecurity"),
            "{}",
            whole.1
        );
        assert!(!whole.1.contains("\"prepare\""), "{}", whole.1);

        // What the runner's account may do: with its own Secrets by name, and what everybody may.
        let account = format!("--as=system:serviceaccount:{}:web-runner", scene.namespace);
        let list = scene
            .kubectl(&["auth", "can-i", "--list", "--no-headers", &account])
            .await;
        let rights: Vec<Vec<&str>> = list
            .lines()
            .filter(|line| !line.starts_with(' ') && !line.starts_with("selfsubject"))
            .map(|line| line.split_whitespace().collect())
            .collect();
        let mut found: Vec<(&str, String)> = Vec::new();
        for right in &rights {
            assert_eq!((right[0], right[1]), ("secrets", "[]"), "{list}");
            found.push((right[2], right[3..].join(" ")));
        }
        found.sort_unstable();
        let both = || "[get patch]".to_owned();
        let wanted = [
            ("[web-report]", both()),
            ("[web-run]", "[get]".to_owned()),
            ("[web-state]", both()),
        ];
        assert_eq!(found, wanted, "{list}");
        let build = scene
            .pod_of(&scene.jobs("build").await[0])
            .await
            .spec
            .unwrap();
        assert_eq!(build.automount_service_account_token, Some(false));
        let runner = build
            .containers
            .iter()
            .find(|it| it.name == "build")
            .unwrap();
        let security = runner.security_context.as_ref().unwrap();
        assert_eq!(security.allow_privilege_escalation, Some(false));
    })
    .await;
}

/// A text that must be nowhere.
const MARKER: &str = "x7-marker-of-a-secret-9q";

#[tokio::test]
async fn a_secret_is_nowhere_to_be_read_after_a_run() {
    scene("secrets", |scene| async move {
        scene.commit("web", &[("main.tf", "variable \"token\" { sensitive = true }")]).await;
        let data = [("TF_VAR_token", MARKER), ("PROVIDER_TOKEN", MARKER)];
        scene.secret("provider", "Opaque", &data).await;
        let mut web = scene.resource("web");
        web["spec"]["runner"] = json!({"envFromSecrets": [{"name": "provider"}]});
        web["spec"]["retry"]["limit"] = json!(1);
        let apply = "echo \"the token is $PROVIDER_TOKEN\"\nprintf 'x7-marker-of'; printf -- '-a-secret-9q\\n'\n\
                     terraform apply -auto-approve";
        web["spec"]["scripts"] = json!({"apply": {"inline": apply}});
        scene.apply(&web).await;
        scene.ready("web").await;
        scene.log("web-apply-1", "the token is ").await;
        scene.log("web-apply-1", "Apply complete!").await;
        // And one that fails with the Secret on its lips.
        web["spec"]["scripts"] = json!({"apply": {"inline": "echo \"no: $PROVIDER_TOKEN\" >&2; exit 1"}});
        scene.apply(&web).await;
        let (_, message) = scene.stalled("web").await;
        assert!(message.contains("no: "), "{message}");
        scene.log("web-apply-2", "no: ").await;
        let all = scene.all_that_can_be_read().await;
        assert!(!all.contains(MARKER), "{}", around(&all, MARKER));
    })
    .await;
}

#[tokio::test]
async fn a_secret_under_an_innocent_name_is_redacted() {
    scene("innocent", |scene| async move {
        scene.commit("web", &[("main.tf", "")]).await;
        scene
            .secret("paint", "Opaque", &[("COLOUR", MARKER)])
            .await;
        let mut web = scene.resource("web");
        web["spec"]["runner"] = json!({"envFromSecrets": [{"name": "paint"}]});
        web["spec"]["scripts"]["apply"]["inline"] = json!(
            "echo \"painted in $COLOUR\"\necho \"and again in $COLOUR\" >&2\nterraform apply -auto-approve\n"
        );
        scene.apply(&web).await;
        scene.ready("web").await;
        scene.log("web-apply-1", "painted in (redacted)").await;
        scene.log("web-apply-1", "and again in (redacted)").await;
        let all = scene.all_that_can_be_read().await;
        assert!(!all.contains(MARKER), "{}", around(&all, MARKER));
    })
    .await;
}
