//! Builds in a separate build namespace: creation, owners and deletion of build Secrets. The tests simulate the Job controller.

use std::collections::BTreeMap;
use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::labels::{self, COMPONENT, Component};
use alustan_api::{FINALIZER, Terraform};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::outside::Outside;
use crate::server::{OPERATOR, Server, built, spawn_guarded, until};
use crate::space::{Space, complete_job, resource, with_all};

const BUILDS: &str = "builds";

struct Operator {
    server: Arc<Server>,
    outside: Outside,
    process: Option<Child>,
}

impl Operator {
    /// Starts an API server, and an operator with a build namespace.
    async fn new() -> Self {
        let server = Server::of_its_own().await;
        let builds: Namespace =
            serde_json::from_value(json!({"metadata": {"name": BUILDS}})).unwrap();
        let namespaces = Api::all(server.client().await);
        namespaces
            .create(&PostParams::default(), &builds)
            .await
            .unwrap();
        let mut operator = Self {
            outside: Outside::start(server.folder()).await,
            server,
            process: None,
        };
        operator.start();
        operator
    }

    fn start(&mut self) {
        let program = built("alustan-controller").unwrap();
        let mut operator = Command::new(program);
        let address = &self.outside.address;
        operator
            .args(["--base-image", &format!("{address}/base:1")])
            .args(["--operator-image", &format!("{address}/operator:1")])
            .args(["--insecure-registry", address])
            .args(["--listen", "127.0.0.1:0"])
            .args(["--build-namespace", BUILDS])
            .args(["--log-level", "info,alustan_controller=debug"])
            // A restarted operator has the same Lease holder identity, so it does not wait for the Lease to expire.
            .args(["--pod-name", "operator"])
            .arg("--cache-dir")
            .arg(self.server.folder().join("cache"))
            .env("KUBECONFIG", self.server.kubeconfig_file_of(OPERATOR))
            .env("SIGNAL", "KILL");
        let log = self.server.folder().join("operator.log");
        self.process = Some(spawn_guarded(&mut operator, &log));
    }

    /// Kills the operator and waits until its process has ended.
    fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            drop(process.stdin.take());
            process.wait().unwrap();
        }
    }

    /// Creates a tenant namespace with a registry Secret for `user` and a resource `web`.
    async fn tenant(&self, user: &str) -> Space {
        let space = Space::of(&self.server, json!({})).await;
        let login =
            json!({"auths": {&self.outside.address: {"username": user, "password": "short"}}});
        space
            .create::<Secret>(json!({
                "metadata": {"name": "regcred"}, "type": "kubernetes.io/dockerconfigjson",
                "stringData": {".dockerconfigjson": login.to_string()},
            }))
            .await;
        let address = &self.outside.address;
        let web = with_all(
            resource("web"),
            json!({
                "/gitRepo/url": format!("http://{address}/team/infra"),
                "/containerRegistry/imageName": format!("{address}/team/web"),
                "/containerRegistry/secretRef": {"name": "regcred", "key": ".dockerconfigjson"},
            }),
        );
        space.apply(&web).await.unwrap();
        space
    }

    async fn builds<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.server.client().await, BUILDS)
    }

    /// Waits for the build Job of a tenant and for the Secret of the build. Returns both.
    async fn build(&self, tenant: &Space) -> (Job, Secret) {
        let list =
            ListParams::default().labels(&format!("{}={}", labels::NAMESPACE, tenant.namespace));
        let (jobs, secrets) = (self.builds::<Job>().await, self.builds::<Secret>().await);
        until("a build and its Secret", async || {
            let job = jobs.list(&list).await.unwrap().items.pop();
            let build_secret = secrets.list(&list).await.unwrap().items.pop();
            let message = tenant.raw().get("web").await.unwrap().data["status"]["message"].clone();
            job.zip(build_secret).ok_or_else(|| message.to_string())
        })
        .await
    }

    /// Waits until `object` is deleted. Ignores a new object with the same name.
    async fn gone<K>(&self, object: &K)
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: serde::de::DeserializeOwned + Clone + std::fmt::Debug,
    {
        let api = self.builds::<K>().await;
        let (kind, name) = (K::kind(&()), object.name_any());
        until(&format!("{kind} {name} to go"), async || {
            let now = api.get_opt(&name).await.unwrap();
            let exists = now.is_some_and(|now| now.uid() == object.uid());
            (!exists)
                .then_some(())
                .ok_or_else(|| "it is there".to_owned())
        })
        .await;
    }

    /// Sets the build Job to complete, like the Job controller.
    async fn ends(&self, job: &Job) {
        complete_job(&self.builds().await, &job.name_any()).await;
    }
}

#[tokio::test]
async fn build_elsewhere_gets_a_secret_that_is_deleted_in_every_case() {
    let mut operator = Operator::new().await;
    let (one, other) = (operator.tenant("one").await, operator.tenant("other").await);

    // The tenants `one` and `other` have the same repository, image and resource name, but share no build.
    let (job, build_secret) = operator.build(&one).await;
    let (job_of_other, secret_of_other) = operator.build(&other).await;
    assert_ne!(job.name_any(), job_of_other.name_any());
    for (user, job, build_secret) in [
        ("one", &job, &build_secret),
        ("other", &job_of_other, &secret_of_other),
    ] {
        assert_eq!(build_secret.name_any(), job.name_any());
        assert_eq!(build_secret.immutable, Some(true));
        assert_eq!(
            build_secret.labels()[COMPONENT],
            Component::BuildSecret.as_str()
        );
        let owners: Vec<_> = build_secret
            .owner_references()
            .iter()
            .map(|owner| owner.uid.clone())
            .collect();
        assert_eq!(owners, [job.uid().unwrap()]);
        let data = build_secret.data.clone().unwrap();
        assert_eq!(
            data.keys().collect::<Vec<_>>(),
            [".dockerconfigjson", "lent"]
        );
        let config = String::from_utf8(data[".dockerconfigjson"].0.clone()).unwrap();
        let login = STANDARD.encode(format!("{user}:short"));
        assert!(config.contains(&login), "{config}");
        let pod = job.spec.clone().unwrap().template.spec.unwrap();
        assert_eq!(
            pod.image_pull_secrets.unwrap()[0].name,
            build_secret.name_any()
        );
    }
    for space in [&one, &other] {
        let jobs: Vec<Job> = space.list().await;
        assert!(jobs.is_empty(), "a build where its resource is");
    }

    // The build of tenant `one` ends; the build of tenant `other` continues.
    operator.ends(&job).await;
    operator.gone(&build_secret).await;
    let secrets = operator.builds::<Secret>().await;
    assert!(
        secrets
            .get_opt(&secret_of_other.name_any())
            .await
            .unwrap()
            .is_some()
    );

    // A build ends while no operator runs.
    operator.stop();
    operator.ends(&job_of_other).await;
    operator.start();
    operator.gone(&secret_of_other).await;

    // A resource is deleted during its build.
    let third = operator.tenant("third").await;
    let (job, build_secret) = operator.build(&third).await;
    third
        .raw()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    operator.gone(&build_secret).await;
    operator.gone(&job).await;

    // A resource is deleted without the operator, for example with its namespace after a user removed the finalizer.
    let fourth = operator.tenant("fourth").await;
    let (job, build_secret) = operator.build(&fourth).await;
    operator.stop();
    let finalizers = fourth.raw().get("web").await.unwrap().metadata.finalizers;
    assert_eq!(finalizers, Some(vec![FINALIZER.to_owned()]));
    let api = fourth.api::<Terraform>();
    let released = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    api.patch("web", &PatchParams::default(), &released)
        .await
        .unwrap();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    operator.start();
    operator.gone(&build_secret).await;
    operator.gone(&job).await;
}

/// The operator does not trust labels of objects in tenant namespaces.
#[tokio::test]
async fn labels_in_a_tenant_namespace_create_and_delete_nothing() {
    let operator = Operator::new().await;
    let tenant = operator.tenant("tenant").await;
    let thief = Space::of(&operator.server, json!({})).await;
    let (job, build_secret) = operator.build(&tenant).await;
    let labels: BTreeMap<_, _> = build_secret.labels().clone();
    // Creates a copy of the build Job in the namespace of another tenant, with the same name and labels.
    let mut forged = job.clone();
    forged.metadata =
        serde_json::from_value(json!({"name": job.name_any(), "labels": labels})).unwrap();
    forged.status = None;
    if let Some(spec) = &mut forged.spec {
        spec.selector = None;
        spec.template.metadata = None;
    }
    thief
        .api()
        .create(&PostParams::default(), &forged)
        .await
        .unwrap();
    thief
        .create::<Secret>(json!({
            "metadata": {"name": "bait", "labels": labels}, "stringData": {"a": "b"},
        }))
        .await;

    operator.ends(&job).await;
    operator.gone(&build_secret).await;
    tenant
        .raw()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    operator.gone(&job).await;
    let kept: Vec<Secret> = thief.list().await;
    let names: Vec<_> = kept.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["bait"]);
    assert!(
        thief
            .api::<Job>()
            .get_opt(&job.name_any())
            .await
            .unwrap()
            .is_some()
    );
    for call in operator.server.audit() {
        if call["impersonatedUser"]["username"] == OPERATOR {
            let request = format!("{} {}", call["verb"], call["requestURI"]);
            assert_ne!(call["responseStatus"]["code"], 403, "{request}");
        }
    }
}
