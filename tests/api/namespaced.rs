//! An operator that watches two namespaces, with a Role in each namespace and without cluster-wide rights. Allow-lists in files restrict
//! the values of fields, for example the builder image. The tests share one server.

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::sync::Arc;

use alustan_api::Terraform;
use alustan_tests::rights::{Call, calls};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::pinned::reports;
use crate::server::{Server, operator, root, spawn_guarded, until};
use crate::space::{Space, resource, with};

/// Namespace of the operator.
const SYSTEM: &str = "narrow-system";
const LEASE: &str = "narrow";

struct Narrow {
    server: Arc<Server>,
    account: &'static str,
    /// Watched namespaces.
    spaces: [Space; 2],
    /// A namespace that is not watched.
    other: Space,
}

/// Objects shared by the tests. Clients are not shared, because a client works only in the tokio runtime of the test that created it.
struct Shared {
    server: Arc<Server>,
    account: String,
    watched: [String; 2],
    other: String,
    _process: Child,
}

/// Installation of the operator in its own namespace, with Roles and without a `ClusterRole`.
struct Installed {
    server: Arc<Server>,
    system: &'static str,
}

impl Installed {
    fn begin(server: &Arc<Server>, system: &'static str) -> Self {
        let installed = Self {
            server: server.clone(),
            system,
        };
        server.kubectl(&["create", "namespace", system]).unwrap();
        let base = std::fs::read_to_string(root().join("deploy/kustomize/base/rbac.yaml")).unwrap();
        let own = base
            .split("\n---\n")
            .filter(|object| object.contains("name: alustan-controller-lease\n"));
        installed.apply(system, &own.collect::<Vec<_>>().join("\n---\n"));
        installed
    }

    fn apply(&self, namespace: &str, text: &str) {
        let file = self.server.folder().join(format!("{namespace}.yaml"));
        let text = text
            .replace("alustan-system", self.system)
            .replace("[alustan]", &format!("[{LEASE}]"))
            .replace("[alustan-signing-key]", &format!("[{LEASE}-signing-key]"));
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();
        let apply = ["apply", "--server-side", "-n", namespace, "-f", file];
        self.server.kubectl(&apply).unwrap();
    }

    /// Creates the Role of the operator and its RoleBinding in a watched namespace.
    fn admit(&self, namespace: &str) {
        let rights = ["kustomize", "deploy/kustomize/watched"];
        self.apply(namespace, &self.server.kubectl(&rights).unwrap());
    }

    fn account(&self) -> String {
        format!("system:serviceaccount:{}:alustan-controller", self.system)
    }

    /// Returns the command that starts an operator for `namespaces`.
    fn operator(&self, namespaces: &[&str]) -> Command {
        let mut operator = operator(&self.server).unwrap();
        operator
            .args(["--listen", "127.0.0.1:0", "--lease", LEASE])
            .arg(format!("--watch-namespaces={}", namespaces.join(",")))
            .env(
                "KUBECONFIG",
                self.server.kubeconfig_file_of(&self.account()),
            );
        operator
    }
}

impl Shared {
    async fn start() -> Self {
        let server = Server::of_its_own().await;
        let space = async || Space::of(&server, json!({})).await;
        let (spaces, other) = ([space().await, space().await], space().await);
        let installed = Installed::begin(&server, SYSTEM);
        for space in &spaces {
            installed.admit(&space.namespace);
            space.applied("applied").await;
        }
        let watched = spaces.each_ref().map(|space| space.namespace.as_str());
        let mut operator = installed.operator(&watched);
        operator
            .arg("--allowed")
            .arg(server.folder().join("allowed"));
        let process = spawn_guarded(&mut operator, &server.folder().join("operator.log"));
        Self {
            server,
            account: installed.account(),
            watched: spaces.map(|space| space.namespace),
            other: other.namespace,
            _process: process,
        }
    }
}

impl Narrow {
    async fn shared() -> Self {
        static SHARED: OnceCell<Shared> = OnceCell::const_new();
        let shared = SHARED.get_or_init(Shared::start).await;
        let server = &shared.server;
        let space = async |namespace: &String| Space {
            server: server.clone(),
            client: server.client().await,
            namespace: namespace.clone(),
        };
        let [one, two] = &shared.watched;
        Self {
            server: server.clone(),
            account: &shared.account,
            spaces: [space(one).await, space(two).await],
            other: space(&shared.other).await,
        }
    }

    /// Asserts that each request of the operator is in a watched namespace or in the operator's namespace, and allowed by its Roles.
    fn keeps_to_its_namespaces(&self) {
        let mut places: BTreeSet<&str> = self
            .spaces
            .iter()
            .map(|space| space.namespace.as_str())
            .collect();
        places.insert(SYSTEM);
        let all: Vec<Call> = calls(self.server.audit())
            .filter(|call| call.user == self.account)
            .collect();
        assert!(!all.is_empty());
        for call in all {
            assert!(!call.forbidden, "{}", call.what);
            assert!(places.contains(call.namespace.as_str()), "{}", call.what);
            let own = call.namespace == SYSTEM;
            let lease = call.right.resource == "leases";
            let signing_key = own && call.right.resource == "secrets";
            assert_eq!(own, lease || signing_key, "{}", call.what);
        }
    }

    fn limit(&self, key: &str, text: &str) {
        let folder = self.server.folder().join("allowed");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(key), text).unwrap();
    }
}

/// Waits until condition `Ready` of a resource has the reason `wanted`. Returns the message of the condition.
async fn reason(space: &Space, name: &str, wanted: &str) -> String {
    let api = space.api::<Terraform>();
    until(wanted, async || {
        let tf = api.get(name).await.unwrap();
        let (reason, message) = tf
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .find(|condition| condition.type_ == "Ready")
            .map_or(("", ""), |condition| {
                (condition.reason.as_str(), condition.message.as_str())
            });
        let current = || format!("{reason}: {message}");
        (reason == wanted)
            .then(|| message.to_owned())
            .ok_or_else(current)
    })
    .await
}

#[tokio::test]
async fn namespaced_operator_needs_only_roles_in_its_namespaces() {
    let narrow = Narrow::shared().await;
    for space in narrow.spaces.iter().chain([&narrow.other]) {
        space.apply(&resource("web")).await.unwrap();
    }
    for space in &narrow.spaces {
        reason(space, "web", "RepositoryUnreachable").await;
        let api = space.api::<Terraform>();
        api.delete("web", &DeleteParams::default()).await.unwrap();
        until("its end", async || {
            match api.get_opt("web").await.unwrap() {
                None => Ok(()),
                Some(tf) => Err(format!("{:?}", tf.status)),
            }
        })
        .await;
        destroys(space).await;
    }
    let ignored = narrow.other.api::<Terraform>().get("web").await.unwrap();
    assert_eq!((ignored.status, ignored.metadata.finalizers), (None, None));
    narrow.keeps_to_its_namespaces();
}

/// Deletes the resource `applied` and simulates its destroy run. Asserts that the namespace has no label `alustan.io/holds-state`.
async fn destroys(space: &Space) {
    let raw = space.raw();
    raw.delete("applied", &DeleteParams::default())
        .await
        .unwrap();
    let (jobs, secrets) = (space.api::<Job>(), space.api::<Secret>());
    until("its end", async || {
        if raw.get_opt("applied").await.unwrap().is_none() {
            return Ok(());
        }
        if jobs.get_opt("applied-destroy-2").await.unwrap().is_some() {
            // `reports` fails if the operator has already read the report and deleted its Secret.
            let _known_already = reports(&secrets, "applied", 2).await;
        }
        Err("it is there".to_owned())
    })
    .await;
    let namespaces: Api<Namespace> = Api::all(space.client.clone());
    let labels = namespaces
        .get(&space.namespace)
        .await
        .unwrap()
        .metadata
        .labels
        .unwrap_or_default();
    assert!(!labels.contains_key(alustan_api::labels::HOLDS_STATE));
}

#[tokio::test]
async fn operator_refuses_disallowed_builders_and_accounts() {
    let narrow = Narrow::shared().await;
    let [space, _] = &narrow.spaces;
    let builder = "/containerRegistry/builder/image";
    let tf = with(
        resource("built"),
        builder,
        Some(json!("evil.test/builder:1")),
    );
    narrow.limit("builders", "registry.test/builder:1\n");
    space.apply(&tf).await.unwrap();
    let message = reason(space, "built", "NotAllowed").await;
    for part in ["evil.test/builder:1", "registry.test/builder:1"] {
        assert!(message.contains(part), "{message}");
    }
    narrow.limit("builders", "*");
    reason(space, "built", "RepositoryUnreachable").await;

    let account = "/runner/serviceAccountName";
    let tf = with(resource("identified"), account, Some(json!("cloud")));
    space.apply(&tf).await.unwrap();
    reason(space, "identified", "ServiceAccountNotFound").await;
    space
        .create::<ServiceAccount>(json!({"metadata": {"name": "cloud"}}))
        .await;
    let at = alustan_api::RECONCILE_AT;
    let reconcile = |when: &str| json!({"metadata": {"annotations": {at: when}}});
    let raw = space.raw();
    let edit = PatchParams::default();
    raw.patch("identified", &edit, &Patch::Merge(&reconcile("1")))
        .await
        .unwrap();
    let message = reason(space, "identified", "ServiceAccountNotAllowed").await;
    let (_, command) = message.split_once("kubectl ").unwrap();
    let command: Vec<&str> = command.split(' ').collect();
    narrow.server.kubectl(&command).unwrap();
    raw.patch("identified", &edit, &Patch::Merge(&reconcile("2")))
        .await
        .unwrap();
    reason(space, "identified", "RepositoryUnreachable").await;
    narrow.keeps_to_its_namespaces();
}

#[tokio::test]
async fn operator_waits_for_all_watches_and_survives_a_lost_one() {
    const HALVED: &str = "halved-system";
    let server = Narrow::shared().await.server;
    let spaces = [
        Space::of(&server, json!({})).await,
        Space::of(&server, json!({})).await,
    ];
    let [one, other] = &spaces;
    let installed = Installed::begin(&server, HALVED);
    installed.admit(&one.namespace);
    for space in &spaces {
        space.apply(&resource("web")).await.unwrap();
    }
    let namespaces = spaces.each_ref().map(|space| space.namespace.as_str());
    let log = server.folder().join("halved.log");
    let mut process = spawn_guarded(&mut installed.operator(&namespaces), &log);
    until("what is missing to be told", async || {
        let log = std::fs::read_to_string(&log).unwrap();
        let is_logged = log.contains("watch failed") && log.contains(&other.namespace);
        is_logged.then_some(()).ok_or(log)
    })
    .await;
    let ignored = one.api::<Terraform>().get("web").await.unwrap();
    assert_eq!((ignored.status, ignored.metadata.finalizers), (None, None));

    installed.admit(&other.namespace);
    for space in &spaces {
        reason(space, "web", "RepositoryUnreachable").await;
    }
    server
        .kubectl(&[
            "delete",
            "rolebinding",
            "alustan-controller",
            "-n",
            &other.namespace,
        ])
        .unwrap();
    one.apply(&resource("next")).await.unwrap();
    reason(one, "next", "RepositoryUnreachable").await;
    // `leash.sh` ends the operator when its stdin is closed.
    drop(process.stdin.take());
    process.wait().unwrap();
}
