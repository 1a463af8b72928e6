//! Connection to the cluster.

use std::time::Duration;

use alustan_api::ObjectKey;
use alustan_api::Terraform;
use alustan_api::labels::{COMPONENT, Component, NAME};
use clap::Args;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::config::KubeConfigOptions;
use kube::core::{DeserializeGuard, NamespaceResourceScope};
use kube::{Api, Client, Config, Resource, ResourceExt};
use serde_json::Value;

use crate::error::Error;
use crate::print;

/// Timeout of one call to the API server.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Field manager of the writes of `kubectl alustan`.
pub(crate) const FIELD_MANAGER: &str = "kubectl-alustan";

/// Kubeconfig context and namespace of a command.
#[derive(Debug, Args)]
pub(crate) struct ClusterArguments {
    /// Context of the kubeconfig. Default: the current context.
    #[arg(long, global = true)]
    pub(crate) context: Option<String>,
    /// Namespace. Default: the namespace of the context.
    #[arg(short, long, global = true)]
    pub(crate) namespace: Option<String>,
}

/// Client for one namespace of a cluster.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    /// Creates a client from the kubeconfig. Without `--context` and without a kubeconfig, uses the in-cluster
    /// configuration.
    pub(crate) async fn connect(arguments: &ClusterArguments) -> Result<Self, Error> {
        let config = config(arguments.context.clone()).await?;
        let namespace = arguments
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))?;
        Ok(Self { client, namespace })
    }

    /// Returns the API of kind `K` in the namespace.
    pub(crate) fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Reads the resource `name`.
    ///
    /// # Errors
    /// [`Error::NoResource`] if it does not exist.
    pub(crate) async fn resource(&self, name: &str) -> Result<Terraform, Error> {
        let action = format!("read Terraform {}", self.key(name));
        call(&action, self.api::<Terraform>().get_opt(name))
            .await?
            .ok_or_else(|| Error::NoResource {
                name: name.to_owned(),
                namespace: self.namespace.clone(),
            })
    }

    /// Lists the resources of `namespace`, or of all namespaces. Skips resources that this version of `kubectl alustan`
    /// cannot parse, and prints a message for each.
    pub(crate) async fn resources(&self, namespace: Option<&str>) -> Result<Vec<Terraform>, Error> {
        type Guarded = DeserializeGuard<Terraform>;
        let (api, scope): (Api<Guarded>, _) = match namespace {
            Some(namespace) => (
                Api::namespaced(self.client.clone(), namespace),
                format!("in namespace {namespace}"),
            ),
            None => (
                Api::all(self.client.clone()),
                "in all namespaces".to_owned(),
            ),
        };
        let action = format!("list Terraform resources {scope}");
        let list = call(&action, api.list(&ListParams::default())).await?;
        Ok(list.items.into_iter().filter_map(readable).collect())
    }

    /// Applies the merge patch `change` to `tf` with field manager `manager`.
    pub(crate) async fn change(
        &self,
        tf: &Terraform,
        manager: &str,
        change: &Value,
    ) -> Result<(), Error> {
        let namespace = tf.namespace().unwrap_or_default();
        let api: Api<Terraform> = Api::namespaced(self.client.clone(), &namespace);
        let parameters = PatchParams {
            field_manager: Some(manager.to_owned()),
            ..PatchParams::default()
        };
        let (name, patch) = (tf.name_any(), Patch::Merge(change));
        let action = format!("patch Terraform {}", ObjectKey::of(tf));
        call(&action, api.patch_metadata(&name, &parameters, &patch))
            .await
            .map(drop)
    }

    /// Returns the user name of the caller, as authenticated by the API server.
    pub(crate) async fn user(&self) -> Result<Option<String>, Error> {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let question = SelfSubjectReview::default();
        let parameters = PostParams::default();
        let review = call("read the user name", api.create(&parameters, &question)).await?;
        let user = review.status.and_then(|status| status.user_info);
        Ok(user.and_then(|user| user.username))
    }

    /// Returns the names of the run pods of the resource `name` that have not terminated.
    pub(crate) async fn living_pods(&self, name: &str) -> Result<Vec<String>, Error> {
        let action = format!("list the pods of {}", self.key(name));
        let pods = call(&action, self.api::<Pod>().list(&of_runs(name))).await?;
        Ok(pods
            .iter()
            .filter(|pod| is_running(pod))
            .map(ResourceExt::name_any)
            .collect())
    }

    /// Returns the namespaced name of the object `name`, for messages.
    pub(crate) fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(&self.namespace, name)
    }
}

/// Returns list parameters that select the Jobs and pods of the runs of the resource `name`.
pub(crate) fn of_runs(name: &str) -> ListParams {
    let component = Component::Run.as_str();
    ListParams::default().labels(&format!("{NAME}={name},{COMPONENT}={component}"))
}

async fn config(context: Option<String>) -> Result<Config, Error> {
    if context.is_none() {
        return Config::infer()
            .await
            .map_err(|error| Error::NoCluster(Box::new(error)));
    }
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    Config::from_kubeconfig(&options)
        .await
        .map_err(|error| Error::Kubeconfig(Box::new(error)))
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn readable(resource: DeserializeGuard<Terraform>) -> Option<Terraform> {
    let key = ObjectKey::new(
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    );
    match resource.0 {
        Ok(tf) => Some(tf),
        Err(invalid) => {
            print::note(&format!(
                "skipping Terraform {key}, which this version of kubectl-alustan cannot read: {}",
                invalid.error
            ));
            None
        }
    }
}

/// Executes `call`, a call to the API server, with a timeout. `action` names the operation in errors, for example `read Secret web-run`.
pub(crate) async fn call<T>(
    action: &str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(TIMEOUT, call).await {
        Ok(result) => result.map_err(|source| Error::Call {
            what: action.to_owned(),
            source: Box::new(source),
        }),
        Err(_) => Err(Error::Timeout {
            what: action.to_owned(),
            seconds: TIMEOUT.as_secs(),
        }),
    }
}
