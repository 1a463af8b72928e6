//! What the scene's user sees: Jobs, Secrets, events, logs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use alustan_api::run::key;
use k8s_openapi::ByteString;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::ResourceExt;
use kube::api::{ListParams, LogParams};
use serde_json::Value;

use crate::Scene;

/// Selects everything that the operator made.
const OURS: &str = "app.kubernetes.io/managed-by=alustan";
/// Kinds of what the operator makes.
const KINDS: &str = "job,pod,secret,configmap,pvc,serviceaccount,role,rolebinding";

impl Scene {
    /// The data of a Secret.
    pub async fn data(&self, name: &str) -> BTreeMap<String, String> {
        let secret = self.api::<Secret>().get(name).await.expect("a Secret");
        let data = secret.data.unwrap_or_default().into_iter();
        data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned()))
            .collect()
    }

    /// Names of the scene's Jobs for `component` (`run` or `build`).
    pub async fn jobs(&self, component: &str) -> Vec<String> {
        let selector = format!("{OURS},app.kubernetes.io/component={component}");
        let list = ListParams::default().labels(&selector);
        let jobs = self.api::<Job>().list(&list).await.expect("list jobs");
        jobs.iter().map(ResourceExt::name_any).collect()
    }

    /// The first pod of `job`.
    pub async fn pod_of(&self, job: &str) -> Pod {
        let selector = format!("batch.kubernetes.io/job-name={job}");
        let list = ListParams::default().labels(&selector);
        let pods = self.api::<Pod>().list(&list).await.expect("list pods");
        pods.items.into_iter().next().expect("a pod")
    }

    /// What a container of a pod has printed so far.
    pub async fn pod_log(&self, pod: &str, container: &str) -> String {
        let parameters = LogParams {
            container: Some(container.to_owned()),
            ..LogParams::default()
        };
        let log = self.api::<Pod>().logs(pod, &parameters).await;
        log.unwrap_or_default()
    }

    /// Waits until nothing that the operator made is left; pods may take a moment.
    pub async fn nothing_left(&self) {
        self.until("everything with our labels to go", async || {
            let (_, left) = self.ours(&["-o", "name"]).await;
            left.trim().is_empty().then_some(())
        })
        .await;
    }

    /// Everything that the operator made, as `kubectl get` shows it.
    pub async fn ours(&self, output: &[&str]) -> (bool, String) {
        let mut arguments = vec!["get", KINDS, "-l", OURS, "--ignore-not-found"];
        arguments.extend(output);
        self.try_kubectl(&arguments).await
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

    /// All that somebody who may not read Secrets can read, and what is left in the run records.
    pub async fn all_that_can_be_read(&self) -> String {
        let kinds = "tf,job,pod,event,configmap,pvc,role,serviceaccount";
        let mut all = self.kubectl(&["get", kinds, "-o", "yaml"]).await;
        for job in [self.jobs("run").await, self.jobs("build").await].concat() {
            let job = format!("job/{job}");
            all.push_str(&self.kubectl(&["logs", &job, "--all-containers"]).await);
        }
        let selector = format!("{OURS},app.kubernetes.io/component=record");
        let list = ListParams::default().labels(&selector);
        // A record has the inputs of a run, which may be secret, as long as the run goes on.
        let data = self
            .until("all runs to end", async || {
                let records = self.api::<Secret>().list(&list).await.ok()?;
                let data = records.items.into_iter().filter_map(|record| record.data);
                let data: Vec<BTreeMap<String, ByteString>> = data.collect();
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

    /// `kubectl` in the scene's namespace.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        let (good, said) = self.try_kubectl(arguments).await;
        assert!(good, "kubectl {arguments:?}: {said}");
        said
    }

    /// `kubectl` in the scene's namespace: whether it succeeded, and what it said.
    pub async fn try_kubectl(&self, arguments: &[&str]) -> (bool, String) {
        let mut all = vec!["-n", &self.namespace];
        all.extend(arguments);
        self.cluster.output("kubectl", &all, None).await
    }

    /// Runs `kubectl alustan` in the scene's namespace. Returns its standard output.
    pub async fn alustan(&self, arguments: &[&str]) -> String {
        let program = Self::programs().join("kubectl-alustan");
        let mut all = vec!["-n", &self.namespace];
        all.extend(arguments);
        self.cluster.run(&program.to_string_lossy(), &all).await
    }

    /// The folder of the programs that cargo built with this test.
    pub fn programs() -> PathBuf {
        let test = std::env::current_exe().expect("the path of this program");
        let programs = test.ancestors().nth(2).expect("the folder of programs");
        programs.to_owned()
    }

    /// `kubectl create -f -` of `object` in `namespace`, which only asks whether it would be
    /// admitted.
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

/// What stands before `word` in `text`.
pub fn around<'a>(text: &'a str, word: &str) -> &'a str {
    let at = text.find(word).unwrap_or_default();
    let from = (0..=at.saturating_sub(300)).rfind(|from| text.is_char_boundary(*from));
    &text[from.unwrap_or_default()..at]
}
