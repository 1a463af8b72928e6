//! Objects that a user can see in the namespace of the test: Jobs, Secrets, events, logs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use alustan_api::run::key;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};
use kube::config::Kubeconfig;
use serde_json::Value;

use super::waits::until_ok;
use crate::Scene;

/// Label selector of all objects that the operator created.
const OURS: &str = "app.kubernetes.io/managed-by=alustan";
/// Kinds of objects that the operator creates.
const KINDS: &str = "job,pod,secret,configmap,pvc,serviceaccount,role,rolebinding";

impl Scene {
    /// Returns the data of a Secret.
    pub async fn data(&self, name: &str) -> BTreeMap<String, String> {
        let secret = self.api::<Secret>().get(name).await.expect("a Secret");
        secret
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
            .collect()
    }

    /// Returns the names of the test's Jobs for `component` (`run` or `build`).
    pub async fn jobs(&self, component: &str) -> Vec<String> {
        let selector = format!("{OURS},app.kubernetes.io/component={component}");
        let list = ListParams::default().labels(&selector);
        let jobs = self.api::<Job>().list(&list).await.expect("list jobs");
        jobs.iter().map(ResourceExt::name_any).collect()
    }

    /// Returns the first pod of `job`.
    pub async fn pod_of(&self, job: &str) -> Pod {
        let selector = format!("batch.kubernetes.io/job-name={job}");
        let list = ListParams::default().labels(&selector);
        let pods = self.api::<Pod>().list(&list).await.expect("list pods");
        pods.items.into_iter().next().expect("a pod")
    }

    /// Returns the current log of a container; empty if it cannot be read.
    pub async fn pod_log(&self, pod: &str, container: &str) -> String {
        let parameters = LogParams {
            container: Some(container.to_owned()),
            ..LogParams::default()
        };
        self.api::<Pod>()
            .logs(pod, &parameters)
            .await
            .unwrap_or_default()
    }

    /// Waits until no object of the operator is left. Deleted pods remain until their containers have stopped.
    pub async fn nothing_left(&self) {
        let columns = "custom-columns=KIND:.kind,NAME:.metadata.name,DELETED:.metadata.deletionTimestamp,\
                       FINALIZERS:.metadata.finalizers";
        until_ok("everything with our labels to go", async || {
            let (succeeded, left) = self.ours(&["--no-headers", "-o", columns]).await;
            let is_empty = succeeded && left.trim().is_empty();
            is_empty.then_some(()).ok_or(left)
        })
        .await;
    }

    /// Lists all objects of the operator with `kubectl get`. Returns whether it succeeded, and its output.
    pub async fn ours(&self, output: &[&str]) -> (bool, String) {
        let mut arguments = vec!["get", KINDS, "-l", OURS, "--ignore-not-found"];
        arguments.extend(output);
        self.try_kubectl(&arguments).await
    }

    /// Returns the reasons of the events about the resource `name`.
    pub async fn events(&self, name: &str) -> Vec<String> {
        let fields = format!("involvedObject.name={name},involvedObject.kind=Terraform");
        let list = ListParams::default().fields(&fields);
        let events = self.api::<Event>().list(&list).await.expect("list events");
        events
            .into_iter()
            .filter_map(|event| event.reason)
            .collect()
    }

    /// Returns everything that a user without access to Secrets can read, and the data of the run records. Waits until all runs have ended.
    pub async fn all_that_can_be_read(&self) -> String {
        let kinds = "tf,altrun,job,pod,event,configmap,pvc,role,serviceaccount";
        let mut all = self.kubectl(&["get", kinds, "-o", "yaml"]).await;
        for job in [self.jobs("run").await, self.jobs("build").await].concat() {
            let job = format!("job/{job}");
            all.push_str(&self.kubectl(&["logs", &job, "--all-containers"]).await);
        }
        let selector = format!("{OURS},app.kubernetes.io/component=record");
        let list = ListParams::default().labels(&selector);
        // The run record of a run in progress contains the inputs of the run, which may be secret.
        let data = self
            .until("all runs to end", async || {
                let records = self.api::<Secret>().list(&list).await.ok()?;
                let data: Vec<BTreeMap<String, ByteString>> = records
                    .items
                    .into_iter()
                    .filter_map(|record| record.data)
                    .collect();
                let open = data.iter().any(|data| data.contains_key(key::INPUTS));
                (!open).then_some(data)
            })
            .await;
        for ByteString(value) in data.into_iter().flat_map(BTreeMap::into_values) {
            all.push_str(&String::from_utf8_lossy(&value));
        }
        let controller = [
            "logs",
            "-n",
            "alustan-system",
            "deployment/alustan-controller",
        ];
        all.push_str(&self.cluster.run("kubectl", &controller).await);
        all
    }

    /// Runs `kubectl` in the test's namespace. Returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let (good, output) = self.try_kubectl(arguments).await;
        assert!(good, "kubectl {arguments:?}: {output}");
        output
    }

    /// Runs `kubectl` in the test's namespace. Returns whether it succeeded, and its output.
    pub async fn try_kubectl(&self, arguments: &[&str]) -> (bool, String) {
        let mut all = vec!["-n", &self.namespace];
        all.extend(arguments);
        self.cluster.output("kubectl", &all, None).await
    }

    /// Runs `kubectl alustan` in the test's namespace. Returns its standard output.
    pub async fn alustan(&self, arguments: &[&str]) -> String {
        let program = Self::programs().join("kubectl-alustan");
        let mut all = vec!["-n", &self.namespace];
        all.extend(arguments);
        self.cluster.run(&program.to_string_lossy(), &all).await
    }

    /// Runs `kubectl alustan` as `user` in the test's namespace. Returns its standard output.
    pub async fn alustan_as(&self, user: &str, arguments: &[&str]) -> String {
        let mut kubeconfig =
            Kubeconfig::read_from(self.cluster.folder.join("kubeconfig")).expect("a kubeconfig");
        for named in &mut kubeconfig.auth_infos {
            let auth_info = named.auth_info.get_or_insert_default();
            auth_info.impersonate = Some(user.to_owned());
        }
        let file = tempfile::NamedTempFile::new().expect("a file");
        serde_json::to_writer(&file, &kubeconfig).expect("write the kubeconfig");
        let program = Self::programs().join("kubectl-alustan");
        let kubeconfig = format!("KUBECONFIG={}", file.path().display());
        let mut all = vec![kubeconfig.as_str(), program.to_str().expect("a path")];
        all.extend(["-n", &self.namespace]);
        all.extend(arguments);
        self.cluster.run("env", &all).await
    }

    /// Returns the folder of the programs that cargo built with this program. A test is in a folder `deps` beside them.
    pub fn programs() -> PathBuf {
        let program = std::env::current_exe().expect("the path of this program");
        let folder = program.parent().expect("a folder");
        folder
            .parent()
            .filter(|_| folder.ends_with("deps"))
            .unwrap_or(folder)
            .to_owned()
    }

    /// Runs `kubectl create --dry-run=server` with `object` in `namespace`. Returns whether the object would be admitted, and the
    /// output.
    pub async fn would_create(&self, namespace: &str, object: &Value) -> (bool, String) {
        let arguments = [
            "-n",
            namespace,
            "create",
            "--dry-run=server",
            "-o",
            "name",
            "-f",
            "-",
        ];
        let text = object.to_string();
        self.cluster
            .output("kubectl", &arguments, Some(&text))
            .await
    }
}

/// Returns the text before the first `word` in `text`, at most about 300 bytes.
pub fn around<'a>(text: &'a str, word: &str) -> &'a str {
    let at = text.find(word).unwrap_or_default();
    let from = (0..=at.saturating_sub(300)).rfind(|from| text.is_char_boundary(*from));
    &text[from.unwrap_or_default()..at]
}
