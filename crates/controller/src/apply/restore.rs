//! Restore from a backup: assigns the objects of an earlier resource to the new resource of the same name, by labels.

use alustan_api::labels::{self, Component};
use alustan_api::run::key;
use alustan_core::step::TakeOver;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::json;

use crate::apply::objects::Owned;
use crate::apply::step_executor::{StepExecutor, encoded};
use crate::call::{call, gone};
use crate::error::Error;
use crate::signing::Data;

impl StepExecutor<'_> {
    /// Assigns state, outputs, cache volume, run report and run record of an earlier resource to this one. Deletes its Jobs and the other
    /// objects of its runs, including the pin. The run record is assigned last: until then, the next reconcile repeats the step.
    pub(super) async fn take_over(&mut self, left: &TakeOver) -> Result<(), Error> {
        let theirs = |component: Component| {
            format!(
                "{}={},{}={},{}={},{}={}",
                labels::MANAGED_BY,
                labels::MANAGER,
                labels::NAME,
                self.tf.name_any(),
                labels::UID,
                left.uid,
                labels::COMPONENT,
                component.as_str()
            )
        };
        let runs = theirs(Component::Run);
        self.delete_all::<Job>(&runs).await?;
        self.delete_all::<PodDisruptionBudget>(&runs).await?;
        self.delete_all::<RoleBinding>(&runs).await?;
        self.delete_all::<Role>(&runs).await?;
        self.delete_all::<ServiceAccount>(&runs).await?;
        for derived in [Component::Pin, Component::Plan, Component::Registry] {
            self.delete_all::<Secret>(&theirs(derived)).await?;
        }
        for kept in [Component::State, Component::Outputs] {
            self.rebind_all::<Secret>(&theirs(kept)).await?;
        }
        self.rebind_all::<ConfigMap>(&theirs(Component::Outputs))
            .await?;
        self.rebind_all::<PersistentVolumeClaim>(&theirs(Component::Cache))
            .await?;
        self.rebind_all::<Secret>(&theirs(Component::Report))
            .await?;
        self.rebind_record(left).await
    }

    async fn rebind_all<K: Owned>(&self, selector: &str) -> Result<(), Error> {
        let api = self.api::<K>();
        let list = ListParams::default().labels(selector);
        let what = format!("list {}s to restore", K::kind(&()));
        for found in call(&what, api.list_metadata(&list)).await? {
            gone(self.rebind(&api, &found).await)?;
        }
        Ok(())
    }

    async fn rebind_record(&mut self, left: &TakeOver) -> Result<(), Error> {
        let written = Data::from([
            (key::RECORD.to_owned(), encoded(&left.record)),
            (key::HISTORY.to_owned(), encoded(&left.history)),
        ]);
        let removed = vec![
            key::INPUTS.to_owned(),
            key::signature(key::INPUTS),
            key::UNSIGNED_HISTORY.to_owned(),
            key::REPORT.to_owned(),
            key::OUTPUTS.to_owned(),
        ];
        let metadata = json!({
            "resourceVersion": left.version,
            "labels": {labels::UID: self.tf.uid(), labels::ORPHANED: null},
            "annotations": {labels::RESTORE_TO: null},
        });
        self.patch_record("restore the run record", &metadata, written, removed)
            .await
    }
}
