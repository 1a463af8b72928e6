//! A real etcd and kube-apiserver on loopback, without controllers and nodes. `leash.sh` ends each process when the test program ends or
//! crashes.

mod certificates;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use alustan_api::{Terraform, terraform_run};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Client, Config, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Maximum duration of each wait; the machine may be loaded.
pub(crate) const DEADLINE: Duration = Duration::from_mins(3);

/// User name of the operator's ServiceAccount, to which the operator's manifests grant its rights.
pub(crate) const OPERATOR: &str = "system:serviceaccount:alustan-system:alustan-controller";

const AUDIT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";

/// Loopback network of an API server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loopback {
    V4,
    V6,
}

impl Loopback {
    /// Returns the loopback address.
    pub(crate) fn ip(self) -> IpAddr {
        match self {
            Self::V4 => Ipv4Addr::LOCALHOST.into(),
            Self::V6 => Ipv6Addr::LOCALHOST.into(),
        }
    }

    /// Returns the URL of the server at `port`.
    pub(crate) fn url(self, scheme: &str, port: u16) -> String {
        format!("{scheme}://{}", SocketAddr::new(self.ip(), port))
    }
}

/// An API server with the operator's manifests.
pub(crate) struct Server {
    pub(crate) loopback: Loopback,
    folder: PathBuf,
    kubectl: PathBuf,
    kubeconfig: Value,
    /// URL of etcd.
    etcd: String,
    /// Command of kube-apiserver, and its process of `leash.sh`. The server ends when this value is dropped.
    kube_apiserver: Mutex<(Command, Child)>,
    /// Process of `leash.sh` for etcd. The server ends when this value is dropped.
    _etcd: Child,
}

impl Server {
    /// Returns the server shared by tests of schema, ownership and rights. No operator runs against it.
    pub(crate) async fn shared() -> Arc<Self> {
        static SHARED: OnceCell<Result<Arc<Server>, String>> = OnceCell::const_new();
        match SHARED.get_or_init(Self::start).await {
            Ok(server) => server.clone(),
            Err(problem) => panic!("{problem}"),
        }
    }

    /// Starts a server and installs the operator's manifests.
    ///
    /// # Errors
    /// One line with the missing prerequisite and its remedy.
    pub(crate) async fn start() -> Result<Arc<Self>, String> {
        Self::start_with(Loopback::V4, &[]).await
    }

    /// Starts a server with additional command line arguments of kube-apiserver.
    async fn start_with(loopback: Loopback, more: &[&str]) -> Result<Arc<Self>, String> {
        // Ignores an error: another test of this process may have installed the crypto provider of rustls.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let assets = assets()?;
        let folder = tempfile::Builder::new()
            .prefix("alustan-api-")
            .tempdir()
            .map_err(|error| format!("no temporary folder: {error}"))?
            .keep();
        certificates::write(&folder);
        fs::write(folder.join("audit.yaml"), AUDIT).unwrap();
        let [client, peer, secure] = free_ports();
        let etcd = etcd(&assets, &folder, client, peer);
        let mut api_server = api_server(&assets, &folder, client, loopback, secure, more);
        let process = spawn_guarded(&mut api_server, &folder.join("kube-apiserver.log"));
        let server = Self {
            kubectl: assets.join("kubectl"),
            kubeconfig: kubeconfig(&folder, &loopback.url("https", secure)),
            loopback,
            etcd: Loopback::V4.url("http", client),
            kube_apiserver: Mutex::new((api_server, process)),
            _etcd: etcd,
            folder,
        };
        fs::write(server.kubeconfig_file(), server.kubeconfig.to_string()).unwrap();
        for user in certificates::USERS {
            let kubeconfig = server.kubeconfig_signed(user).to_string();
            fs::write(server.kubeconfig_file_signed(user), kubeconfig).unwrap();
        }
        server.wait_until_ready().await?;
        server.install().await;
        Ok(Arc::new(server))
    }

    /// Starts a server for one test. The server ends with the test.
    ///
    /// # Panics
    /// The server does not start.
    pub(crate) async fn of_its_own() -> Arc<Self> {
        Self::of_its_own_on(Loopback::V4).await
    }

    /// Starts a server for one test, at an address of `loopback`.
    ///
    /// # Panics
    /// The server does not start.
    pub(crate) async fn of_its_own_on(loopback: Loopback) -> Arc<Self> {
        Self::of_its_own_with(loopback, &[]).await
    }

    /// Starts a server for one test, without streaming lists, as Kubernetes 1.33 by default.
    ///
    /// # Panics
    /// The server does not start.
    pub(crate) async fn without_streaming_lists() -> Arc<Self> {
        Self::of_its_own_with(Loopback::V4, &["--feature-gates=WatchList=false"]).await
    }

    /// Starts a server for one test, with additional command line arguments of kube-apiserver.
    ///
    /// # Panics
    /// The server does not start.
    pub(crate) async fn of_its_own_with(loopback: Loopback, more: &[&str]) -> Arc<Self> {
        Self::start_with(loopback, more)
            .await
            .unwrap_or_else(|problem| panic!("{problem}"))
    }

    async fn wait_until_ready(&self) -> Result<(), String> {
        let ready = async {
            while self.kubectl(&["get", "--raw", "/readyz"]).is_err() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(DEADLINE, ready).await.map_err(|_| {
            let log =
                fs::read_to_string(self.folder.join("kube-apiserver.log")).unwrap_or_default();
            let last = log.lines().last().unwrap_or("its log is empty");
            format!("kube-apiserver is not ready after {DEADLINE:?}: {last}")
        })
    }

    /// Kills kube-apiserver, and starts it again on the same etcd and port.
    ///
    /// # Panics
    /// The server does not start.
    pub(crate) async fn restart_api_server(&self) {
        {
            let mut kube_apiserver = self.kube_apiserver.lock().unwrap();
            let (command, process) = &mut *kube_apiserver;
            // `leash.sh` kills the server when its stdin is closed.
            drop(process.stdin.take());
            process.wait().unwrap();
            *process = spawn_guarded(command, &self.folder.join("kube-apiserver-2.log"));
        }
        self.wait_until_ready()
            .await
            .unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Removes all revisions before the current one from etcd
    /// (<https://etcd.io/docs/latest/op-guide/maintenance/#history-compaction-v3-api-key-value-database>).
    pub(crate) async fn compact(&self) {
        let post = async |path: &str, body: Value| -> Value {
            let request = reqwest::Client::new()
                .post(format!("{}{path}", self.etcd))
                .body(body.to_string());
            let response = request.send().await.unwrap();
            let status = response.status();
            let body = response.text().await.unwrap();
            assert!(status.is_success(), "{path}: {body}");
            serde_json::from_str(&body).unwrap()
        };
        // Key `a`, which does not exist. The header of each response has the current revision.
        let read = post("/v3/kv/range", json!({"key": "YQ=="})).await;
        let revision = &read["header"]["revision"];
        let compaction = json!({"revision": revision, "physical": true});
        post("/v3/kv/compaction", compaction).await;
    }

    /// Installs the CRD of the Rust types and the operator's manifests.
    async fn install(&self) {
        self.install_crd(&Terraform::crd()).await;
        self.install_crd(&terraform_run::crd()).await;
        let manifests = self
            .kubectl(&["kustomize", "deploy/kustomize/base"])
            .unwrap();
        let file = self.folder.join("manifests.yaml");
        fs::write(&file, manifests).unwrap();
        let file = file.to_str().unwrap().to_owned();
        // Field manager `tests` owns the CRD. The apply conflicts if the CRD in the manifests differs from the Rust types.
        self.kubectl(&["apply", "--server-side", "--validate=strict", "-f", &file])
            .unwrap();
    }

    /// Applies a CRD and waits until it is served.
    pub(crate) async fn install_crd(&self, crd: &CustomResourceDefinition) {
        let api: Api<CustomResourceDefinition> = Api::all(self.client().await);
        let name = crd.name_any();
        let parameters = PatchParams::apply("tests").force().validation_strict();
        api.patch(&name, &parameters, &Patch::Apply(crd))
            .await
            .unwrap();
        let established = await_condition(api, &name, is_crd_established());
        tokio::time::timeout(DEADLINE, established)
            .await
            .expect("the CRD is served in time")
            .unwrap();
    }

    /// Returns a client with all rights.
    pub(crate) async fn client(&self) -> Client {
        client(self.kubeconfig.clone()).await
    }

    /// Returns a client with the rights of `user`.
    pub(crate) async fn client_as(&self, user: &str) -> Client {
        client(self.kubeconfig_of(user)).await
    }

    /// Returns a client that authenticates with the ServiceAccount token `token`.
    pub(crate) async fn client_with(&self, token: &str) -> Client {
        let mut kubeconfig = self.kubeconfig.clone();
        kubeconfig["users"][0]["user"] = json!({ "token": token });
        client(kubeconfig).await
    }

    /// Returns the configuration of a client with all rights.
    pub(crate) async fn client_config(&self) -> Config {
        config(self.kubeconfig.clone()).await
    }

    /// Returns the configuration of a client with the rights of `user`, for a proxy at `url` that authenticates as a client with all rights.
    pub(crate) async fn client_config_behind(&self, url: &str, user: &str) -> Config {
        config(self.kubeconfig_behind(url, user)).await
    }

    /// Returns the path of a kubeconfig like [`Self::client_config_behind`].
    pub(crate) fn kubeconfig_file_behind(&self, url: &str, user: &str) -> PathBuf {
        let file = self.folder.join("kubeconfig-of-proxy");
        fs::write(&file, self.kubeconfig_behind(url, user).to_string()).unwrap();
        file
    }

    fn kubeconfig_behind(&self, url: &str, user: &str) -> Value {
        let mut kubeconfig = self.kubeconfig_of(user);
        kubeconfig["clusters"][0]["cluster"] = json!({"server": url});
        kubeconfig["users"][0]["user"] = json!({"as": user});
        kubeconfig
    }

    /// Returns the path of the kubeconfig with all rights.
    pub(crate) fn kubeconfig_file(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Returns the path of a kubeconfig with the rights of `user`.
    pub(crate) fn kubeconfig_file_of(&self, user: &str) -> PathBuf {
        let file = self.folder.join(user.replace(':', "-"));
        fs::write(&file, self.kubeconfig_of(user).to_string()).unwrap();
        file
    }

    /// Returns the path of a kubeconfig with the ServiceAccount token `token`.
    pub(crate) fn kubeconfig_file_with(&self, token: &str) -> PathBuf {
        let mut kubeconfig = self.kubeconfig.clone();
        kubeconfig["users"][0]["user"] = json!({ "token": token });
        let file = self.folder.join("kubeconfig-with-token");
        fs::write(&file, kubeconfig.to_string()).unwrap();
        file
    }

    /// Returns the path of the kubeconfig with the client certificate of `user`, one of `certificates::USERS`.
    pub(crate) fn kubeconfig_file_signed(&self, user: &str) -> PathBuf {
        assert!(certificates::USERS.contains(&user), "{user}");
        self.folder.join(format!("{user}.kubeconfig"))
    }

    fn kubeconfig_signed(&self, user: &str) -> Value {
        let file = |ending: &str| self.folder.join(format!("{user}.{ending}"));
        let mut kubeconfig = self.kubeconfig.clone();
        kubeconfig["users"][0]["user"] =
            json!({"client-certificate": file("crt"), "client-key": file("key")});
        kubeconfig
    }

    fn kubeconfig_of(&self, user: &str) -> Value {
        let mut kubeconfig = self.kubeconfig.clone();
        kubeconfig["users"][0]["user"]["as"] = user.into();
        // The default namespace of a ServiceAccount is the namespace that contains the ServiceAccount.
        let own = user.strip_prefix("system:serviceaccount:");
        if let Some((namespace, _)) = own.and_then(|own| own.split_once(':')) {
            kubeconfig["contexts"][0]["context"]["namespace"] = namespace.into();
        }
        kubeconfig
    }

    /// Runs `kubectl` in the root of the checkout. Returns its standard output.
    ///
    /// # Errors
    /// The standard error of `kubectl`.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with_stderr(arguments)
            .map(|(output, _)| output)
    }

    /// Runs `kubectl` like [`Self::kubectl`]. Also returns its standard error, such as warnings.
    ///
    /// # Errors
    /// The standard error of `kubectl`.
    pub(crate) fn kubectl_with_stderr(
        &self,
        arguments: &[&str],
    ) -> Result<(String, String), String> {
        let output = self.kubectl_command().args(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        if output.status.success() {
            Ok((String::from_utf8(output.stdout).unwrap(), stderr))
        } else {
            Err(stderr)
        }
    }

    /// Returns a `kubectl` command with all rights, in the root of the checkout.
    pub(crate) fn kubectl_command(&self) -> Command {
        let mut kubectl = Command::new(&self.kubectl);
        kubectl
            .current_dir(root())
            .env("KUBECONFIG", self.kubeconfig_file())
            .env("HOME", &self.folder)
            .stdin(Stdio::null());
        kubectl
    }

    /// Returns all requests so far, from the audit log.
    pub(crate) fn audit(&self) -> Vec<Value> {
        let log = fs::read_to_string(self.folder.join("audit.log")).unwrap();
        // The last line may be incomplete.
        log.lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// Returns a folder that is deleted with the server.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// Returns the root of the checkout.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the path of a program of the workspace. Cargo builds it if necessary.
pub(crate) fn built(program: &str) -> Result<PathBuf, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // Same arguments as `CARGO_BUILD` in hack/lib/common.sh: with other features, cargo would compile dependencies again.
    let mut command = Command::new(cargo);
    command
        .args(["build", "--quiet", "--locked", "--workspace", "--examples"])
        .args(["--bin", program])
        .current_dir(root());
    // Removes variables that `hack/lib/profile` and cargo set for the test program. With these variables, cargo would run the build scripts
    // of dependencies again, and replace libraries that another cargo process uses.
    let is_set = |name: &str| {
        let prefixes = ["CARGO_PKG_", "CARGO_MANIFEST_", "RUSTC_BOOTSTRAP"];
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_set) {
            command.env_remove(name);
        }
    }
    let built = command.status();
    if !built.is_ok_and(|status| status.success()) {
        return Err(format!(
            "{program} does not build: cargo build --workspace --bin {program}"
        ));
    }
    // The test program is in the folder `deps` beside the programs.
    let test_program = std::env::current_exe().unwrap();
    let folder = test_program
        .parent()
        .and_then(|deps| deps.parent())
        .unwrap();
    Ok(folder.join(program))
}

/// Returns the operator's command for `server`, without the listen address.
pub(crate) fn operator(server: &Server) -> Result<Command, String> {
    let mut operator = Command::new(built("alustan-controller")?);
    operator
        .args(["--base-image", "127.0.0.1:1/base:1"])
        .args(["--operator-image", "127.0.0.1:1/operator:1"])
        .args(["--insecure-registry", "127.0.0.1:1"])
        .arg("--cache-dir")
        .arg(server.folder().join("cache"))
        .env("KUBECONFIG", server.kubeconfig_file_of(OPERATOR))
        .env("SIGNAL", "TERM");
    Ok(operator)
}

/// Starts `program` under `leash.sh`, with its output in `log`. The program ends when the returned process is dropped.
pub(crate) fn spawn_guarded(program: &mut Command, log: &Path) -> Child {
    let log = fs::File::create(log).unwrap();
    let mut process = Command::new("sh");
    process
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/api/leash.sh"))
        .arg(program.get_program())
        .args(program.get_args())
        .stdin(Stdio::piped())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    for (name, value) in program.get_envs() {
        process.env(name, value.unwrap_or_default());
    }
    // Runs `leash.sh` in a separate process group, so that Ctrl-C reaches only the test program. `leash.sh` ends `program` once the test
    // program ends.
    std::os::unix::process::CommandExt::process_group(&mut process, 0);
    process.spawn().unwrap()
}

fn assets() -> Result<PathBuf, String> {
    let help = "run `make test`, or `export KUBEBUILDER_ASSETS=$(make envtest-assets)`";
    let folder = std::env::var_os("KUBEBUILDER_ASSETS")
        .map(PathBuf::from)
        .ok_or_else(|| format!("KUBEBUILDER_ASSETS is not set: {help}"))?;
    for name in ["etcd", "kube-apiserver", "kubectl"] {
        if !folder.join(name).exists() {
            let folder = folder.display();
            return Err(format!("KUBEBUILDER_ASSETS={folder} has no {name}: {help}"));
        }
    }
    Ok(folder)
}

/// Returns unused ports, each port at most once per process. The ports are below the ephemeral port range, so that no outgoing connection
/// takes a port before a server listens on it.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const PORTS: Range<u16> = 10_000..30_000;
    // Concurrent test programs start at different ports.
    let first = u16::try_from(std::process::id() % 20_000).unwrap();
    let mut candidates = std::iter::repeat_with(|| {
        let offset = NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(first);
        PORTS.start + offset % (PORTS.end - PORTS.start)
    });
    let mut unused = candidates
        .by_ref()
        .filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    [(); N].map(|()| unused.next().unwrap())
}

/// Starts etcd without fsync: its data does not outlive the tests.
fn etcd(assets: &Path, folder: &Path, client: u16, peer: u16) -> Child {
    let [client, peer] = [client, peer].map(|port| Loopback::V4.url("http", port));
    let mut etcd = Command::new(assets.join("etcd"));
    etcd.arg(format!("--data-dir={}", folder.join("etcd").display()))
        .arg("--unsafe-no-fsync")
        .arg(format!("--listen-client-urls={client}"))
        .arg(format!("--advertise-client-urls={client}"))
        .arg(format!("--listen-peer-urls={peer}"))
        .arg(format!("--initial-advertise-peer-urls={peer}"))
        .arg(format!("--initial-cluster=default={peer}"))
        .env("FOLDER", folder);
    spawn_guarded(&mut etcd, &folder.join("etcd.log"))
}

/// Returns the command of kube-apiserver.
fn api_server(
    assets: &Path,
    folder: &Path,
    etcd: u16,
    loopback: Loopback,
    secure: u16,
    more: &[&str],
) -> Command {
    let services = match loopback {
        Loopback::V4 => "10.96.0.0/16",
        Loopback::V6 => "fd00:96::/112",
    };
    let file = |name: &str| folder.join(name).display().to_string();
    let mut server = Command::new(assets.join("kube-apiserver"));
    server
        .arg(format!("--etcd-servers={}", Loopback::V4.url("http", etcd)))
        .arg(format!("--bind-address={}", loopback.ip()))
        .arg(format!("--advertise-address={}", loopback.ip()))
        .arg("--endpoint-reconciler-type=none")
        .arg(format!("--secure-port={secure}"))
        .arg(format!("--tls-cert-file={}", file("server.crt")))
        .arg(format!("--tls-private-key-file={}", file("server.key")))
        .arg(format!("--client-ca-file={}", file("ca.crt")))
        .arg("--service-account-issuer=https://kubernetes.default.svc")
        .arg(format!(
            "--service-account-key-file={}",
            file("accounts.pub")
        ))
        .arg(format!(
            "--service-account-signing-key-file={}",
            file("accounts.key")
        ))
        .arg(format!("--service-cluster-ip-range={services}"))
        .arg("--authorization-mode=RBAC")
        .arg(format!("--audit-policy-file={}", file("audit.yaml")))
        .arg(format!("--audit-log-path={}", file("audit.log")))
        .arg(format!("--cert-dir={}", file("generated")))
        .args(more);
    server
}

fn kubeconfig(folder: &Path, url: &str) -> Value {
    let file = |name: &str| folder.join(name).display().to_string();
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{
            "name": "test",
            "cluster": {"server": url, "certificate-authority": file("ca.crt")},
        }],
        "users": [{
            "name": "admin",
            "user": {"client-certificate": file("admin.crt"), "client-key": file("admin.key")},
        }],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
    })
}

async fn client(kubeconfig: Value) -> Client {
    Client::try_from(config(kubeconfig).await).unwrap()
}

async fn config(kubeconfig: Value) -> Config {
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .unwrap()
}

/// Waits until `wanted` returns a value. Panics with the last error of `wanted` after [`DEADLINE`].
pub(crate) async fn until<T>(what: &str, wanted: impl AsyncFn() -> Result<T, String>) -> T {
    let since = Instant::now();
    loop {
        match wanted().await {
            Ok(value) => return value,
            Err(not_yet) => assert!(since.elapsed() < DEADLINE, "waited for {what}: {not_yet}"),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
