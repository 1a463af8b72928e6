//! Reads the records of finished runs (`TerraformRun`).

use std::cmp::Reverse;

use alustan_api::labels::{COMPONENT, Component, NAME, UID};
use alustan_api::{Terraform, TerraformRun};
use kube::ResourceExt;
use kube::api::ListParams;

use crate::cluster::{Cluster, call};
use crate::error::Error;

/// Returns the records of the finished runs of `tf`, newest first.
pub(crate) async fn list(cluster: &Cluster, tf: &Terraform) -> Result<Vec<TerraformRun>, Error> {
    let (name, uid) = (tf.name_any(), tf.uid().unwrap_or_default());
    let component = Component::History.as_str();
    let labels = format!("{NAME}={name},{UID}={uid},{COMPONENT}={component}");
    let parameters = ListParams::default().labels(&labels);
    let action = format!("list the TerraformRuns of {}", cluster.key(&name));
    let listed = call(&action, cluster.api::<TerraformRun>().list(&parameters)).await?;
    let mut runs = listed.items;
    runs.sort_by_key(|run| Reverse(run.spec.number));
    Ok(runs)
}

/// Returns the record of run `number` of `tf`.
///
/// # Errors
/// [`Error::Refused`] if there is none.
pub(crate) async fn find(
    cluster: &Cluster,
    tf: &Terraform,
    number: i64,
) -> Result<TerraformRun, Error> {
    let runs = list(cluster, tf).await?;
    let known: Vec<String> = runs.iter().map(|run| run.spec.number.to_string()).collect();
    let found = runs.into_iter().find(|run| run.describes(number));
    found.ok_or_else(|| {
        let known = if known.is_empty() {
            "no run has a record".to_owned()
        } else {
            format!("runs with a record: {}", known.join(", "))
        };
        let key = cluster.key(&tf.name_any());
        Error::Refused(format!("run {number} of {key} has no record; {known}"))
    })
}
