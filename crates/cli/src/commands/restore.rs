//! `restore`: requests that the operator assigns an existing run record to a new resource. The run record is that of an earlier resource
//! with the same name, for example from a backup.

use std::time::{Duration, Instant};

use alustan_api::ObjectKey;
use alustan_api::labels::{self, Component};
use alustan_api::run::key;
use alustan_api::{Terraform, names};
use alustan_core::model::orphans;
use alustan_core::model::restored_record::{Rebound, rebound};
use alustan_core::observed::ReportedProgress;
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::cluster::{Cluster, FIELD_MANAGER, call};
use crate::condition::situation;
use crate::error::Error;
use crate::print;
use crate::record::RecordHandle;

/// Time limit for the operator to assign the run record to the new resource.
const PATIENCE: Duration = Duration::from_secs(30);
/// Poll interval of the run record.
const INTERVAL: Duration = Duration::from_millis(500);

/// Continue the state and the run numbers of an earlier resource with the same name, after its Secrets were restored
/// from a backup.
///
/// If the first plan has changes, it waits for approval.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Name of the resource.
    name: String,
}

impl Restore {
    /// Annotates the run record, and waits until the operator has assigned it to the resource.
    pub(crate) async fn run(&self, cluster: &Cluster) -> Result<(), Error> {
        let tf = cluster.resource(&self.name).await?;
        let key = cluster.key(&self.name);
        let secret = find(cluster, &key).await?;
        if secret.labels().get(labels::UID) == tf.metadata.uid.as_ref() {
            return print::line(&format!(
                "the run record already belongs to {key}; nothing to restore"
            ));
        }
        check(&tf, &secret)?;
        let record = RecordHandle::of(cluster, &tf);
        record.check_pods(cluster).await?;
        let (own, _) = record.read().await?;
        let Rebound {
            record: next,
            open_run,
        } = rebound(&own, &reported_progress(&record).await);
        if let Some(number) = open_run {
            print::note(&open(&key, number));
        }
        if record.has_unsaved_state().await? {
            print::note(&format!(
                "Secret {} contains an unsaved state; the next run saves it before any other \
                 operation",
                names::report(&key.name)
            ));
        }
        mark(cluster, &tf, &secret).await?;
        wait(cluster, &tf, &key).await?;
        print::line(&format!(
            "{key} restored: run numbers continue after {}; the first plan waits for approval \
             if it has changes. To wait until the resource is ready: kubectl alustan wait {} -n {}",
            next.number, key.name, key.namespace
        ))
    }
}

/// Returns the Secret with the run record.
///
/// # Errors
/// If the Secret does not exist, or the API server does not respond.
async fn find(cluster: &Cluster, key: &ObjectKey) -> Result<Secret, Error> {
    let name = names::record(&key.name);
    let action = format!("read Secret {name} of {key}");
    call(&action, cluster.api::<Secret>().get_opt(&name))
        .await?
        .ok_or_else(|| {
            Error::Refused(format!(
                "Secret {name} not found in namespace {}. Restore the Secrets of {key} from the \
                 backup first; see docs/backup.md",
                key.namespace
            ))
        })
}

/// Checks that `secret` is the run record of an earlier resource with the name of `tf`.
///
/// # Errors
/// If `secret` belongs to a resource with another name, or is not a run record.
fn check(tf: &Terraform, secret: &Secret) -> Result<(), Error> {
    if orphans::is_left_behind(tf, secret.labels(), Component::Record) {
        return Ok(());
    }
    let owner = secret.labels().get(labels::NAME);
    let owner = owner.map_or_else(
        || "is not a run record of the operator".to_owned(),
        |owner| format!("belongs to Terraform {owner}"),
    );
    Err(Error::Refused(format!(
        "Secret {} {owner} and cannot be restored for {}; keep the Secret, and create the \
         resource with another name",
        secret.name_any(),
        ObjectKey::of(tf)
    )))
}

/// Returns the progress of the last run, from the run report that was restored from the backup.
async fn reported_progress(record: &RecordHandle) -> ReportedProgress {
    let reported = record.reported().await;
    let Some(progress) = reported.get(key::PROGRESS) else {
        return ReportedProgress::Absent;
    };
    serde_json::from_slice(progress).map_or(ReportedProgress::Unreadable, |progress| {
        ReportedProgress::Progress(Box::new(progress))
    })
}

/// Returns the warning about run `number`, which had not ended at the time of the backup.
fn open(key: &ObjectKey, number: i64) -> String {
    let ObjectKey { namespace, name } = key;
    format!(
        "run {number} of {key} was active at the time of the backup, and the state may lack the \
         objects that the run created last. Make sure that the run has ended, in the cluster of the \
         backup: kubectl get pods -n {namespace} -l alustan.io/terraform={name}. If the first plan creates objects \
         that exist, import them before you approve the plan"
    )
}

/// Requests the restore: sets annotation [`labels::RESTORE_TO`] of the run record `secret` to the uid of `tf`.
async fn mark(cluster: &Cluster, tf: &Terraform, secret: &Secret) -> Result<(), Error> {
    let name = secret.name_any();
    let body = json!({"metadata": {
        "uid": secret.uid(), "annotations": {labels::RESTORE_TO: tf.uid()},
    }});
    let parameters = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(&body);
    let api = cluster.api::<Secret>();
    let action = format!("annotate Secret {name}");
    let marked = api.patch_metadata(&name, &parameters, &patch);
    call(&action, marked).await.map(drop)
}

/// Waits until the operator has assigned the run record to `tf`: its label [`labels::UID`] is the uid of `tf`.
///
/// # Errors
/// If the API server does not respond, or the operator does not assign the run record in time. The error contains
/// state, reason and message of `tf`.
async fn wait(cluster: &Cluster, tf: &Terraform, key: &ObjectKey) -> Result<(), Error> {
    let name = names::record(&key.name);
    let action = format!("read Secret {name} of {key}");
    let api = cluster.api::<Secret>();
    let mut ticks = tokio::time::interval(INTERVAL);
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        ticks.tick().await;
        let secret = call(&action, api.get_metadata_opt(&name)).await?;
        let uid = secret
            .as_ref()
            .and_then(|secret| secret.labels().get(labels::UID));
        if uid == tf.metadata.uid.as_ref() {
            return Ok(());
        }
    }
    let tf = cluster.resource(&key.name).await?;
    Err(Error::Refused(format!(
        "the operator did not restore {key} within {} s; current state: {}",
        PATIENCE.as_secs(),
        situation(&tf)
    )))
}

#[cfg(test)]
mod tests {
    use kube::api::ObjectMeta;
    use rstest::rstest;

    use super::*;

    fn terraform() -> Terraform {
        serde_json::from_value(json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "u2"},
            "spec": {
                "gitRepo": {"url": "https://git.test/web"},
                "containerRegistry": {"imageName": "registry.test/web"},
            },
        }))
        .unwrap()
    }

    #[rstest]
    #[case::earlier_resource(Some("web"), None)]
    #[case::other_resource(Some("db"), Some("belongs to Terraform db"))]
    #[case::unknown(None, Some("is not a run record of the operator"))]
    fn record_of_another_resource_is_refused(
        #[case] owner: Option<&str>,
        #[case] refused: Option<&str>,
    ) {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some("web-run".to_owned()),
                labels: owner.map(|owner| labels::of(owner, "u1", Component::Record)),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let message = check(&terraform(), &secret)
            .err()
            .map(|error| error.chain());
        assert_eq!(message.is_some(), refused.is_some(), "{message:?}");
        let message = message.unwrap_or_default();
        assert!(message.contains(refused.unwrap_or_default()), "{message}");
    }
}
