//! One test's own corner of the dev cluster.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use alustan_api::Terraform;
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Event, Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::Cluster;

/// How long anything may take.
const DEADLINE: Duration = Duration::from_mins(3);

/// A namespace that enforces PodSecurity *baseline*, and repositories of its own.
pub struct Scene {
    /// The cluster.
    pub cluster: Cluster,
    /// The namespace; also the owner of the scene's repositories.
    pub namespace: String,
}

/// Runs `test` in a fresh namespace; shows what the cluster looks like when it fails, and leaves
/// nothing behind when it does not.
pub async fn scene<F, T>(name: &str, test: F)
where
    F: FnOnce(std::sync::Arc<Scene>) -> T,
    T: Future<Output = ()>,
{
    let cluster = Cluster::connect().await;
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock")
        .as_nanos();
    let namespace = format!("e2e-{name}-{:05x}", nanos & 0xf_ffff);
    let scene = std::sync::Arc::new(Scene { cluster, namespace });
    scene.create_namespace().await;
    let result = AssertUnwindSafe(test(scene.clone())).catch_unwind().await;
    if let Err(panic) = result {
        scene.show().await;
        std::panic::resume_unwind(panic);
    }
    scene.leave().await;
}

impl Scene {
    async fn create_namespace(&self) {
        let namespace = serde_json::from_value(json!({
            "metadata": {
                "name": self.namespace,
                "labels": {"pod-security.kubernetes.io/enforce": "baseline"},
            },
        }));
        let api: Api<Namespace> = Api::all(self.client());
        api.create(&PostParams::default(), &namespace.expect("a namespace"))
            .await
            .expect("create the namespace");
    }

    fn client(&self) -> Client {
        self.cluster.client.clone()
    }

    /// The scene's objects of one kind.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client(), &self.namespace)
    }

    /// Commits `files` to the scene's repository `name`; the commit's id.
    pub async fn commit(&self, name: &str, files: &[(&str, &str)]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let file = folder.path().join(path);
            std::fs::create_dir_all(file.parent().expect("a parent")).expect("a folder");
            std::fs::write(file, text).expect("a file");
        }
        let repository = format!("{}/{name}", self.namespace);
        let path = folder.path().to_str().expect("a path");
        self.cluster
            .run("hack/git/new-repo", &[&repository, path])
            .await
            .trim()
            .to_owned()
    }

    /// The https URL of the scene's repository `name`.
    pub fn https(&self, name: &str) -> String {
        format!("https://git.alustan.test/{}/{name}", self.namespace)
    }

    /// A resource with the least that it needs, for the repository of the same name.
    pub fn resource(&self, name: &str) -> Value {
        json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "gitRepo": {"url": self.https(name), "branch": "main", "interval": "2s"},
                "containerRegistry": {
                    "imageName": format!("registry.alustan.test:5000/{}/{name}", self.namespace),
                },
                "retry": {"minBackoff": "1s", "maxBackoff": "5s"},
            },
        })
    }

    /// Applies a resource as `kubectl apply` would.
    pub async fn apply(&self, resource: &Value) {
        self.try_apply(resource).await.expect("apply the resource");
    }

    /// Applies a resource; the API server's refusal, if it refuses.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn try_apply(&self, resource: &Value) -> Result<(), kube::Error> {
        let name = resource["metadata"]["name"].as_str().expect("a name");
        let parameters = PatchParams::apply("e2e").force();
        let api: Api<Terraform> = self.api();
        api.patch(name, &parameters, &Patch::Apply(resource))
            .await
            .map(drop)
    }

    /// A Secret with `data`.
    pub async fn secret(&self, name: &str, kind: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<&str, &str> = data.iter().copied().collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"name": name, "namespace": self.namespace}, "stringData": data,
        });
        let api: Api<Secret> = self.api();
        let parameters = PatchParams::apply("e2e").force();
        api.patch(name, &parameters, &Patch::Apply(&secret))
            .await
            .expect("apply the Secret");
    }

    /// A Secret with the environment that lets the kubectl provider manage ConfigMaps here, for
    /// `spec.runner.envFromSecrets`.
    pub async fn provider_credentials(&self, name: &str) {
        self.kubectl(&["create", "serviceaccount", name]).await;
        self.kubectl(&[
            "create",
            "role",
            name,
            "--resource=configmaps",
            "--verb=get,list,watch,create,update,patch,delete",
        ])
        .await;
        let account = format!("--serviceaccount={}:{name}", self.namespace);
        self.kubectl(&[
            "create",
            "rolebinding",
            name,
            &format!("--role={name}"),
            &account,
        ])
        .await;
        let token = self.kubectl(&["create", "token", name]).await;
        let ca = std::fs::read_to_string(self.cluster.folder.join("pki/ca.crt")).expect("the CA");
        let data = [
            ("KUBE_LOAD_CONFIG_FILE", "false"),
            ("KUBE_HOST", "https://10.96.0.1"),
            ("KUBE_TOKEN", token.trim()),
            ("KUBE_CLUSTER_CA_CERT_DATA", ca.as_str()),
        ];
        self.secret(name, "Opaque", &data).await;
    }

    /// The data of a Secret.
    pub async fn data(&self, name: &str) -> BTreeMap<String, String> {
        let secret = self.api::<Secret>().get(name).await.expect("a Secret");
        let data = secret.data.unwrap_or_default().into_iter();
        data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
            .collect()
    }

    /// Waits until `wanted` holds for the resource `name`; the resource.
    pub async fn wait(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&Terraform) -> bool,
    ) -> Terraform {
        let api: Api<Terraform> = self.api();
        let condition = |tf: Option<&Terraform>| tf.is_some_and(&wanted);
        let found = tokio::time::timeout(DEADLINE, await_condition(api.clone(), name, condition));
        if let Ok(found) = found.await {
            return found.expect("a watch").expect("a resource");
        }
        let last = api.get_opt(name).await.ok().flatten();
        let status = last.and_then(|tf| tf.status);
        panic!("{name}: waited {DEADLINE:?} for {what}; status {status:#?}")
    }

    /// Waits until the resource `name` is Ready for its latest generation.
    pub async fn ready(&self, name: &str) -> Terraform {
        self.wait(name, "Ready", |tf| {
            condition(tf, "Ready").is_some_and(|(status, _, _)| status == "True")
                && tf
                    .status
                    .as_ref()
                    .and_then(|status| status.observed_generation)
                    == tf.metadata.generation
        })
        .await
    }

    /// Waits until `Ready` carries `reason`; its message.
    pub async fn reason(&self, name: &str, reason: &str) -> String {
        let tf = self
            .wait(name, reason, |tf| {
                condition(tf, "Ready").is_some_and(|(_, is, _)| is == reason)
            })
            .await;
        condition(&tf, "Ready")
            .map(|(_, _, message)| message)
            .unwrap_or_default()
    }

    /// Deletes the resource `name` and waits until it is gone.
    pub async fn delete(&self, name: &str, how: &DeleteParams) {
        let api: Api<Terraform> = self.api();
        let uid = api
            .get(name)
            .await
            .expect("a resource")
            .uid()
            .expect("a uid");
        api.delete(name, how).await.expect("delete the resource");
        let deleted = kube::runtime::conditions::is_deleted(&uid);
        if tokio::time::timeout(DEADLINE, await_condition(api.clone(), name, deleted))
            .await
            .is_err()
        {
            let last = api.get_opt(name).await.ok().flatten();
            panic!(
                "{name}: still there after {DEADLINE:?}: {:#?}",
                last.and_then(|tf| tf.status)
            );
        }
    }

    /// Reasons of the events about the resource `name`.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let fields = format!("involvedObject.name={name},involvedObject.kind=Terraform");
        let list = ListParams::default().fields(&fields);
        let events = self.api::<Event>().list(&list).await.expect("list events");
        events
            .into_iter()
            .filter_map(|event| event.reason)
            .collect()
    }

    /// `kubectl` in the scene's namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let mut all = vec!["-n", &self.namespace];
        all.extend(arguments);
        self.cluster.run("kubectl", &all).await
    }

    async fn show(&self) {
        println!(
            "---- namespace {} is kept; what it looks like:",
            self.namespace
        );
        for arguments in [
            &["get", "tf,job,pod,pvc,secret", "-o", "wide"][..],
            &[
                "get",
                "tf",
                "-o",
                "jsonpath={range .items[*]}{.metadata.name}: {.status.state}: {.status.message}{\"\\n\"}{end}",
            ],
            &["get", "events", "--sort-by=.lastTimestamp"],
            &[
                "logs",
                "--all-containers",
                "--prefix",
                "--tail=40",
                "-l",
                "app.kubernetes.io/managed-by=alustan",
            ],
        ] {
            let shown = AssertUnwindSafe(self.kubectl(arguments))
                .catch_unwind()
                .await;
            println!(
                "$ kubectl {}\n{}",
                arguments.join(" "),
                shown.unwrap_or_default()
            );
        }
    }

    async fn leave(&self) {
        let api: Api<Terraform> = self.api();
        let left = api
            .list(&ListParams::default())
            .await
            .expect("list resources");
        for tf in left {
            self.delete(&tf.name_any(), &DeleteParams::default()).await;
        }
        let namespaces: Api<Namespace> = Api::all(self.client());
        namespaces
            .delete(&self.namespace, &DeleteParams::background())
            .await
            .expect("delete the namespace");
    }
}

/// Status, reason and message of a condition.
fn condition(tf: &Terraform, kind: &str) -> Option<(String, String, String)> {
    let conditions = &tf.status.as_ref()?.conditions;
    let condition = conditions
        .iter()
        .find(|condition| condition.type_ == kind)?;
    Some((
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    ))
}
