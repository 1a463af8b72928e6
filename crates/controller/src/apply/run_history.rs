//! Writes and deletes `TerraformRun`s. They are for users: no decision depends on them, so a refused write delays no run.

use alustan_api::labels::BYTES;
use alustan_api::{FIELD_MANAGER, TerraformRun};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::call::{StatusKind, call, has_status, ignore_not_found};
use crate::context::Context;
use crate::error::Error;

/// Writes `run`. If it describes several runs, replaces only the status of the record of the same name, because `spec` describes the
/// first run; creates the record if a user has deleted it. Only logs an error if the API server refuses the record ([`is_refusal`]).
pub(super) async fn record(ctx: &Context, run: &TerraformRun) -> Result<(), Error> {
    let (namespace, name) = (run.namespace().unwrap_or_default(), run.name_any());
    let api = Api::namespaced(ctx.client.clone(), &namespace);
    log_for_audit(run);
    let written = write(&api, &name, run).await;
    if written.is_ok() {
        ctx.run_history.add(size(run));
    }
    without_refusal(written, &namespace, &name)
}

/// Logs `result` instead of returning it, if the API server refuses the request ([`is_refusal`]).
fn without_refusal(result: Result<(), Error>, namespace: &str, name: &str) -> Result<(), Error> {
    match result {
        Err(Error::Call { operation, source }) if is_refusal(&source) => {
            warn!(namespace, name, error = %source, "failed to {operation}");
            Ok(())
        }
        other => other,
    }
}

/// Logs a finished run as one line: who or what caused it, and what it changed.
fn log_for_audit(run: &TerraformRun) {
    let (spec, approval) = (&run.spec, run.spec.approval.as_ref());
    let Some(status) = &run.status else { return };
    info!(
        namespace = run.namespace(),
        resource = spec.terraform.name,
        uid = spec.terraform.uid,
        run = status.last_number,
        kind = %spec.kind,
        trigger = spec.trigger,
        revision = spec.revision,
        author = spec.commit.as_ref().map(|commit| &commit.author),
        plan = approval.map(|approval| &approval.plan),
        approved_by = approval.and_then(|approval| approval.by.as_ref()),
        result = status.result,
        reason = status.reason,
        changes = status.summary,
        seconds = status.seconds,
        job = spec.job,
        "run finished"
    );
}

async fn write(api: &Api<TerraformRun>, name: &str, run: &TerraformRun) -> Result<(), Error> {
    let operation = format!("write TerraformRun {name}");
    if run.status.as_ref().is_some_and(|status| status.count > 1)
        && let Ok(patch) = serde_json::from_value(status_patch(run))
    {
        let patch = Patch::<TerraformRun>::Json(patch);
        let parameters = PatchParams::default();
        match call(&operation, api.patch(name, &parameters, &patch)).await {
            Err(Error::Call { source, .. }) if has_status(&source, StatusKind::NotFound) => {}
            other => return other.map(drop),
        }
    }
    let (parameters, patch) = (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(run));
    let applied = api.patch(name, &parameters, &patch);
    call(&operation, applied).await.map(drop)
}

/// Returns the JSON patch that replaces status and annotations of a record.
fn status_patch(run: &TerraformRun) -> Value {
    json!([
        {"op": "add", "path": "/status", "value": run.status},
        {"op": "add", "path": "/metadata/annotations", "value": run.annotations()},
    ])
}

/// Returns the size of `run`, in bytes.
fn size(run: &TerraformRun) -> u64 {
    let bytes = run.annotations().get(BYTES);
    bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Whether the API server refuses the request, and would refuse it again: because of a quota, a policy or a missing permission, because the
/// namespace is being deleted, because the CRD is not installed, or because an admission webhook does not answer, which the API server reports
/// with status 500. Not if the API server is overloaded, not available or fails.
fn is_refusal(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let is_client_error = status.code < 500 && status.code != 429;
    is_client_error || status.message.contains("failed calling webhook")
}

/// Deletes the record `name`, if it exists. Only logs an error if the API server refuses the deletion.
pub(super) async fn delete(ctx: &Context, namespace: &str, name: &str) -> Result<(), Error> {
    let api: Api<TerraformRun> = Api::namespaced(ctx.client.clone(), namespace);
    let operation = format!("delete TerraformRun {name}");
    let deleted = call(&operation, api.delete(name, &DeleteParams::default())).await;
    without_refusal(ignore_not_found(deleted), namespace, name)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::core::Status;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::policy(403, "", true)]
    #[case::no_crd(404, "", true)]
    #[case::invalid(422, "", true)]
    #[case::overloaded(429, "", false)]
    #[case::failed(500, "Internal error occurred: etcdserver: request timed out", false)]
    #[case::webhook(
        500,
        "Internal error occurred: failed calling webhook \"a.test\"",
        true
    )]
    #[case::unavailable(503, "", false)]
    fn record_of_a_run_is_omitted_only_if_it_is_refused(
        #[case] code: u16,
        #[case] message: &str,
        #[case] omits: bool,
    ) {
        let status = json!({"code": code, "message": message});
        let status: Status = serde_json::from_value(status).unwrap();
        let source = Arc::new(kube::Error::Api(status.boxed()));
        let operation = "write TerraformRun web-1".to_owned();
        let failed = Err(Error::Call { operation, source });
        assert_eq!(without_refusal(failed, "team", "web-1").is_ok(), omits);
    }
}
