//! Applies of many resources at once, and the same number of Jobs of the same image without the operator.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use alustan_api::Terraform;
use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};

use crate::Scene;
use crate::apply_phases::{Applies, ApplyPhases};

/// Secret with the credentials of the module.
const CREDENTIALS: &str = "bench-credentials";
/// Label of the pods of bare Jobs.
const BARE: &str = "bench-bare-job";
/// Maximum duration of a bare Job.
const DEADLINE: Duration = Duration::from_mins(3);

/// Resources of one module in the namespace of a scene.
#[derive(Clone, Copy)]
pub struct Crowd<'a> {
    scene: &'a Scene,
}

impl<'a> Crowd<'a> {
    /// Text of the module.
    pub const MODULE: &'static str = include_str!("../bench/main.tf");
    /// Number of concurrent applies.
    pub const SIZE: usize = 30;

    /// Creates the Secret with the credentials of the module.
    pub async fn new(scene: &'a Scene) -> Self {
        scene.provider_credentials(CREDENTIALS).await;
        Self { scene }
    }

    /// Returns a resource for the test's repository `repository`.
    pub fn resource(&self, name: &str, repository: &str) -> Value {
        let mut tf = self.scene.resource(name);
        tf["spec"]["gitRepo"]["url"] = json!(self.scene.https(repository));
        tf["spec"]["gitRepo"]["interval"] = json!("2s");
        tf["spec"]["containerRegistry"]["imageName"] = json!(format!(
            "registry.alustan.test:5000/{}/bench",
            self.scene.namespace
        ));
        tf["spec"]["variables"] = json!({"prefix": name, "namespace": self.scene.namespace});
        tf["spec"]["runner"] = json!({"envFromSecrets": [{"name": CREDENTIALS}]});
        tf
    }

    /// Returns the image of the resource `name`, by digest.
    pub async fn image(&self, name: &str) -> String {
        let tf = self.scene.api::<Terraform>().get(name).await;
        let status = tf.expect("a resource").status.expect("a status");
        let digest = status.image.and_then(|image| image.digest);
        format!(
            "registry.alustan.test:5000/{}/bench@{}",
            self.scene.namespace,
            digest.expect("a digest")
        )
    }

    /// Command of a bare Job that runs `init`, `plan` and `apply` of the module in its image.
    pub const APPLY: &'static str = "cp -r /alustan/module /scratch/module && cd /scratch/module && rm -rf .terraform zzz-alustan* && \
        cp -r /alustan/module/.terraform/modules .terraform/ 2>/dev/null; \
        terraform init -input=false && terraform plan -input=false -out=/scratch/plan && \
        terraform apply -input=false /scratch/plan";
    /// Command of a bare Job that does nothing: its duration is that of the pod alone.
    pub const NOTHING: &'static str = "true";

    /// Measures a Job that runs `command` in `image`, without the operator. `n` is its number among the Jobs that exist.
    pub async fn bare_job(&self, image: &str, command: &str, n: usize) -> Duration {
        let name = format!("floor{n}");
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {
                "metadata": {"labels": {BARE: "true"}},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{
                        "name": "terraform", "image": image, "command": ["bash", "-c", command],
                        "env": [
                            {"name": "TF_VAR_prefix", "value": name},
                            {"name": "TF_VAR_namespace", "value": self.scene.namespace},
                            {"name": "TF_IN_AUTOMATION", "value": "1"},
                            {"name": "TF_CLI_CONFIG_FILE", "value": "/scratch/terraformrc"},
                        ],
                        "envFrom": [{"secretRef": {"name": CREDENTIALS}}],
                        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                        // The same as of a run. Without requests, the kernel would prefer all other processes of the host.
                        "resources": {
                            "requests": {"cpu": "50m", "memory": "128Mi"},
                            "limits": {"memory": "2Gi"},
                        },
                    }],
                    "volumes": [{"name": "scratch", "emptyDir": {}}],
                    "securityContext": {"fsGroup": 65532},
                },
            }},
        }))
        .expect("a Job");
        let api = self.scene.api::<Job>();
        let start = Instant::now();
        let created = api.create(&PostParams::default(), &job).await;
        created.expect("create the Job");
        let completed = await_condition(api.clone(), &name, conditions::is_job_completed());
        tokio::time::timeout(DEADLINE, completed)
            .await
            .expect("the bare Job to complete")
            .expect("a watch");
        let time = start.elapsed();
        let deleted = api.delete(&name, &DeleteParams::background()).await;
        deleted.expect("delete the Job");
        time
    }

    /// Measures [`Self::SIZE`] concurrent Jobs without the operator, which shows the limit of the host. Returns when their pods are deleted.
    pub async fn bare_jobs(&self, image: &str, command: &str) -> Vec<Duration> {
        let jobs = (0..Self::SIZE).map(|n| self.bare_job(image, command, 100 + n));
        let times = join_all(jobs).await;
        let pods = self.scene.api::<Pod>();
        let bare = ListParams::default().labels(BARE);
        self.scene
            .until("no pod of a bare Job", async || {
                let left = pods.list_metadata(&bare).await.ok()?;
                left.items.is_empty().then_some(())
            })
            .await;
        times
    }

    /// Measures the applies of [`Self::SIZE`] new resources. Their image is in the registry: that of repository `bench`.
    pub async fn applies(&self) -> Applies {
        let names: BTreeSet<String> = (0..Self::SIZE).map(|n| format!("crowd{n}")).collect();
        let phases = ApplyPhases::watch(self.scene).await;
        let start = Instant::now();
        join_all(names.iter().map(async |name| {
            self.scene.apply(&self.resource(name, "bench")).await;
        }))
        .await;
        phases.ready(&names, start).await
    }
}
