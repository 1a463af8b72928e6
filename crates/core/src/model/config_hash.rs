//! Digests of the inputs of a run (rule 3).

use std::collections::{BTreeMap, BTreeSet};

use alustan_api::run::Trigger;

/// Digests of what the result of an apply depends on (rule 3), keyed, since some of it is secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Of everything: the config hash. What is found elsewhere and triggers nothing is not in it.
    pub hash: String,
    /// Of all but what is found elsewhere; of where that is looked for, too.
    pub own: String,
    /// Of what is found elsewhere, by where.
    pub found: BTreeMap<String, String>,
}

impl Config {
    /// That only what is found elsewhere changed since a run with `own` and `found`, and what of it.
    pub(crate) fn input_since(
        &self,
        own: &str,
        found: &BTreeMap<String, String>,
    ) -> Option<Trigger> {
        let all: BTreeSet<_> = found.keys().chain(self.found.keys()).collect();
        let changed = all
            .into_iter()
            .filter(|of| found.get(*of) != self.found.get(*of));
        let of: Vec<_> = changed.cloned().collect();
        (own == self.own && !of.is_empty()).then_some(Trigger::Input { of })
    }
}
