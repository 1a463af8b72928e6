//! Objects that a user creates in the namespace of the test: resources, Secrets, `ConfigMap`s.

use alustan_api::Terraform;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::Scene;
use crate::addresses::api_service;

impl Scene {
    /// Returns a minimal resource for the repository of the same name.
    pub fn resource(&self, name: &str) -> Value {
        self.resource_of(name, name)
    }

    /// Returns a minimal resource for the test's repository `repository`, with an image of that name.
    pub fn resource_of(&self, name: &str, repository: &str) -> Value {
        // The installed operator polls the repositories of all tests, and each poll takes 50 ms of CPU time.
        let interval = if self.uses_installed_operator {
            "30s"
        } else {
            "5s"
        };
        json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "gitRepo": {"url": self.https(repository), "branch": "main", "interval": interval},
                "containerRegistry": {
                    "imageName": format!("registry.alustan.test:5000/{}/{repository}", self.namespace),
                },
                "retry": {"minBackoff": "1s", "maxBackoff": "5s"},
            },
        })
    }

    /// Same as [`Self::resource`], with builder kind `Kaniko`. Its builds use the fake kaniko of the dev cluster. The dev cluster sets
    /// `Append` as the default builder kind.
    pub fn resource_by_kaniko(&self, name: &str) -> Value {
        let mut resource = self.resource(name);
        resource["spec"]["containerRegistry"]["builder"] = json!({"kind": "Kaniko"});
        resource
    }

    /// Applies a resource as `kubectl apply` does.
    pub async fn apply(&self, resource: &Value) {
        self.try_apply(resource).await.expect("apply the resource");
    }

    /// Applies a resource like [`Self::apply`], but returns a refusal of the API server instead of a panic.
    ///
    /// # Errors
    /// Error of the API server.
    pub async fn try_apply(&self, resource: &Value) -> Result<(), kube::Error> {
        let name = resource["metadata"]["name"].as_str().expect("a name");
        let parameters = PatchParams::apply("e2e").force();
        let api: Api<Terraform> = self.api();
        api.patch(name, &parameters, &Patch::Apply(resource))
            .await
            .map(drop)
    }

    /// Sets an annotation of the resource `name`.
    pub async fn annotate(&self, name: &str, key: &str, value: &str) {
        let patch = json!({"metadata": {"annotations": {key: value}}});
        let api: Api<Terraform> = self.api();
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .expect("annotate the resource");
    }

    /// Applies a Secret with `data`.
    pub async fn secret(&self, name: &str, kind: &str, data: &[(&str, &str)]) {
        let data: std::collections::BTreeMap<&str, &str> = data.iter().copied().collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {"name": name, "namespace": self.namespace}, "stringData": data,
        });
        put(&self.api::<Secret>(), name, &secret).await;
    }

    /// Deletes a Secret, as a user with too many rights may do. Returns the deleted Secret.
    pub async fn remove_secret(&self, name: &str) -> Secret {
        let api = self.api::<Secret>();
        let secret = api.get(name).await.expect("a Secret");
        api.delete(name, &DeleteParams::default())
            .await
            .expect("delete the Secret");
        secret
    }

    /// Creates a Secret for `spec.runner.envFromSecrets`, with the environment that lets the kubectl provider manage ConfigMaps in the
    /// namespace of the test.
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
        let host = format!("https://{}", api_service());
        let data = [
            ("KUBE_LOAD_CONFIG_FILE", "false"),
            ("KUBE_HOST", &host),
            ("KUBE_TOKEN", token.trim()),
            ("KUBE_CLUSTER_CA_CERT_DATA", ca.as_str()),
        ];
        self.secret(name, "Opaque", &data).await;
    }

    /// Returns a backend with bucket and lock table of [`Self::aws`] and with `key` in the bucket. Its credentials are in the Secret
    /// `aws`.
    pub fn s3_backend(&self, bucket: &str, table: &str, key: &str) -> Value {
        json!({
            "provider": "aws", "s3": bucket, "dynamoDB": table, "region": "us-east-1",
            "key": key, "secretRef": {"name": "aws"},
        })
    }

    /// Applies an object of any kind with `kubectl apply --server-side`.
    pub async fn create(&self, object: &Value) {
        let text = object.to_string();
        let apply = ["apply", "--server-side", "-f", "-"];
        let (good, output) = self.cluster.output("kubectl", &apply, Some(&text)).await;
        assert!(good, "{object}: {output}");
    }

    /// Applies a `ConfigMap` with `data`.
    pub async fn config_map(&self, name: &str, data: &[(&str, &str)]) {
        let data: std::collections::BTreeMap<&str, &str> = data.iter().copied().collect();
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.namespace}, "data": data,
        });
        put(&self.api::<ConfigMap>(), name, &map).await;
    }
}

async fn put<K>(api: &Api<K>, name: &str, object: &Value)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let parameters = PatchParams::apply("e2e").force();
    api.patch(name, &parameters, &Patch::Apply(object))
        .await
        .unwrap_or_else(|error| panic!("apply {name}: {error}"));
}

impl Scene {
    /// Returns a docker configuration with one login, as JSON.
    pub fn docker_config(&self, registry: &str, user: &str, password: &str) -> String {
        let auth = ByteString(format!("{user}:{password}").into_bytes());
        json!({"auths": {registry: {"username": user, "password": password, "auth": auth}}})
            .to_string()
    }

    /// Creates an ssh key. Returns its private and its public part.
    pub async fn new_ssh_key(&self) -> (String, String) {
        self.ssh_key(&["-t", "ed25519", "-N", ""]).await
    }

    /// Creates an ssh key with the arguments `how` of `ssh-keygen`. Returns its private and its public part.
    pub async fn ssh_key(&self, how: &[&str]) -> (String, String) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        let path = file.to_str().expect("a path");
        let arguments = [&["-q", "-C", "", "-f", path], how].concat();
        self.cluster.run("ssh-keygen", &arguments).await;
        let read = |file| std::fs::read_to_string(file).expect("a key");
        (read(file.clone()), read(file.with_extension("pub")))
    }
}
