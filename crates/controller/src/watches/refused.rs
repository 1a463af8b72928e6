//! What the API server does not let the operator list.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Kinds of objects that are not to be listed, by namespace. Nobody acts in such a namespace: what is not
/// seen is not gone. The other namespaces are none the worse for it.
#[derive(Clone, Default)]
pub(crate) struct Refused(Arc<Mutex<BTreeMap<String, Vec<String>>>>);

impl Refused {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, namespace: &str, kind: &str) {
        let mut all = self.lock();
        all.entry(namespace.to_owned())
            .or_default()
            .push(kind.to_owned());
    }

    /// They are listed now. (There may be several lists of a kind.)
    pub(crate) fn remove(&self, namespace: &str, kind: &str) {
        let mut all = self.lock();
        let Some(kinds) = all.get_mut(namespace) else {
            return;
        };
        if let Some(at) = kinds.iter().position(|it| it == kind) {
            kinds.swap_remove(at);
        }
        if kinds.is_empty() {
            all.remove(namespace);
        }
    }

    /// Whether something may not be listed in this namespace.
    pub(crate) fn has(&self, namespace: &str) -> bool {
        self.lock().contains_key(namespace)
    }

    /// In words, where there is something: which kinds, in which namespaces.
    pub(crate) fn told(&self) -> Option<String> {
        let all = self.lock();
        let told = all.iter().map(|(namespace, kinds)| {
            let mut kinds: Vec<_> = kinds.iter().map(String::as_str).collect();
            kinds.sort_unstable();
            kinds.dedup();
            format!("{} in {namespace}", kinds.join(", "))
        });
        let told: Vec<_> = told.collect();
        (!told.is_empty()).then(|| told.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_closed_until_the_last_of_its_lists_is_there() {
        let refused = Refused::default();
        assert_eq!(refused.told(), None);
        for kind in ["Secret", "Job", "Secret"] {
            refused.add("b", kind);
        }
        refused.add("a", "Pod");
        assert_eq!(refused.told().unwrap(), "Pod in a; Job, Secret in b");
        refused.remove("b", "Secret");
        refused.remove("b", "Job");
        assert!(refused.has("b"));
        refused.remove("b", "Secret");
        refused.remove("b", "Secret");
        assert!(!refused.has("b") && refused.has("a"));
    }
}
