//! Migration of the config hashes that an operator with a protocol version before 5 wrote.

use alustan_api::run::Pin;

use crate::decide::case::ReconcileCase;
use crate::decide::target::RunConfig;
use crate::model::run_inputs;
use crate::observed::SourceSeen;

/// First protocol version with a config hash that is independent of the image tag.
const SINCE: u32 = 5;

impl ReconcileCase<'_> {
    /// Replaces config hashes of an earlier operator version if only the formula of the hash has changed, so that an upgrade of the
    /// operator starts no apply. Writes the new hashes at once: after a change of the spec, an old hash cannot be distinguished from the
    /// hash of another configuration.
    pub(super) fn renew_hashes(&mut self, source: &SourceSeen, wanted: &RunConfig) {
        let observed = self
            .tf
            .status
            .as_ref()
            .and_then(|status| status.observed_generation);
        if observed != self.tf.metadata.generation {
            return;
        }
        let mut is_renewed = false;
        let pins = std::iter::successors(self.seen.pin.as_ref(), |pin| pin.before.as_deref());
        let has_same_context =
            |pin: &&Pin| pin.protocol < SINCE && pin.context.as_ref() == Some(&source.context);
        for pin in pins.filter(has_same_context) {
            let (tf, key) = (self.tf, &self.record.key);
            let previous = run_inputs::config(tf, key, &pin.tag, &wanted.inputs, self.seen);
            let current = &wanted.config;
            let history = &mut self.history;
            if let Some(applied) = &mut history.applied
                && applied.config_hash == previous.hash
            {
                applied.config_hash.clone_from(&current.hash);
                applied.own_hash.clone_from(&current.own_hash);
                is_renewed = true;
            }
            if let Some(pending) = &mut history.pending
                && pending.config_hash == previous.hash
            {
                pending.config_hash.clone_from(&current.hash);
                is_renewed = true;
            }
            let failed = history.failures.of.strip_prefix(&previous.hash);
            if let Some(suffix) = failed.map(str::to_owned) {
                history.failures.of = format!("{}{suffix}", current.hash);
                is_renewed = true;
            }
        }
        if is_renewed {
            self.steps.push(self.store_history());
        }
    }
}
