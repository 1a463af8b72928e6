//! Secrets of a managed state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use alustan_api::run::ManagedState;
use alustan_api::{Terraform, labels, names};
use alustan_core::model::orphans;
use alustan_core::model::state_slots::managed_state;
use alustan_core::objects::secrets;
use alustan_state::store::{SlotSource, StateError, StateStore};
use async_trait::async_trait;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use crate::cluster::{FIELD_MANAGER, call};
use crate::error::Error;
use crate::print;
use crate::record::RecordHandle;

/// Opens the managed state of the resource of `record`, with the slots `slots`. `writer` is the id of this process. The
/// store writes this id to the pointer and the slots.
pub(super) async fn open(
    record: &RecordHandle,
    slots: Vec<String>,
    slot_source: Arc<dyn SlotSource>,
    writer: &str,
) -> Result<StateStore, StateError> {
    let pointer = names::state(&record.key.name);
    StateStore::open(
        record.secrets.clone(),
        pointer,
        slots,
        slot_source,
        writer.to_owned(),
    )
    .await
}

/// Source of state slots for reads, which need no further slots.
pub(super) struct NoSlots;

#[async_trait]
impl SlotSource for NoSlots {
    async fn request_slots(&self, _wanted: usize) -> Vec<String> {
        Vec::new()
    }

    fn discarding_previous(&self) {}
}

/// Creates the Secrets of a managed state, as the operator does for a run.
#[derive(Clone)]
pub(super) struct SlotCreator {
    api: Api<Secret>,
    tf: Terraform,
    /// Value for [`RunRecord::slots_wanted`](alustan_api::run::RunRecord::slots_wanted).
    wanted: Arc<AtomicU32>,
}

impl SlotCreator {
    pub(super) fn new(api: Api<Secret>, tf: Terraform) -> Self {
        Self {
            api,
            tf,
            wanted: Arc::default(),
        }
    }

    /// Returns the highest number of slots that writes requested because the existing slots were too few. 0 if there
    /// was no request.
    pub(super) fn slots_wanted(&self) -> u32 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Creates the missing Secrets of the first `slots` slots. Returns the names of these slots.
    pub(super) async fn slots(&self, slots: u32) -> Result<Vec<String>, Error> {
        let state = self.state(slots);
        for slot in secrets::slots(&self.tf, &state) {
            self.make(slot).await?;
        }
        Ok(state.slots)
    }

    /// Creates the pointer if it does not exist.
    pub(super) async fn pointer(&self) -> Result<(), Error> {
        self.make(secrets::pointer(&self.tf, &self.state(0))).await
    }

    /// Returns true if the pointer exists.
    ///
    /// # Errors
    /// If the pointer belongs to another resource.
    pub(super) async fn has_pointer(&self) -> Result<bool, Error> {
        let name = self.state(0).pointer;
        let action = format!("read Secret {name}");
        let secret = call(&action, self.api.get_metadata_opt(&name)).await?;
        if let Some(secret) = &secret {
            check_owner(&self.tf, secret)?;
        }
        Ok(secret.is_some())
    }

    fn state(&self, slots: u32) -> ManagedState {
        managed_state(&self.tf.name_any(), slots)
    }

    async fn make(&self, secret: Secret) -> Result<(), Error> {
        let parameters = PostParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let action = format!("create Secret {}", secret.name_any());
        match call(&action, self.api.create(&parameters, &secret)).await {
            Err(Error::Call { source, .. }) if is_there(&source) => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Fails if `pointer` has the uid of a resource other than `tf`: a push would replace the state of an earlier
/// resource.
fn check_owner(tf: &Terraform, pointer: &impl ResourceExt) -> Result<(), Error> {
    let owner = pointer.labels().get(labels::UID);
    if owner.is_none() || owner == tf.metadata.uid.as_ref() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "Secret {} contains the state of an earlier resource of this name; nothing was written. To \
         adopt that state: {}. Then wait for the next plan, and repeat the push",
        pointer.name_any(),
        orphans::how_to_adopt(tf)
    )))
}

fn is_there(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_already_exists())
}

#[async_trait]
impl SlotSource for SlotCreator {
    async fn request_slots(&self, wanted: usize) -> Vec<String> {
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        self.wanted.fetch_max(wanted, Ordering::Relaxed);
        match self.slots(wanted).await {
            Ok(slots) => slots,
            Err(error) => {
                print::note(&error.chain());
                Vec::new()
            }
        }
    }

    fn discarding_previous(&self) {
        print::note("too few state slots: the push overwrites the previous version of the state");
    }
}

#[cfg(test)]
mod tests {
    use alustan_api::labels::Component;
    use kube::api::ObjectMeta;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::own(Some("u2"), false)]
    #[case::without_labels(None, false)]
    #[case::earlier_resource(Some("u1"), true)]
    fn state_of_an_earlier_resource_is_not_written(
        #[case] uid: Option<&str>,
        #[case] refused: bool,
    ) {
        let tf = json!({
            "apiVersion": "alustan.io/v1alpha1", "kind": "Terraform",
            "metadata": {"name": "web", "namespace": "team", "uid": "u2"},
            "spec": {
                "gitRepo": {"url": "https://git.test/web"},
                "containerRegistry": {"imageName": "registry.test/web"},
            },
        });
        let tf: Terraform = serde_json::from_value(tf).unwrap();
        let pointer = Secret {
            metadata: ObjectMeta {
                name: Some("web-state".to_owned()),
                labels: uid.map(|uid| labels::of("web", uid, Component::State)),
                ..ObjectMeta::default()
            },
            ..Secret::default()
        };
        let message = check_owner(&tf, &pointer).err().map(|error| error.chain());
        assert_eq!(message.is_some(), refused, "{message:?}");
        let message = message.unwrap_or_default();
        assert!(!refused || message.contains(r#""adopt":true"#), "{message}");
    }
}
