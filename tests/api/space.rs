//! Namespace of one test.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alustan_api::Terraform;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::server::Server;

/// A namespace of a server.
pub(crate) struct Space {
    pub(crate) server: Arc<Server>,
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Space {
    /// Creates a namespace of the shared server.
    pub(crate) async fn new() -> Self {
        Self::of(&Server::shared().await, json!({})).await
    }

    /// Creates a namespace of `server` with `labels`.
    pub(crate) async fn of(server: &Arc<Server>, labels: Value) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(1);
        let namespace = format!("space-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let client = server.client().await;
        let object = json!({"metadata": {"name": namespace, "labels": labels}});
        let object: Namespace = serde_json::from_value(object).unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        Self {
            server: server.clone(),
            client,
            namespace,
        }
    }

    /// Returns the API client for one kind in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Returns the API client for `Terraform` resources in the namespace. Does not parse the resources.
    pub(crate) fn raw(&self) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<Terraform>(&());
        Api::namespaced_with(self.client.clone(), &self.namespace, &kind)
    }

    /// Creates an object of kind `K` in the namespace. Returns the stored object.
    pub(crate) async fn create<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        let object = serde_json::from_value(object).unwrap();
        self.api()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    /// Returns all objects of kind `K` in the namespace.
    pub(crate) async fn list<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        self.api().list(&ListParams::default()).await.unwrap().items
    }

    /// Applies a resource as a user, with strict validation. Returns the stored resource, or the error message of the API server.
    pub(crate) async fn apply(&self, resource: &Value) -> Result<Value, String> {
        self.patch(resource, &PatchParams::apply("user").validation_strict())
            .await
    }

    /// Applies a resource like [`Self::apply`], as a dry run.
    pub(crate) async fn try_apply(&self, resource: &Value) -> Result<Value, String> {
        let parameters = PatchParams::apply("user").validation_strict().dry_run();
        self.patch(resource, &parameters).await
    }

    /// Creates a resource like `kubectl create`, as a dry run.
    pub(crate) async fn try_create(&self, resource: &Value) -> Result<Value, String> {
        let parameters = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let object: DynamicObject = serde_json::from_value(resource.clone()).unwrap();
        stored_or_message(self.raw().create(&parameters, &object).await)
    }

    async fn patch(&self, resource: &Value, parameters: &PatchParams) -> Result<Value, String> {
        let name = resource["metadata"]["name"].as_str().unwrap();
        let patch = Patch::Apply(resource);
        stored_or_message(self.raw().patch(name, parameters, &patch).await)
    }
}

/// Sets the Job `name` to complete, like the Job controller.
pub(crate) async fn complete_job(jobs: &Api<Job>, name: &str) {
    try_complete_job(jobs, name).await.unwrap();
}

/// Sets the Job `name` to complete, like the Job controller.
///
/// # Errors
/// The API server refuses the request, for example because the Job is deleted.
pub(crate) async fn try_complete_job(jobs: &Api<Job>, name: &str) -> Result<(), kube::Error> {
    let now = Timestamp::now();
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "reason": "CompletionsReached",
        "message": "", "lastTransitionTime": now, "lastProbeTime": now})
    };
    let complete = json!({"status": {
        "startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")],
    }});
    jobs.patch_status(name, &PatchParams::default(), &Patch::Merge(&complete))
        .await
        .map(drop)
}

fn stored_or_message(stored: Result<DynamicObject, kube::Error>) -> Result<Value, String> {
    match stored {
        Ok(stored) => Ok(serde_json::to_value(stored).unwrap()),
        Err(kube::Error::Api(status)) => Err(status.message),
        Err(other) => panic!("{other}"),
    }
}

/// Returns a minimal resource.
pub(crate) fn resource(name: &str) -> Value {
    with_spec(
        name,
        json!({
            "gitRepo": {"url": "https://127.0.0.1:1/team/infra"},
            "containerRegistry": {"imageName": "127.0.0.1:1/team/infra"},
        }),
    )
}

/// Returns a resource `name` with `spec`.
pub(crate) fn with_spec(name: &str, spec: impl Into<Value>) -> Value {
    json!({
        "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
        "metadata": {"name": name}, "spec": spec.into(),
    })
}

/// Sets several values in the spec of a resource. The keys of `values` are JSON pointers, as in [`with`].
pub(crate) fn with_all(resource: Value, values: Value) -> Value {
    let values: Map<String, Value> = serde_json::from_value(values).unwrap();
    values
        .into_iter()
        .fold(resource, |resource, (pointer, value)| {
            with(resource, &pointer, Some(value))
        })
}

/// Sets the value at the JSON pointer `pointer` (RFC 6901) in the spec of a resource. `None` removes the value.
pub(crate) fn with(mut resource: Value, pointer: &str, value: Option<Value>) -> Value {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let mut place = &mut resource["spec"];
    for part in parent.split('/').skip(1) {
        if place.get(part).is_none() {
            place[part] = json!({});
        }
        place = &mut place[part];
    }
    match value {
        Some(value) => place[last] = value,
        None => {
            place.as_object_mut().unwrap().remove(last);
        }
    }
    resource
}
