//! Run record, run report and pin, read from the watch cache.

use std::sync::Arc;

use alustan_api::labels::{self, Component};
use alustan_api::report::RunReport;
use alustan_api::run::{History, Outputs, Pin, RunDetails, RunRecord, RunSpec, key};
use alustan_api::{Terraform, json_size, names};
use alustan_core::model::facts::keeps_all_objects;
use alustan_core::model::orphans;
use alustan_core::model::progress::{self, has_own_report};
use alustan_core::objects::secrets;
use alustan_core::observed::{
    LeftBehind, NothingLeft, ObjectVersion, RecordSeen, ReportedProgress,
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::ResourceExt;
use kube::api::{Api, PartialObjectMeta};
use serde::de::DeserializeOwned;

use crate::call::{call, stored_metadata};
use crate::context::Context;
use crate::error::Error;
use crate::observe::{pods, run_jobs};
use crate::resource::is_made_for;
use crate::watch::trim::{MAX_DETAILS_BYTES, MAX_PROGRESS_BYTES, MAX_REPORT_BYTES};

/// Run record and pin of a resource.
pub(super) struct StoredRecord {
    pub(super) record: Option<RecordSeen>,
    pub(super) pin: Option<Pin>,
    /// Version of the pin.
    pub(super) pin_version: Option<ObjectVersion>,
    pub(super) left_behind: Option<LeftBehind>,
    pub(super) nothing_left: Option<NothingLeft>,
}

/// Returns the pin of `tf`, which is being deleted.
pub(crate) async fn pin(ctx: &Context, tf: &Terraform) -> Result<Option<Pin>, Error> {
    Ok(read(ctx, tf).await?.pin)
}

/// Returns run record and pin of `tf`. Reads the Secrets from the API server if the cached run record does not belong to `tf`.
///
/// If `tf` is being deleted, also reads the Secrets from the API server if the cached run record is missing or orphaned. If the run record is
/// orphaned, returns no run record and no pin: an earlier reconcile has already labelled all objects to keep. Ignores unreadable Secrets if the
/// deletion of `tf` leaves all real objects in place.
///
/// # Errors
/// [`Error::Unreadable`] or [`Error::Forged`] if a Secret cannot be used. [`Error::Conflict`] or [`Error::Gone`] if `tf` is being deleted, has
/// neither run record nor pin, and does not have the latest resource version.
pub(super) async fn read(ctx: &Context, tf: &Terraform) -> Result<StoredRecord, Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let name = tf.name_any();
    let (record, report, pin) = (
        names::record(&name),
        names::report(&name),
        names::pin(&name),
    );
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let read_cached = |name| Box::pin(ctx.mirrors.secret(&ctx.client, &namespace, name));
    let mut record_secrets = RecordSecrets {
        record: read_cached(&record).await?,
        report: read_cached(&report).await?,
        pin: read_cached(&pin).await?,
    };
    let is_not_ours = |secret: &Arc<Secret>| !is_made_for(tf, &**secret) || is_orphaned(tf, secret);
    let has_foreign_record = record_secrets.record.as_ref().is_some_and(is_not_ours);
    if has_foreign_record || (record_secrets.record.is_none() && deleting) {
        let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &namespace);
        let read = async |operation, name| Box::pin(call(operation, api.get_opt(name))).await;
        record_secrets = RecordSecrets {
            record: read("read the run record", &record).await?.map(Arc::new),
            report: read("read the run report", &report).await?.map(Arc::new),
            pin: read("read the pin", &pin).await?.map(Arc::new),
        };
    }
    let left_behind = left_behind(ctx, tf, &record_secrets);
    let pin_version = record_secrets.pin.as_deref().and_then(|secret| {
        Some(ObjectVersion {
            uid: secret.uid()?,
            resource_version: secret.resource_version()?,
        })
    });
    let UsedRecord {
        record,
        pin,
        ignores_unreadable,
    } = decode_used(ctx, tf, record_secrets)?;
    let has_nothing = deleting && record.is_none() && pin.is_none();
    let nothing_left = if has_nothing {
        check_is_latest(ctx, tf).await?;
        Some(nothing_left(ctx, &namespace, ignores_unreadable).await?)
    } else {
        None
    };
    Ok(StoredRecord {
        record,
        pin_version: pin_version.filter(|_| pin.is_some()),
        pin,
        left_behind,
        nothing_left,
    })
}

/// Run record and pin that a reconcile uses.
struct UsedRecord {
    record: Option<RecordSeen>,
    pin: Option<Pin>,
    /// Whether an unreadable run record or pin is treated as missing.
    ignores_unreadable: bool,
}

/// Decodes run record and pin in `record_secrets` if they belong to `tf`. Not part of [`read`], so that its future does not contain several
/// copies of both.
///
/// # Errors
/// [`Error::Unreadable`] or [`Error::Forged`] if a Secret cannot be used.
fn decode_used(
    ctx: &Context,
    tf: &Terraform,
    record_secrets: RecordSecrets,
) -> Result<UsedRecord, Error> {
    let deleting = tf.metadata.deletion_timestamp.is_some();
    let is_ours = |secret: &Arc<Secret>| is_made_for(tf, &**secret);
    // An orphaned run record means that an earlier clean-up has already labelled all objects to keep. The next clean-up only deletes the remaining
    // objects, and needs neither run record nor pin.
    let is_cleaned_up = record_secrets
        .record
        .as_ref()
        .is_some_and(|secret| is_orphaned(tf, secret));
    let is_used = |secret: &Arc<Secret>| is_ours(secret) && !is_cleaned_up;
    let used_secrets = RecordSecrets {
        record: record_secrets.record.filter(is_used),
        report: record_secrets.report.filter(is_used),
        pin: record_secrets.pin.filter(is_used),
    };
    let has_job = |run: &RunSpec| run_jobs::exists(ctx, tf, &run.job);
    let uid = tf.uid().unwrap_or_default();
    let read_record = used_secrets
        .record
        .map(|secret| {
            ctx.signer.verify(&uid, &secret)?;
            decode(&secret, used_secrets.report.as_deref(), has_job)
        })
        .transpose();
    let read_pin = used_secrets
        .pin
        .map(|secret| {
            ctx.signer.verify(&uid, &secret)?;
            required(&secret, secrets::PIN)
        })
        .transpose();
    let ignores_unreadable =
        deleting && keeps_all_objects(tf) && (read_record.is_err() || read_pin.is_err());
    let (record, pin) = if ignores_unreadable {
        (None, None)
    } else {
        (read_record?, read_pin?)
    };
    Ok(UsedRecord {
        record,
        pin,
        ignores_unreadable,
    })
}

/// Whether a clean-up of the deleted `tf` has labelled `secret` as an object to keep.
fn is_orphaned(tf: &Terraform, secret: &Secret) -> bool {
    tf.metadata.deletion_timestamp.is_some() && secret.labels().contains_key(labels::ORPHANED)
}

/// Returns the run record in `record_secrets` if it belongs to an earlier resource with the name of `tf`. The run report may belong to `tf`
/// already, if an earlier reconcile did not complete the restore.
fn left_behind(
    ctx: &Context,
    tf: &Terraform,
    record_secrets: &RecordSecrets,
) -> Option<LeftBehind> {
    let is_left_behind =
        |secret: &Secret, component| orphans::is_left_behind(tf, secret.labels(), component);
    let secret = record_secrets.record.as_deref()?;
    if !is_left_behind(secret, Component::Record) {
        return None;
    }
    let report = record_secrets
        .report
        .as_deref()
        .filter(|report| is_made_for(tf, *report) || is_left_behind(report, Component::Report));
    let uid = secret
        .labels()
        .get(labels::UID)
        .cloned()
        .unwrap_or_default();
    let read = || -> Result<(RunRecord, History), Error> {
        required_bytes(secret, key::KEY)?;
        Ok((required(secret, key::RECORD)?, history(secret)?))
    };
    let (record, history) = read().ok().unzip();
    Some(LeftBehind {
        version: secret.resource_version().unwrap_or_default(),
        record,
        history: history.unwrap_or_default(),
        progress: reported_progress(report),
        restore_to: secret.annotations().get(labels::RESTORE_TO).cloned(),
        owner: ctx.living_owner(tf, &uid),
        pods: pods::living_pods(ctx, tf, &uid),
        uid,
    })
}

/// Run record, run report and pin of one resource.
struct RecordSecrets {
    record: Option<Arc<Secret>>,
    report: Option<Arc<Secret>>,
    pin: Option<Arc<Secret>>,
}

/// Checks that `tf` has the latest resource version. A resource without run record and pin is reported as destroyed, and a stale `tf` must not cause
/// this report. A resource with the finalizer and without run record gets a new run record, and a stale `tf` must not cause this either: the run
/// record may have been deleted together with the resource.
///
/// # Errors
/// [`Error::Conflict`] if there is a later version, [`Error::Gone`] if the resource does not exist.
pub(crate) async fn check_is_latest(ctx: &Context, tf: &Terraform) -> Result<(), Error> {
    let namespace = tf.namespace().unwrap_or_default();
    let stored = stored_metadata(&ctx.client, &namespace, &tf.name_any()).await?;
    let latest = stored.ok_or(Error::Gone)?;
    if latest.resource_version == tf.metadata.resource_version {
        Ok(())
    } else {
        Err(Error::Conflict)
    }
}

async fn nothing_left(
    ctx: &Context,
    namespace: &str,
    unreadable: bool,
) -> Result<NothingLeft, Error> {
    let api: Api<Namespace> = Api::all(ctx.client.clone());
    let namespace = call("read the namespace", api.get_metadata_opt(namespace)).await?;
    let alive =
        |namespace: &PartialObjectMeta<Namespace>| namespace.metadata.deletion_timestamp.is_none();
    Ok(NothingLeft {
        namespace_terminating: !namespace.as_ref().is_some_and(alive),
        unreadable,
    })
}

/// Whether `secret` is the run record of a resource that never had a run. Returns false if the operator has not signed it, or if it is unreadable.
pub(crate) fn is_unused(ctx: &Context, secret: &Secret) -> bool {
    let uid = secret.labels().get(labels::UID);
    let is_signed = uid.is_some_and(|uid| ctx.signer.verify(uid, secret).is_ok());
    let record: Result<RunRecord, Error> = required(secret, key::RECORD);
    is_signed && record.is_ok_and(|record| record.number == 0)
}

/// Decodes a run record. An unreadable record is an error: without the record, the operator would not know which objects were applied. Ignores
/// unreadable entries of the run report.
fn decode(
    secret: &Secret,
    report: Option<&Secret>,
    has_job: impl Fn(&RunSpec) -> bool,
) -> Result<RecordSeen, Error> {
    let key = required_bytes(secret, key::KEY)?;
    let recorded: RunRecord = required(secret, key::RECORD)?;
    let run = recorded.run.as_ref();
    let reported = match report {
        _ if run.is_some_and(|run| !has_own_report(run)) => Reported::read(secret),
        Some(report) => Reported::read(report),
        None => Reported::default(),
    };
    let has_job = run.is_some_and(has_job);
    let mut secrets = report.into_iter().chain([secret]);
    Ok(RecordSeen {
        version: secret.resource_version().unwrap_or_default(),
        report_version: report.and_then(ResourceExt::resource_version),
        key: key.to_vec(),
        record: progress::merge_progress(&recorded, &reported_progress(report), has_job),
        inputs: decoded(secret, key::INPUTS)?,
        report: reported.report,
        outputs: reported.outputs,
        details: reported.details,
        unsaved: secrets.any(|secret| data(secret, key::LEFTOVER).is_some()),
        history: history(secret)?,
    })
}

fn history(secret: &Secret) -> Result<History, Error> {
    match decoded(secret, key::UNSIGNED_HISTORY)? {
        Some(unsigned) if data(secret, key::HISTORY).is_none() => Ok(unsigned),
        _ => required(secret, key::HISTORY),
    }
}

/// Returns the progress in the run report.
fn reported_progress(report: Option<&Secret>) -> ReportedProgress {
    let Some(report) = report else {
        return ReportedProgress::Absent;
    };
    data(report, key::PROGRESS)
        .filter(|bytes| bytes.len() <= MAX_PROGRESS_BYTES)
        .and_then(|bytes| serde_json::from_slice(bytes).ok())
        .map_or(ReportedProgress::Unreadable, |progress| {
            ReportedProgress::Progress(Box::new(progress))
        })
}

/// Result and outputs in the run report at the end of a run.
#[derive(Default)]
struct Reported {
    report: Option<RunReport>,
    outputs: Option<Outputs>,
    details: Option<RunDetails>,
}

impl Reported {
    fn read(secret: &Secret) -> Self {
        let report = data(secret, key::REPORT).filter(|bytes| bytes.len() <= MAX_REPORT_BYTES);
        let outputs = data(secret, key::OUTPUTS).filter(|bytes| json_size::is_small(bytes));
        let details = data(secret, key::DETAILS)
            .filter(|bytes| bytes.len() <= MAX_DETAILS_BYTES && json_size::is_small(bytes));
        Self {
            details: details.and_then(|bytes| serde_json::from_slice(bytes).ok()),
            report: report.and_then(|bytes| serde_json::from_slice(bytes).ok()),
            outputs: outputs.and_then(|bytes| serde_json::from_slice(bytes).ok()),
        }
    }
}

fn data<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    let bytes = secret.data.as_ref()?.get(key)?;
    Some(&bytes.0)
}

fn required_bytes<'a>(secret: &'a Secret, key: &'static str) -> Result<&'a [u8], Error> {
    data(secret, key).ok_or_else(|| Error::Unreadable {
        secret: secret.name_any(),
        key,
    })
}

fn required<T: DeserializeOwned>(secret: &Secret, key: &'static str) -> Result<T, Error> {
    decoded(secret, key)?.ok_or_else(|| Error::Unreadable {
        secret: secret.name_any(),
        key,
    })
}

fn decoded<T: DeserializeOwned>(secret: &Secret, key: &'static str) -> Result<Option<T>, Error> {
    let Some(bytes) = data(secret, key) else {
        return Ok(None);
    };
    serde_json::from_slice(bytes)
        .map(Some)
        .map_err(|_| Error::Unreadable {
            secret: secret.name_any(),
            key,
        })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::json;

    use super::*;

    /// Returns a Secret whose value of `key` is JSON, padded with white space to `size` bytes.
    fn of_size(key: &str, json: &serde_json::Value, size: usize) -> Secret {
        let mut bytes = json.to_string().into_bytes();
        bytes.resize(size, b' ');
        Secret {
            data: Some([(key.to_owned(), ByteString(bytes))].into()),
            ..Secret::default()
        }
    }

    #[test]
    fn larger_reports_and_progress_are_not_read() {
        let progress =
            |size| reported_progress(Some(&of_size(key::PROGRESS, &json!({"number": 1}), size)));
        assert!(matches!(
            progress(MAX_PROGRESS_BYTES),
            ReportedProgress::Progress(_)
        ));
        assert!(matches!(
            progress(MAX_PROGRESS_BYTES + 1),
            ReportedProgress::Unreadable
        ));
        let json = json!({
            "number": 1,
            "kind": "apply",
            "result": "Done",
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:00:01Z",
        });
        let report = |size| Reported::read(&of_size(key::REPORT, &json, size)).report;
        assert!(report(MAX_REPORT_BYTES).is_some());
        assert!(report(MAX_REPORT_BYTES + 1).is_none());
    }
}
