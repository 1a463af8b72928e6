//! The page of `kubectl alustan ui` in Chromium. No operator runs: the tests write the objects that the operator would write.

mod accessibility;
mod figures;
mod hostile;
mod live;
mod permissions;
mod showcase;
mod walk;
mod webdriver;

use std::sync::Arc;

use serde_json::json;

use crate::as_operator::{AsOperator, awaiting, planned};
use crate::policies::{bind, install};
use crate::server::{Server, until};
use crate::space::{Space, resource};
use crate::ui::Ui;
use webdriver::{Browser, Settings};

const WITH_JAVASCRIPT: Settings = Settings { javascript: true };
const WITHOUT_JAVASCRIPT: Settings = Settings { javascript: false };

/// A namespace, and the page of a user who may approve plans and read logs there.
struct Stage {
    space: Space,
    operator: AsOperator,
    ui: Ui,
}

impl Stage {
    /// Creates the namespace, and starts the page of `alice`.
    async fn new() -> Self {
        let space = Space::new().await;
        let log_reader = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "log-reader", "namespace": space.namespace},
            "rules": [
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
                {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
            ],
        });
        install(
            &space,
            &[
                log_reader,
                bind(&space, "alice", "Role", "log-reader"),
                bind(&space, "alice", "ClusterRole", "alustan-approver"),
            ],
        );
        until_allowed(&space.server, "alice", "approve", &space.namespace).await;
        Self {
            operator: AsOperator::new(&space.server, &space.namespace).await,
            ui: Ui::start(&space.server, "alice", &space.namespace).await,
            space,
        }
    }

    /// Creates the resource `name` without a status.
    async fn create(&self, name: &str) {
        self.space.apply(&resource(name)).await.unwrap();
    }

    /// Creates the resource `network`, whose run 1 created the plan `0123`, which waits for approval.
    async fn create_awaiting(&self) {
        self.create("network").await;
        self.operator.record("network", 1, planned("0123")).await;
        self.operator.set_status("network", awaiting("0123")).await;
    }

    /// Returns the path of the page of the resource `name`.
    fn path(&self, name: &str) -> String {
        format!("/ns/{}/tf/{name}", self.space.namespace)
    }

    /// Starts a browser that shows the list.
    async fn browser(&self, settings: Settings) -> Browser {
        let browser = Browser::start(settings).await;
        browser.open(&self.ui.sign_in).await;
        browser
    }
}

/// Whether `user` may execute `verb` on resources in `namespace`, according to `kubectl auth can-i`.
fn may(server: &Server, user: &str, verb: &str, namespace: &str) -> bool {
    let question = [
        "auth",
        "can-i",
        verb,
        "terraforms.alustan.io",
        "-n",
        namespace,
        "--as",
        user,
    ];
    // Exit code 1 is the answer `no`.
    server.kubectl(&question).is_ok()
}

/// Waits until the API server knows the role bindings of `user`.
async fn until_allowed(server: &Arc<Server>, user: &str, verb: &str, namespace: &str) {
    until(&format!("{verb} of {user}"), async || {
        may(server, user, verb, namespace)
            .then_some(())
            .ok_or_else(|| "not allowed".to_owned())
    })
    .await;
}
