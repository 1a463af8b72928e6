//! Applies of many resources at once, and the same number of bare Jobs in the same image.

use std::time::{Duration, Instant};

use alustan_api::Terraform;
use futures::future::join_all;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};

use crate::Scene;

/// Secret with the credentials of the module.
const CREDENTIALS: &str = "bench-credentials";
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

    /// Measures a Job that runs `init`, `plan` and `apply` in `image`, without the operator.
    pub async fn bare_job(&self, image: String, n: usize) -> Duration {
        let name = format!("floor{n}");
        let script = "cp -r /alustan/module /scratch/module && cd /scratch/module && rm -rf .terraform zzz-alustan* && \
            cp -r /alustan/module/.terraform/modules .terraform/ 2>/dev/null; \
            terraform init -input=false && terraform plan -input=false -out=/scratch/plan && \
            terraform apply -input=false /scratch/plan";
        let job: Job = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"backoffLimit": 0, "template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{
                    "name": "terraform", "image": image, "command": ["bash", "-c", script],
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
            }}},
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

    /// Measures [`Self::SIZE`] concurrent Jobs without the operator, which shows the limit of the host.
    pub async fn bare_jobs(&self, image: &str) -> Duration {
        let start = Instant::now();
        let jobs = 0..Self::SIZE;
        join_all(jobs.map(|n| self.bare_job(image.to_owned(), 100 + n))).await;
        start.elapsed()
    }

    /// Measures the time until [`Self::SIZE`] new resources are Ready. Their image is in the registry: that of repository `bench`.
    pub async fn applies(&self) -> Duration {
        let names: Vec<String> = (0..Self::SIZE).map(|n| format!("crowd{n}")).collect();
        let start = Instant::now();
        join_all(names.iter().map(|name| async {
            self.scene.apply(&self.resource(name, "bench")).await;
            self.scene.ready(name).await;
        }))
        .await;
        start.elapsed()
    }
}
