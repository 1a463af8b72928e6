//! Events of the Secrets and `ConfigMap`s that resources name.

use std::collections::HashMap;
use std::sync::Arc;

use alustan_api::{ObjectKey, Terraform};
use kube::ResourceExt;
use kube::runtime::watcher::Event;

use crate::indexed_store::IndexedStore;
use crate::resource::Guarded;
use crate::watch::keys::{self, ResourceKey};
use crate::watch::mapping::key_of;

/// Kind of object that resources name.
#[derive(Clone, Copy)]
pub(crate) struct UsedKind {
    /// Returns the key of the resources that name an object.
    pub(crate) users: fn(ObjectKey) -> ResourceKey,
    /// Returns the objects that a resource names.
    pub(crate) names: fn(&Terraform) -> Vec<ObjectKey>,
}

impl UsedKind {
    /// Secrets that a reconcile reads.
    pub(crate) const SECRETS: Self = Self {
        users: ResourceKey::Secret,
        names: keys::secrets,
    };

    /// `ConfigMap`s that a reconcile reads.
    pub(crate) const CONFIG_MAPS: Self = Self {
        users: ResourceKey::ConfigMap,
        names: keys::config_maps,
    };
}

/// Resource versions of the objects that resources name. After a repeated list, the users of unchanged objects are not reconciled.
pub(super) struct UsedObjects {
    kind: UsedKind,
    resources: IndexedStore<Guarded>,
    /// Namespace of the watch; `None`: all namespaces.
    namespace: Option<String>,
    versions: HashMap<ObjectKey, Option<String>>,
    /// Versions before the current list.
    previous: HashMap<ObjectKey, Option<String>>,
}

impl UsedObjects {
    pub(super) fn new(
        kind: UsedKind,
        resources: IndexedStore<Guarded>,
        namespace: Option<String>,
    ) -> Self {
        Self {
            kind,
            resources,
            namespace,
            versions: HashMap::new(),
            previous: HashMap::new(),
        }
    }

    /// Returns the objects whose users must be reconciled after `event`.
    pub(super) fn changed<K: ResourceExt>(&mut self, event: &Event<K>) -> Vec<ObjectKey> {
        match event {
            Event::Init => {
                // An interrupted list is repeated. Its objects are known.
                self.previous.extend(self.versions.drain());
                Vec::new()
            }
            Event::InitApply(object) => {
                let key = key_of(object);
                let previous = self.previous.remove(&key);
                let is_changed = previous != Some(object.resource_version());
                let is_used = self.record(&key, object.resource_version());
                (is_changed && is_used).then_some(key).into_iter().collect()
            }
            Event::InitDone => {
                self.previous.clear();
                self.missing()
            }
            Event::Apply(object) => {
                let key = key_of(object);
                self.record(&key, object.resource_version());
                vec![key]
            }
            Event::Delete(object) => {
                let key = key_of(object);
                self.versions.remove(&key);
                vec![key]
            }
        }
    }

    /// Stores the version of the object `key` if a resource names the object. Returns whether one does.
    fn record(&mut self, key: &ObjectKey, version: Option<String>) -> bool {
        let is_used = self.resources.has(&(self.kind.users)(key.clone()));
        if is_used {
            self.versions.insert(key.clone(), version);
        } else {
            self.versions.remove(key);
        }
        is_used
    }

    /// Returns the objects that resources name and that the last list did not have: they may have been deleted before the list.
    fn missing(&self) -> Vec<ObjectKey> {
        let names_in = |resource: Arc<Guarded>| {
            let readable = resource.0.as_ref().ok();
            readable.map(self.kind.names).unwrap_or_default()
        };
        let named: Vec<_> = match &self.namespace {
            None => self.resources.all().flat_map(names_in).collect(),
            Some(namespace) => {
                let key = ResourceKey::Namespace(namespace.clone());
                let resources = self.resources.with(&key);
                resources.into_iter().flat_map(names_in).collect()
            }
        };
        named
            .into_iter()
            .filter(|name| !self.versions.contains_key(name))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;
    use crate::indexed_store::indexed_store;

    /// Returns the event of a list with the `ConfigMap` `name` at `version`.
    fn listed(name: &str, version: &str) -> Event<ConfigMap> {
        let map = json!({
            "metadata": {"name": name, "namespace": "team", "resourceVersion": version},
        });
        Event::InitApply(serde_json::from_value(map).unwrap())
    }

    #[test]
    fn repeated_list_reports_changed_and_missing_objects_in_use() {
        let (resources, mut writer) = indexed_store();
        let variables = ["a", "b", "c"].map(|name| json!({"configMapRef": {"name": name}}));
        let tf = json!({
            "metadata": {"name": "web", "namespace": "team"},
            "spec": {
                "gitRepo": {"url": "https://git.test/a"}, "containerRegistry": {"imageName": "registry.test/a"},
                "variablesFrom": variables,
            },
        });
        writer.apply(Event::Apply(Guarded(Ok(
            serde_json::from_value(tf).unwrap()
        ))));
        let mut used = UsedObjects::new(UsedKind::CONFIG_MAPS, resources, None);
        let mut changed = |events: Vec<Event<ConfigMap>>| -> Vec<String> {
            let events = events.iter().flat_map(|event| used.changed(event));
            let mut names: Vec<_> = events.map(|key| key.name).collect();
            names.sort_unstable();
            names
        };
        let list = |versions: &[(&str, &str)], end: Option<Event<ConfigMap>>| {
            let objects = versions.iter().map(|(name, version)| listed(name, version));
            std::iter::once(Event::Init)
                .chain(objects)
                .chain(end)
                .collect()
        };
        let first = [("a", "1"), ("b", "1"), ("c", "1"), ("unused", "1")];
        assert_eq!(
            changed(list(&first, Some(Event::InitDone))),
            ["a", "b", "c"]
        );
        assert_eq!(changed(list(&first, Some(Event::InitDone))), [""; 0]);
        // An interrupted list.
        assert_eq!(changed(list(&[("a", "2")], None)), ["a"]);
        let second = [("a", "2"), ("b", "2"), ("unused", "2")];
        assert_eq!(changed(list(&second, Some(Event::InitDone))), ["b", "c"]);
    }
}
