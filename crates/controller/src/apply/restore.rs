//! Restore from a backup: assigns the objects of an earlier resource to the new resource of the same name. Their labels name the owner.

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

use crate::apply::objects::OwnedObject;
use crate::apply::step_executor::{StepExecutor, encoded};
use crate::call::{call, ignore_not_found};
use crate::error::Error;
use crate::signing::Data;

impl StepExecutor<'_> {
    /// Assigns state, outputs, cache volume, run report and run record of an earlier resource to this resource. Deletes the Jobs of the earlier
    /// resource and the other objects of its runs, including the pin. Assigns the run record last: if an earlier assignment fails, the next reconcile
    /// repeats all of them.
    pub(super) async fn take_over(&mut self, takeover: &TakeOver) -> Result<(), Error> {
        let selector_of = |component: Component| {
            format!(
                "{}={},{}={},{}={},{}={}",
                labels::MANAGED_BY,
                labels::MANAGER,
                labels::NAME,
                self.tf.name_any(),
                labels::UID,
                takeover.uid,
                labels::COMPONENT,
                component.as_str()
            )
        };
        let run_selector = selector_of(Component::Run);
        self.delete_all::<Job>(&run_selector).await?;
        self.delete_all::<PodDisruptionBudget>(&run_selector)
            .await?;
        self.delete_all::<RoleBinding>(&run_selector).await?;
        self.delete_all::<Role>(&run_selector).await?;
        self.delete_all::<ServiceAccount>(&run_selector).await?;
        for component in [Component::Pin, Component::Plan, Component::Registry] {
            self.delete_all::<Secret>(&selector_of(component)).await?;
        }
        for component in [Component::State, Component::Outputs] {
            self.rebind_all::<Secret>(&selector_of(component)).await?;
        }
        self.rebind_all::<ConfigMap>(&selector_of(Component::Outputs))
            .await?;
        self.rebind_all::<PersistentVolumeClaim>(&selector_of(Component::Cache))
            .await?;
        self.rebind_all::<Secret>(&selector_of(Component::Report))
            .await?;
        self.rebind_record(takeover).await
    }

    async fn rebind_all<K: OwnedObject>(&self, selector: &str) -> Result<(), Error> {
        let api = self.api::<K>();
        let parameters = ListParams::default().labels(selector);
        let operation = format!("list {}s to restore", K::kind(&()));
        for object in call(&operation, api.list_metadata(&parameters)).await? {
            ignore_not_found(self.rebind(&api, &object).await)?;
        }
        Ok(())
    }

    async fn rebind_record(&mut self, takeover: &TakeOver) -> Result<(), Error> {
        let written = Data::from([
            (key::RECORD.to_owned(), encoded(&takeover.record)),
            (key::HISTORY.to_owned(), encoded(&takeover.history)),
        ]);
        let removed = vec![
            key::INPUTS.to_owned(),
            key::signature(key::INPUTS),
            key::UNSIGNED_HISTORY.to_owned(),
            key::REPORT.to_owned(),
            key::OUTPUTS.to_owned(),
        ];
        let metadata = json!({
            "resourceVersion": takeover.version,
            "labels": {labels::UID: self.tf.uid(), labels::ORPHANED: null},
            "annotations": {labels::RESTORE_TO: null},
        });
        self.patch_record("restore the run record", &metadata, written, removed)
            .await
    }
}
