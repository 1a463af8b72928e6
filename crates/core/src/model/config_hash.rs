//! Digests of the inputs of a run (rule 3).

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::run::Trigger;

/// Digests of everything that an apply depends on (rule 3). They are HMACs, because some inputs are secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Config hash: digest of all inputs except values of `spec.variablesFrom` with `trigger: false`.
    pub hash: String,
    /// Digest of all inputs except the values of `spec.variablesFrom`. Includes the entries of `spec.variablesFrom`.
    pub own_hash: String,
    /// Digests of the values of `spec.variablesFrom` with `trigger: true`, by object. Example of an object: `Secret db`.
    pub found: BTreeMap<String, String>,
}

impl Config {
    /// Compares the digests in `self` with `own_hash` and `digests` of an earlier run. Returns the trigger if only values of
    /// `spec.variablesFrom` have changed since that run.
    pub(crate) fn input_since(
        &self,
        own_hash: &str,
        digests: &BTreeMap<String, String>,
    ) -> Option<Trigger> {
        let objects: BTreeSet<_> = digests.keys().chain(self.found.keys()).collect();
        let changed = objects
            .into_iter()
            .filter(|object| digests.get(*object) != self.found.get(*object));
        let changed_objects: Vec<_> = changed.cloned().collect();
        (own_hash == self.own_hash && !changed_objects.is_empty()).then_some(Trigger::Input {
            of: changed_objects,
        })
    }
}
