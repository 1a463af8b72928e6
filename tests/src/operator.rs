//! Operators that a test runs on the host.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::Api;
use tokio::process::{Child, Command};

use crate::{Cluster, Scene};

/// Maximum time until an operator reaches the step at which it crashes.
const DEADLINE: Duration = Duration::from_mins(2);
/// Number of the signal with which an operator kills itself at the step `die_at` of [`Operators::start`].
const SIGKILL: i32 = 9;

/// Starts operators with the configuration of the installed one, limited to one namespace.
pub struct Operators {
    namespace: String,
    /// Whether the operators watch only `namespace`.
    narrow: bool,
    cluster: Cluster,
    environment: Vec<(String, String)>,
    cache: tempfile::TempDir,
}

/// Running operator. It is killed when dropped.
pub struct Operator {
    process: Child,
    log: PathBuf,
}

impl Operators {
    /// Returns operators for the namespace of `scene`. The installed operator must not run.
    pub async fn of(scene: &Scene) -> Self {
        let api: Api<Deployment> = Api::namespaced(scene.cluster.client.clone(), "alustan-system");
        let installed = api.get("alustan-controller").await.expect("an operator");
        let pod = installed.spec.and_then(|spec| spec.template.spec);
        let container = pod.and_then(|mut pod| pod.containers.pop());
        let environment = container
            .and_then(|container| container.env)
            .unwrap_or_default();
        Self {
            namespace: scene.namespace.clone(),
            narrow: true,
            cluster: scene.cluster.clone(),
            environment: environment
                .into_iter()
                .filter_map(|variable| Some((variable.name, variable.value?)))
                .collect(),
            cache: tempfile::tempdir().expect("a folder"),
        }
    }

    /// Makes the operators watch all namespaces.
    #[must_use]
    pub fn everywhere(mut self) -> Self {
        self.narrow = false;
        self
    }

    /// Sets another flag, as an environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts an operator that crashes at the step `die_at`. All operators have the same pod name, as after a restart of the pod.
    pub fn start(&self, die_at: Option<&str>) -> Operator {
        println!(
            "{}: an operator starts; the end of it: {die_at:?}",
            self.namespace
        );
        let folder = &self.cluster.folder;
        let log = folder.join(format!("log/operator-{}.log", self.namespace));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log");
        // Each wrapper script replaces itself by the next program (`exec`), so that `process` is the operator.
        let process = Command::new("hack/cluster/in")
            .current_dir(Cluster::root())
            .arg(program())
            .env("ALUSTAN_LISTEN", "127.0.0.1:0")
            .envs(self.environment.iter().cloned())
            .envs(
                self.narrow
                    .then_some([
                        ("ALUSTAN_WATCH_NAMESPACES", self.namespace.clone()),
                        ("ALUSTAN_LEASE", format!("alustan-{}", self.namespace)),
                    ])
                    .into_iter()
                    .flatten(),
            )
            .env("ALUSTAN_POD_NAME", &self.namespace)
            .env("ALUSTAN_CA_FILE", folder.join("pki/ca.crt"))
            .env("ALUSTAN_CACHE_DIR", self.cache.path())
            .env("KUBECONFIG", folder.join("kubeconfig"))
            .envs(die_at.map(|point| ("ALUSTAN_DIE_AT", point)))
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .kill_on_drop(true)
            .spawn()
            .expect("an operator");
        Operator { process, log }
    }
}

/// Returns the path of the operator that cargo built with this test.
fn program() -> PathBuf {
    let program = Scene::programs().join("alustan-controller");
    assert!(
        program.is_file(),
        "no {}: run `make e2e`",
        program.display()
    );
    program
}

impl Operator {
    /// Waits until the operator has killed itself.
    pub async fn died(mut self) {
        let signal = tokio::time::timeout(DEADLINE, self.process.wait())
            .await
            .unwrap_or_else(|_| {
                panic!(
                    "it came to no such step within {DEADLINE:?}: {}",
                    self.log.display()
                )
            })
            .expect("an exit code")
            .signal();
        assert_eq!(signal, Some(SIGKILL), "see {}", self.log.display());
    }

    /// Kills the operator with SIGKILL.
    pub async fn kill(mut self) {
        self.process.kill().await.expect("kill the operator");
    }
}
