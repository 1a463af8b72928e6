//! Names of the resources, for the controller of kube: its cache would hold whole resources otherwise.

use std::sync::Arc;

use alustan_api::{ObjectKey, Terraform};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{PartialObjectMeta, PartialObjectMetaExt as _};
use kube::runtime::reflector::Store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher::Event;
use parking_lot::Mutex;

use crate::indexed_store::Change;
use crate::resource::Guarded;

/// Resource with namespace and name alone.
pub(crate) type ResourceName = PartialObjectMeta<Terraform>;

/// Writer of the names of all resources.
#[derive(Clone, Default)]
pub(super) struct NamesWriter(Arc<Mutex<Writer<ResourceName>>>);

impl NamesWriter {
    /// Returns the names. It is ready after the first [`Self::list`].
    pub(super) fn store(&self) -> Store<ResourceName> {
        self.0.lock().as_reader()
    }

    /// Replaces the names by `all`.
    pub(super) fn list(&self, all: impl IntoIterator<Item = ObjectKey>) {
        let mut names = self.0.lock();
        names.apply_watcher_event(&Event::Init);
        for key in all {
            names.apply_watcher_event(&Event::InitApply(metadata(key)));
        }
        names.apply_watcher_event(&Event::InitDone);
    }

    /// Applies a change after the first list.
    pub(super) fn change(&self, change: &Change<Guarded>) {
        let name = metadata(change.object().key());
        let event = match change {
            Change::Listed(_) => return,
            Change::Applied { .. } => Event::Apply(name),
            Change::Deleted(_) => Event::Delete(name),
        };
        self.0.lock().apply_watcher_event(&event);
    }
}

/// Returns an object with namespace and name alone.
pub(super) fn metadata<K>(key: ObjectKey) -> PartialObjectMeta<K> {
    let metadata = ObjectMeta {
        name: Some(key.name),
        namespace: Some(key.namespace),
        ..ObjectMeta::default()
    };
    metadata.into_response_partial()
}
