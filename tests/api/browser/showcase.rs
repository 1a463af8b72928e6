//! Resources with realistic content, in two namespaces. For checks of all pages, and for the screenshots of the docs.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::until_allowed;
use crate::as_operator::{AsOperator, ago, applying, status};
use crate::policies::install;
use crate::server::Server;
use crate::space::{Space, with_all, with_spec};

pub(super) const PLATFORM: &str = "platform";
pub(super) const PAYMENTS: &str = "payments";

/// User who may read and approve in all namespaces.
pub(super) const USER: &str = "carol";

/// Id of the plan of `payments/database`, which waits for approval.
const PLAN: &str = "7d3f0c52";

const REVISION: &str = "5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f80";

/// Creates the namespaces and resources, and the permissions of [`USER`].
pub(super) async fn create() -> Arc<Server> {
    let server = Server::shared().await;
    for name in [PLATFORM, PAYMENTS] {
        let namespace: Namespace =
            serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::all(server.client().await)
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }
    let platform = space(&server, PLATFORM).await;
    let payments = space(&server, PAYMENTS).await;
    install(&platform, &bindings());
    platform_resources(&platform).await;
    payments_resources(&payments).await;
    for verb in ["approve", "suspend"] {
        until_allowed(&server, USER, verb, PAYMENTS).await;
    }
    server
}

async fn space(server: &Arc<Server>, namespace: &str) -> Space {
    Space {
        client: server.client().await,
        server: server.clone(),
        namespace: namespace.to_owned(),
    }
}

/// Returns the bindings of [`USER`] to roles in all namespaces.
pub(super) fn bindings() -> [Value; 2] {
    ["alustan-approver", "alustan-operator"].map(binding)
}

fn binding(role: &str) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": format!("{USER}-{role}")},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    })
}

/// Creates a resource with the module `path` of the repository of its namespace.
async fn create_resource(space: &Space, name: &str, spec: Value) {
    let namespace = &space.namespace;
    let image = format!("registry.example.com/{namespace}/{name}");
    let base = with_spec(
        name,
        json!({
            "gitRepo": {"url": format!("https://git.example.com/{namespace}/infrastructure"), "path": name},
            "containerRegistry": {"imageName": image},
        }),
    );
    let resource = with_all(base, spec);
    let raw: Api<DynamicObject> = space.raw();
    let parameters = PatchParams::apply("user").validation_strict();
    raw.patch(name, &parameters, &Patch::Apply(&resource))
        .await
        .unwrap();
}

/// Returns the status after run `run`, with all conditions up to `Ready`.
fn with_source(mut status: Value, run: i64, since: i64) -> Value {
    let condition = |kind: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": ago(since + 120),
        })
    };
    let conditions = status["conditions"].as_array_mut().unwrap();
    for present in conditions.iter_mut() {
        present["lastTransitionTime"] = json!(ago(since));
    }
    conditions.extend([
        condition("SourceReady", "Fetched", "Revision 5d6e7f80 of branch main"),
        condition("ImageReady", "Built", "The image is in the registry"),
        condition("DependenciesReady", "Ready", "All dependencies are ready"),
        condition(
            "InSync",
            "Applied",
            "The last drift check found no differences",
        ),
    ]);
    status["source"] = json!({"revision": REVISION, "context": "sha256:0f1e2d3c4b5a"});
    status["engine"] = json!({"name": "opentofu", "version": "1.11.1"});
    status["run"] = json!(run);
    status
}

/// Returns the status after run `run`, which applied `count` objects `since` seconds ago.
pub(super) fn applied(run: i64, since: i64, count: i64) -> Value {
    let message = format!("Revision 5d6e7f80 is applied: {count} objects");
    let mut status = with_source(status("Success", "Applied", &message), run, since);
    status["lastApplied"] =
        json!({"revision": REVISION, "configHash": "9b8c7d6e", "time": ago(since)});
    status["inventory"] = json!({"count": count, "run": run});
    status
}

async fn platform_resources(space: &Space) {
    let operator = AsOperator::new(&space.server, &space.namespace).await;
    create_resource(space, "network", json!({})).await;
    let mut network = applied(14, 5400, 42);
    network["outputs"] = json!({
        "secretName": "network-outputs",
        "values": {"vpc_id": "vpc-0f3a9c1d2b4e5f607", "private_subnets": ["subnet-0a1b2c3d", "subnet-1b2c3d4e"]},
    });
    operator.set_status("network", network).await;
    for (number, subject) in [
        (14, "network: add a subnet for the databases"),
        (13, "network: tag all subnets"),
    ] {
        let fields = json!({
            "spec": {
                "trigger": "commit 1a2b3c4..5d6e7f8", "revision": REVISION, "commit": {"subject": subject, "author": "Ada Example"},
                "startedAt": ago(5500 + (14 - number) * 86_400),
            },
            "status": {"summary": "+4 ~0 -0", "finishedAt": ago(5400 + (14 - number) * 86_400)},
        });
        operator.record("network", number, fields).await;
    }

    create_resource(space, "dns", json!({"/dependsOn": [{"name": "network"}]})).await;
    let mut dns = applied(9, 86_000, 17);
    dns["state"] = json!("Drifted");
    dns["message"] = json!("The drift check found 2 differences; correct them with a reconcile");
    dns["conditions"][0]["status"] = json!("False");
    dns["conditions"][0]["reason"] = json!("DriftDetected");
    let conditions = dns["conditions"].as_array_mut().unwrap();
    let in_sync = conditions
        .iter_mut()
        .find(|condition| condition["type"] == "InSync");
    let in_sync = in_sync.unwrap();
    in_sync["status"] = json!("False");
    in_sync["reason"] = json!("DriftDetected");
    in_sync["message"] = json!("The last drift check found 2 differences");
    dns["drift"] = json!({
        "since": ago(4200), "add": 0, "change": 2, "destroy": 0,
        "resources": [
            {"address": "aws_route53_record.a[\"www\"]", "action": "update"},
            {"address": "aws_route53_record.a[\"api\"]", "action": "update"},
        ],
    });
    operator.set_status("dns", dns).await;

    create_resource(
        space,
        "cluster",
        json!({"/dependsOn": [{"name": "network"}, {"name": "dns"}]}),
    )
    .await;
    let message = "Run 22 applies the plan: 3 of 5 objects are complete";
    let mut cluster = with_source(applying("cluster", 22), 22, 95);
    cluster["message"] = json!(message);
    operator.set_status("cluster", cluster).await;

    create_resource(
        space,
        "registry",
        json!({"/dependsOn": [{"name": "network"}]}),
    )
    .await;
    let message = "The plan creates 3 objects and waits for approval";
    let awaiting = status("AwaitingApproval", "AwaitingApproval", message);
    let mut registry = with_source(awaiting, 1, 12_600);
    registry["plan"] = json!({
        "summary": "+3 ~0 -0", "id": "b4e81c96", "pendingApproval": true, "add": 3, "change": 0, "destroy": 0,
    });
    operator.set_status("registry", registry).await;

    create_resource(
        space,
        "monitoring",
        json!({"/dependsOn": [{"name": "cluster"}]}),
    )
    .await;
    let message = "Failed to apply: error creating CloudWatch alarm: LimitExceeded; the next attempt is in 8 minutes";
    let mut monitoring = with_source(status("Failed", "ApplyFailed", message), 5, 700);
    monitoring["retry"] = json!({"failures": 2, "nextAt": ago(-480)});
    monitoring["runs"] = json!([{
        "number": 5, "kind": "apply", "trigger": "retry 2", "result": "Failed", "plan": "+1 ~0 -0", "reason": "ApplyFailed",
        "error": "LimitExceeded: maximum number of alarms", "time": ago(700), "seconds": 48, "job": "monitoring-apply-5",
    }]);
    operator.set_status("monitoring", monitoring).await;
}

async fn payments_resources(space: &Space) {
    let operator = AsOperator::new(&space.server, &space.namespace).await;
    let network = json!({"name": "network", "namespace": PLATFORM});
    create_resource(space, "database", json!({"/dependsOn": [network]})).await;
    let mut database = with_source(
        status(
            "AwaitingApproval",
            "AwaitingApproval",
            "The plan replaces 1 object and waits for approval",
        ),
        7,
        1300,
    );
    database["plan"] = json!({
        "summary": "+2 ~2 -1", "id": PLAN, "pendingApproval": true, "add": 2, "change": 2, "destroy": 1,
    });
    database["lastApplied"] =
        json!({"revision": "91a2b3c4d5e6", "configHash": "1b2c3d4e", "time": ago(604_800)});
    database["inventory"] = json!({"count": 12, "run": 6});
    operator.record("database", 6, json!({
        "spec": {"trigger": "created", "startedAt": ago(604_900)}, "status": {"summary": "+12 ~0 -0", "finishedAt": ago(604_800)},
    })).await;
    operator.record("database", 7, database_plan()).await;
    operator.set_status("database", database).await;

    create_resource(
        space,
        "queue",
        json!({"/dependsOn": [{"name": "database"}]}),
    )
    .await;
    operator.set_status("queue", applied(3, 200_000, 6)).await;
    create_resource(
        space,
        "web",
        json!({"/dependsOn": [{"name": "database"}, {"name": "queue"}], "/suspend": true}),
    )
    .await;
    operator.set_status("web", applied(31, 40_000, 23)).await;
    create_resource(
        space,
        "reports",
        json!({"/dependsOn": [{"name": "database"}]}),
    )
    .await;
    let message = "Failed to read main.tf at 5d6e7f80: invalid expression at line 82. Reconciliation resumes automatically once this is fixed.";
    let reports = with_source(status("Stalled", "ModuleInvalid", message), 2, 9000);
    operator.set_status("reports", reports).await;
}

/// Returns the fields of the record of run 7 of `database`: a plan with each kind of change.
fn database_plan() -> Value {
    let plan = r#"OpenTofu will perform the following actions:

  # aws_db_instance.main must be replaced
-/+ resource "aws_db_instance" "main" {
      ~ engine_version    = "16.4" -> "17.2" # forces replacement
      ~ instance_class    = "db.t4g.medium" -> "db.m7g.large"
    }

  # aws_cloudwatch_metric_alarm.cpu will be created
  + resource "aws_cloudwatch_metric_alarm" "cpu" {
      + alarm_name        = "payments-database-cpu"
      + threshold         = 80
    }

Plan: 2 to add, 2 to change, 1 to destroy.
"#;
    let log = "Initializing the backend...\nInitializing provider plugins...\n- Using hashicorp/aws v6.4.0 from the image\n\nOpenTofu has been successfully initialized!\naws_db_subnet_group.main: Refreshing state... [id=payments]\naws_security_group.database: Refreshing state... [id=sg-0c1d2e3f4a5b6c7d8]\naws_db_instance.main: Refreshing state... [id=db-KQ3X7]\n\nPlan: 2 to add, 2 to change, 1 to destroy.\n";
    json!({
        "spec": {
            "kind": "plan", "trigger": "commit 1a2b3c4..5d6e7f8", "revision": REVISION,
            "commit": {"subject": "database: upgrade PostgreSQL to 17", "author": "Grace Example"},
            "startedAt": ago(1360), "image": "registry.example.com/payments/database@sha256:0f1e2d3c4b5a69788796a5b4c3d2e1f0",
        },
        "status": {
            "result": "Changes", "planId": PLAN, "summary": "+2 ~2 -1", "finishedAt": ago(1300), "seconds": 31,
            "steps": {"init": 6200, "plan": 24_300}, "engine": {"name": "opentofu", "version": "1.11.1"},
            "approvalReasons": ["rule no-replacement: the plan replaces aws_db_instance.main"],
            "plan": plan, "log": {"head": log, "omittedBytes": 0},
            "changes": {
                "add": 2, "change": 2, "destroy": 1, "digest": "0f1e2d3c",
                "resources": [
                    {
                        "address": "aws_db_instance.main", "action": "replace", "reason": "replace_because_cannot_update",
                        "provider": "registry.opentofu.org/hashicorp/aws",
                        "attributes": [
                            {"path": "engine_version", "before": "\"16.4\"", "after": "\"17.2\"", "forcesReplacement": true},
                            {"path": "instance_class", "before": "\"db.t4g.medium\"", "after": "\"db.m7g.large\""},
                            {"path": "password", "sensitive": true},
                            {"path": "endpoint", "before": "\"payments.c9x8y7.eu-west-1.rds.example.com:5432\"", "unknown": true},
                        ],
                    },
                    {
                        "address": "aws_security_group.database", "action": "update", "provider": "registry.opentofu.org/hashicorp/aws",
                        "attributes": [{"path": "ingress[0].from_port", "before": "5432", "after": "5433"}],
                    },
                    {
                        "address": "module.backup.aws_backup_plan.daily", "action": "update", "module": "module.backup",
                        "attributes": [{"path": "rule[0].lifecycle.delete_after", "before": "7", "after": "35"}],
                    },
                    {
                        "address": "aws_cloudwatch_metric_alarm.cpu", "action": "create",
                        "attributes": [
                            {"path": "alarm_name", "after": "\"payments-database-cpu\""},
                            {"path": "threshold", "after": "80"},
                            {"path": "arn", "unknown": true},
                        ],
                    },
                ],
                "outputs": [{"name": "endpoint", "before": "\"payments.c9x8y7.eu-west-1.rds.example.com:5432\"", "unknown": true}],
                "checks": [{"address": "check.backup", "status": "unknown"}],
            },
        },
    })
}
