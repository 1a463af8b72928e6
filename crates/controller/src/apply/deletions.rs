//! Deletion of outputs, of the `PersistentVolumeClaim` of the cache volume, and of all objects of a resource.

use alustan_api::labels::{self, Component};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::apply::delete::delete_job;
use crate::apply::step_executor::StepExecutor;
use crate::apply::{build_secrets, namespaces};
use crate::call::{call, ignore_not_found};
use crate::error::Error;
use crate::observe::jobs;

impl StepExecutor<'_> {
    /// Deletes the Secret or ConfigMap `name`, which contains outputs. Keeps it if it belongs to another owner.
    pub(super) async fn delete_outputs<K>(&self, name: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let api = self.api::<K>();
        match self.get_own_metadata(&api, name).await {
            Err(Error::NameTaken { .. }) => return Ok(()),
            result => result?,
        };
        let operation = format!("delete {} {name}", K::kind(&()));
        ignore_not_found(call(&operation, api.delete(name, &DeleteParams::default())).await)
    }

    /// Deletes the `PersistentVolumeClaim` of the cache volume. Kubernetes removes the claim after no pod refers to it. A new claim with the same
    /// name can be created only after the removal.
    pub(super) async fn delete_claim(&self) -> Result<(), Error> {
        let name = alustan_api::names::cache(&self.tf.name_any());
        self.ctx.mirrors.claims.forget(&self.namespace(), &name);
        let api = self.api::<PersistentVolumeClaim>();
        self.get_own_metadata(&api, &name).await?;
        let operation = format!("delete PersistentVolumeClaim {name}");
        ignore_not_found(call(&operation, api.delete(&name, &DeleteParams::background())).await)
    }

    /// Deletes finished Jobs that use the `PersistentVolumeClaim` `claim`, with their logs. Kubernetes keeps a `PersistentVolumeClaim`
    /// while a pod refers to it, even a finished one
    /// (<https://kubernetes.io/docs/concepts/storage/persistent-volumes/#storage-object-in-use-protection>).
    pub(super) async fn delete_finished_users(&self, claim: &str) -> Result<(), Error> {
        for job in jobs::finished_users(self.ctx, &self.namespace(), claim) {
            let (name, uid) = (job.name_any(), job.uid().unwrap_or_default());
            delete_job(self.ctx, &self.namespace(), &name, &uid).await?;
        }
        Ok(())
    }

    /// Deletes the builds of the resource in the build namespace, then all objects with the labels of the resource except those of the components
    /// `kept`. Labels the kept objects as orphaned, and never deletes orphaned objects: a retry of the clean-up may find no run record, and then
    /// `kept` has fewer components. Then removes the label `alustan.io/holds-state` of the namespace, if no state is left in it.
    pub(super) async fn clean_up(&self, kept: &[Component]) -> Result<(), Error> {
        let uid = self.tf.uid().unwrap_or_default();
        let own_selector = format!(
            "{}={},{}={uid}",
            labels::MANAGED_BY,
            labels::MANAGER,
            labels::UID
        );
        let not_orphaned_selector = format!("{own_selector},!{}", labels::ORPHANED);
        build_secrets::delete_builds(self.ctx, self.resource).await?;
        self.delete_all::<Job>(&own_selector).await?;
        self.delete_all::<PodDisruptionBudget>(&own_selector)
            .await?;
        self.delete_all::<RoleBinding>(&own_selector).await?;
        self.delete_all::<Role>(&own_selector).await?;
        self.delete_all::<ServiceAccount>(&own_selector).await?;
        for component in kept {
            let component_selector = format!(
                "{own_selector},{}={}",
                labels::COMPONENT,
                component.as_str()
            );
            if *component == Component::Cache {
                self.orphan::<PersistentVolumeClaim>(&component_selector)
                    .await?;
            } else {
                self.orphan::<Secret>(&component_selector).await?;
            }
        }
        self.delete_all::<PersistentVolumeClaim>(&not_orphaned_selector)
            .await?;
        self.delete_all::<ConfigMap>(&own_selector).await?;
        self.delete_all::<Secret>(&not_orphaned_selector).await?;
        if self.ctx.settings.marks_namespaces {
            // Forget that this process labelled the namespace, so that the next reconcile that writes a pin sets the label again. A concurrent
            // reconcile may have skipped the label because the namespace had it. That reconcile has already written its pin, and `remove_label`
            // keeps the label of a namespace with a pin.
            self.ctx.memory.forget_label(&self.namespace());
            namespaces::remove_label(&self.ctx.client, &self.namespace()).await?;
        }
        self.ctx
            .mirrors
            .forget(&self.namespace(), &self.tf.name_any());
        Ok(())
    }

    /// Sets label `alustan.io/orphaned` on all objects that `selector` selects.
    async fn orphan<K>(&self, selector: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let api = self.api::<K>();
        let kind = K::kind(&());
        let parameters = ListParams::default().labels(selector);
        let operation = format!("list {kind}s to orphan");
        let label = json!({"metadata": {"labels": {labels::ORPHANED: "true"}}});
        for object in call(&operation, api.list_metadata(&parameters)).await? {
            let name = object.name_any();
            let operation = format!("label {kind} {name}");
            let patch_parameters = PatchParams::default();
            ignore_not_found(
                call(
                    &operation,
                    api.patch_metadata(&name, &patch_parameters, &Patch::Merge(&label)),
                )
                .await,
            )?;
        }
        Ok(())
    }

    pub(super) async fn delete_all<K>(&self, selector: &str) -> Result<(), Error>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let api = self.api::<K>();
        let kind = K::kind(&());
        let parameters = ListParams::default().labels(selector);
        let operation = format!("list {kind}s to clean up");
        for object in call(&operation, api.list_metadata(&parameters)).await? {
            let name = object.name_any();
            let operation = format!("delete {kind} {name}");
            ignore_not_found(
                call(&operation, api.delete(&name, &DeleteParams::background())).await,
            )?;
        }
        Ok(())
    }
}
