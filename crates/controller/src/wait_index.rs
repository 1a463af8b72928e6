//! Resources that wait for something, for example for a build.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// Resources, of which each waits for at most one `T`, in both directions.
pub(crate) struct WaitIndex<R, T> {
    target_of: HashMap<R, T>,
    waiting_for: HashMap<T, HashSet<R>>,
}

impl<R, T> Default for WaitIndex<R, T> {
    fn default() -> Self {
        Self {
            target_of: HashMap::new(),
            waiting_for: HashMap::new(),
        }
    }
}

impl<R: Hash + Eq + Clone, T: Hash + Eq + Clone> WaitIndex<R, T> {
    /// Records that `resource` waits for `target` alone; `None`: for nothing.
    pub(crate) fn set(&mut self, resource: &R, target: Option<T>) {
        let before = match &target {
            Some(target) => self.target_of.insert(resource.clone(), target.clone()),
            None => self.target_of.remove(resource),
        };
        if before == target {
            return;
        }
        if let Some(before) = before
            && let Some(waiting) = self.waiting_for.get_mut(&before)
        {
            waiting.remove(resource);
            if waiting.is_empty() {
                self.waiting_for.remove(&before);
            }
        }
        if let Some(target) = target {
            let waiting = self.waiting_for.entry(target).or_default();
            waiting.insert(resource.clone());
        }
    }

    /// Returns the resources that wait for `target`.
    pub(crate) fn for_target(&self, target: &T) -> impl Iterator<Item = &R> {
        self.waiting_for.get(target).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_waits_for_its_last_target_only() {
        let mut waiting = WaitIndex::default();
        waiting.set(&"a", Some(1));
        waiting.set(&"b", Some(1));
        waiting.set(&"a", Some(2));
        let for_target = |waiting: &WaitIndex<_, _>, target| -> Vec<&str> {
            waiting.for_target(&target).copied().collect()
        };
        assert_eq!(for_target(&waiting, 1), ["b"]);
        assert_eq!(for_target(&waiting, 2), ["a"]);
        waiting.set(&"a", None);
        waiting.set(&"b", None);
        waiting.set(&"c", None);
        assert!(for_target(&waiting, 2).is_empty());
        assert!(waiting.waiting_for.is_empty() && waiting.target_of.is_empty());
    }
}
