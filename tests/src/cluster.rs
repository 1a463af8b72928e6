//! The dev cluster.

use std::path::PathBuf;
use std::process::Stdio;

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PostParams};
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::scene::until;

/// Key of the taint that [`Cluster::taint_node`] adds to the node.
pub const TAINT: &str = "alustan.test/dedicated";

/// Returns the folder with the cluster's files: `ALUSTAN_DEV_DIR`, by default `/var/tmp/alustan-dev`.
pub(crate) fn folder() -> PathBuf {
    PathBuf::from(
        std::env::var("ALUSTAN_DEV_DIR").unwrap_or_else(|_| "/var/tmp/alustan-dev".to_owned()),
    )
}

/// Dev cluster of `make cluster-up`, with the operator installed.
#[derive(Clone)]
pub struct Cluster {
    /// Client with all rights.
    pub client: Client,
    /// Folder with the cluster's files: `ALUSTAN_DEV_DIR`, by default `/var/tmp/alustan-dev`.
    pub folder: PathBuf,
    config: Config,
}

impl Cluster {
    /// Connects to the dev cluster.
    pub async fn connect() -> Self {
        // Ignores an error: another test of this process may have installed the crypto provider of rustls.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let folder = folder();
        let file = folder.join("kubeconfig");
        let kubeconfig = Kubeconfig::read_from(&file)
            .unwrap_or_else(|error| panic!("{}: {error}; run `make e2e`", file.display()));
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .expect("a kubeconfig of the dev cluster");
        Self {
            client: Client::try_from(config.clone()).expect("a client"),
            folder,
            config,
        }
    }

    /// Returns a client that authenticates by a bearer token.
    ///
    /// # Errors
    /// The configuration of the cluster has no valid certificate authority.
    pub(crate) fn client_with_token(&self, token: String) -> Result<Client, kube::Error> {
        let mut config = self.config.clone();
        config.auth_info = AuthInfo {
            token: Some(token.into()),
            ..AuthInfo::default()
        };
        Client::try_from(config)
    }

    /// Returns a client that impersonates `user`.
    pub fn client_as(&self, user: &str) -> Client {
        let mut config = self.config.clone();
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).expect("a client")
    }

    /// Returns the user name of [`Self::client`], as the API server reports it.
    pub async fn user(&self) -> String {
        let api: Api<SelfSubjectReview> = Api::all(self.client.clone());
        let question = SelfSubjectReview::default();
        let review = api.create(&PostParams::default(), &question).await;
        let status = review.expect("a review").status;
        let user = status.and_then(|status| status.user_info?.username);
        user.expect("a user")
    }

    /// Returns the root of the repository.
    pub fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// Returns the path of the kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Runs a program with the cluster's kubeconfig. Returns its standard output.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> String {
        let (good, output) = self.output(program, arguments, None).await;
        assert!(good, "{program} {arguments:?}: {output}");
        output
    }

    /// Runs a program with the cluster's kubeconfig and `input`. Returns whether it succeeded and its standard output, followed by its
    /// standard error if it failed.
    pub async fn output(
        &self,
        program: &str,
        arguments: &[&str],
        input: Option<&str>,
    ) -> (bool, String) {
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(Self::root())
            .env("KUBECONFIG", self.kubeconfig())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        let mut stdin = child.stdin.take().expect("a pipe");
        // Ignores an error: a program that does not read its input may end first.
        let _ = stdin.write_all(input.unwrap_or_default().as_bytes()).await;
        drop(stdin);
        let output = child.wait_with_output().await.expect("an exit code");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            text.push_str(&String::from_utf8_lossy(&output.stderr));
        }
        (output.status.success(), text)
    }
}

impl Cluster {
    /// Returns the name of the pod that holds a Lease of the operator. The identity of a replica is this name and a random suffix.
    pub async fn lease_holder(&self, namespace: &str, lease: &str) -> Option<String> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let holder = api.get_opt(lease).await.ok()??.spec?.holder_identity?;
        Some(holder.rsplit_once('_')?.0.to_owned())
    }

    /// Ends the operator's process with SIGKILL, as an out-of-memory kill does.
    pub async fn kill_controller(&self) {
        self.kill("alustan-system", "app.kubernetes.io/name=alustan")
            .await;
    }

    /// Kills the first process of a pod that `selector` matches with SIGKILL, see [`Self::process`].
    pub async fn kill(&self, namespace: &str, selector: &str) {
        let (_, pid) = self.process(namespace, selector).await;
        self.run("kill", &["-KILL", &pid]).await;
    }

    /// Waits until the API server reports a running pod that `selector` matches: a started pod may not be reported as running yet. Returns
    /// its name, and the id of the first process of its first container.
    pub(crate) async fn process(&self, namespace: &str, selector: &str) -> (String, String) {
        let description = format!("a pod of {selector} in {namespace} that runs");
        until(&description, async || {
            let mut processes = Box::pin(self.processes(namespace, selector)).await;
            (!processes.is_empty()).then(|| processes.swap_remove(0))
        })
        .await
    }

    /// Returns the running pods that `selector` matches, each with the id of the first process of its first container.
    pub(crate) async fn processes(&self, namespace: &str, selector: &str) -> Vec<(String, String)> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let running = ListParams::default()
            .labels(selector)
            .fields("status.phase=Running");
        let pods = api.list(&running).await.expect("list pods");
        let process = |pod: Pod| {
            let name = pod.name_any();
            let container = pod.status?.container_statuses?.into_iter().next()?;
            let id = container.container_id?;
            let task = "containerd/state/io.containerd.runtime.v2.task/k8s.io";
            let folder = self
                .folder
                .join(task)
                .join(id.strip_prefix("containerd://")?);
            // A container that has ended has no such file.
            let pid = std::fs::read_to_string(folder.join("init.pid")).ok()?;
            Some((name, pid.trim().to_owned()))
        };
        pods.into_iter().filter_map(process).collect()
    }

    /// Ends the first process of a component with SIGKILL. [`Self::start`] starts it again.
    pub(crate) async fn kill_component(&self, name: &str) {
        let file = self.folder.join(format!("run/{name}.pid"));
        let recorded = std::fs::read_to_string(&file).expect("a recorded pid");
        let pid = recorded.split_whitespace().next().expect("a pid");
        self.run("kill", &["-KILL", pid]).await;
    }

    /// Stops components of the cluster, as in an outage.
    pub async fn stop(&self, parts: &[&str]) {
        self.run("hack/cluster/stop", parts).await;
    }

    /// Starts the components that [`Self::stop`] stopped.
    pub async fn start(&self) {
        self.run("hack/cluster/up", &[]).await;
    }

    /// Blocks connections of pods to the node, the host and other pods, except to the API server, until the returned value is
    /// dropped.
    pub async fn disconnect_pods(&self) -> NetworkOutage {
        let outage = NetworkOutage;
        for rule in NetworkOutage::RULES {
            self.run("bash", &["-c", &NetworkOutage::change("-I", rule)])
                .await;
        }
        outage
    }

    /// Scales the installed operator to `copies` replicas and waits for the rollout.
    pub async fn scale_operator(&self, copies: usize) {
        let operator = ["-n", "alustan-system", "deployment/alustan-controller"];
        let scale = format!("--replicas={copies}");
        self.run("kubectl", &[&["scale", &scale], &operator[..]].concat())
            .await;
        let rollout = ["rollout", "status", "--timeout=120s"];
        self.run("kubectl", &[&rollout, &operator[..]].concat())
            .await;
        if copies == 0 {
            let gone = ["wait", "--for=delete", "pod", "--timeout=60s"];
            let selector = [
                "-n",
                "alustan-system",
                "-l",
                "app.kubernetes.io/name=alustan",
            ];
            self.run("kubectl", &[&gone[..], &selector[..]].concat())
                .await;
        }
    }

    /// Uninstalls the operator as in docs/install.md, regardless of how it was installed. Keeps the CRD and user data.
    pub async fn uninstall_operator(&self) {
        let helm = ["uninstall", "alustan", "-n", "alustan-system", "--wait"];
        let (_, releases) = self
            .output("helm", &["list", "-q", "-n", "alustan-system"], None)
            .await;
        if releases.lines().any(|name| name == "alustan") {
            self.run("helm", &helm).await;
        }
        // This overlay contains the objects of all overlays.
        let overlay = "deploy/kustomize/overlays/prod";
        let delete = ["delete", "-k", overlay, "--ignore-not-found", "-l"];
        let all_but = ["!alustan.io/user-data"];
        self.run("kubectl", &[&delete[..], &all_but].concat()).await;
    }

    /// Replaces any installed operator by that of `make install`.
    pub async fn reinstall_operator(&self) {
        self.uninstall_operator().await;
        // The chart may have installed another version of the CRD.
        let crd = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "-k",
            "deploy/crd",
        ];
        self.run("kubectl", &crd).await;
        self.run("hack/install", &[]).await;
    }

    /// Adds a taint with key [`TAINT`] to the node. New pods without a toleration are not scheduled.
    pub async fn taint_node(&self) {
        let taint = format!("{TAINT}=e2e:NoSchedule");
        self.run("kubectl", &["taint", "node", "node1", &taint])
            .await;
    }

    /// Sets the name with which volumes refer to the node, by default `node1`. With another name, existing volumes belong to a node that no
    /// longer exists.
    pub async fn rename_node(&self, name: &str) {
        let label = format!("kubernetes.io/hostname={name}");
        let arguments = ["label", "node", "node1", "--overwrite", &label];
        self.run("kubectl", &arguments).await;
    }

    /// Repairs the cluster after a test: starts all components, uncordons the node, removes its taint and restores its name, scales the
    /// operator to one replica.
    pub async fn mend(&self) {
        self.start().await;
        self.run("kubectl", &["uncordon", "node1"]).await;
        self.rename_node("node1").await;
        // Ignores an error: the node usually has no such taint.
        let taint = format!("{TAINT}-");
        let _untainted = self
            .output("kubectl", &["taint", "node", "node1", &taint], None)
            .await;
        self.scale_operator(1).await;
    }
}

/// Keeps pods disconnected until dropped.
pub struct NetworkOutage;

impl NetworkOutage {
    /// iptables rules for the rejected connections: connections to the node except to the API server, and connections beyond the node.
    /// Established connections are rejected, too: a pod keeps connections for later requests.
    const RULES: [&str; 3] = ["INPUT -p tcp ! --dport 6443", "INPUT -p udp", "FORWARD"];

    /// Returns a command that inserts (`-I`) or deletes (`-D`) `rule`.
    fn change(how: &str, rule: &str) -> String {
        format!(
            ". hack/lib/common.sh && . hack/cluster/parts/names.sh && hack/cluster/in $IPTABLES {how} {rule} \
             -s $POD_CIDR -m conntrack --ctdir ORIGINAL -j REJECT"
        )
    }
}

impl Drop for NetworkOutage {
    fn drop(&mut self) {
        for rule in Self::RULES {
            let command = Self::change("-D", rule);
            let removed = std::process::Command::new("bash")
                .args(["-c", &command])
                .current_dir(Cluster::root())
                .status();
            if !removed.is_ok_and(|status| status.success()) {
                println!("the pods may still be cut off: {command}");
            }
        }
    }
}
