//! Objects of the tests of view models and HTML.

use std::sync::Arc;

use alustan_api::run::Outputs;
use alustan_api::{ObjectKey, State, Terraform, TerraformRun};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::actions::{Action, Permissions};
use crate::row::{Drift, PendingPlan, Row};
use crate::view::{LogPanel, ResourceInput, ResourceView, RunInput, RunView, resource, run};

/// Text that must not be interpreted: HTML, ANSI colours, a link and direction marks.
pub(crate) const HOSTILE: &str =
    "<script>alert(1)</script> \u{1b}[31mred\u{1b}[0m \u{202e}gnp.exe javascript:alert(1) \"'&";

/// Id of the plan that waits for approval.
pub(crate) const PLAN: &str = "4f9d2c61a0b7e835";

pub(crate) fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

pub(crate) fn row(namespace: &str, name: &str, state: State) -> Row {
    Row {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        state,
        reason: Some("Applied".to_owned()),
        message: "commit 1a2b3c4 is applied".to_owned(),
        since: Some("2026-03-01T11:57:00Z".parse().unwrap()),
        pending: None,
        drift: None,
        revision: Some("1a2b3c4d5e6f70819283a4b5c6d7e8f901234567".to_owned()),
        failures: 0,
        suspended: false,
        dependencies: Box::default(),
        resource_version: "1".to_owned(),
    }
}

pub(crate) fn rows() -> Vec<Arc<Row>> {
    let approval = Row {
        reason: Some("AwaitingApproval".to_owned()),
        message: "plan 4f9d2c61a0b7e835 waits for approval: +2 ~1 -3".to_owned(),
        pending: Some(PendingPlan {
            id: PLAN.to_owned(),
            summary: "+2 ~1 -3".to_owned(),
            destroy: 3,
        }),
        ..row("team", "web", State::AwaitingApproval)
    };
    let drifted = Row {
        reason: Some("Drifted".to_owned()),
        message: "1 object differs from the configuration".to_owned(),
        drift: Some(Drift {
            since: "2026-03-01T09:00:00Z".parse().unwrap(),
            add: 0,
            change: 1,
            destroy: 0,
        }),
        ..row("infra", "dns", State::Drifted)
    };
    let failed = Row {
        reason: Some("ApplyFailed".to_owned()),
        message: "run 7 failed: Error: quota exceeded; next attempt at 12:05".to_owned(),
        failures: 2,
        ..row("team", "db", State::Failed)
    };
    let suspended = Row {
        suspended: true,
        ..row("team", "cache", State::Stalled)
    };
    [
        row("infra", "network", State::Success),
        drifted,
        row("team", "api", State::Applying),
        suspended,
        failed,
        row("team", "queue", State::Pending),
        approval,
    ]
    .map(Arc::new)
    .into()
}

/// Returns resource `team/web` with `status`.
pub(crate) fn terraform(status: &Value) -> Terraform {
    named("web", status, &json!([]))
}

/// Returns resource `name` in namespace `team` with `status` and `spec.dependsOn`.
pub(crate) fn named(name: &str, status: &Value, depends_on: &Value) -> Terraform {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1",
        "kind": "Terraform",
        "metadata": {
            "name": name, "namespace": "team", "uid": "uid-of-web", "generation": 1,
            "creationTimestamp": "2026-02-01T00:00:00Z",
        },
        "spec": {
            "gitRepo": {"url": "https://git.test/team/infra", "path": "web"},
            "containerRegistry": {
                "imageName": "registry.test/team/web",
                "secretRef": {"name": "regcred", "key": ".dockerconfigjson"},
            },
            "dependsOn": depends_on,
        },
        "status": status,
    }))
    .unwrap()
}

pub(crate) fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": "2026-03-01T11:50:00Z",
    })
}

/// Returns the status of a resource whose plan waits for approval.
pub(crate) fn awaiting() -> Value {
    json!({
        "state": "AwaitingApproval",
        "message": "Plan 4f9d2c61a0b7e835 of run 7 waits for approval.",
        "conditions": [
            condition("Ready", "Unknown", "AwaitingApproval", "Plan 4f9d2c61a0b7e835 of run 7 waits for approval."),
            condition("SourceReady", "True", "Fetched", "commit 1a2b3c4d of branch main"),
            condition("ImageReady", "True", "Pushed", "registry.test/team/web@sha256:0123"),
            condition("InSync", "False", "Drifted", "1 object differs from the configuration"),
            condition("DependenciesReady", "True", "DependenciesReady", ""),
        ],
        "source": {"revision": "1a2b3c4d5e6f70819283a4b5c6d7e8f901234567"},
        "engine": {"name": "opentofu", "version": "1.11.4"},
        "plan": {
            "summary": "+2 ~1 -3", "id": PLAN, "pendingApproval": true,
            "add": 2, "change": 1, "destroy": 3,
        },
        "lastApplied": {
            "revision": "0f0e0d0c0b0a09080706050403020100ffeeddcc", "configHash": "h",
            "time": "2026-02-28T12:00:00Z",
        },
        "drift": {
            "since": "2026-03-01T09:00:00Z", "add": 0, "change": 1, "destroy": 0,
            "resources": [{"address": "aws_instance.a[0]", "action": "update"}],
        },
        "inventory": {"count": 12, "run": 6},
        "outputs": {
            "secretName": "web-outputs", "values": {"url": "https://web.test", "ports": [80, 443]},
            "omitted": [{"name": "password", "reason": "OutputSensitive"}],
        },
        "stateAddress": "s3://states/team/web",
        "run": 7,
        "runs": [
            {
                "number": 7, "kind": "plan", "trigger": "commit 0f0e0d0..1a2b3c4", "result": "Changes",
                "plan": "+2 ~1 -3", "time": "2026-03-01T11:50:00Z", "seconds": 80, "job": "web-run-7",
            },
            {
                "number": 6, "kind": "apply", "trigger": "retry 2", "result": "Failed", "plan": "+1 ~0 -0",
                "reason": "ApplyFailed", "error": "Error: quota exceeded", "time": "2026-02-28T12:00:00Z",
                "seconds": 45, "job": "web-run-6",
            },
        ],
    })
}

/// Returns the record of run 7, whose plan waits for approval. It contains hostile text.
pub(crate) fn record() -> TerraformRun {
    serde_json::from_value(json!({
        "apiVersion": "alustan.io/v1alpha1",
        "kind": "TerraformRun",
        "metadata": {"name": "web-uid-o-7", "namespace": "team"},
        "spec": {
            "terraform": {"name": "web", "uid": "uid-of-web"},
            "number": 7, "kind": "plan", "trigger": "commit 0f0e0d0..1a2b3c4",
            "revision": "1a2b3c4d5e6f70819283a4b5c6d7e8f901234567",
            "commit": {"subject": HOSTILE, "author": "Ada \u{202e}Lovelace"},
            "image": "registry.test/team/web@sha256:0123",
            "job": "web-run-7", "startedAt": "2026-03-01T11:48:40Z",
        },
        "status": {
            "result": "Changes", "count": 1, "lastNumber": 7,
            "finishedAt": "2026-03-01T11:50:00Z", "seconds": 80,
            "steps": {"init": 12_400, "plan": 61_000},
            "engine": {"name": "opentofu", "version": "1.11.4"},
            "summary": "+2 ~1 -3", "planId": PLAN,
            "approvalReasons": ["rule destroys-databases: a database is destroyed"],
            "changes": {
                "add": 2, "change": 1, "destroy": 3, "omitted": 4, "digest": "d",
                "resources": [
                    {
                        "address": "module.db.aws_db_instance.main", "action": "delete",
                        "provider": "registry.terraform.io/hashicorp/aws",
                        "reason": "delete_because_no_resource_config",
                    },
                    {
                        "address": "aws_instance.a[\"</code>\u{202e}x\"]", "action": "replace",
                        "reason": "replace_because_cannot_update",
                        "attributes": [
                            {"path": "ami", "before": "\"ami-1\"", "after": "\"ami-2\"", "forcesReplacement": true},
                            {"path": "id", "before": "\"i-1\"", "unknown": true},
                            {"path": "password", "sensitive": true},
                            {"path": "user_data", "after": HOSTILE},
                        ],
                    },
                    {"address": "aws_s3_bucket.logs", "action": "create", "attributes": [
                        {"path": "bucket", "after": "\"logs\""},
                    ], "omittedAttributes": 2},
                ],
                "outputs": [{"name": "url", "before": "\"https://a.test\"", "after": "\"https://b.test\""}],
                "checks": [{"address": "check.health", "status": "fail", "messages": ["not healthy"]}],
            },
            "plan": format!("Terraform will perform:\n  - destroy\n  + create\n{HOSTILE}\n"),
            "log": {"head": HOSTILE, "omittedBytes": 1024, "tail": "Plan: 2 to add\r\n"},
        },
    }))
    .unwrap()
}

/// Returns permissions for all actions.
pub(crate) fn allowed() -> Permissions {
    Permissions(
        Action::ALL
            .into_iter()
            .map(|action| (action, None))
            .collect(),
    )
}

/// Returns permissions without action `approve`.
pub(crate) fn without_approve() -> Permissions {
    let mut permissions = allowed();
    let missing = "requires the verb approve on terraforms in namespace team";
    permissions
        .0
        .insert(Action::Approve, Some(missing.to_owned()));
    permissions
}

/// Builds the view model of `tf` with `runs`.
pub(crate) fn resource_view(
    tf: &Terraform,
    runs: &[TerraformRun],
    permissions: &Permissions,
) -> ResourceView {
    resource_view_with(tf, runs, permissions, None)
}

/// Builds the view model of `tf` with `runs` and the outputs in its Secret.
pub(crate) fn resource_view_with(
    tf: &Terraform,
    runs: &[TerraformRun],
    permissions: &Permissions,
    outputs: Option<&Outputs>,
) -> ResourceView {
    let network = Arc::new(row("infra", "network", State::Success));
    let dependencies = [
        (ObjectKey::new("infra", "network"), Some(network)),
        (ObjectKey::new("team", "missing"), None),
    ];
    resource(ResourceInput {
        tf,
        runs,
        runs_error: None,
        dependents: &[Arc::new(row("team", "api", State::Applying))],
        dependencies: &dependencies,
        outputs,
        permissions,
        now: now(),
    })
}

/// Builds the view model of `record` with `status` of the resource.
pub(crate) fn run_view(
    record: Option<&TerraformRun>,
    status: &Value,
    permissions: &Permissions,
    log: LogPanel,
) -> RunView {
    let tf = terraform(status);
    let entries = &tf.status.as_ref().unwrap().runs;
    run(RunInput {
        key: ObjectKey::new("team", "web"),
        number: 7,
        run: record,
        status: entries.iter().find(|entry| entry.number == 7),
        tf: Some(&tf),
        is_active: matches!(log, LogPanel::Live { .. }),
        permissions,
        plan_text: None,
        log,
        now: now(),
    })
}

/// Returns the log in `record`.
pub(crate) fn stored_log(record: &TerraformRun) -> LogPanel {
    let log = &record.status.as_ref().unwrap().log;
    LogPanel::Stored {
        head: log.head.clone(),
        omitted_bytes: log.omitted_bytes,
        tail: log.tail.clone(),
    }
}

/// Returns a log that is streamed.
pub(crate) fn live_log() -> LogPanel {
    LogPanel::Live {
        waiting: None,
        stream: "/ns/team/tf/web/runs/7/log/stream".to_owned(),
        raw: "/ns/team/tf/web/runs/7/log".to_owned(),
    }
}
