//! Objects that the operator writes: the status of resources, and the records of their runs. Policies refuse other writers.

use alustan_api::labels::{self, BYTES, Component, WRITTEN_AT};
use alustan_api::{Terraform, TerraformRun, run_name};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::server::{OPERATOR, Server};

/// Writes objects of one namespace with the permissions of the operator.
pub(crate) struct AsOperator {
    client: Client,
    namespace: String,
}

impl AsOperator {
    /// Returns a writer for `namespace`.
    pub(crate) async fn new(server: &Server, namespace: &str) -> Self {
        Self::of(&server.client_as(OPERATOR).await, namespace)
    }

    /// Returns a writer for `namespace` with the permissions of `client`.
    pub(crate) fn of(client: &Client, namespace: &str) -> Self {
        Self {
            client: client.clone(),
            namespace: namespace.to_owned(),
        }
    }

    /// Replaces the status of the resource `name`. Sets the observed generation, and the time of the conditions if it is missing.
    pub(crate) async fn set_status(&self, name: &str, mut status: Value) {
        let resources: Api<Terraform> = Api::namespaced(self.client.clone(), &self.namespace);
        let generation = resources.get(name).await.unwrap().metadata.generation;
        status["observedGeneration"] = json!(generation);
        let conditions = status["conditions"].as_array_mut();
        for condition in conditions.into_iter().flatten() {
            condition["observedGeneration"] = json!(generation);
            if condition["lastTransitionTime"].is_null() {
                condition["lastTransitionTime"] = json!(ago(60));
            }
        }
        let kind = ApiResource::erase::<Terraform>(&());
        let raw: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &kind);
        let applied = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform", "metadata": {"name": name},
            "status": status,
        });
        let parameters = PatchParams::apply("alustan-controller").validation_strict();
        raw.patch_status(name, &parameters, &Patch::Apply(&applied))
            .await
            .unwrap();
    }

    /// Writes the record of run `number` of the resource `name`. `fields`: fields of `spec` and `status` that differ from those of a finished
    /// apply.
    pub(crate) async fn record(&self, name: &str, number: i64, fields: Value) {
        let resources: Api<Terraform> = Api::namespaced(self.client.clone(), &self.namespace);
        let uid = resources.get(name).await.unwrap().uid().unwrap();
        let mut run = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "TerraformRun",
            "metadata": {
                "name": run_name(name, &uid, number), "labels": labels::of(name, &uid, Component::History),
                "annotations": {WRITTEN_AT: ago(30)},
            },
            "spec": {
                "terraform": {"name": name, "uid": uid}, "number": number, "kind": "apply", "trigger": "created",
                "job": format!("{name}-apply-{number}"), "startedAt": ago(90),
            },
            "status": {
                "result": "Done", "count": 1, "lastNumber": number, "finishedAt": ago(30), "seconds": 60,
                "steps": {"init": 4200, "plan": 9100, "apply": 46_700}, "log": {"head": "Apply complete!\n", "omittedBytes": 0},
            },
        });
        for part in ["spec", "status"] {
            if let Value::Object(changes) = &fields[part] {
                for (field, value) in changes {
                    run[part][field] = value.clone();
                }
            }
        }
        let bytes = run.to_string().len();
        run["metadata"]["annotations"][BYTES] = json!(bytes.to_string());
        let run: TerraformRun = serde_json::from_value(run).unwrap();
        let runs: Api<TerraformRun> = Api::namespaced(self.client.clone(), &self.namespace);
        runs.create(&PostParams::default(), &run).await.unwrap();
    }
}

/// Returns the time `seconds` ago, in the format of the API server.
pub(crate) fn ago(seconds: i64) -> String {
    let time = Timestamp::now() - SignedDuration::from_secs(seconds);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns a status with the state `state`, and conditions with the reason `reason`.
pub(crate) fn status(state: &str, reason: &str, message: &str) -> Value {
    let (ready, stalled) = match state {
        "Success" => ("True", "False"),
        "Stalled" => ("False", "True"),
        "Planning" | "Applying" => ("Unknown", "False"),
        _ => ("False", "False"),
    };
    let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": reason, "message": message});
    json!({
        "state": state, "message": message,
        "conditions": [condition("Ready", ready), condition("Stalled", stalled)],
    })
}

/// Returns the status of the resource `name` while run `run` applies a plan.
pub(crate) fn applying(name: &str, run: i64) -> Value {
    let message = format!("Run {run} applies the plan");
    let mut status = status("Applying", "Running", &message);
    status["run"] = json!(run);
    status["activeRun"] = json!({
        "number": run, "kind": "apply", "job": format!("{name}-apply-{run}"), "startedAt": ago(60),
    });
    status
}

/// Returns a status with the plan `id` that waits for approval: one resource to create, one to replace.
pub(crate) fn awaiting(id: &str) -> Value {
    let message = "The plan replaces 1 object and waits for approval";
    let mut status = status("AwaitingApproval", "AwaitingApproval", message);
    status["plan"] = json!({
        "summary": "+2 ~0 -1", "id": id, "pendingApproval": true, "add": 2, "change": 0, "destroy": 1,
    });
    status
}

/// Returns the fields of the record of the run that created the plan of [`awaiting`].
pub(crate) fn planned(id: &str) -> Value {
    json!({
        "spec": {"kind": "plan", "trigger": "commit 1a2b3c4..5d6e7f8"},
        "status": {
            "result": "Changes", "planId": id, "summary": "+2 ~0 -1",
            "plan": "# aws_subnet.private[0] must be replaced\n-/+ resource \"aws_subnet\" \"private\" {\n",
            "changes": {
                "add": 2, "change": 0, "destroy": 1, "digest": "d1",
                "resources": [
                    {
                        "address": "aws_subnet.private[0]", "action": "replace", "reason": "replace_because_cannot_update",
                        "attributes": [
                            {"path": "cidr_block", "before": "\"10.0.1.0/24\"", "after": "\"10.0.16.0/20\"", "forcesReplacement": true},
                            {"path": "id", "before": "\"subnet-0a1b2c3d\"", "unknown": true},
                        ],
                    },
                    {
                        "address": "aws_vpc_endpoint.s3", "action": "create",
                        "attributes": [
                            {"path": "service_name", "after": "\"com.amazonaws.eu-west-1.s3\""},
                            {"path": "policy", "sensitive": true},
                        ],
                    },
                ],
            },
            "log": {"head": "Plan: 2 to add, 0 to change, 1 to destroy.\n", "omittedBytes": 0},
        },
    })
}
